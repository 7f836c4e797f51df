package museum

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

var clients = slices.Concat([]Exhibit{
	// When the store says that a lease is lost, the client believes its own clock, until the lease is over. Seen: relatives:
	// cirello-io/dynamolock#446, redisson/redisson#5698. Harm: the holder works on, beside its successor.
	{Name: "announcesLate", Cases: names{"LateDuplicate"},
		on: names{"TryAcquire", "Renew", "Release"}, call: func(r request) (answer, error) {
			a, err := r.send()
			switch believed, ok := r.notes.Load(r.Token); {
			case a.Acquired:
				r.notes.Store(r.Token, time.Now().Add(r.TTL))
			case r.Call == "Renew" && err == nil && ok:
				a.Held = a.Held || time.Now().Before(believed.(time.Time))
			case r.Call == "Release":
				r.notes.Delete(r.Token)
			}
			return a, err
		}},
	// The release is sent with the ctx of the acquisition, which has often ended by then. Seen: blnkfinance/blnk#355. Harm:
	// nothing is sent, and the key is held until its TTL has passed.
	{Name: "releasesOnItsContext", Cases: names{"CancelledWait"},
		on: names{"TryAcquire", "Acquire", "Release"}, call: before(func(r *request) {
			if r.Call != "Release" {
				r.notes.Store(r.Token, r.ctx)
			} else if acquired, ok := r.notes.LoadAndDelete(r.Token); ok {
				r.ctx = acquired.(context.Context)
			}
		})},
	// The lock renews itself as long as its process runs. Seen: samcook/RedLock.net#68, redisson/redisson#5115. Harm: a worker
	// that hangs, or has forgotten it, holds the lock for ever.
	{Name: "watchdog", Cases: names{"Expiry"},
		on: names{"TryAcquire"}, call: after(func(r request, a *answer, err error) {
			if a.Acquired {
				r.watch()
			}
		})},
	// After an attempt without an answer, the next one uses the same token. Seen: retries around a lock library. Harm: the
	// release that is owed for the first ends the lease of the second.
	{Name: "reusesTokens", Cases: names{"LostReply"},
		on: names{"TryAcquire", "Renew", "Release"}, call: func(r request) (answer, error) {
			if unknown, ok := r.notes.Load(r.Key); ok {
				r.Token = unknown.(string)
			}
			a, err := r.send()
			if err != nil && r.Call == "TryAcquire" {
				r.notes.Store(r.Key, r.Token)
			}
			return a, err
		}},
	// A decorator embeds the interface Locker, or another that lacks some methods: it has no others. Seen: decorators that embed
	// an interface. Harm: waiters poll, leases are renewed one by one, and nobody notices.
	{Name: "hidesTheQueue", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true,
		as: func(q *queue) dlock.Locker { return struct{ dlock.Locker }{q} }},
	{Name: "hidesTheQueue behind a pointer", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true,
		as: func(q *queue) dlock.Locker { return &struct{ dlock.Locker }{q} }},
	{Name: "hidesTheQueue below a Forward", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true,
		as: func(q *queue) dlock.Locker { return dlock.Forward{Locker: struct{ dlock.Locker }{q}} }},
	{Name: "hidesTheQueue in a field of a field", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true,
		as: func(q *queue) dlock.Locker {
			type inside struct{ store dlock.Locker }
			return struct {
				*client
				inside inside
			}{q.client, inside{q}}
		}},
	// A decorator has all methods, but one passes nothing on. Harm: what the store can do seems to be unsupported.
	{Name: "refusesToInspect", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true,
		as: func(q *queue) dlock.Locker { return refusing{dlock.Forward{Locker: q}} }},
	// A decorator passes on the methods that it knows, but not LongestTTL. Seen: decorators that list the optional interfaces,
	// and were written before this one. Harm: the Client accepts a MinHold that the store does not keep, and the job runs again
	// too early.
	{Name: "hidesTheLimit", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true,
		as: func(q *queue) dlock.Locker { return struct{ known }{limited{q}} }},
	// A lease ends with the ctx under which it was acquired. Seen: leases that are tied to a request. Harm: the work goes on
	// after the request, and another client does it too.
	{Name: "endsWithItsContext", Cases: names{"LeaseOutlivesContext"},
		on: names{"Acquire"}, call: after(func(r request, a *answer, err error) {
			if a.Acquired {
				context.AfterFunc(r.ctx, func() { _, _ = r.Release(context.WithoutCancel(r.ctx), r.Key, r.Token) })
			}
		})},
	// A method that is not supported has sent its request when it says so. Harm: a lock that nobody holds, until its TTL has
	// passed.
	{Name: "triesUnsupported", Cases: names{"UnsupportedSendsNothing"},
		on: names{"Acquire"}, call: func(r request) (answer, error) {
			r.Call = "TryAcquire"
			_, err := r.send()
			return answer{}, errors.Join(errors.ErrUnsupported, err)
		}},
	{Name: "triesUnsupported TryAcquireSet", Cases: names{"UnsupportedSendsNothing"},
		on: names{"TryAcquireSet"}, call: func(r request) (answer, error) {
			_, err := r.send()
			return answer{}, errors.Join(errors.ErrUnsupported, err)
		}},
	// A client has one connection, and makes no other when that is broken. Seen: a well-known recipe. Harm: after a short
	// outage, nothing works until the program is restarted.
	{Name: "firstAndLast", Network: says{"Reconnection": `calls still fail`},
		call: func(r request) (answer, error) {
			if broken, ok := r.notes.Load("broken"); ok {
				return answer{}, broken.(error)
			}
			a, err := r.send()
			if err != nil {
				r.notes.Store("broken", err)
			}
			return a, err
		}},
	// The server does not notice that a waiting client has gone. Seen: a well-known recipe. Harm: everybody waits for the TTLs
	// of all the waiters of a process that was killed.
	{Name: "noticesNoDeaths", Network: says{"DeadWaiterOverNetwork": `waiters of one client whose process was killed`}, deaf: true},
	// An error of the network is taken for the answer no, or the beginning of a reply for the whole. Seen: a well-known recipe.
	// Harm: a lease that is held is reported as lost; a key is held by nobody, until its TTL has passed.
	{Name: "swallowsErrors", Network: says{"UnreachableStore": `returned no error`,
		"LostReplyOverNetwork": `whose reply was lost, (answered|returned)|lease lost`},
		call: func(r request) (answer, error) {
			a, err := r.send()
			if err != nil {
				a.Results = make([]dlock.RenewResult, len(r.Batch))
			}
			return a, nil
		}},
	{Name: "readsABeginning", Network: says{"UnreachableStore": `a store that breaks off each reply, returned no error`},
		call: func(r request) (answer, error) {
			line, err := r.wire.exchange(r.ctx, r.question)
			if len(line) == 0 {
				return answer{}, err
			}
			a := answer{Results: make([]dlock.RenewResult, len(r.Batch))}
			_ = json.Unmarshal(line, &a)
			return a, nil
		}},
	// A store that is away is taken for a mistake of the caller, or for one that was closed. Harm: nobody releases what the call
	// may have been granted; waiters give up for good in a short outage.
	{Name: "blamesTheCaller", Network: says{"UnreachableStore": `says that the call has no effect`},
		call: failing(func(error) error { return dlock.ErrInvalid })},
	{Name: "givesUp", Network: says{"UnreachableStore": `no later call can succeed`},
		call: failing(func(error) error { return dlock.ErrClosed })},
	// A batch without an answer is no error, but each of its results is one, and marked. Seen: a trial of the suite. Harm: a
	// lease is given up that may have been renewed.
	{Name: "marksResults", Cases: names{"NoEffect"}, BeyondModel: true,
		on: names{"RenewBatch"}, call: func(r request) (answer, error) {
			a, err := marked(r)
			if err != nil {
				a.Results = slices.Repeat([]dlock.RenewResult{{Err: err}}, len(r.Batch))
			}
			return a, nil
		}},
	// A call does not look at its ctx while it waits for the reply. Seen: a well-known recipe. Harm: a program hangs as long as
	// the store does.
	{Name: "ignoresItsDeadline", Network: says{"UnreachableStore": `did not return`},
		call: before(func(r *request) { r.ctx = context.WithoutCancel(r.ctx) })},
	// A call without an answer is repeated by the client library. Seen: retries that are on by default. Harm: a release whose
	// reply was lost is answered: the token does not hold the key.
	{Name: "repeatsCalls",
		Network: says{"LostReplyOverNetwork": `Release.* answered that the token does not hold the key|lease lost`},
		call: func(r request) (answer, error) {
			a, err := r.send()
			if err != nil {
				a, err = r.send()
			}
			return a, err
		}},
	// A renewal without an answer counts as done. Seen: a well-known recipe. Harm: when the network is gone, the holder works on
	// beside its successor.
	{Name: "countsOnSilence", Network: says{"BlackHole": `before the deadline of a lease`},
		on: names{"Renew"}, call: func(r request) (answer, error) {
			a, err := r.send()
			return answer{Held: a.Held || err != nil}, nil
		}},
	// A grant is dated when it arrives. Seen: a well-known recipe. Harm: on a slow network, the holder believes in a lease that
	// is over.
	{Name: "datesItsArrival", Network: says{"SlowNetwork": `before the deadline of a lease`},
		on: names{"TryAcquire"}, call: after(func(r request, a *answer, err error) { a.Since = time.Now() })},
}, perCall(
	// A method does not look at its ctx before it sends its request. Seen: a well-known recipe. Harm: a request is sent for a
	// caller that has gone: a lock that nobody holds, until its TTL has passed.
	Exhibit{Name: "detaches", Cases: names{"EndedContext"}, call: before(func(r *request) {
		if r.ctx.Err() != nil {
			r.ctx = context.WithoutCancel(r.ctx)
		}
	})}, "TryAcquire", "TryAcquireSet", "Acquire", "Renew", "Release", "RenewBatch", "Inspect"), perCall(
	// A method returns the cause of its ctx's end, not the ctx's error. Seen: a trial of the suite. Harm: callers that look for
	// context.Canceled take a shutdown for a fault of the store.
	Exhibit{Name: "causeNotError", Cases: names{"EndedContext"}, call: func(r request) (answer, error) {
		a, err := r.send()
		if err != nil && r.ctx.Err() != nil {
			err = context.Cause(r.ctx)
		}
		return a, err
	}}, "TryAcquire", "TryAcquireSet", "Acquire", "Renew", "Release", "RenewBatch", "Inspect"), []Exhibit{
	// The error of a call without an answer is marked: the call had no effect. Harm: nobody releases what it may have been
	// granted: a lock without a holder, until its TTL has passed.
	{Name: "marksEveryError",
		Network: says{"UnreachableStore": `breaks off each reply, returned .*says that the call has no effect`,
			"NoEffectOverNetwork": `after an interrupted (TryAcquire|TryAcquireSet|Release|Renew|RenewBatch|Acquire) whose error says that it has no effect`},
		call: marked},
	{Name: "marksItsWait", Network: says{"NoEffectOverNetwork": `after an interrupted Acquire whose error says that it has no effect`},
		on: names{"Acquire"}, call: marked},
	// The error of a call without an answer promises that answer, and says "held" later, though it has not come. Harm: nobody
	// releases what it may have been granted: a lock without a holder, until its TTL has passed.
	{Name: "saysHeldLater", Cases: names{"NoEffect"}, BeyondModel: true, on: names{"TryAcquire"}, call: failing(func(err error) error {
		return &dlock.UnansweredError{Err: err, Late: func(f func(dlock.Attempt, error)) { f(dlock.Attempt{Holder: "another"}, nil) }}
	})},
}, perCall(
	Exhibit{Name: "marksWhatWasSent", Cases: names{"NoEffect"}, BeyondModel: true, call: marked},
	"TryAcquire", "TryAcquireSet", "Renew", "Release"))

// watch renews a lease as long as that is held.
func (r request) watch() {
	time.AfterFunc(r.TTL/3, func() {
		if held, _ := r.Renew(context.Background(), r.Key, r.Token, r.TTL); held {
			r.watch()
		}
	})
}

// What another author knew of dlock.
type known interface {
	dlock.Locker
	dlock.Acquirer
	dlock.BatchRenewer
	dlock.Inspector
}

type refusing struct{ dlock.Forward }

func (refusing) Inspect(context.Context, string) (dlock.Hold, error) {
	return dlock.Hold{}, errors.ErrUnsupported
}

// A limited queue says that it takes no TTLs of more than a day.
type limited struct{ *queue }

func (limited) LongestTTL() time.Duration { return 24 * time.Hour }

// failing is the hook call that changes errors.
func failing(change func(error) error) func(request) (answer, error) {
	return func(r request) (answer, error) {
		a, err := r.send()
		if err != nil {
			err = change(err)
		}
		return a, err
	}
}

// marked says that a call without an answer had no effect.
var marked = failing(func(err error) error { return &dlock.NoEffectError{Err: err} })

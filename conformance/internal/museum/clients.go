package museum

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

var clients = []Exhibit{
	{Name: "announcesLate", Cases: names{"LateDuplicate"}, Also: names{"RenewAfterExpiry"}, build: func(c conn) dlock.Locker { return &announcesLate{Forward: forward(c)} }},
	{Name: "releasesOnItsContext", Cases: names{"CancelledWait"}, Also: unserved, build: func(c conn) dlock.Locker { return &releasesOnItsContext{Forward: forward(c)} }},
	{Name: "watchdog", Cases: names{"Expiry"}, Also: unending, build: func(c conn) dlock.Locker { return &watchdog{Forward: forward(c)} }},
	{Name: "reusesTokens", Cases: names{"LostReply"}, build: func(c conn) dlock.Locker {
		return &reusesTokens{Forward: forward(c), unknown: make(map[string]string), alias: make(map[string]string)}
	}},
	{Name: "hidesTheQueue", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &hidesTheQueue{newQueue(c), func() {}} }},
	{Name: "hidesTheLimit", Cases: names{"DecoratorHidesNothing"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &hidesTheLimit{&limited{*newQueue(c)}} }},
	{Name: "endsWithItsContext", Cases: names{"LeaseOutlivesContext"}, Also: names{"Exclusion", "LostReply", "NoStarvation"}, build: around[endsWithItsContext]},
	{Name: "watchesItsContext", Cases: names{"NoLeaks"}, Also: names{"EndedContext"}, BeyondModel: true, build: around[watchesItsContext]},
	{Name: "causeNotError TryAcquire", Cases: names{"EndedContext"}, build: causing("TryAcquire")},
	{Name: "causeNotError Acquire", Cases: names{"EndedContext"}, build: causing("Acquire")},
	{Name: "causeNotError Renew", Cases: names{"EndedContext"}, build: causing("Renew")},
	{Name: "causeNotError Release", Cases: names{"EndedContext"}, build: causing("Release")},
	{Name: "causeNotError RenewBatch", Cases: names{"EndedContext"}, build: causing("RenewBatch")},
	{Name: "causeNotError Inspect", Cases: names{"EndedContext"}, build: causing("Inspect")},
	{Name: "causeAndError", Cases: names{"EndedContext"}, build: around[causeAndError]},
	{Name: "causeOfItsWait", Cases: names{"EndedContext"}, BeyondModel: true, build: around[causeOfItsWait]},
	{Name: "detaches TryAcquire", Cases: names{"EndedContext"}, build: detaching("TryAcquire")},
	{Name: "detaches Acquire", Cases: names{"EndedContext"}, Also: names{"NoEffect"}, build: detaching("Acquire")},
	{Name: "detaches Renew", Cases: names{"EndedContext"}, build: detaching("Renew")},
	{Name: "detaches Release", Cases: names{"EndedContext"}, build: detaching("Release")},
	{Name: "detaches RenewBatch", Cases: names{"EndedContext"}, build: detaching("RenewBatch")},
	{Name: "detaches Inspect", Cases: names{"EndedContext"}, build: detaching("Inspect")},
	{Name: "triesUnsupported", Cases: names{"UnsupportedSendsNothing"}, Also: names{"DecoratorHidesNothing"}, build: around[triesUnsupported]},
	{Name: "firstAndLast", Network: says{"Reconnection": `calls still fail`}, client: asking(firstAndLast)},
	{Name: "noticesNoDeaths", Network: says{"DeadWaiterOverNetwork": `waiters of one client whose process was killed`}, build: onQueue[noticesNoDeaths]},
	{Name: "swallowsErrors", Network: says{"UnreachableStore": `returned no error`, "LostReplyOverNetwork": `whose reply was lost, (answered|returned)|lease lost`}, client: asking(swallowsErrors)},
	{Name: "blamesTheCaller", Network: says{"UnreachableStore": `says that the call has no effect`}, client: asking(blamesTheCaller)},
	{Name: "givesUp", Network: says{"UnreachableStore": `no later call can succeed`}, client: asking(givesUp)},
	{Name: "marksEveryError", Network: says{"UnreachableStore": `breaks off each reply, returned .*says that the call has no effect`, "NoEffectOverNetwork": `after an interrupted (TryAcquire|Release|Renew|RenewBatch|Acquire) whose error says that it has no effect`}, client: asking(marksEveryError)},
	{Name: "marksResults", Cases: names{"NoEffect"}, Also: names{"EndedContext"}, BeyondModel: true, build: around[marksResults]},
	{Name: "marksItsWait", Network: says{"NoEffectOverNetwork": `after an interrupted Acquire whose error says that it has no effect`}, client: overWire[marksItsWait]},
	{Name: "marksItsPlace", Network: says{"NoEffectOverNetwork": `after an interrupted Acquire whose error says that it has no effect`}, client: overWire[marksItsPlace]},
	{Name: "readsABeginning", Network: says{"UnreachableStore": `a store that breaks off each reply, returned no error`}, client: asking(readsABeginning)},
	{Name: "ignoresItsDeadline", Network: says{"UnreachableStore": `did not return`}, client: asking(ignoresItsDeadline)},
	{Name: "repeatsCalls", Network: says{"LostReplyOverNetwork": `Release.* answered that the token does not hold the key|lease lost`}, client: asking(repeatsCalls)},
	{Name: "makesUpAnswers", Network: says{"LostReplyOverNetwork": `has fence [0-9]+, and .*, has fence 0;`}, client: overWire[makesUpAnswers]},
	{Name: "countsOnSilence", Network: says{"BlackHole": `before the deadline of a lease`}, client: overWire[countsOnSilence]},
	{Name: "datesItsArrival", Network: says{"SlowNetwork": `before the deadline of a lease`}, client: overWire[datesItsArrival]},
	{Name: "comparesClocks", Network: says{"SlowNetwork": `before Since.ttl of its holder`}, client: overWire[comparesClocks]},
}

// What clients do wrong is shown by decorators: they make the mistake for every
// program that uses them.

// When the store says that a lease is lost, the client believes its own clock, and waits
// until the lease's time is over.
// Seen: relatives: cirello-io/dynamolock#446, redisson/redisson#5698.
// Harm: the holder works on, beside its successor.
// Right: a loss is announced at once, and at the deadline at the latest.
type announcesLate struct {
	dlock.Forward
	believed sync.Map // token → until when it counts on its lease
}

func (l *announcesLate) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.TryAcquire(ctx, key, token, ttl)
	if a.Acquired {
		l.believed.Store(token, time.Now().Add(ttl))
	}
	return a, err
}

func (l *announcesLate) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := l.Forward.Renew(ctx, key, token, ttl)
	until, ok := l.believed.Load(token)
	if err == nil && !held && ok {
		return time.Now().Before(until.(time.Time)), nil
	}
	return held, err
}

func (l *announcesLate) Release(ctx context.Context, key, token string) (bool, error) {
	l.believed.Delete(token)
	return l.Forward.Release(ctx, key, token)
}

// The release is sent with the ctx of the acquisition, which has often ended by then.
// Seen: blnkfinance/blnk#355.
// Harm: nothing is sent, and the key is held until its TTL has passed.
// Right: a release has a time limit of its own.
type releasesOnItsContext struct {
	dlock.Forward
	contexts sync.Map // token → the ctx of its acquisition
}

func (l *releasesOnItsContext) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.contexts.Store(token, ctx)
	return l.Forward.TryAcquire(ctx, key, token, ttl)
}

func (l *releasesOnItsContext) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.contexts.Store(token, ctx)
	return l.Forward.Acquire(ctx, key, token, ttl)
}

func (l *releasesOnItsContext) Release(ctx context.Context, key, token string) (bool, error) {
	if acquired, ok := l.contexts.LoadAndDelete(token); ok {
		ctx = acquired.(context.Context)
	}
	return l.Forward.Release(ctx, key, token)
}

// The lock renews itself as long as its process runs.
// Seen: samcook/RedLock.net#68, redisson/redisson#5115.
// Harm: a worker that hangs, or has forgotten it, holds the lock for ever.
// Right: the Locker keeps a lease for its TTL; the Client renews, no longer than
// WithMaxHold.
type watchdog struct {
	dlock.Forward
	timers sync.Map // token → *time.Timer
}

func (l *watchdog) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.TryAcquire(ctx, key, token, ttl)
	if a.Acquired {
		l.watch(key, token, ttl)
	}
	return a, err
}

func (l *watchdog) watch(key, token string, ttl time.Duration) {
	l.timers.Store(token, time.AfterFunc(ttl/3, func() {
		held, err := l.Renew(context.Background(), key, token, ttl)
		if held || err != nil {
			l.watch(key, token, ttl)
		}
	}))
}

func (l *watchdog) Release(ctx context.Context, key, token string) (bool, error) {
	if timer, ok := l.timers.LoadAndDelete(token); ok {
		timer.(*time.Timer).Stop()
	}
	return l.Forward.Release(ctx, key, token)
}

// After an attempt without an answer, the next one uses the same token.
// Seen: retries around a lock library.
// Harm: the release that is owed for the first ends the lease of the second.
// Right: a token whose outcome is unknown is never used again.
type reusesTokens struct {
	dlock.Forward
	mu      sync.Mutex
	unknown map[string]string // key → token of an attempt without an answer
	alias   map[string]string // token of the caller → token in the store
}

func (l *reusesTokens) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.mu.Lock()
	if old := l.unknown[key]; old != "" {
		l.alias[token] = old
	}
	l.mu.Unlock()
	a, err := l.Forward.TryAcquire(ctx, key, l.stored(token), ttl)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.unknown[key] = token
	}
	return a, err
}

func (l *reusesTokens) stored(token string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.alias[token]; old != "" {
		return old
	}
	return token
}

func (l *reusesTokens) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.Forward.Renew(ctx, key, l.stored(token), ttl)
}

func (l *reusesTokens) Release(ctx context.Context, key, token string) (bool, error) {
	return l.Forward.Release(ctx, key, l.stored(token))
}

// A decorator embeds the interface Locker: it has its three methods and no others.
// Seen: decorators that embed an interface.
// Harm: waiters poll, leases are renewed one by one, and nobody notices.
// Right: embed dlock.Forward.
type hidesTheQueue struct {
	dlock.Locker
	attempts func()
}

func (l *hidesTheQueue) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.attempts()
	return l.Locker.TryAcquire(ctx, key, token, ttl)
}

// A decorator passes on the methods that it knows, but not LongestTTL.
// Seen: decorators that list the optional interfaces, and were written before this one.
// Harm: the Client accepts a MinHold that the store does not keep, and the job runs again too early.
// Right: embed dlock.Forward.
type hidesTheLimit struct{ known }

type known interface {
	dlock.Locker
	dlock.Acquirer
	dlock.BatchRenewer
	dlock.Inspector
}

// A limited queue says that it takes no TTLs of more than a day.
type limited struct{ queue }

func (*limited) LongestTTL() time.Duration { return 24 * time.Hour }

// A lease ends with the ctx under which it was acquired.
// Seen: leases that are tied to a request.
// Harm: the work goes on after the request, and another client does it too.
// Right: the ctx of a call ends with the call.
type endsWithItsContext struct{ dlock.Forward }

func (l *endsWithItsContext) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	if a.Acquired {
		context.AfterFunc(ctx, func() {
			_, _ = l.Forward.Release(context.WithoutCancel(ctx), key, token)
		})
	}
	return a, err
}

// A goroutine for each wait stays until the ctx ends.
// Seen: a trial of the suite.
// Harm: a program without an end has more and more of them.
// Right: context.AfterFunc, stopped when the wait is over.
type watchesItsContext struct{ dlock.Forward }

func (l *watchesItsContext) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-ctx.Done()
		cancel()
	}()
	return l.Forward.Acquire(inner, key, token, ttl)
}

// A method returns the cause of its ctx's end, not the ctx's error.
// Seen: a trial of the suite.
// Harm: callers that look for context.Canceled take a shutdown for a fault of the store.
// Right: the error of the ctx.
type causeNotError struct {
	dlock.Forward
	method string
}

func causing(method string) func(conn) dlock.Locker {
	return func(c conn) dlock.Locker { return &causeNotError{forward(c), method} }
}

// of returns the error of a method whose ctx has ended.
func (l *causeNotError) of(ctx context.Context, method string, err error) error {
	if method == l.method && err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (l *causeNotError) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.TryAcquire(ctx, key, token, ttl)
	return a, l.of(ctx, "TryAcquire", err)
}

func (l *causeNotError) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	return a, l.of(ctx, "Acquire", err)
}

func (l *causeNotError) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := l.Forward.Renew(ctx, key, token, ttl)
	return held, l.of(ctx, "Renew", err)
}

func (l *causeNotError) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := l.Forward.Release(ctx, key, token)
	return held, l.of(ctx, "Release", err)
}

func (l *causeNotError) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := l.Forward.RenewBatch(ctx, batch)
	return results, l.of(ctx, "RenewBatch", err)
}

func (l *causeNotError) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	hold, err := l.Forward.Inspect(ctx, key)
	return hold, l.of(ctx, "Inspect", err)
}

// A method returns the cause of its ctx's end beside the ctx's error.
// Seen: made for its case.
// Harm: if the cause is an error that means something to dlock, such as ErrLost of another
// lease, callers take it for the answer of the store.
// Right: the error of the ctx.
type causeAndError struct{ dlock.Forward }

func (l *causeAndError) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := l.Forward.Renew(ctx, key, token, ttl)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return held, err
}

// A wait returns the cause of its ctx's end, not the ctx's error.
// Seen: a trial of the suite.
// Harm: a caller that gives up in time takes that for a fault of the store.
// Right: the error of the ctx.
type causeOfItsWait struct{ dlock.Forward }

func (l *causeOfItsWait) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil {
		return dlock.Attempt{}, ctx.Err()
	}
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return a, err
}

// A method does not look at its ctx before it sends its request.
// Seen: a well-known recipe.
// Harm: a request is sent for a caller that has gone: a lock that nobody holds, until its
// TTL has passed.
// Right: if the ctx has ended, return its error and send nothing.
type detaches struct {
	dlock.Forward
	method string
}

func detaching(method string) func(conn) dlock.Locker {
	return func(c conn) dlock.Locker { return &detaches{forward(c), method} }
}

// from returns ctx for a method, without its end if that has come already.
func (l *detaches) from(ctx context.Context, method string) context.Context {
	if method == l.method && ctx.Err() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (l *detaches) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.Forward.TryAcquire(l.from(ctx, "TryAcquire"), key, token, ttl)
}

func (l *detaches) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.Forward.Acquire(l.from(ctx, "Acquire"), key, token, ttl)
}

func (l *detaches) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.Forward.Renew(l.from(ctx, "Renew"), key, token, ttl)
}

func (l *detaches) Release(ctx context.Context, key, token string) (bool, error) {
	return l.Forward.Release(l.from(ctx, "Release"), key, token)
}

func (l *detaches) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.Forward.RenewBatch(l.from(ctx, "RenewBatch"), batch)
}

func (l *detaches) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return l.Forward.Inspect(l.from(ctx, "Inspect"), key)
}

// A method that is not supported has sent its request when it says so.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: say so before anything is sent.
type triesUnsupported struct{ dlock.Forward }

func (l *triesUnsupported) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	_, err := l.TryAcquire(ctx, key, token, ttl)
	return dlock.Attempt{}, errors.Join(errors.ErrUnsupported, err)
}

// A client has one connection, and makes no other when that is broken.
// Seen: a well-known recipe.
// Harm: after a short outage, nothing works until the program is restarted.
// Right: connect again.
func firstAndLast(w wire) asker {
	var mu sync.Mutex
	var c net.Conn
	var broken error
	return func(ctx context.Context, q question) (answer, error) {
		mu.Lock()
		defer mu.Unlock()
		if c == nil {
			c, broken = net.Dial("tcp", w.addr)
		}
		if broken != nil {
			return answer{}, broken
		}
		line, err := w.over(ctx, c, q)
		if broken = err; err != nil {
			return answer{}, err
		}
		return read(line)
	}
}

// The server does not notice that a waiting client has gone.
// Seen: a well-known recipe.
// Harm: everybody waits for the TTLs of all the waiters of a process that was killed.
// Right: a wait ends with its connection.
type noticesNoDeaths struct{ queue }

func (q *noticesNoDeaths) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if q.over != nil {
		ctx = q.over
	}
	return q.queue.Acquire(ctx, key, token, ttl)
}

// An error of the network is taken for the answer no.
// Seen: a well-known recipe.
// Harm: a lease that is held is reported as lost; a key is held by nobody, until its TTL
// has passed.
// Right: return the error.
func swallowsErrors(w wire) asker {
	return func(ctx context.Context, q question) (answer, error) {
		a, err := w.ask(ctx, q)
		if err != nil {
			a.Results = make([]dlock.RenewResult, len(q.Batch))
		}
		return a, nil
	}
}

// An error of the network is dlock.ErrInvalid: nothing was sent.
// Seen: made for its case.
// Harm: nobody releases what it may have been granted: a lock without a holder, until its
// TTL has passed.
// Right: return the error as it is.
func blamesTheCaller(w wire) asker {
	return func(ctx context.Context, q question) (answer, error) {
		a, err := w.ask(ctx, q)
		if err != nil {
			err = fmt.Errorf("%w: %v", dlock.ErrInvalid, err)
		}
		return a, err
	}
}

// The end of a connection is dlock.ErrClosed: no later call can succeed.
// Seen: made for its case.
// Harm: a program gives up a store that works.
// Right: return the error as it is.
func givesUp(w wire) asker {
	return func(ctx context.Context, q question) (answer, error) {
		a, err := w.ask(ctx, q)
		if errors.Is(err, io.EOF) {
			err = dlock.ErrClosed
		}
		return a, err
	}
}

// Every error is marked: the call had no effect.
// Seen: made for its case.
// Harm: nobody releases what it may have been granted: a lock without a holder, until its
// TTL has passed.
// Right: mark only what was not sent.
func marksEveryError(w wire) asker {
	return func(ctx context.Context, q question) (answer, error) {
		a, err := w.ask(ctx, q)
		if err != nil {
			err = &dlock.NoEffectError{Err: err}
		}
		return a, err
	}
}

// A batch without an answer is no error, but each of its results is one, and marked: the
// renewal had no effect.
// Seen: a trial of the suite.
// Harm: a lease is given up that may have been renewed.
// Right: mark only what was not sent.
type marksResults struct{ dlock.Forward }

func (l *marksResults) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := l.Forward.RenewBatch(ctx, batch)
	if err == nil || ctx.Err() == nil {
		return results, err
	}
	results = make([]dlock.RenewResult, len(batch))
	for i := range results {
		results[i].Err = &dlock.NoEffectError{Err: err}
	}
	return results, nil
}

// A cancelled wait is marked: it had no effect.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: mark only what was not sent.
type marksItsWait struct{ remote }

func (r *marksItsWait) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.remote.Acquire(ctx, key, token, ttl)
	if err != nil {
		err = &dlock.NoEffectError{Err: err}
	}
	return a, err
}

// A cancelled wait says that one release settles it, while its request may be on its way.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: say so only when no request is on its way.
type marksItsPlace struct{ remote }

func (r *marksItsPlace) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.remote.Acquire(ctx, key, token, ttl)
	if err != nil {
		a.Remaining, err = time.Second, &dlock.NoEffectError{Err: err}
	}
	return a, err
}

// The beginning of a reply is taken for the whole.
// Seen: a well-known recipe.
// Harm: a lease that is held is reported as lost.
// Right: a reply that breaks off is an error.
func readsABeginning(w wire) asker {
	return func(ctx context.Context, q question) (answer, error) {
		line, err := w.exchange(ctx, q)
		if len(line) == 0 {
			return answer{}, err
		}
		a := answer{Results: make([]dlock.RenewResult, len(q.Batch))}
		_ = json.Unmarshal(line, &a)
		return a, nil
	}
}

// A call does not look at its ctx while it waits for the reply.
// Seen: a well-known recipe.
// Harm: a program hangs as long as the store does.
// Right: a deadline on the connection.
func ignoresItsDeadline(w wire) asker {
	return func(ctx context.Context, q question) (answer, error) {
		return w.ask(context.WithoutCancel(ctx), q)
	}
}

// A call without an answer is repeated by the client library.
// Seen: retries that are on by default.
// Harm: a release whose reply was lost is answered: the token does not hold the key.
// Right: return the error.
func repeatsCalls(w wire) asker {
	return func(ctx context.Context, q question) (answer, error) {
		a, err := w.ask(ctx, q)
		if err != nil {
			a, err = w.ask(ctx, q)
		}
		return a, err
	}
}

// After an attempt without an answer, the client looks who holds the key, and makes up
// the grant.
// Seen: made for its case.
// Harm: the grant has no fence.
// Right: return the error; the caller tries again with the same token, or releases it.
type makesUpAnswers struct{ remote }

func (r *makesUpAnswers) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.remote.TryAcquire(ctx, key, token, ttl)
	if err != nil {
		if hold, failed := r.Inspect(ctx, key); failed == nil && hold.Token == token {
			return dlock.Attempt{Acquired: true}, nil
		}
	}
	return a, err
}

// A renewal without an answer counts as done.
// Seen: a well-known recipe.
// Harm: when the network is gone, the holder works on beside its successor.
// Right: return the error.
type countsOnSilence struct{ remote }

func (r *countsOnSilence) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := r.remote.Renew(ctx, key, token, ttl)
	return held || err != nil, nil
}

// A grant is dated when it arrives.
// Seen: a well-known recipe.
// Harm: on a slow network, the holder believes in a lease that is over.
// Right: date it when the request was sent.
type datesItsArrival struct{ remote }

func (r *datesItsArrival) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.remote.TryAcquire(ctx, key, token, ttl)
	a.Since = time.Now()
	return a, err
}

// The clocks are compared by an answer that was slow, and the difference is added to the
// date of a grant.
// Seen: made for its case.
// Harm: the waiter believes in a lease that is over.
// Right: assume that the answer took no time to arrive.
type comparesClocks struct{ remote }

func (r *comparesClocks) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	start := time.Now()
	_, _ = r.Inspect(ctx, key)
	lag := time.Since(start)
	a, err := r.remote.Acquire(ctx, key, token, ttl)
	a.Since = time.Now().Add(lag)
	return a, err
}

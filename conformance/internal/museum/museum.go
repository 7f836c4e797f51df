package museum

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

// An Exhibit is a lock. The comment above it says what is wrong with it; the hooks do that, each in place of what is right.
type Exhibit struct {
	Name        string // and what tells it from others with the same comment
	Cases       names  // of the conformance suite, each of which must catch it
	BeyondModel bool   // AgreesWithModel need not catch it: no call has a wrong answer by itself, or the model makes no such call
	Sporadic    bool   // it shows by chance: it may fail any case, and AgreesWithModel need not catch it
	Network     says   // cases that must catch it over a network, and what they say

	// Scripts of the server.
	take         func(*db, question) dlock.Attempt   // each attempt, each grant to a waiter, and each of a set
	takeSet      func(*db, question) []dlock.Attempt // of keys that nobody waits for while they are free
	renew        func(*db, question) bool            // Renew
	renewInBatch func(*db, question) bool            // an element of a batch
	release      func(*db, question) bool
	inspect      func(*db, question) dlock.Hold
	next         func(d *db, key string) // a free key for which there are waiters

	// What clients do.
	call    func(request) (answer, error) // a call of a program, over a network or not; it alone can return an error
	on      names                         // the calls that have this hook, if not all
	checkIn func(answer) time.Duration    // how long a waiter waits for a message before it asks again
	polls   bool                          // there is no Acquire
	near    bool                          // clients are in the process of the server
	deaf    bool                          // the server does not notice that a client hangs up
	as      func(*queue) dlock.Locker     // what a program gets in place of a client
}

// withRight returns the exhibit with what is right where it has no flaw.
func (e Exhibit) withRight() Exhibit {
	e.take, e.renew, e.renewInBatch = or(e.take, (*db).try), or(e.renew, (*db).extend), or(e.renewInBatch, (*db).extend)
	e.takeSet = or(e.takeSet, (*db).trySet)
	e.release, e.inspect, e.next = or(e.release, (*db).free), or(e.inspect, (*db).hold), or(e.next, (*db).nextThatLives)
	e.call, e.checkIn = or(e.call, request.send), or(e.checkIn, answer.checkIn)
	return e
}

// or returns one of two functions: right, if flaw is nil.
func or[F any](flaw, right F) F {
	if reflect.ValueOf(flaw).IsNil() {
		return right
	}
	return flaw
}

// before is the hook call that changes a request before it is sent.
func before(change func(*request)) func(request) (answer, error) {
	return func(r request) (answer, error) {
		change(&r)
		return r.send()
	}
}

// after is the hook call that changes an answer, not the error.
func after(change func(request, *answer, error)) func(request) (answer, error) {
	return func(r request) (answer, error) {
		a, err := r.send()
		change(r, &a, err)
		return a, err
	}
}

// looksFirst is the hook call that compares the token in one script, and acts in another.
func looksFirst(act func(*db, question) bool) func(request) (answer, error) {
	return func(r request) (a answer, err error) {
		holder, err := r.get(r.Key)
		if holder == r.Token {
			a.Held, err = eval(r, func(d *db) bool { return act(d, r.question) })
		}
		return a, err
	}
}

// lasting is the hook take that changes the TTL.
func lasting(change func(ttl time.Duration) time.Duration) func(*db, question) dlock.Attempt {
	return func(d *db, q question) dlock.Attempt {
		q.TTL = change(q.TTL)
		return d.try(q)
	}
}

// tried is the hook take that does something after each attempt.
func tried(then func(*db, question, *dlock.Attempt)) func(*db, question) dlock.Attempt {
	return func(d *db, q question) dlock.Attempt {
		a := d.try(q)
		then(d, q, &a)
		return a
	}
}

// perCall returns an exhibit for each of the calls.
func perCall(e Exhibit, calls ...string) (all []Exhibit) {
	for _, name := range calls {
		one := e
		one.Name, one.on = e.Name+" "+name, names{name}
		all = append(all, one)
	}
	return all
}

// says holds regular expressions by the names of cases.
type says = map[string]string

type names = []string

// Broken are all exhibits with a flaw.
var Broken = slices.Concat(leases, sets, waiting, clients)

// Right are the locks without a flaw. They must pass the cases that they name, or the whole suite.
var Right = []Exhibit{
	{Name: "lock", polls: true},
	{Name: "queue"},
	{Name: "near", near: true},
	{Name: "unfenced", near: true, take: tried(func(_ *db, _ question, a *dlock.Attempt) { a.Fence = 0 })},
	// A joined error says nothing of the effect of a call: one of several stores may have refused it.
	{Name: "joinsErrors", Cases: names{"NoEffect", "CancelledWait", "OneReleaseSettles"},
		call: failing(func(err error) error { return errors.Join(err, dlock.ErrInvalid, &dlock.NoEffectError{Err: err}) })},
	// Calls take as long as leases, leases last as long as the grace allows, and what is said of them is rough.
	{Name: "sluggish", Cases: names{"AgreesWithModel"}, near: true, call: func(r request) (answer, error) {
		const ttl, grace = 200 * time.Millisecond, 50 * time.Millisecond // those of a Harness that names none
		time.Sleep(rand.N(ttl))
		defer func() { time.Sleep(rand.N(ttl)) }()
		roughly := func(d time.Duration) time.Duration { return max(d-rand.N(grace), min(d, time.Millisecond)) }
		r.TTL += rand.N(grace)
		a, err := r.send()
		a.Remaining, a.Hold.Remaining = roughly(a.Remaining), roughly(a.Hold.Remaining)
		return a, err
	}},
}

// Open puts the exhibit on a server of its own.
func (e Exhibit) Open() *Store {
	return &Store{db: db{
		Exhibit: e.withRight(),
		data:    make(map[string]entry),
		queues:  make(map[string][]waiter),
		subs:    make(map[chan answer]string),
	}}
}

// Dial returns a client of the Store that is served at addr. Nothing in the traffic of one that is sealed can be read.
func (e Exhibit) Dial(addr string, sealed bool) dlock.Locker {
	return &queue{&client{Exhibit: e.withRight(), wire: &wire{addr, sealed}}}
}

// Client returns one more client. The first is near the server, the second far from it.
func (s *Store) Client() dlock.Locker {
	e := s.db.Exhibit
	n := s.clients.Add(1)
	c := &client{Store: s, Exhibit: e, name: fmt.Sprint("client ", n), rtt: [...]time.Duration{6 * time.Millisecond, time.Millisecond}[n%2]}
	if e.Cases == nil {
		c.call = request.send // the mistake is made over a network
	}
	switch {
	case e.near:
		c.rtt = 0
	case e.polls:
		return c
	case e.as != nil:
		return e.as(&queue{c})
	}
	return &queue{c}
}

// Package lanes decides which calls to a server travel together.
package lanes

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	slowTrip  = time.Millisecond       // if a round trip takes longer, further lanes open,
	openAfter = 200 * time.Microsecond // each when a call has waited for so long

	overdueAfter  = 50 * time.Millisecond // and so many round trips
	overdueFactor = 10

	minFlight    = 64 // calls that a flight may have, whatever the round trip, if the server is not slow
	maxFlight    = 500
	mostHalved   = 4                     // how often the limit may be halved where answers come too late
	executionOf  = 50 * time.Microsecond // a call; most take less
	maxExecution = 300 * time.Microsecond
	measuring    = 8 // calls of a flight that say how long one takes

	manyGates = 1024 // those that are idle are dropped then
)

// Settings describe the calls, and the server as far as it matters here. A call is a C, and its result an R. Calls
// that may travel together have equal routes, of type K.
type Settings[K comparable, C, R any] struct {
	// Send makes calls of one route in one round trip, and sets the result of each. Both slices are used again when it
	// has returned. It may end its goroutine.
	Send func(ctx context.Context, calls []C, results []R)

	// Route returns the route of a call, which may be one of a batch. It may take its time.
	Route func(ctx context.Context, call C, ofBatch bool) K

	Rank   func(call C) Rank
	Failed func(result R) bool // how long the call took says nothing about round trips
	Limit  time.Duration       // of a flight that has no caller

	// Fail returns the result of a call that gets no other. If the call was sent, late has a function called with the
	// result that comes when nobody waits for it; otherwise late is nil.
	Fail func(err error, late func(func(R))) R

	Lanes      int // at least 1
	MaxLanes   int // where flights are slow
	MaxFlights int // with those that are overdue
}

// Lanes send calls: those that are in flight at the same time travel together. A flight is what goes to a
// server in one round trip, and a lane carries one flight at a time. A call goes at once, in the goroutine of its
// caller, if a lane is free. Calls that come while all lanes are taken wait at a gate, and go together as soon as one
// is free: the more calls there are, the larger are the flights.
//
// Where a round trip takes long, a further lane opens for a call that has waited for a while. A flight that takes
// much longer than others is overdue, and its lane is used no more: it may be on a dead connection.
type Lanes[K comparable, C, R any] struct {
	settings Settings[K, C, R]
	flying   sync.WaitGroup  // the lanes that have a goroutine
	uncut    context.Context // until Cut
	cut      context.CancelFunc

	mu     sync.Mutex
	closed error // nil while open
	gates  map[K]*gate[K, C, R]
	dropAt int // so many gates
}

// New returns Lanes.
func New[K comparable, C, R any](s Settings[K, C, R]) *Lanes[K, C, R] {
	l := &Lanes[K, C, R]{settings: s, gates: make(map[K]*gate[K, C, R]), dropAt: manyGates}
	l.uncut, l.cut = context.WithCancel(context.Background())
	return l
}

// A Rank says which of the calls that wait for a lane go first.
type Rank int

const (
	Urgent Rank = iota // before all others, and past flights in which nobody waits for an answer any more
	Ending             // before the others, but they get half of each flight if both wait
	Other
	ranks
)

// An ask is a call that waits for a lane, or did.
type ask[C, R any] struct {
	ctx    context.Context // for its values
	call   C
	done   func(sent time.Time, result R)
	late   func(R) // called with the result instead, without the mutex; or nil
	gate   interface{ goOnLocked() }
	flight *flight[C, R] // that it is on, while its answer is waited for
	state  state
	result R // if answered
}

type state int

const (
	waiting state = iota
	sent
	answered
	withdrawn
)

// Do makes a call. If a lane is free, it allocates nothing for that. If ctx ends before the call is sent, the call
// has no effect; if ctx ends later, Do returns.
func (l *Lanes[K, C, R]) Do(ctx context.Context, call C) R {
	k := l.settings.Route(ctx, call, false)
	g, f := l.depart(k, 1)
	if f == nil {
		results := make([]R, 1)
		l.share(ctx, k, []C{call}, results)
		return results[0]
	}
	defer l.land(g, f, f.results[:])
	f.calls[0] = call
	l.settings.Send(ctx, f.calls[:], f.results[:])
	return f.results[0]
}

// DoAll makes calls as Do does, those of each route together.
func (l *Lanes[K, C, R]) DoAll(ctx context.Context, calls []C, results []R) {
	var routes []K
	byRoute := make(map[K][]int)
	for i, call := range calls {
		k := l.settings.Route(ctx, call, len(calls) > 1)
		if byRoute[k] = append(byRoute[k], i); len(byRoute[k]) == 1 {
			routes = append(routes, k)
		}
	}
	var all sync.WaitGroup
	for _, k := range routes {
		numbers := byRoute[k]
		if len(routes) == 1 {
			l.some(ctx, k, calls, results)
			break
		}
		all.Go(func() {
			part, replies := make([]C, len(numbers)), make([]R, len(numbers))
			for n, i := range numbers {
				part[n] = calls[i]
			}
			l.some(ctx, k, part, replies)
			for n, i := range numbers {
				results[i] = replies[n]
			}
		})
	}
	all.Wait()
}

// some makes calls of a route, in a flight of their own if a lane is free.
func (l *Lanes[K, C, R]) some(ctx context.Context, k K, calls []C, results []R) {
	g, f := l.depart(k, len(calls))
	if f == nil {
		l.share(ctx, k, calls, results)
		return
	}
	defer l.land(g, f, results)
	l.settings.Send(ctx, calls, results)
}

// depart begins a flight of n calls if a lane is free and they are not too many. land must follow.
func (l *Lanes[K, C, R]) depart(k K, n int) (*gate[K, C, R], *flight[C, R]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gateLocked(k)
	if !g.freeLocked(l.settings.Lanes) || n > g.limitLocked() {
		return nil, nil
	}
	return g, g.departLocked(n)
}

// land ends a flight of a caller. The calls that wait go on without the caller.
func (l *Lanes[K, C, R]) land(g *gate[K, C, R], f *flight[C, R], results []R) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g.landLocked(f, results)
	g.goOnLocked()
}

// share makes calls of a route in flights with others.
func (l *Lanes[K, C, R]) share(ctx context.Context, k K, calls []C, results []R) {
	asks, left, all := make([]*ask[C, R], len(calls)), len(calls), make(chan struct{})
	done := func(time.Time, R) {
		if left--; left == 0 {
			close(all)
		}
	}
	for i, call := range calls {
		asks[i] = &ask[C, R]{ctx: ctx, call: call, done: done}
	}
	l.add(k, asks...)
	select {
	case <-all:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, a := range asks {
		switch a.state {
		case answered:
			results[i] = a.result
		case sent:
			a.done = func(time.Time, R) {}
			l.abandonLocked(a)
			results[i] = l.settings.Fail(ctx.Err(), func(f func(R)) { l.later(a, f) })
		default:
			a.state = withdrawn
			results[i] = l.settings.Fail(ctx.Err(), nil)
		}
	}
}

// later has f called with the result of an ask, which may have come already.
func (l *Lanes[K, C, R]) later(a *ask[C, R], f func(R)) {
	l.mu.Lock()
	if a.state == sent {
		a.late = f
	}
	state := a.state
	l.mu.Unlock()
	if state == answered {
		f(a.result)
	}
}

// Put makes a call soon, and calls done with the time when it was sent and its result. ctx is only for its values.
// The returned function withdraws the call: it reports whether that was not sent, and will not be. done is not called
// then. It must not use l, or wait.
func (l *Lanes[K, C, R]) Put(ctx context.Context, call C, done func(sent time.Time, result R)) (withdraw func() bool) {
	a := &ask[C, R]{ctx: ctx, call: call, done: done}
	l.add(l.settings.Route(ctx, call, false), a)
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch a.state {
		case waiting:
			a.state = withdrawn
		case sent:
			l.abandonLocked(a)
		}
		return a.state == withdrawn
	}
}

// abandonLocked notes that nobody waits any more for the answer to a call that was sent.
func (l *Lanes[K, C, R]) abandonLocked(a *ask[C, R]) {
	if f := a.flight; f != nil {
		a.flight = nil
		if f.wanted--; f.wanted == 0 {
			a.gate.goOnLocked()
		}
	}
}

// Close refuses the calls that wait for a lane, and all that would have to. It returns when no flight is left but
// those in the goroutines of their callers.
func (l *Lanes[K, C, R]) Close(reason error) {
	l.mu.Lock()
	l.closed = reason
	for _, g := range l.gates {
		for _, a := range slices.Concat(g.waiting[:]...) {
			l.refuseLocked(a, reason)
		}
		g.waiting = [ranks][]*ask[C, R]{}
	}
	l.mu.Unlock()
	l.flying.Wait()
}

// Cut ends the ctx of each flight that is not in the goroutine of its caller, for which Close would wait.
func (l *Lanes[K, C, R]) Cut() { l.cut() }

func (l *Lanes[K, C, R]) add(k K, asks ...*ask[C, R]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gateLocked(k)
	for _, a := range asks {
		if l.closed != nil {
			l.refuseLocked(a, l.closed)
			continue
		}
		q := &g.waiting[l.settings.Rank(a.call)]
		*q = append(*q, a)
		a.gate = g
	}
	g.goOnLocked()
}

// refuseLocked answers a call that will not be sent, unless it was withdrawn.
func (l *Lanes[K, C, R]) refuseLocked(a *ask[C, R], reason error) {
	if a.state != withdrawn {
		a.answerLocked(time.Time{}, l.settings.Fail(reason, nil))
	}
}

func (a *ask[C, R]) answerLocked(sent time.Time, result R) {
	a.state, a.result = answered, result
	a.done(sent, result)
}

func (l *Lanes[K, C, R]) gateLocked(k K) *gate[K, C, R] {
	g := l.gates[k]
	if g != nil {
		return g
	}
	if len(l.gates) >= l.dropAt {
		maps.DeleteFunc(l.gates, func(_ K, g *gate[K, C, R]) bool { return len(g.flights) == 0 })
		l.dropAt = max(manyGates, 2*len(l.gates))
	}
	g = &gate[K, C, R]{lanes: l}
	l.gates[k] = g
	return g
}

// send makes the calls of a flight. A call that is alone has the values of its ctx.
func (l *Lanes[K, C, R]) send(asks []*ask[C, R], results []R) {
	ctx := context.Background()
	if len(asks) == 1 {
		ctx = context.WithoutCancel(asks[0].ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, l.settings.Limit)
	defer cancel()
	defer context.AfterFunc(l.uncut, cancel)()
	calls := make([]C, len(asks))
	for i, a := range asks {
		calls[i] = a.call
	}
	l.settings.Send(ctx, calls, results)
}

package rediscore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

const (
	usualLanes = 2                      // to a server
	slowTrip   = time.Millisecond       // if a round trip takes longer, further lanes open,
	openAfter  = 200 * time.Microsecond // each when a call has waited for so long
	poolShare  = 2                      // one connection of so many is for lanes
	maxLanes   = 16                     // of a Conn that has no pool
	maxFlights = 64                     // likewise, with those that are overdue

	overdueAfter  = 50 * time.Millisecond // and so many round trips
	overdueFactor = 10

	minFlight   = 64 // calls that a flight may have, whatever the round trip
	maxFlight   = 500
	executionOf = 50 * time.Microsecond // a call; most take less

	manyGates = 1024 // those that are idle are dropped then
)

// lanes send the calls of a Locker: calls that are in flight at the same time travel together. A flight is
// what goes to a server in one round trip, and a lane carries one flight at a time. There are two lanes to a
// server. A call goes at once, in the goroutine of its caller, if a lane is free. Calls that come while all
// lanes are taken wait at a gate, and go together as soon as one is free: the more calls there are, the
// larger are the flights. Renewals go before all others.
//
// Where a round trip takes long, a further lane opens for a call that has waited for a while, as long as there are
// fewer lanes than half of the pool has connections. A flight that takes much longer than others is overdue,
// and its lane is used no more: it may be on a dead connection.
type lanes struct {
	locker *Locker
	router Router // nil if the Conn is none
	usual  int    // lanes
	most   int    // lanes, where flights are slow
	all    int    // flights, with those that are overdue

	flying sync.WaitGroup // the lanes that have a goroutine
	mu     sync.Mutex
	closed bool
	gates  map[route]*gate
	dropAt int // so many gates
}

// A route is what calls have in common that may share a flight. In a cluster whose Conn does not know the
// masters, that is the slot: a dead master must not hold up the calls for others.
type route struct {
	master any
	slot   int
	kind   kind // with replicas, whose answers only some kinds wait for
}

// severalSlots is the slot of a batch that goes to several masters, which the Conn knows by itself.
const severalSlots = -1

// A kind of call has lanes of its own with [WithReplicas].
type kind int

const (
	others   kind = iota // it writes nothing that replicas must have
	grants               // it may grant
	renewals             // it goes before all others
)

var kinds = map[*Script]kind{
	acquireScript: grants, enqueueScript: grants, checkInScript: grants,
	voteScript: grants, enlistScript: grants, attendScript: grants,
	renewScript: renewals, confirmScript: renewals,
}

// A gate is where the calls of a route wait for a lane. If some do, all lanes are taken.
type gate struct {
	lanes     *lanes
	urgent    []*ask        // renewals
	waiting   []*ask        // the others
	flights   []*flight     // one for each lane that is taken, the oldest first
	overdue   int           // flights beside these
	roundTrip time.Duration // about that of the fastest flights lately; 0 if not known
	idle      []*flight     // to be used again
	watch     *time.Timer   // looks for a lane
	watchAt   time.Time     // when; zero if it does not
}

// A flight is on its way to a server.
type flight struct {
	begun   time.Time
	size    int // how many calls
	overdue bool
	calls   [1]Call // of a call that is alone
	results [1]Result
}

// An ask is a call that may have to wait for a lane. Its answer goes to a channel with room for it.
type ask struct {
	ctx     context.Context // for its values
	call    Call
	number  int    // among the calls of its caller
	address string // of the inbox of a wait
	answers chan<- answer

	sent      bool
	withdrawn bool // nobody waits for its answer any more
	answered  bool // as its caller knows
}

func newLanes(l *Locker) *lanes {
	all := &lanes{locker: l, usual: usualLanes, most: maxLanes, all: maxFlights, gates: make(map[route]*gate), dropAt: manyGates}
	all.router, _ = l.conn.(Router)
	if p, ok := l.conn.(Pooled); ok && p.PoolSize() > 0 {
		all.all = p.PoolSize()
		all.most = (all.all + poolShare - 1) / poolShare
	}
	if l.replicas != nil { // for each of three kinds
		all.usual, all.most = 1, all.most/3
	}
	all.most = max(1, all.most)
	all.usual = min(all.usual, all.most)
	return all
}

func (l *lanes) route(ctx context.Context, call Call) (r route) {
	if l.locker.replicas != nil {
		r.kind = kinds[call.Script]
	}
	if l.router != nil {
		r.master = l.router.Master(ctx, call)
	} else if l.locker.conn.Cluster() {
		r.slot = call.keys.slot
	}
	return r
}

// one makes a call.
func (l *lanes) one(ctx context.Context, call Call) (any, error) {
	r := l.route(ctx, call)
	if l.locker.replicas == nil {
		if g, f := l.depart(r, 1); f != nil {
			return l.alone(ctx, g, f, call)
		}
	}
	var results [1]Result
	l.some(ctx, r, []Call{call}, results[:])
	return results[0].Reply, results[0].Err
}

// alone makes a call without allocating anything for it.
func (l *lanes) alone(ctx context.Context, g *gate, f *flight, call Call) (reply any, err error) {
	defer func() {
		f.calls, f.results = [1]Call{}, [1]Result{}
		l.land(g, f, err)
	}()
	f.calls[0] = call
	l.locker.send(ctx, f.calls[:], f.results[:])
	return f.results[0].Reply, f.results[0].Err
}

// many makes calls, those of each route together.
func (l *lanes) many(ctx context.Context, calls []Call, results []Result) {
	byRoute := make(map[route][]int)
	for i, call := range calls {
		r := l.route(ctx, call)
		if r.slot != 0 && len(calls) > 1 {
			r.slot = severalSlots
		}
		byRoute[r] = append(byRoute[r], i)
	}
	if len(byRoute) == 1 {
		for r := range byRoute {
			l.some(ctx, r, calls, results)
		}
		return
	}
	var all sync.WaitGroup
	for r, numbers := range byRoute {
		all.Go(func() {
			part, replies := make([]Call, len(numbers)), make([]Result, len(numbers))
			for n, i := range numbers {
				part[n] = calls[i]
			}
			l.some(ctx, r, part, replies)
			for n, i := range numbers {
				results[i] = replies[n]
			}
		})
	}
	all.Wait()
}

// some makes calls of a route, in a flight of their own if a lane is free.
func (l *lanes) some(ctx context.Context, r route, calls []Call, results []Result) {
	g, f := l.depart(r, len(calls))
	if f == nil {
		l.share(ctx, r, calls, results)
		return
	}
	defer func() { l.land(g, f, results[0].Err) }()
	l.locker.send(ctx, calls, results)
}

// depart begins a flight of n calls if a lane is free and they are not too many. land must follow.
func (l *lanes) depart(r route, n int) (*gate, *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gateLocked(r)
	if !g.freeLocked(l.usual) || n > g.limitLocked() {
		return nil, nil
	}
	return g, g.departLocked(n)
}

// land ends a flight of a caller. The calls that wait go on without the caller.
func (l *lanes) land(g *gate, f *flight, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g.landLocked(f, err)
	g.goOnLocked()
}

// share makes calls of a route in flights with others. If ctx ends before they are sent, they have no
// effect.
func (l *lanes) share(ctx context.Context, r route, calls []Call, results []Result) {
	answers, asks := make(chan answer, len(calls)), make([]ask, len(calls))
	for i, call := range calls {
		asks[i] = ask{ctx: ctx, call: call, number: i, answers: answers}
	}
	l.add(r, asks)
	take := func(a answer) {
		asks[a.number].answered = true
		results[a.number] = Result{Reply: a.reply, Err: a.err}
	}
	for range calls {
		select {
		case a := <-answers:
			take(a)
			continue
		case <-ctx.Done():
		}
		l.withdrawAll(asks)
		for more := true; more; {
			select {
			case a := <-answers:
				take(a)
			default:
				more = false
			}
		}
		for i := range asks {
			switch a := &asks[i]; {
			case a.answered:
			case a.sent:
				results[i].Err = ctx.Err()
			default:
				results[i].Err = mark(ctx.Err())
			}
		}
		return
	}
}

// add lets asks wait for a lane.
func (l *lanes) add(r route, asks []ask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gateLocked(r)
	for i := range asks {
		if l.closed {
			asks[i].refuse(dlock.ErrClosed)
		} else {
			g.waitLocked(&asks[i])
		}
	}
	g.goOnLocked()
}

// put sends an ask of a wait at once or soon.
func (l *lanes) put(a *ask) {
	r := l.route(a.ctx, a.call)
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gateLocked(r)
	g.waitLocked(a)
	g.goOnLocked()
}

// withdraw reports whether an ask was not sent, and will not be.
func (l *lanes) withdraw(a *ask) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.withdrawn = true
	return !a.sent
}

func (l *lanes) withdrawAll(asks []ask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range asks {
		asks[i].withdrawn = true
	}
}

// close refuses the calls that wait for a lane, and all that would have to. It returns when no flight
// is left but those of callers. The waits must have ended.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	for _, g := range l.gates {
		for _, q := range []*[]*ask{&g.urgent, &g.waiting} {
			for _, a := range *q {
				a.refuse(dlock.ErrClosed)
			}
			*q = nil
		}
	}
	l.mu.Unlock()
	l.flying.Wait()
}

// refuse answers an ask that will not be sent, and says why.
func (a *ask) refuse(err error) {
	a.answers <- answer{number: a.number, script: a.call.Script, err: mark(err)}
}

func (l *lanes) gateLocked(r route) *gate {
	g := l.gates[r]
	if g != nil {
		return g
	}
	if len(l.gates) >= l.dropAt {
		maps.DeleteFunc(l.gates, func(_ route, g *gate) bool {
			return len(g.flights)+g.overdue+len(g.urgent)+len(g.waiting) == 0
		})
		l.dropAt = max(manyGates, 2*len(l.gates))
	}
	g = &gate{lanes: l}
	l.gates[r] = g
	return g
}

func (g *gate) queueLocked(a *ask) *[]*ask {
	if kinds[a.call.Script] == renewals {
		return &g.urgent
	}
	return &g.waiting
}

func (g *gate) waitLocked(a *ask) {
	q := g.queueLocked(a)
	*q = append(*q, a)
}

// freeLocked reports whether one of so many lanes is free.
func (g *gate) freeLocked(lanes int) bool {
	return len(g.flights) < lanes && len(g.flights)+g.overdue < g.lanes.all
}

// isSlowLocked reports whether round trips are slow, as they are taken to be before the first is known.
func (g *gate) isSlowLocked() bool { return g.roundTrip == 0 || g.roundTrip > slowTrip }

// limitLocked returns how many calls a flight may have: about as many as the server executes within a
// round trip. So a flight takes a connection for not much longer than a single call.
func (g *gate) limitLocked() int {
	return min(minFlight+int(g.roundTrip/executionOf), maxFlight)
}

// departLocked takes a lane for a flight of n calls.
func (g *gate) departLocked(n int) *flight {
	var f *flight
	if i := len(g.idle) - 1; i >= 0 {
		f, g.idle = g.idle[i], g.idle[:i]
	} else {
		f = new(flight)
	}
	f.begun, f.size = time.Now(), n
	g.flights = append(g.flights, f)
	return f
}

// landLocked frees the lane of a flight. It learns how long a round trip takes, unless half of that may
// have been execution: large flights would make a server that is far away seem near. The estimate falls at
// once, and rises slowly.
func (g *gate) landLocked(f *flight, err error) {
	took := time.Since(f.begun)
	execution := time.Duration(f.size-1) * executionOf
	if err == nil && execution <= took/2 {
		if took -= execution; g.roundTrip > 0 {
			took = min(took, g.roundTrip+g.roundTrip/8+1)
		}
		g.roundTrip = max(took, 1)
	}
	if f.overdue {
		g.overdue--
		return
	}
	i := slices.Index(g.flights, f)
	g.flights = slices.Delete(g.flights, i, i+1)
	g.idle = append(g.idle, f)
}

// goOnLocked lets the calls that wait take the lanes that are free.
func (g *gate) goOnLocked() {
	for g.freeLocked(g.lanes.usual) && g.startLocked() {
	}
	g.watchLocked()
}

// startLocked takes a lane for the calls that wait, and reports whether there are any.
func (g *gate) startLocked() bool {
	asks := g.takeLocked()
	if len(asks) == 0 {
		return false
	}
	f := g.departLocked(len(asks))
	g.lanes.flying.Go(func() { g.run(f, asks) })
	return true
}

// takeLocked returns the calls of the next flight.
func (g *gate) takeLocked() (asks []*ask) {
	for _, q := range []*[]*ask{&g.urgent, &g.waiting} {
		n := 0
		for limit := g.limitLocked(); n < len(*q) && len(asks) < limit; n++ {
			if a := (*q)[n]; !a.withdrawn {
				a.sent = true
				asks = append(asks, a)
			}
		}
		*q = slices.Delete(*q, 0, n)
	}
	return asks
}

// watchLocked sets the timer for when a further lane may open.
func (g *gate) watchLocked() {
	opens := g.isSlowLocked() && g.freeLocked(g.lanes.most)
	if len(g.urgent)+len(g.waiting) == 0 || len(g.flights) == 0 || !g.watchAt.IsZero() && !opens {
		return
	}
	now := time.Now()
	at := g.flights[0].begun.Add(g.patienceLocked())
	if soon := now.Add(openAfter); opens && soon.Before(at) {
		at = soon
	}
	switch {
	case g.watch == nil:
		g.watch = time.AfterFunc(at.Sub(now), g.look)
	case g.watchAt.IsZero() || at.Before(g.watchAt):
		g.watch.Reset(at.Sub(now))
	default:
		return
	}
	g.watchAt = at
}

// patienceLocked returns how long a flight takes before it is overdue. The first one may have to connect.
func (g *gate) patienceLocked() time.Duration {
	return overdueFactor*cmp.Or(g.roundTrip, overdueAfter) + overdueAfter
}

// look opens a lane for calls that have waited for a while.
func (g *gate) look() {
	g.lanes.mu.Lock()
	defer g.lanes.mu.Unlock()
	g.watchAt = time.Time{}
	if len(g.urgent)+len(g.waiting) == 0 {
		return
	}
	for patience := g.patienceLocked(); len(g.flights) > 0 && time.Since(g.flights[0].begun) >= patience; g.overdue++ {
		g.flights[0].overdue = true
		g.flights = slices.Delete(g.flights, 0, 1)
	}
	if g.isSlowLocked() && g.freeLocked(g.lanes.most) {
		g.startLocked()
	}
	g.goOnLocked()
}

// run is a lane. It ends when nothing is left to be sent, or its flight was overdue. A further lane also
// ends when it has carried little.
func (g *gate) run(f *flight, asks []*ask) {
	for len(asks) > 0 {
		again, err := g.lanes.fly(asks)
		f, asks = g.next(f, again, err)
	}
}

// next ends a flight, and begins the next one of its lane.
func (g *gate) next(f *flight, again []*ask, err error) (next *flight, asks []*ask) {
	g.lanes.mu.Lock()
	defer g.lanes.mu.Unlock()
	g.landLocked(f, err)
	g.repeatLocked(again)
	if !f.overdue && (len(g.flights) < g.lanes.usual || f.size >= g.limitLocked()/2) {
		if asks = g.takeLocked(); len(asks) > 0 {
			next = g.departLocked(len(asks))
		}
	}
	g.goOnLocked()
	return next, asks
}

// repeatLocked lets asks that have to be made again go first, if somebody waits for the answers.
func (g *gate) repeatLocked(asks []*ask) {
	for _, a := range slices.Backward(asks) {
		if a.withdrawn {
			a.refuse(context.Canceled) // its caller may be about to look for answers
			continue
		}
		a.sent = false
		q := g.queueLocked(a)
		*q = slices.Insert(*q, 0, a)
	}
}

// fly makes the calls of a flight, and passes the answers on. It returns those that must be made again.
func (l *lanes) fly(asks []*ask) (again []*ask, err error) {
	ctx, cancel := l.contextOf(asks)
	defer cancel()
	calls, results := make([]Call, len(asks)), make([]Result, len(asks))
	for i, a := range asks {
		calls[i] = a.call
	}
	sent := time.Now()
	l.locker.send(ctx, calls, results)
	for i, a := range asks {
		if results[i].unswept() {
			again = append(again, a)
			continue
		}
		a.answers <- answer{
			sent: sent, script: a.call.Script, address: a.address, number: a.number,
			reply: results[i].Reply, err: results[i].Err,
		}
	}
	return again, results[0].Err
}

// contextOf returns the ctx of a flight. If there is one call, it has the values of the caller's.
func (l *lanes) contextOf(asks []*ask) (context.Context, context.CancelFunc) {
	values, limit := context.Background(), callLimit
	if len(asks) == 1 {
		values = context.WithoutCancel(asks[0].ctx)
	}
	if r := l.locker.replicas; r != nil {
		limit = max(limit, limit+r.Timeout) // the sum may overflow
	}
	return context.WithTimeout(values, limit)
}

// unswept is the reply of a script that has removed many dead waiters, and nothing else, so that
// the server can serve others before it goes on.
const unswept = "unswept"

func (r Result) unswept() bool { return r.Err == nil && r.Reply == unswept }

// evalOne makes a call, and repeats it until the script has done its work.
func (l *Locker) evalOne(ctx context.Context, call Call) (any, error) {
	reply, err := l.lanes.one(ctx, call)
	for err == nil && reply == unswept {
		reply, err = l.lanes.one(ctx, call)
	}
	return reply, err
}

// evalAll makes calls as evalOne does, together.
func (l *Locker) evalAll(ctx context.Context, calls []Call, results []Result) {
	l.lanes.many(ctx, calls, results)
	for i, r := range results {
		if r.unswept() {
			results[i].Reply, results[i].Err = l.evalOne(ctx, calls[i])
		}
	}
}

// send makes the calls of a flight. They have one route.
func (l *Locker) send(ctx context.Context, calls []Call, results []Result) {
	switch {
	case l.replicas != nil && kinds[calls[0].Script] != others:
		l.sendReplicated(ctx, calls, results)
	case len(calls) == 1:
		results[0].Reply, results[0].Err = l.conn.Eval(ctx, calls[0])
	default:
		l.conn.EvalAll(ctx, calls, results)
	}
	for i, call := range calls {
		results[i].Err = judge(call.Script, results[i].Err, l.conn.Cluster)
	}
}

package lanes

import (
	"cmp"
	"slices"
	"time"
)

// A gate is where the calls of a route wait for a lane. If some do, all lanes are taken. The mutex of the Lanes
// guards it.
type gate[K comparable, C, R any] struct {
	lanes     *Lanes[K, C, R]
	waiting   [ranks][]*ask[C, R]
	flights   []*flight[C, R] // the oldest first
	overdue   int             // so many of the oldest are
	roundTrip time.Duration   // about that of the fastest flights lately; 0 if not known
	execution time.Duration   // of a call, about that of the flights lately
	halved    int             // how often the limit of flights is
	idle      []*flight[C, R] // to be used again
	watch     *time.Timer     // looks for a lane
	watchAt   time.Time       // when; zero if it does not
}

// A flight is on its way to a server.
type flight[C, R any] struct {
	begun   time.Time
	size    int  // how many calls
	wanted  int  // of them, those whose answer somebody waits for
	before  int  // how many calls were in flight when it began
	calls   [1]C // of a call that is alone
	results [1]R
}

func (g *gate[K, C, R]) waitsLocked() bool {
	return slices.ContainsFunc(g.waiting[:], func(q []*ask[C, R]) bool { return len(q) > 0 })
}

// takenLocked returns how many lanes are taken.
func (g *gate[K, C, R]) takenLocked() int { return len(g.flights) - g.overdue }

// freeLocked reports whether one of so many lanes is free.
func (g *gate[K, C, R]) freeLocked(lanes int) bool {
	return g.takenLocked() < lanes && len(g.flights) < g.lanes.settings.MaxFlights
}

// furtherLocked reports whether a further lane may open. Round trips are taken to be slow before the first is known.
// Answers that come too late would come later still.
func (g *gate[K, C, R]) furtherLocked() bool {
	return g.halved == 0 && (g.roundTrip == 0 || g.roundTrip > slowTrip) && !g.fullLocked() && g.freeLocked(g.lanes.settings.MaxLanes)
}

// callsLocked returns how many calls are in flight.
func (g *gate[K, C, R]) callsLocked() (n int) {
	for _, f := range g.flights {
		n += f.size
	}
	return n
}

// fullLocked reports whether the server needs a round trip or longer for the calls in flight: more of them would only
// wait there.
func (g *gate[K, C, R]) fullLocked() bool {
	return g.roundTrip > 0 && time.Duration(g.callsLocked())*g.execution >= g.roundTrip
}

// passesLocked reports whether an urgent call may go beside all lanes, since one is taken by a flight in which nobody
// waits for an answer any more.
func (g *gate[K, C, R]) passesLocked() bool {
	abandoned := 0
	for _, f := range g.flights[g.overdue:] {
		if f.wanted == 0 {
			abandoned++
		}
	}
	return len(g.waiting[Urgent]) > 0 && g.freeLocked(g.lanes.settings.Lanes+abandoned)
}

// limitLocked returns how many calls a flight may have: about as many as the server executes within a
// round trip, and some more. So a flight takes a connection for not much longer than a single call. Where a call takes
// the server long, a flight is smaller; and the more so where answers came when their callers had given up.
func (g *gate[K, C, R]) limitLocked() int {
	n := minFlight + int(g.roundTrip/executionOf)
	n = n * int(executionOf) / int(max(time.Duration(g.lanes.settings.Lanes)*g.execution, executionOf))
	return max(min(n, maxFlight)>>g.halved, 1)
}

// departLocked takes a lane for a flight of n calls.
func (g *gate[K, C, R]) departLocked(n int) *flight[C, R] {
	var f *flight[C, R]
	if i := len(g.idle) - 1; i >= 0 {
		f, g.idle = g.idle[i], g.idle[:i]
	} else {
		f = new(flight[C, R])
	}
	f.begun, f.size, f.wanted, f.before = time.Now(), n, n, g.callsLocked()
	g.flights = append(g.flights, f)
	return f
}

// landLocked ends a flight, and reports whether it was overdue. It learns how long a round trip takes, unless half of
// that may have been execution: large flights would make a server that is far away seem near. The estimate falls at
// once, and rises slowly.
func (g *gate[K, C, R]) landLocked(f *flight[C, R], results []R) (overdue bool) {
	took, others := time.Since(f.begun), time.Duration(f.before+f.size-1)
	if g.roundTrip > 0 && others >= measuring && !g.lanes.settings.Failed(results[0]) {
		g.execution += (min(max(took-g.roundTrip, 0)/others, maxExecution) - g.execution) / 8
	}
	if late := f.size - f.wanted; late > f.size/2 {
		g.halved = min(g.halved+1, mostHalved)
	} else if late <= f.size/8 {
		g.halved = max(g.halved-1, 0)
	}
	execution := others * max(g.execution, executionOf)
	if execution <= took/2 && !g.lanes.settings.Failed(results[0]) {
		if took -= execution; g.roundTrip > 0 {
			took = min(took, g.roundTrip+g.roundTrip/8)
		}
		g.roundTrip = max(took, time.Microsecond)
	}
	i := slices.Index(g.flights, f)
	g.flights = slices.Delete(g.flights, i, i+1)
	if overdue = i < g.overdue; overdue {
		g.overdue--
	}
	f.calls, f.results = [1]C{}, [1]R{}
	g.idle = append(g.idle, f)
	return overdue
}

// loadLocked takes a lane for the calls that wait, by their ranks. It returns nil if there are none.
func (g *gate[K, C, R]) loadLocked(last Rank) (f *flight[C, R], asks []*ask[C, R]) {
	limit := g.limitLocked()
	add := func(a *ask[C, R]) {
		if a.state == waiting {
			a.state = sent
			asks = append(asks, a)
		}
	}
	take := func(r Rank, most int) {
		if r > last {
			return
		}
		q, n := g.waiting[r], 0
		if r == Other && g.halved > 0 { // half of them are the newest: the oldest give up before an answer comes
			newest := len(asks) + most/2
			for most -= most / 2; len(q) > 0 && len(asks) < newest; q = slices.Delete(q, len(q)-1, len(q)) {
				add(q[len(q)-1])
			}
		}
		for most += len(asks); n < len(q) && len(asks) < most; n++ {
			add(q[n])
		}
		g.waiting[r] = slices.Delete(q, 0, n)
	}
	take(Urgent, limit)
	rest := limit - len(asks)
	if len(g.waiting[Other]) > 0 {
		rest -= rest / 2
	}
	take(Ending, rest)
	take(Other, limit-len(asks))
	take(Ending, limit-len(asks))
	if len(asks) > 0 {
		f = g.departLocked(len(asks))
	}
	for _, a := range asks {
		a.flight = f
	}
	return f, asks
}

// startLocked opens a lane for the calls that wait, up to a rank, and reports whether there are any.
func (g *gate[K, C, R]) startLocked(last Rank) bool {
	f, asks := g.loadLocked(last)
	if f != nil {
		g.lanes.flying.Go(func() { g.run(f, asks) })
	}
	return f != nil
}

// goOnLocked lets the calls that wait take the lanes that are free. If some have to wait on, it sets the timer for
// when a further lane may open.
func (g *gate[K, C, R]) goOnLocked() {
	for g.freeLocked(g.lanes.settings.Lanes) && g.startLocked(Other) {
	}
	for g.passesLocked() && g.startLocked(Urgent) {
	}
	if !g.waitsLocked() || g.takenLocked() == 0 {
		return
	}
	now := time.Now()
	at := g.flights[g.overdue].begun.Add(g.patienceLocked())
	if g.furtherLocked() {
		at = now.Add(openAfter)
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
func (g *gate[K, C, R]) patienceLocked() time.Duration {
	return overdueFactor*cmp.Or(g.roundTrip, overdueAfter) + overdueAfter
}

// look opens a lane for calls that have waited for a while.
func (g *gate[K, C, R]) look() {
	g.lanes.mu.Lock()
	defer g.lanes.mu.Unlock()
	g.watchAt = time.Time{}
	for g.takenLocked() > 0 && time.Since(g.flights[g.overdue].begun) >= g.patienceLocked() {
		g.overdue++
	}
	if g.furtherLocked() {
		g.startLocked(Other)
	}
	g.goOnLocked()
}

// run is a lane: one goroutine, whose stack has grown at the first flight. It ends when nothing is left to be sent, or
// its flight was overdue. A further lane also ends when it has carried little.
func (g *gate[K, C, R]) run(f *flight[C, R], asks []*ask[C, R]) {
	for f != nil {
		f, asks = g.fly(f, asks)
	}
}

// fly makes a flight, and begins the next one of its lane, which goes on in another goroutine if Send ends this one.
func (g *gate[K, C, R]) fly(f *flight[C, R], asks []*ask[C, R]) (next *flight[C, R], more []*ask[C, R]) {
	begun, results, returned := time.Now(), make([]R, len(asks)), false
	defer func() {
		next, more = g.next(f, asks, begun, results)
		for i, a := range asks {
			if a.late != nil {
				a.late(results[i])
			}
		}
		if f, asks := next, more; !returned {
			g.lanes.flying.Go(func() { g.run(f, asks) })
		}
	}()
	g.lanes.send(asks, results)
	returned = true
	return nil, nil
}

// next ends a flight, and begins the next one of its lane.
func (g *gate[K, C, R]) next(f *flight[C, R], asks []*ask[C, R], begun time.Time, results []R) (next *flight[C, R], more []*ask[C, R]) {
	g.lanes.mu.Lock()
	defer g.lanes.mu.Unlock()
	overdue := g.landLocked(f, results)
	for i, a := range asks {
		a.answerLocked(begun, results[i])
	}
	if !overdue && (g.takenLocked() < g.lanes.settings.Lanes || f.size >= g.limitLocked()/2 && !g.fullLocked()) {
		next, more = g.loadLocked(Other)
	}
	g.goOnLocked()
	return next, more
}

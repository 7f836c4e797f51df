package main

import (
	"slices"

	"github.com/dlock-go/dlock/internal/modelcheck"
)

// check looks for a property that does not hold in the state.
func (w *world) check(m *model) {
	w.checkExclusion()
	w.checkStore()
	if w.broken == 0 && w.c.Check&P4 != 0 {
		w.checkProgress(m)
	}
}

// leases calls f for each lease that its client is certain of. Once the server has
// lost data, only those count that were granted later, or whose grant the replica had.
func (w *world) leases(f func(l Away)) {
	lost := w.Lost
	if w.c.Replicated {
		lost = 0
	}
	for i := range w.Clients {
		cl := &w.Clients[i]
		if cl.Phase == holding && cl.Fence > lost {
			f(Away{cl.Token, cl.Fence, cl.Rest})
		}
		if cl.Away.Rest > 0 && cl.Away.Fence > lost {
			f(cl.Away)
		}
	}
}

func (w *world) checkExclusion() {
	n := 0
	w.leases(func(Away) { n++ })
	if n > 1 {
		w.breaks(P1, "two are certain to hold the lock")
	}
}

func (w *world) checkStore() {
	w.leases(func(l Away) {
		switch {
		case w.Server.Holder != l.Token:
			w.breaks(P3, "the store does not hold the token of a client that is certain")
		case w.Server.Rest < l.Rest:
			w.breaks(P3, "the store lets a lease end before its deadline")
		}
	})
}

// checkProgress lets the state go on without faults: everything arrives at once, every
// lease is released at once, owed releases are sent and waiters check in once in each tick. All
// waits have to end. At the end of each tick nobody may hold the lock but those that
// wait, that have crashed, or that were passed on; and at last it has to be free.
func (w *world) checkProgress(m *model) {
	f := &future{world: world{State: w.State, c: w.c}, model: m}
	limit := (w.c.Clients+2)*(w.c.TTL+1) + 2
	for range limit {
		switch ended, why := f.round(); {
		case why != "":
			w.stuck(f, why)
			return
		case ended:
			for _, print := range f.passed {
				m.good[print] = true
			}
			return
		}
		f.do(event{tick, 0})
	}
	w.stuck(f, "a waiter is not served, or the lock is not free in the end")
}

// A future is what becomes of a state without faults.
type future struct {
	world
	model     *model
	history   []event
	passed    []uint64 // states, at times when no one has checked in or sent an owed release in the present tick
	checkedIn [maxClients]bool
	released  [maxTokens]bool
}

// round makes everything happen that can, but time pass. It returns what is wrong, or
// whether all is known to be well.
func (f *future) round() (ended bool, why string) {
	f.checkedIn, f.released = [maxClients]bool{}, [maxTokens]bool{}
	for fresh := true; ; {
		if fresh {
			print := modelcheck.Print(f.model.seed, &f.State)
			if f.model.good[print] {
				return true, ""
			}
			f.passed = append(f.passed, print)
		}
		e, ok := f.next()
		if !ok {
			break
		}
		fresh = fresh && e.kind != retriesRelease && e.kind != checksIn
		f.do(e)
		switch {
		case f.full:
			f.model.full++
			return true, ""
		case len(f.history) > 1000:
			return false, "the exchange does not come to an end"
		}
	}
	if f.c.Faults[failover] == 0 && f.abandoned() {
		return false, "the lock stays with a token that nobody uses"
	}
	return f.finished(), ""
}

func (w *world) stuck(f *future, why string) {
	w.broken, w.why = P4, why
	w.after = f.history
}

func (f *future) do(e event) {
	f.history = append(f.history, e)
	f.happen(e)
	f.canonical()
}

// next chooses what happens next.
func (f *future) next() (e event, ok bool) {
	rank := 0
	choose := func(c event, r int) {
		if r > rank {
			e, rank, ok = c, r, true
		}
	}
	f.each(func(c event) {
		switch c.kind {
		case execute, receive, message, sees, hangUp, opens, notices:
			choose(c, 3)
		case copies:
			if slices.ContainsFunc(f.Calls[:], f.uncopied) {
				choose(c, 3)
			}
		case releaseNow:
			choose(c, 2)
		case retriesRelease:
			if !f.released[c.n-1] {
				choose(c, 1)
			}
		case checksIn:
			if !f.checkedIn[c.n] {
				choose(c, 1)
			}
		}
	})
	switch e.kind {
	case retriesRelease:
		f.released[e.n-1] = true
	case checksIn:
		f.checkedIn[e.n] = true
	}
	return e, ok
}

// abandoned reports that the lock is with a token that nobody uses, though its client
// is there.
func (w *world) abandoned() bool {
	t := w.Server.Holder
	if t == 0 {
		return false
	}
	cl := &w.Clients[w.c.client(t)]
	return cl.Phase != crashed && cl.Token != t && cl.Away.Token != t
}

func (w *world) finished() bool {
	for i := range w.c.Clients {
		if p := w.Clients[i].Phase; p != idle && p != crashed {
			return false
		}
	}
	return w.Server.Holder == 0
}

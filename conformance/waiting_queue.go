package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func firstComeFirstServed(s *scene) error {
	a := s.client()
	clients := []*client{s.acquirer(), s.client(), a}
	g := s.grant(a, s.key(), s.token("holder"), long)
	var waiting []*waiter
	for i := range 6 {
		waiting = append(waiting, s.wait(clients[i%3], g.key, s.token(fmt.Sprint("waiter", i)), long))
	}
	for n := 0; len(waiting) > 0 && !s.over(); n++ {
		s.release(a, g, true)
		i := s.first(waiting)
		if i != 0 {
			outOfOrder(s, i+n, n)
			return s.result()
		}
		g = s.isServed(waiting[0])
		waiting = waiting[1:]
	}
	s.release(a, g, true)
	return s.result()
}

// outOfOrder is a violation if it happens again and again: the first time it may
// be that the waiters came to the store in another order than they set out.
func outOfOrder(s *scene, got, want int) {
	if !s.h.Bubble && s.attempt < tries-2 {
		s.stop(errInconclusive)
		return
	}
	if got < want {
		s.fail("%v after the release nobody was served; want waiter%d, who came first", s.h.patience(), want)
		return
	}
	s.fail("waiter%d was served; want waiter%d, who came before", got, want)
}

// inLine is how many wait in a long queue: more than fit into 8 bits. In real time they
// come in groups, as which of two that come together is first, nobody knows.
const (
	inLine     = 300
	lineGroups = 6
)

// longQueue has hundreds wait for a key. Some leave, from all parts of the queue; then
// every release serves one of the others.
func longQueue(s *scene) error {
	a := s.client()
	clients := []*client{s.acquirer(), s.client(), s.client()}
	g := s.grant(a, s.key(), s.token("holder"), long)
	staying := leaveLine(s, clients, joinLine(s, clients, g.key))
	for _, p := range staying {
		s.waits(p.waiter)
	}
	serveLine(s, a, g, staying)
	if !s.h.Unordered {
		lineOnBusyStore(s, a, clients[0])
		if s.h.Bubble { // it takes a gap for each
			rollingLine(s, a, clients[0])
		}
	}
	return s.result()
}

// beyond is how many grants there are while some wait: more than fit into three digits, or
// into the history that a store keeps of its changes.
const beyond = 1100

// lineOnBusyStore has a few wait while many other keys are granted and released: they keep
// their order.
func lineOnBusyStore(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var line []*waiter
	for i := range 4 {
		line = append(line, s.wait([]*client{a, b}[i%2], g.key, s.token(fmt.Sprint("waiter", i)), long))
	}
	eachOf(beyond, func(int) {
		g := s.grant(a, s.key(), s.token("elsewhere"), long)
		s.release(a, g, true)
	})
	if s.h.Bubble {
		s.sleep(10 * time.Second)
	}
	serveInOrder(s, a, g, line, func() []*waiter { return nil })
}

// rollingLine has so many come one after the other: first more than are served, then as
// many.
func rollingLine(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	came := 0
	serveInOrder(s, a, g, nil, func() (line []*waiter) {
		n := 1
		if came < inLine/2 {
			n = 3
		}
		for ; n > 0 && came < beyond; n-- {
			line = append(line, s.wait([]*client{a, b}[came%2], g.key, s.token("waiter"), long))
			came++
		}
		return line
	})
}

// serveInOrder releases the key until all of a line have been served. Before each release
// others may join.
func serveInOrder(s *scene, c *client, g grant, line []*waiter, join func() []*waiter) {
	for n := 0; !s.over(); n++ {
		line = append(line, join()...)
		s.release(c, g, true)
		if len(line) == 0 {
			return
		}
		if i := s.first(line); i != 0 {
			outOfOrder(s, i+n, n)
			return
		}
		g, line = s.isServed(line[0]), line[1:]
	}
}

// A lineWaiter is one of many.
type lineWaiter struct {
	*waiter
	n     int
	group int // came after all of smaller ones
	leave int // 0 if it stays, else how it leaves
}

const (
	leavesByCancel = iota + 1
	leavesElsewhere
	leavesByDeadline
)

// leaver returns how the nth waiter leaves: three at the head, in the middle and at the
// tail, each in a way of its own, and many that come one after the other.
func leaver(n int) int {
	for _, part := range []int{0, inLine / 2, inLine - 3} {
		if part <= n && n < part+3 {
			return leavesByCancel + n - part
		}
	}
	if 200 <= n && n < 220 {
		return leavesByCancel
	}
	return 0
}

// joinLine has all come.
func joinLine(s *scene, clients []*client, key string) []*lineWaiter {
	groups := lineGroups
	if s.h.Bubble {
		groups = inLine
	}
	deadline, cancel := context.WithTimeout(s.ctx, time.Duration(groups+1)*s.h.gap()<<s.attempt)
	context.AfterFunc(s.ctx, cancel)
	line := make([]*lineWaiter, inLine)
	for n := range line {
		p := &lineWaiter{n: n, group: n * groups / inLine, leave: leaver(n)}
		if n > 0 && p.group > line[n-1].group {
			s.gap()
		}
		ctx := s.ctx
		if p.leave == leavesByDeadline {
			ctx = deadline
		}
		p.waiter = s.waitCtx(ctx, clients[n%len(clients)], key, s.token(fmt.Sprint("waiter", n)), long)
		line[n] = p
	}
	s.gap()
	return line
}

// leaveLine has some leave, and returns the others.
func leaveLine(s *scene, clients []*client, line []*lineWaiter) (staying []*lineWaiter) {
	for _, p := range line {
		if p.leave == leavesByCancel || p.leave == leavesElsewhere {
			p.cancel()
		}
	}
	for _, p := range line {
		by := p.by
		switch p.leave {
		case 0:
			staying = append(staying, p)
			continue
		case leavesElsewhere:
			by = clients[(p.n+1)%len(clients)]
		}
		s.ended(p.waiter)
		s.release(by, p.grant, false)
	}
	return staying
}

// serveLine releases the key until all have been served.
func serveLine(s *scene, c *client, g grant, line []*lineWaiter) {
	returned := make(chan *lineWaiter, len(line))
	for _, p := range line {
		go func() { <-p.done; returned <- p }()
	}
	for i, want := range line {
		if s.over() {
			return
		}
		s.release(c, g, true)
		p := nextOf(s, returned)
		if p == nil {
			s.fail("a holder released %s, for which %d still waited of %d that came, and %v later none of them was served; %d have been served before, and %d have left",
				brief(g.key), len(line)-i, inLine, s.h.patience(), i, inLine-len(line))
			return
		}
		if p.group != want.group && !s.h.Unordered {
			outOfOrder(s, p.n, want.n)
			return
		}
		g = s.isServed(p.waiter)
	}
	s.release(c, g, true)
	s.free(c, g.key)
}

// nextOf returns the next waiter that returns, or nil if none does within the harness's
// patience.
func nextOf(s *scene, returned <-chan *lineWaiter) *lineWaiter {
	var next *lineWaiter
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case next = <-returned:
		case <-stop:
		}
	}()
	s.await(done)
	close(stop)
	<-done
	return next
}

func deadWaiterIsSkipped(s *scene) error {
	a, b := s.client(), s.acquirer()
	g := s.grant(a, s.key(), s.token("holder"), long)
	dead := s.wait(b, g.key, s.token("dead"), long)
	alive := s.wait(s.client(), g.key, s.token("alive"), long)
	deadToo := s.wait(b, g.key, s.token("dead"), long)
	last := s.wait(b, g.key, s.token("last"), long)
	for _, w := range []*waiter{dead, deadToo} {
		w.cancel()
		s.ended(w)
	}
	s.release(a, g, true)
	s.eachServed([]*waiter{alive, last}, "the holder released the key; a waiter that came before had died",
		func(w *waiter) { s.release(a, w.grant, true) })
	othersStay(s, a, b)
	return s.result()
}

// othersStay: that a waiter has died is no reason to serve those behind it, while the key is
// held, nor to forget others of its client, that wait for the same key or another. In a
// bubble there is time for the session of the dead to end.
func othersStay(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	h := s.grant(a, s.key(), s.token("holder"), long)
	dead := s.wait(b, g.key, s.token("dead"), long)
	behind := []*waiter{s.wait(a, g.key, s.token("alive"), long), s.wait(b, g.key, s.token("same"), long)}
	other := s.wait(b, h.key, s.token("other"), long)
	dead.cancel()
	s.ended(dead)
	if s.h.Bubble {
		s.sleep(time.Minute)
	}
	for _, w := range append(behind, other) {
		s.waits(w)
	}
	s.held(a, g)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.release(a, h, true)
	s.served(other, "the holder released the key; a wait of the same client for another key had ended before")
	s.release(a, other.grant, true)
	s.eachServed(behind, "the holder released the key; a waiter that came before, of the client of one of them, had died",
		func(w *waiter) { s.release(a, w.grant, true) })
}

func deadHostManyWaiters(s *scene) error {
	const (
		many = 100
		ttl  = 5 * time.Second // one of them may be served while it dies
	)
	a, host := s.client(), s.acquirer()
	g := s.grant(a, s.key(), s.token("holder"), long)
	dead := make([]*waiter, many)
	for i := range dead {
		dead[i] = s.waitCtx(s.ctx, host, g.key, s.token("dead"), ttl)
	}
	s.gap()
	alive := s.wait(s.client(), g.key, s.token("alive"), long)
	for _, w := range dead {
		w.cancel()
	}
	for _, w := range dead {
		s.ended(w)
	}
	s.release(a, g, true)
	g = s.servedInTheEnd(alive, fmt.Sprintf("the holder released the key; %d waiters of one client that came before had died", many))
	s.release(a, g, true)
	return s.result()
}

// deadWaiterOverNetwork has waiters die that nobody cancels and nobody releases: their
// connections end with their process, or fall silent with their host. The store knows of
// the one, and finds out about the other: what the dead are granted then lasts for their
// TTL, which is short therefore.
func deadWaiterOverNetwork(s *scene) error {
	s.acquirer()
	silent := s.h.patience() / 3
	s.overFailed(
		func(n *network) { waitersDie(n, 1, long, "whose process was killed", n.Refuse) },
		func(n *network) { waitersDie(n, 50, long, "whose process was killed", n.Refuse) },
		func(n *network) {
			waitersDie(n, 1, silent, "whose host fell silent", func() { n.Block(faultproxy.Both) })
		},
	)
	return s.result()
}

// waitersDie has many wait over the network, and die before the key is released. Another
// waits behind them.
func waitersDie(n *network, many int, ttl time.Duration, how string, die func()) {
	if !n.offers(n.via.inner.Locker, acquire) {
		n.skip("the Locker over the network is no Acquirer")
		return
	}
	g := n.grant(n.direct, n.key(), n.token("holder"), long)
	dead := make([]*waiter, many)
	for i := range dead {
		dead[i] = n.waitCtx(n.ctx, n.via, g.key, n.token("dead"), ttl)
	}
	n.gap()
	alive := n.scene.wait(n.direct, g.key, n.token("alive"), long)
	for _, w := range append(dead, alive) {
		n.waits(w)
	}
	die()
	n.gap()
	n.release(n.direct, g, true)
	n.servedInTheEnd(alive, fmt.Sprintf("the holder released the key; before it came %d waiters of one client %s", many, how))
	n.release(n.direct, alive.grant, true)
	for _, w := range dead {
		w.cancel()
	}
}

// noStarvation has one Client compete with others that keep coming back. They are
// Clients, since it is the core that waits where the store has no queue.
func noStarvation(s *scene) error {
	const others = 3
	key := s.key()
	ctx, cancel := context.WithTimeout(s.ctx, 3*s.h.patience())
	defer cancel()
	coming, stop := context.WithCancel(ctx)
	var served atomic.Int64
	var wg sync.WaitGroup
	for range others {
		l := s.client()
		wg.Go(func() { comeAgain(s, coming, l, key, &served) })
	}
	s.gap()
	l := s.client()
	c := dlock.New(l, dlock.WithTTL(long), dlock.WithRenewal(false))
	defer c.Close()
	times := 2
	if !s.over() && s.offers(l.inner.Locker, acquire) {
		times = 8 // as a queue in disorder may be kind to those who come at the right moment
	}
	for i := range times {
		time.Sleep(time.Duration(i) * 700 * time.Microsecond)
		serveOnce(s, ctx, c, key, &served)
	}
	stop()
	wg.Wait()
	return s.result()
}

func serveOnce(s *scene, ctx context.Context, c *dlock.Client, key string, others *atomic.Int64) {
	if s.over() {
		return
	}
	before := others.Load()
	lease, err := c.Acquire(ctx, key)
	if err != nil {
		s.fail("Client.Acquire(%s) = %w, while others were served %d times; want every waiter to be served", brief(key), err, others.Load()-before)
		return
	}
	s.noError(lease.Release(), "Lease.Release", key)
}

// comeAgain acquires and releases key again and again until ctx ends.
func comeAgain(s *scene, ctx context.Context, l dlock.Locker, key string, served *atomic.Int64) {
	c := dlock.New(l, dlock.WithTTL(long), dlock.WithRenewal(false))
	defer c.Close()
	for !s.over() {
		lease, err := c.Acquire(ctx, key)
		if err != nil {
			return
		}
		served.Add(1)
		time.Sleep(5 * time.Millisecond)
		s.noError(lease.Release(), "Lease.Release", key)
		time.Sleep(2 * time.Millisecond)
	}
}

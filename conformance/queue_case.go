package conformance

import (
	"context"
	"fmt"
	"time"
)

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
	staying := s.leaveLine(clients, s.joinLine(clients, g.key))
	for _, p := range staying {
		s.waits(p.waiter)
	}
	s.serveLine(a, g, staying)
	if !s.h.Unordered {
		s.lineOnBusyStore(a, clients[0])
		if s.h.Bubble { // it takes a gap for each
			s.rollingLine(a, clients[0])
		}
	}
	return s.result()
}

// beyond is how many grants there are while some wait: more than fit into three digits, or
// into the history that a store keeps of its changes.
const beyond = 1100

// lineOnBusyStore has a few wait while many other keys are granted and released: they keep
// their order.
func (s *scene) lineOnBusyStore(a, b *client) {
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
	s.serveInOrder(a, g, line, func() []*waiter { return nil })
}

// rollingLine has so many come one after the other: first more than are served, then as
// many.
func (s *scene) rollingLine(a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	came := 0
	s.serveInOrder(a, g, nil, func() (line []*waiter) {
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
func (s *scene) serveInOrder(c *client, g grant, line []*waiter, join func() []*waiter) {
	for n := 0; !s.over(); n++ {
		line = append(line, join()...)
		s.release(c, g, true)
		if len(line) == 0 {
			return
		}
		if i := s.first(line); i != 0 {
			s.outOfOrder(i+n, n)
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
func (s *scene) joinLine(clients []*client, key string) []*lineWaiter {
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
func (s *scene) leaveLine(clients []*client, line []*lineWaiter) (staying []*lineWaiter) {
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
func (s *scene) serveLine(c *client, g grant, line []*lineWaiter) {
	returned := make(chan *lineWaiter, len(line))
	for _, p := range line {
		go func() { <-p.done; returned <- p }()
	}
	for i, want := range line {
		if s.over() {
			return
		}
		s.release(c, g, true)
		p := s.nextOf(returned)
		if p == nil {
			s.fail("a holder released %s, for which %d still waited of %d that came, and %v later none of them was served; %d have been served before, and %d have left",
				brief(g.key), len(line)-i, inLine, s.h.patience(), i, inLine-len(line))
			return
		}
		if p.group != want.group && !s.h.Unordered {
			s.outOfOrder(p.n, want.n)
			return
		}
		g = s.isServed(p.waiter)
	}
	s.release(c, g, true)
	s.free(c, g.key)
}

// nextOf returns the next waiter that returns, or nil if none does within the harness's
// patience.
func (s *scene) nextOf(returned <-chan *lineWaiter) *lineWaiter {
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

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

func firstComeFirstServed(s *scene, a, b *client) {
	clients := []*client{b, s.client(), a}
	g := s.grant(a, s.key(), s.token("holder"), long)
	serveLine(s, a, g, joinLine(s, clients, g.key, 6, 6))
}

// joinLine has n tokens wait for key, by the clients in turn. They come in groups: which of two that
// come together is first, nobody knows.
func joinLine(s *scene, clients []*client, key string, n, groups int) []*waiter {
	line := make([]*waiter, n)
	for i := range line {
		group := i * groups / n
		if i > 0 && group > line[i-1].group {
			s.gap()
		}
		line[i] = s.waitCtx(s.ctx, clients[i%len(clients)], key, s.token(fmt.Sprint("waiter", i)), long)
		line[i].group = group
	}
	s.gap()
	return line
}

// serveLine releases the key of g, and then again for each of a line that is served.
func serveLine(s *scene, c *client, g grant, line []*waiter) {
	s.release(c, g, true)
	s.eachServed(line, "each holder released the key", func(w *waiter) { s.release(c, w.grant, true) })
	s.free(c, g.key)
}

const (
	inLine = 300  // more than fit into 8 bits
	beyond = 1100 // more than fit into three digits, or into the history that a store keeps of its changes
)

// longQueue has hundreds wait for a key, while many other keys are granted and released. Some leave,
// from all parts of the queue; then every release serves one of the others.
func longQueue(s *scene, a, b *client) {
	clients := []*client{b, s.client(), s.client()}
	g := s.grant(a, s.key(), s.token("holder"), long)
	groups := 6
	if s.h.Bubble {
		groups = inLine // the gaps between them take no time
	}
	line := leaveLine(s, joinLine(s, clients, g.key, inLine, groups))
	if !s.h.Unordered {
		eachOf(beyond, func(int) { s.release(a, s.grant(a, s.key(), s.token("elsewhere"), long), true) })
	}
	if s.h.Bubble {
		s.sleep(10 * time.Second)
	}
	for _, w := range line {
		s.waits(w)
	}
	serveLine(s, a, g, line)
	if s.h.Bubble && !s.h.Unordered {
		rollingLine(s, a, clients[0])
	}
}

// leaveLine has some leave, at the head, in the middle and at the tail, and returns the others.
func leaveLine(s *scene, line []*waiter) (staying []*waiter) {
	var leaving []*waiter
	for i, w := range line {
		if i < 3 || inLine/2 <= i && i < inLine/2+20 || inLine-3 <= i {
			leaving = append(leaving, w)
			w.cancel()
		} else {
			staying = append(staying, w)
		}
	}
	for _, w := range leaving {
		s.ended(w)
		s.release(w.by, w.grant, false)
	}
	return staying
}

// rollingLine has many come one after the other, while half of them are served.
func rollingLine(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var line []*waiter
	for came := range beyond {
		w := s.wait([]*client{a, b}[came%2], g.key, s.token("waiter"), long)
		w.group = came
		line = append(line, w)
		if came%2 == 1 {
			s.release(a, g, true)
			g = s.served(line[0], "the holder released the key; the waiter came first")
			line = line[1:]
		}
	}
	serveLine(s, a, g, line)
}

func deadWaiterIsSkipped(s *scene, a, b *client) {
	waitersDieInLine(s, a, b, 0)
	if s.h.Bubble {
		waitersDieInLine(s, a, b, time.Minute) // the session of the dead may end
	}
}

// waitersDieInLine: that waiters have died is no reason to serve those behind them while the key is
// held, nor to forget others of their client, which wait for the same key or another.
func waitersDieInLine(s *scene, a, b *client, pause time.Duration) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	h := s.grant(a, s.key(), s.token("holder"), long)
	elsewhere := s.wait(b, h.key, s.token("elsewhere"), long)
	var dead, alive []*waiter
	for _, c := range []*client{a, b} {
		dead = append(dead, s.wait(b, g.key, s.token("dead"), long))
		alive = append(alive, s.wait(c, g.key, s.token("alive"), long))
	}
	for _, w := range dead {
		w.cancel()
		s.ended(w)
	}
	s.sleep(pause)
	for _, w := range append(alive, elsewhere) {
		s.waits(w)
	}
	s.held(a, g)
	s.renew(a, g, long, true)
	s.release(a, h, true)
	s.served(elsewhere, "the holder released the key; waits of the same client for another key had ended before")
	s.release(a, elsewhere.grant, true)
	serveLine(s, a, g, alive)
}

func deadHostManyWaiters(s *scene, a, host *client) {
	const ttl = 5 * time.Second // one of them may be served while it dies
	waitersDie(s, a, host, 100, ttl, "which have died", func(dead []*waiter) {
		for _, w := range dead {
			w.cancel()
		}
		for _, w := range dead {
			s.ended(w)
		}
	})
}

// deadWaiterOverNetwork has waiters die that nobody cancels and nobody releases: their connections end with their process,
// or fall silent with their host. The store knows of the one, and finds out about the other: what the dead are granted then
// lasts for their TTL, which is short therefore.
func deadWaiterOverNetwork(s *scene, _, _ *client) {
	dying := func(n int, ttl time.Duration, how string, die func(*network)) part {
		return func(on *network) {
			if !on.offers(on.via, acquire) {
				on.skip("the Locker over the network is no Acquirer")
			}
			waitersDie(on.scene, on.direct, on.via, n, ttl, how, func([]*waiter) { die(on) })
		}
	}
	s.overNetworks(
		dying(1, long, "whose process was killed", (*network).Refuse),
		dying(50, long, "whose process was killed", (*network).Refuse),
		dying(1, s.h.patience()/3, "whose host fell silent", func(on *network) { on.Block(faultproxy.Both) }),
	)
}

// waitersDie has n wait by a client on a host, and die before the key is released. Another waits behind them.
func waitersDie(s *scene, a, host *client, n int, ttl time.Duration, how string, die func(dead []*waiter)) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	dead := make([]*waiter, n)
	for i := range dead {
		dead[i] = s.waitCtx(s.ctx, host, g.key, s.token("dead"), ttl)
	}
	s.gap()
	alive := s.wait(a, g.key, s.token("alive"), long)
	for _, w := range append(dead, alive) {
		s.waits(w)
	}
	die(dead)
	s.gap()
	s.release(a, g, true)
	s.servedInTheEnd(alive, fmt.Sprintf("the holder released the key; before it came %d waiters of one client %s", n, how))
	s.release(a, alive.grant, true)
	for _, w := range dead {
		w.cancel()
	}
}

// noStarvation has one Client compete with others that keep coming back. They are
// Clients, since it is the core that waits where the store has no queue.
func noStarvation(s *scene, a, b *client) {
	key := s.key()
	ctx, cancel := context.WithTimeout(s.ctx, 3*s.h.patience())
	defer cancel()
	coming, stop := context.WithCancel(ctx)
	var served atomic.Int64
	var others sync.WaitGroup
	for range 3 {
		c := patientClient(s.client())
		others.Go(func() { comeAgain(s, coming, c, key, &served) })
	}
	s.gap()
	l := s.client()
	c := patientClient(l)
	defer c.Close()
	times := 2
	if s.offers(l, acquire) {
		times = 8 // as a queue in disorder may be kind to those who come at the right moment
	}
	for i := 0; i < times; i++ {
		time.Sleep(time.Duration(i) * 700 * time.Microsecond)
		before := served.Load()
		lease, err := c.Acquire(ctx, key)
		if err != nil {
			s.fail("Client.Acquire(%s) = %w, while others were served %d times; want every waiter to be served", brief(key), err, served.Load()-before)
			break
		}
		s.noError(lease.Release(), "Lease.Release", key)
	}
	stop()
	others.Wait()
}

func patientClient(l dlock.Locker) *dlock.Client {
	return dlock.New(l, dlock.WithTTL(long), dlock.WithRenewal(false))
}

// comeAgain acquires and releases key again and again until ctx ends.
func comeAgain(s *scene, ctx context.Context, c *dlock.Client, key string, served *atomic.Int64) {
	defer c.Close()
	for {
		s.goOn()
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

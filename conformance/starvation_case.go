package conformance

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// noStarvation has one Client compete with others that keep coming back. They are
// Clients, since it is the core that waits where the store has no queue.
func noStarvation(s *scene) error {
	const others = 3
	key := s.key()
	ctx, cancel := context.WithTimeout(s.ctx, 3*s.h.patience())
	defer cancel()
	crowd, disperse := context.WithCancel(ctx)
	var served atomic.Int64
	var wg sync.WaitGroup
	for range others {
		l := s.client()
		wg.Go(func() { s.comeAgain(crowd, l, key, &served) })
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
		s.serveOnce(ctx, c, key, &served)
	}
	disperse()
	wg.Wait()
	return s.result()
}

func (s *scene) serveOnce(ctx context.Context, c *dlock.Client, key string, others *atomic.Int64) {
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
func (s *scene) comeAgain(ctx context.Context, l dlock.Locker, key string, served *atomic.Int64) {
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

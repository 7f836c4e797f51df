package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// noLeaks uses the store in every way, and looks for keys that are left. In a
// bubble the goroutines that are left behind are found when it ends. Elsewhere
// the store is used again and again, with new clients each time, and the number
// of goroutines must not rise with the rounds.
func noLeaks(s *scene) error {
	s.keepsNothing()
	ctx, end := goingOn()
	if s.h.Bubble { // where it never ends
		s.callsUnder(ctx, s.client(), s.client())
		return useEverything(s)
	}
	defer end()
	s.callsLeaveNothing(ctx)
	const warmUp, rounds = 2, 6
	before := 0
	for i := range warmUp + rounds {
		if i == warmUp {
			before = runtime.NumGoroutine()
		}
		use := useClients
		if i == 0 {
			use = useEverything
		}
		s.t.Run("round", func(t *testing.T) {
			if err := newScene(t, s.h, 0).play(use); err != nil {
				s.stop(err)
			}
		})
	}
	s.goroutinesEnd(before, rounds, "with new clients, all closed")
	return s.result()
}

// goingOn returns a ctx that does not end with the case, as that of a program that runs
// for months: what stays until it ends is a leak.
func goingOn() (ctx context.Context, end context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// callsLeaveNothing makes calls under a ctx that goes on. The number of goroutines must
// not rise with them.
func (s *scene) callsLeaveNothing(ctx context.Context) {
	const rounds = 5
	a, b := s.clients2()
	s.callsUnder(ctx, a, b)
	s.gap() // what ends, ends
	before := runtime.NumGoroutine()
	for range rounds {
		s.callsUnder(ctx, a, b)
	}
	s.goroutinesEnd(before, rounds, "of calls under a ctx that has not ended")
}

// callsUnder makes calls of each kind under ctx.
func (s *scene) callsUnder(ctx context.Context, a, b *client) {
	g := grant{key: s.key(), token: s.token("holder")}
	w := grant{key: g.key, token: s.token("waiter")}
	s.uses(g.key, g.token)
	s.uses(w.key, w.token)
	call := func(name string, f func() error) {
		if s.over() {
			return
		}
		if err := f(); supported(err) {
			s.noError(err, name, g.key)
		}
	}
	call("TryAcquire", func() error { _, err := a.TryAcquire(ctx, g.key, g.token, long); return err })
	call("Renew", func() error { return a.renewBy(ctx, "Renew", g) })
	call("RenewBatch", func() error { return a.renewBy(ctx, "RenewBatch", g) })
	call("TryAcquire", func() error { _, err := b.TryAcquire(ctx, w.key, w.token, long); return err })
	call("Inspect", func() error { _, err := b.Inspect(ctx, g.key); return err })
	served := make(chan struct{})
	go func() {
		defer close(served)
		call("Acquire", func() error { _, err := b.Acquire(ctx, w.key, w.token, long); return err })
	}()
	s.gap()
	call("Release", func() error { _, err := a.Release(ctx, g.key, g.token); return err })
	if !s.over() && !s.await(served) {
		s.fail("%s.Acquire(%s) has not returned %v after the holder released the key", b.name, brief(w.key), s.h.patience())
	}
	call("Release", func() error { _, err := b.Release(ctx, w.key, w.token); return err })
}

// keepsNothing uses many keys, never many at a time, and looks how much is stored. A
// store may remove things later, but what it keeps must not grow with the keys that were
// ever used.
func (s *scene) keepsNothing() {
	if s.h.Count == nil {
		return
	}
	const rounds, keys = 10, 40
	a, b := s.clients2()
	before := s.h.Count(s.t)
	for range rounds {
		for i := range keys {
			s.useKey(a, b, i)
		}
		s.lapse(time.Millisecond)
	}
	const most = rounds * keys / (2 * ways) // half of what one way alone would leave
	stored := 0
	for end := time.Now().Add(s.h.patience()); !s.over(); s.sleep(20 * time.Millisecond) {
		if stored = s.h.Count(s.t) - before; stored < most {
			return
		}
		if time.Now().After(end) {
			s.fail("%d keys, %d at a time, were released or have expired, but %d more things are stored than before; want less than %d, and no more if more keys are used",
				rounds*keys, keys, stored, most)
		}
	}
}

// ways is how many ways there are to use a key.
const ways = 5

// useKey uses a key in one way or another. Its lease ends at once, or very soon.
func (s *scene) useKey(a, b *client, way int) {
	key := s.key()
	switch way % ways {
	case 0:
		s.release(a, s.grant(a, key, s.token("holder"), long), true)
	case 1:
		s.grant(a, key, s.token("dead"), time.Millisecond)
	case 2:
		g := s.grant(a, key, s.token("holder"), long)
		s.refused(b, g, s.token("stranger"), long)
		s.renew(b, g.as("stranger"), long, false)
		s.release(b, g.as("stranger"), false)
		s.release(a, g, true)
	case 3:
		g := s.grant(a, key, s.token("holder"), long)
		s.waitsInVain(b, g)
		s.release(a, g, true)
	case 4:
		if _, err := b.Inspect(s.ctx, key); supported(err) {
			s.noError(err, "Inspect", key)
		}
	}
}

// waitsInVain has a token wait for a short time.
func (s *scene) waitsInVain(c *client, g grant) {
	ctx, cancel := context.WithTimeout(s.ctx, s.h.gap()/20)
	defer cancel()
	w := g.as(s.token("late"))
	s.uses(w.key, w.token)
	if _, err := c.Acquire(ctx, w.key, w.token, long); err == nil {
		s.fail("%s.Acquire(%s) = <nil> when its ctx had ended; want an error, because another token holds the key", c.name, brief(w.key))
	}
	s.release(c, w, false)
}

// goroutinesEnd waits until there are about as many goroutines as before: one
// more for each round is a leak.
func (s *scene) goroutinesEnd(before, rounds int, rounded string) {
	for end := time.Now().Add(s.h.patience()); runtime.NumGoroutine() >= before+rounds; {
		if time.Now().After(end) {
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1) // to a Builder, which does not fail
			s.fail("%d goroutines, and %d after %d rounds %s:\n%s", before, runtime.NumGoroutine(), rounds, rounded, &stacks)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// useEverything is useClients, and then looks for what is left when all leases
// have expired.
func useEverything(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()
	s.grant(a, s.key(), s.token("dead"), ttl)
	g := s.grant(a, s.key(), s.token("dead"), ttl)
	s.renew(a, g, ttl, true)
	if err := useClients(s); err != nil {
		return err
	}
	s.lapse(ttl)
	for _, key := range s.keysUsed() {
		s.free(b, key)
	}
	return s.result()
}

// useClients has leases released, expired and renewed, and waits served,
// cancelled and timed out.
func useClients(s *scene) error {
	a, b := s.clients2()
	key := s.key()
	s.release(a, s.grant(a, key, s.token("holder"), long), true)
	g := s.grant(a, key, s.token("holder"), long)
	s.useWaits(b, g)
	s.release(a, g, true)
	s.free(b, key)
	s.useClient(b)
	return s.result()
}

// useWaits has waits for g end in two ways, where the store has a queue.
func (s *scene) useWaits(c *client, g grant) {
	timeout, cancel := context.WithTimeout(s.ctx, s.h.gap())
	defer cancel()
	w := s.waitCtx(timeout, c, g.key, s.token("late"), long)
	if s.over() || s.await(w.done) && !supported(w.err) {
		return
	}
	s.ended(w)
	s.release(c, w.grant, false)
	s.forget(s.wait(c, g.key, s.token("cancelled"), long))
}

// useClient uses the store through a Client, and closes it.
func (s *scene) useClient(c *client) {
	d := dlock.New(c, dlock.WithTTL(s.h.coreTTL()))
	defer d.Close()
	for i := range 2 {
		if s.over() {
			return
		}
		err := d.Do(s.ctx, s.key(), func(context.Context, *dlock.Lease) error {
			time.Sleep(s.h.coreTTL() * time.Duration(i) / 2)
			return nil
		})
		if errors.Is(err, dlock.ErrLost) && !s.h.Bubble {
			s.stop(errInconclusive) // or the store loses leases, for which there are other cases
			return
		}
		s.noError(err, "Client.Do", fmt.Sprint("round ", i))
	}
}

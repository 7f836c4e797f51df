package conformance

import (
	"context"
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
	if s.h.Bubble {
		return useEverything(s)
	}
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
	s.goroutinesEnd(before, rounds)
	return s.result()
}

// goroutinesEnd waits until there are about as many goroutines as before: one
// more for each round is a leak.
func (s *scene) goroutinesEnd(before, rounds int) {
	for end := time.Now().Add(s.h.patience()); runtime.NumGoroutine() >= before+rounds; {
		if time.Now().After(end) {
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1) // to a Builder, which does not fail
			s.fail("%d goroutines, and %d after %d rounds with new clients, all closed:\n%s", before, runtime.NumGoroutine(), rounds, &stacks)
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
		s.noError(err, "Client.Do", fmt.Sprint("round ", i))
	}
}

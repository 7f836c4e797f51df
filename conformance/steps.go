package conformance

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// A grant is a lease that the store granted to a case.
type grant struct {
	dlock.Attempt
	key, token string
	start      time.Time // before the call was made
}

// grant makes an attempt that must succeed.
func (s *scene) grant(c *client, key, token string, ttl time.Duration) grant {
	g := grant{key: key, token: token, start: s.now()}
	if s.over() {
		return g
	}
	s.uses(key, token)
	a, err := c.TryAcquire(s.ctx, key, token, ttl)
	switch {
	case err != nil:
		s.fail("%s.TryAcquire(%s, %s, %v) = %w; want it to be acquired", c.name, brief(key), brief(token), ttl, err)
	case !a.Acquired:
		s.fail("%s.TryAcquire(%s, %s, %v): %s; want it to be acquired", c.name, brief(key), brief(token), ttl, show(a))
	}
	g.Attempt = a
	s.certain(key, g.start.Add(ttl), true)
	return g
}

// again makes an attempt by the token that holds already.
func (s *scene) again(c *client, g grant, ttl time.Duration) grant {
	start := s.now()
	if s.over() {
		return grant{}
	}
	a, err := c.TryAcquire(s.ctx, g.key, g.token, ttl)
	switch {
	case err != nil:
		s.fail("%s.TryAcquire(%s, %s, %v) = %w; want it to be acquired", c.name, brief(g.key), brief(g.token), ttl, err)
	case !a.Acquired:
		s.fail("%s.TryAcquire(%s, %s, %v), by the token that holds the key: %s; want it to be acquired",
			c.name, brief(g.key), brief(g.token), ttl, show(a))
	}
	s.certain(g.key, start.Add(ttl), false)
	return grant{Attempt: a, key: g.key, token: g.token, start: start}
}

// refused makes an attempt on a key that another token holds.
func (s *scene) refused(c *client, g grant, token string, ttl time.Duration) dlock.Attempt {
	if s.over() {
		return dlock.Attempt{}
	}
	s.uses(g.key, token)
	a, err := c.TryAcquire(s.ctx, g.key, token, ttl)
	switch {
	case err != nil:
		s.fail("%s.TryAcquire(%s, %s, %v) = %w; want it to be refused without an error", c.name, brief(g.key), brief(token), ttl, err)
	case a.Acquired && !s.mayHaveExpired(g.key):
		s.fail("%s.TryAcquire(%s, %s, %v) was acquired; but %s must still hold the key",
			c.name, brief(g.key), brief(token), ttl, brief(g.token))
	}
	return a
}

// held checks that g still holds its key, with an attempt of a stranger.
func (s *scene) held(c *client, g grant) { s.refused(c, g, s.token("stranger"), s.h.ttl()) }

// free checks that the key is free, by taking it and giving it back.
func (s *scene) free(c *client, key string) {
	s.release(c, s.grant(c, key, s.token("next"), long), true)
}

// renew renews g and checks the answer.
func (s *scene) renew(c *client, g grant, ttl time.Duration, want bool) {
	if s.over() {
		return
	}
	start := s.now()
	held, err := c.Renew(s.ctx, g.key, g.token, ttl)
	switch {
	case err != nil:
		s.fail("%s.Renew(%s, %s, %v) = %w; want held = %v", c.name, brief(g.key), brief(g.token), ttl, err, want)
	case held != want && !(want && s.mayHaveExpired(g.key)):
		s.fail("%s.Renew(%s, %s, %v): held = %v; want %v", c.name, brief(g.key), brief(g.token), ttl, held, want)
	}
	if held && want {
		s.certain(g.key, start.Add(ttl), false)
	}
}

// release releases g and checks the answer.
func (s *scene) release(c *client, g grant, want bool) { s.releaseUnless(c, g, want, want) }

// releaseUnless excuses a wrong answer, if late is set, where the latest lease on the key
// may have ended meanwhile.
func (s *scene) releaseUnless(c *client, g grant, want, late bool) {
	if s.over() {
		return
	}
	held, err := c.Release(s.ctx, g.key, g.token)
	switch {
	case err != nil:
		s.fail("%s.Release(%s, %s) = %w; want held = %v", c.name, brief(g.key), brief(g.token), err, want)
	case held != want && !(late && s.mayHaveExpired(g.key)):
		s.fail("%s.Release(%s, %s): held = %v; want %v", c.name, brief(g.key), brief(g.token), held, want)
	}
}

// as is g in the name of another token.
func (g grant) as(token string) grant { g.token = token; return g }

// A waiter is an Acquire that runs in a goroutine.
type waiter struct {
	grant  // without the answer
	by     *client
	ttl    time.Duration
	cancel context.CancelFunc

	done   chan struct{} // closed when Acquire has returned
	answer dlock.Attempt // after done, as err
	err    error
}

// wait starts an Acquire and gives it the time to reach the store.
func (s *scene) wait(c *client, key, token string, ttl time.Duration) *waiter {
	w := s.waitCtx(s.ctx, c, key, token, ttl)
	s.gap()
	return w
}

func (s *scene) waitCtx(ctx context.Context, c *client, key, token string, ttl time.Duration) *waiter {
	ctx, cancel := context.WithCancel(ctx)
	w := &waiter{by: c, ttl: ttl, cancel: cancel, done: make(chan struct{})}
	w.grant = grant{key: key, token: token, start: s.now()}
	if s.over() {
		close(w.done)
		return w
	}
	s.uses(key, token)
	s.mu.Lock()
	s.waiters = append(s.waiters, w)
	s.mu.Unlock()
	go func() {
		defer close(w.done)
		w.answer, w.err = c.Acquire(ctx, key, token, ttl)
	}()
	return w
}

// waits checks that w has not returned yet.
func (s *scene) waits(w *waiter) {
	if s.over() {
		return
	}
	select {
	case <-w.done:
		if !s.mayHaveExpired(w.key) {
			s.fail("%s.Acquire(%s, %s, %v) returned %s, %v, while another token held the key",
				w.by.name, brief(w.key), brief(w.token), w.ttl, show(w.answer), w.err)
		}
	default:
	}
}

// served checks that w is granted its key soon.
func (s *scene) served(w *waiter, why string) grant {
	if s.over() {
		return w.grant
	}
	if !s.await(w.done) {
		s.fail("%s.Acquire(%s, %s, %v) has not returned %v after %s",
			w.by.name, brief(w.key), brief(w.token), w.ttl, s.h.patience(), why)
		return w.grant
	}
	return s.isServed(w)
}

// isServed checks what a waiter that has returned was answered.
func (s *scene) isServed(w *waiter) grant {
	if w.err != nil || !w.answer.Acquired {
		s.fail("%s.Acquire(%s, %s, %v) = %s, %v; want it to be acquired, or an error if its ctx has ended",
			w.by.name, brief(w.key), brief(w.token), w.ttl, show(w.answer), w.err)
	}
	// Any time after the grant is meant, and this is after it by no more than
	// the store takes to tell.
	s.certain(w.key, s.now().Add(w.ttl-s.h.patience()), true)
	g := w.grant
	g.Attempt = w.answer
	return g
}

// ended checks that w returns an error soon after its ctx has ended.
func (s *scene) ended(w *waiter) {
	if s.over() {
		return
	}
	if !s.await(w.done) {
		s.fail("%s.Acquire(%s, %s, %v) has not returned %v after its ctx had ended",
			w.by.name, brief(w.key), brief(w.token), w.ttl, s.h.patience())
		return
	}
	if w.err == nil && !s.mayHaveExpired(w.key) {
		s.fail("%s.Acquire(%s, %s, %v) = %s, <nil> after its ctx had ended; want an error, because another token holds the key",
			w.by.name, brief(w.key), brief(w.token), w.ttl, show(w.answer))
	}
	s.wasSent(w)
}

// wasSent checks that a wait which has stood in the queue does not say that nothing was
// sent, or that no later call can succeed. A [dlock.NoEffectError] may be right: cases of
// its own look at that.
func (s *scene) wasSent(w *waiter) {
	switch {
	case s.over() || w.err == nil:
	case errors.Is(w.err, dlock.ErrClosed):
		s.fail("%s.Acquire(%s, %s, %v), which has waited, returned %q; want an error that does not mean that no later call can succeed",
			w.by.name, brief(w.key), brief(w.token), w.ttl, w.err)
	case saysNoEffect(w.err) && !chain(w.err, isMark):
		s.fail("%s.Acquire(%s, %s, %v), which has waited, returned %q; want an error that does not mean that nothing was sent",
			w.by.name, brief(w.key), brief(w.token), w.ttl, w.err)
	}
}

// forget cancels w and does what a caller owes the store after that.
func (s *scene) forget(w *waiter) {
	w.cancel()
	s.ended(w)
	s.releaseUnless(w.by, w.grant, false, true) // it may have been served meanwhile
}

// supported reports whether an optional method is there.
func supported(err error) bool { return !errors.Is(err, errors.ErrUnsupported) }

// acquirer, batchRenewer and inspector return one more client, and skip the case
// if it lacks the method.
func (s *scene) acquirer() *client     { return s.clientThat(acquire) }
func (s *scene) batchRenewer() *client { return s.clientThat(renewBatch) }
func (s *scene) inspector() *client    { return s.clientThat(inspect) }

func (s *scene) clientThat(o optionalMethod) *client {
	c := s.client()
	iface, method, _ := strings.Cut(o.name, ".")
	switch l := c.inner.Locker; {
	case s.over():
	case !o.implemented(l):
		s.skip("the Locker is no %s", iface)
	case !s.offers(l, o):
		s.skip("%s answers errors.ErrUnsupported", method)
	}
	return c
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A waiter is an Acquire that runs in a goroutine.
type waiter struct {
	grant  // without the answer
	by     *client
	ttl    time.Duration
	group  int // in a line: those of one group came together
	cancel context.CancelFunc

	done   chan struct{} // closed when Acquire has returned
	answer dlock.Attempt // after done, as err
	err    error
	early  bool // it returned before its ctx ended
}

// String is the call, as a trace shows it.
func (w *waiter) String() string {
	return fmt.Sprintf("%s.Acquire(%s, %s, %v)", w.by.name, brief(w.key), brief(w.token), w.ttl)
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
	w.grant = grant{key: key, token: token, start: time.Now()}
	s.goOn()
	s.uses(key, token)
	s.mu.Lock()
	s.waiters = append(s.waiters, w)
	s.mu.Unlock()
	go func() {
		defer close(w.done)
		w.answer, w.err = c.Acquire(ctx, key, token, ttl)
		deadline, ok := ctx.Deadline() // a client may have a timer of its own for that
		w.early = ctx.Err() == nil && (!ok || time.Now().Before(deadline))
	}()
	return w
}

func (w *waiter) returned() bool { return isClosed(w.done) }

// waits checks that w has not returned yet.
func (s *scene) waits(w *waiter) {
	if w.returned() && !s.mayHaveExpired(w.key) {
		s.fail("%v returned %s, %w, while another token held the key", w, show(w.answer), orNone(w.err))
	}
}

// served checks that w is granted its key soon.
func (s *scene) served(w *waiter, why string) grant {
	if !s.await(w.done) {
		s.fail("%v has not returned %v after %s", w, s.h.patience(), why)
	}
	return s.isServed(w)
}

// servedInTheEnd is served, where that depends on calls that were given a gap to reach the store.
// If w is not served the case is inconclusive first, as the gap may have been too short.
func (s *scene) servedInTheEnd(w *waiter, why string) grant {
	if !s.h.Bubble && s.attempt < tries-2 && !s.await(w.done) {
		s.stop(errInconclusive)
	}
	return s.served(w, why)
}

// isServed checks what a waiter that has returned was answered.
func (s *scene) isServed(w *waiter) grant {
	switch {
	case w.err != nil:
		s.fail("%v = %w; want it to be acquired, as its ctx has not ended", w, w.err)
	case !w.answer.Acquired:
		s.fail("%v: %s; want it to be acquired, or an error if its ctx has ended", w, show(w.answer))
	}
	// Any time after the grant is meant, and this is after it by no more than the store takes to tell.
	s.certain(w.key, time.Now().Add(w.ttl-s.h.patience()), true)
	g := w.grant
	g.Attempt = w.answer
	return g
}

// returns checks that w returns soon after its ctx has ended, whatever has come of it.
func (s *scene) returns(w *waiter) {
	if !s.await(w.done) {
		s.fail("%v has not returned %v after its ctx had ended", w, s.h.patience())
	}
}

// ended checks that w returns an error soon after its ctx has ended.
func (s *scene) ended(w *waiter) {
	s.returns(w)
	if w.err == nil && !s.mayHaveExpired(w.key) {
		s.fail("%v = %s, <nil> after its ctx had ended; want an error, because another token holds the key", w, show(w.answer))
	}
	s.wasSent(w)
}

// wasSent checks that a wait which has stood in the queue does not say that nothing was sent, or that no later call can
// succeed. A [dlock.NoEffectError] may be right: cases of its own look at that.
func (s *scene) wasSent(w *waiter) {
	_, marked := errors.AsType[*dlock.NoEffectError](w.err)
	switch {
	case errors.Is(w.err, dlock.ErrClosed):
		s.fail("%v, which has waited, returned %q; want an error that does not mean that no later call can succeed", w, w.err)
	case dlock.NoEffect(w.err) && !marked:
		s.fail("%v, which has waited, returned %q; want an error that does not mean that nothing was sent", w, w.err)
	}
}

// forget cancels w and does what a caller owes the store after that.
func (s *scene) forget(w *waiter) {
	w.cancel()
	s.ended(w)
	s.releaseUnless(w.by, w.grant, false, true) // it may have been served in the meantime
}

// endWaits cancels waits of a token that was released, whatever has come of them.
func (s *scene) endWaits(c *client, waiting []*waiter) {
	for _, w := range waiting {
		w.cancel()
	}
	for _, w := range waiting {
		s.returns(w)
		s.wasSent(w)
	}
	s.release(c, waiting[0].grant, false)
}

// first returns the index of a waiter that has returned, or -1 if none has within the harness's patience.
func (s *scene) first(waiting []*waiter) int {
	returned, enough := make(chan struct{}), make(chan struct{})
	defer close(enough)
	var once sync.Once
	for _, w := range waiting {
		go func() {
			select {
			case <-w.done:
				once.Do(func() { close(returned) })
			case <-enough:
			}
		}()
	}
	s.await(returned)
	return slices.IndexFunc(waiting, (*waiter).returned)
}

// eachServed checks that all of waiting are served, those of an earlier group first, and calls next for
// each when it has been: so the key is freed for the others.
func (s *scene) eachServed(waiting []*waiter, why string, next func(*waiter)) {
	waiting = slices.Clone(waiting)
	for len(waiting) > 0 {
		switch i := s.first(waiting); {
		case i < 0:
			s.fail("none of %d waiters for %s has been served %v after %s", len(waiting), brief(waiting[0].key), s.h.patience(), why)
		case waiting[i].group > waiting[0].group && !s.h.Unordered:
			if !s.h.Bubble && s.attempt < tries-2 {
				s.stop(errInconclusive) // they may have come to the store in another order than they set out
			}
			s.fail("%v was served; want %v, which came before", waiting[i], waiting[0])
		default:
			s.isServed(waiting[i])
			next(waiting[i])
			waiting = slices.Delete(waiting, i, i+1)
		}
	}
}

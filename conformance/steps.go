package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A grant is a lease that the store granted to a case.
type grant struct {
	dlock.Attempt
	key, token string
	start      time.Time // before the call was made
}

// try makes an attempt by the token of g, whatever its answer.
func (s *scene) try(c *client, g grant, ttl time.Duration) grant {
	g.Attempt, g.start = dlock.Attempt{}, time.Now()
	s.goOn()
	s.uses(g.key, g.token)
	var err error
	g.Attempt, err = c.TryAcquire(s.ctx, g.key, g.token, ttl)
	if err != nil {
		s.fail("%s = %w; want no error", c.text("TryAcquire", g.key, g.token, ttl), err)
	}
	return g
}

func (s *scene) grant(c *client, key, token string, ttl time.Duration) grant {
	g := s.try(c, grant{key: key, token: token}, ttl)
	if !g.Acquired {
		s.fail("%s: %s; want it to be acquired", c.text("TryAcquire", key, token, ttl), show(g.Attempt))
	}
	s.certain(key, g.start.Add(ttl), true)
	return g
}

func (s *scene) again(c *client, g grant, ttl time.Duration) grant {
	g = s.try(c, g, ttl)
	if !g.Acquired && !s.mayHaveExpired(g.key) {
		s.fail("%s, by the token that holds the key: %s; want it to be acquired", c.text("TryAcquire", g.key, g.token, ttl), show(g.Attempt))
	}
	s.certain(g.key, g.start.Add(ttl), false)
	return g
}

func (s *scene) refused(c *client, g grant, token string, ttl time.Duration) dlock.Attempt {
	other := s.try(c, g.as(token), ttl)
	if other.Acquired && !s.mayHaveExpired(g.key) {
		s.fail("%s was acquired; but %s must still hold the key", c.text("TryAcquire", g.key, token, ttl), brief(g.token))
	}
	return other.Attempt
}

// held checks that g still holds its key, with an attempt of a stranger.
func (s *scene) held(c *client, g grant) { s.refused(c, g, s.token("stranger"), s.h.ttl()) }

// free checks that the key is free, by taking it and giving it back.
func (s *scene) free(c *client, key string) {
	s.release(c, s.grant(c, key, s.token("next"), long), true)
}

func (s *scene) renew(c *client, g grant, ttl time.Duration, want bool) {
	s.goOn()
	start := time.Now()
	held, err := c.Renew(s.ctx, g.key, g.token, ttl)
	s.answers(c.text("Renew", g.key, g.token, ttl), g.key, held, err, want, want)
	if held && want {
		s.certain(g.key, start.Add(ttl), false)
	}
}

func (s *scene) release(c *client, g grant, want bool) { s.releaseUnless(c, g, want, want) }

// releaseUnless excuses a wrong answer, if late is set, where the latest lease on the key may have ended in the meantime.
func (s *scene) releaseUnless(c *client, g grant, want, late bool) {
	s.goOn()
	held, err := c.Release(s.ctx, g.key, g.token)
	s.answers(c.text("Release", g.key, g.token), g.key, held, err, want, late)
}

// answers checks what a call says of whether a token held its key.
func (s *scene) answers(call, key string, held bool, err error, want, late bool) {
	switch {
	case err != nil:
		s.fail("%s = %w; want held = %v", call, err, want)
	case held != want && !(late && s.mayHaveExpired(key)):
		s.fail("%s: held = %v; want %v", call, held, want)
	}
}

func (g grant) as(token string) grant { g.token = token; return g }

// A wish is an element of a batch and what is to become of it.
type wish struct {
	renewal dlock.Renewal
	held    bool
}

// renewAll renews a batch and compares the results. It returns what it gave and got.
func (s *scene) renewAll(c *client, wishes []wish) ([]dlock.Renewal, []dlock.RenewResult) {
	s.goOn()
	batch, start := batchOf(wishes), time.Now()
	call := c.text("RenewBatch", batch)
	results, err := c.RenewBatch(s.ctx, batch)
	if err != nil || len(results) != len(wishes) {
		s.fail("%s = %d results, %w; want %d results, and no error", call, len(results), orNone(err), len(wishes))
	}
	if !slices.Equal(batch, batchOf(wishes)) {
		s.fail("%s changed the batch that it was given, to %s", call, show(batch))
	}
	s.checkResults(c, wishes, results)
	for _, w := range wishes {
		if w.held {
			s.certain(w.renewal.Key, start.Add(w.renewal.TTL), false)
		}
	}
	return batch, results
}

func batchOf(wishes []wish) []dlock.Renewal {
	batch := make([]dlock.Renewal, len(wishes))
	for i, w := range wishes {
		batch[i] = w.renewal
	}
	return batch
}

// checkResults compares the results of a batch, when they are returned or later.
func (s *scene) checkResults(c *client, wishes []wish, results []dlock.RenewResult) {
	for i, got := range results {
		if w := wishes[i]; (got.Err != nil || got.Held != w.held) && !(w.held && s.mayHaveExpired(w.renewal.Key)) {
			s.fail("%s: result %d, of the renewal of %s, is {held = %v, error %w}; want {held = %v, error <nil>}",
				c.text("RenewBatch", batchOf(wishes)), i, showRenewal(w.renewal), got.Held, orNone(got.Err), w.held)
		}
	}
}

// batch renews like renew, where the store can.
func (s *scene) batch(c *client, g grant, ttl time.Duration, want bool) {
	if s.offers(c, renewBatch) {
		s.renewAll(c, []wish{g.wish(ttl, want)})
	}
}

func (g grant) wish(ttl time.Duration, held bool) wish {
	return wish{dlock.Renewal{Key: g.key, Token: g.token, TTL: ttl}, held}
}

// rounding is how much less than the remaining time a store may report. The times of calls are
// measured, so that a busy machine makes no difference.
const rounding = 3 * time.Millisecond

// orNone is err for %w in a message of a failure, which need not be the fault of err: whether
// err is a time-out can be told then.
func orNone(err error) error { return cmp.Or(err, errNone) }

var errNone = errors.New("<nil>")

func (s *scene) noError(err error, call, key string) {
	if err != nil {
		s.fail("%s(%s) = %w; want no error", call, brief(key), err)
	}
}

// numbers is how many numbers belong to one grant.
const numbers = 8

// above checks that later has a fence of its own, above that of earlier.
func (s *scene) above(earlier, later grant) {
	if earlier.Fence == 0 && later.Fence == 0 {
		return
	}
	if later.Fence < earlier.Fence+numbers {
		s.fail("%s: %s has fence %d, and %s, which holds it later, has fence %d; want the later fence to be larger by at least %d",
			brief(later.key), brief(earlier.token), earlier.Fence, brief(later.token), later.Fence, numbers)
	}
}

// fenced skips the case where the store has no fences.
func (s *scene) fenced(g grant) {
	if g.Fence == 0 {
		s.skip("Fence is 0: the store has no fences")
	}
}

// takeFenced tries to take key for long, and pauses if it is held.
func (s *scene) takeFenced(c *client, key, name string) grant {
	g := s.try(c, grant{key: key, token: s.token(name)}, long)
	if !g.Acquired {
		time.Sleep(time.Millisecond)
	}
	return g
}

func (s *scene) wipe() {
	s.goOn()
	s.h.Wipe(s.t)
}

// checkRefusal compares what a refused attempt reports, if it does, with what it can be.
func (s *scene) checkRefusal(a dlock.Attempt, g grant, ttl time.Duration) {
	if a.Holder != "" && a.Holder != g.token {
		s.fail("TryAcquire(%s) was refused with Holder %s; want %s, who holds the key, or nothing", brief(g.key), brief(a.Holder), brief(g.token))
	}
	s.remains("TryAcquire", a.Remaining, g, ttl)
}

// remains checks what a call reports of the time that remains of g, a lease of ttl.
func (s *scene) remains(call string, reported time.Duration, g grant, ttl time.Duration) {
	least := max(ttl-time.Since(g.start)-rounding, 0)
	if reported != 0 && (reported < least || reported > ttl+s.h.grace()) {
		s.fail("%s(%s): Remaining is %v; want between %v and the %v that the holder asked for, or 0 for unknown", call, brief(g.key), reported, least, ttl)
	}
}

func (s *scene) sees(c *client, g grant, ttl time.Duration) {
	s.goOn()
	h, err := c.Inspect(s.ctx, g.key)
	switch {
	case err != nil:
		s.fail("%s = %w; want its holder", c.text("Inspect", g.key), err)
	case !h.Held && s.mayHaveExpired(g.key):
	case !h.Held || h.Token != "" && h.Token != g.token:
		s.fail("%s = %s; want it to be held by %s, or by an unknown token", c.text("Inspect", g.key), show(h), brief(g.token))
	}
	s.remains("Inspect", h.Remaining, g, ttl)
}

func (s *scene) seesNobody(c *client, key, why string) {
	s.goOn()
	h, err := c.Inspect(s.ctx, key)
	if err != nil || h.Held || h.Token != "" || h.Remaining != 0 {
		s.fail("%s = %s, %w, though %s; want it not to be held", c.text("Inspect", key), show(h), orNone(err), why)
	}
}

func (s *scene) takeMany(n int, ttl time.Duration, clients ...*client) []grant {
	leases := make([]grant, n)
	eachOf(n, func(i int) {
		leases[i] = s.grant(clients[i%len(clients)], s.key(), s.token(fmt.Sprint("holder", i)), ttl)
	})
	return leases
}

// releaseMany releases leases by other clients than those that took them.
func (s *scene) releaseMany(leases []grant, clients ...*client) {
	eachOf(len(leases), func(i int) { s.release(clients[(i+1)%len(clients)], leases[i], true) })
}

// notFreedBefore has a stranger try to take the key of g, which lasts until Since+ttl, all the time until it succeeds.
func (s *scene) notFreedBefore(c *client, g grant, ttl time.Duration) {
	end := cmp.Or(g.Since, g.start).Add(ttl)
	for time.Now().Before(end.Add(s.h.patience())) {
		if s.takeFenced(c, g.key, "stranger").Acquired {
			if early := time.Until(end); early > 0 {
				s.fail("%s was granted to another %v before Since+ttl of its holder %s%s", brief(g.key), early, brief(g.token), hint(early))
			}
			return
		}
		time.Sleep(ttl / 40)
	}
}

func (s *scene) short() time.Duration { return max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt) }

// A longLease was given a TTL by one call or another.
type longLease struct {
	grant
	by  string
	ttl time.Duration
}

// lastingFor has each call make a lease, or extend a short one.
func (s *scene) lastingFor(a, b *client, can abilities, short, ttl time.Duration) []longLease {
	leases := []longLease{{s.grant(a, s.key(), s.token("holder"), ttl), "TryAcquire", ttl}}
	extended := func(by string, extend func(grant)) {
		g := s.grant(a, s.key(), s.token("holder"), short)
		g.start = time.Now()
		extend(g)
		leases = append(leases, longLease{g, by, ttl})
	}
	extended("TryAcquire, by the holder,", func(g grant) { s.again(b, g, ttl) })
	extended("Renew", func(g grant) { s.renew(b, g, ttl, true) })
	if can.batch {
		extended("RenewBatch", func(g grant) { s.renewAll(b, []wish{g.wish(ttl, true)}) })
	}
	if can.wait {
		w := s.waitCtx(s.ctx, b, s.key(), s.token("waiter"), ttl)
		free := s.served(w, "it was called, though nobody held the key")
		leases = append(leases, longLease{free, "Acquire, of a free key,", ttl}, s.handedOver(a, b, short, ttl))
	}
	return leases
}

// handedOver has a key handed to a waiter, by a holder with a shorter TTL.
func (s *scene) handedOver(a, b *client, former, ttl time.Duration) longLease {
	g := s.grant(a, s.key(), s.token("holder"), former)
	w := s.wait(b, g.key, s.token("waiter"), ttl)
	start := time.Now()
	s.release(a, g, true)
	next := s.served(w, "the holder released the key")
	next.start = start
	return longLease{next, "Acquire", ttl}
}

func (s *scene) stillLast(a, b *client, leases []longLease, can abilities) {
	for _, l := range leases {
		s.lasts(b, l)
		if can.inspect {
			s.sees(b, l.grant, l.ttl)
		}
		s.release(a, l.grant, true)
		if can.inspect {
			s.seesNobody(b, l.key, "its holder released it")
		}
		s.free(b, l.key)
	}
}

func (s *scene) lasts(c *client, l longLease) {
	other := s.try(c, l.as(s.token("stranger")), s.h.ttl())
	if other.Acquired {
		s.fail("%s was acquired %v after %s had given the key to %s for %v",
			c.text("TryAcquire", l.key, other.token, s.h.ttl()), time.Since(l.start), l.by, brief(l.token), l.ttl)
	}
	s.checkRefusal(other.Attempt, l.grant, l.ttl)
}

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
	s.mu.locked(func() { s.waiters = append(s.waiters, w) })
	go func() {
		defer close(w.done)
		w.answer, w.err = c.Acquire(ctx, key, token, ttl)
		deadline, ok := ctx.Deadline() // a client may have a timer of its own for that
		w.early = ctx.Err() == nil && (!ok || time.Now().Before(deadline))
	}()
	return w
}

func (w *waiter) returned() bool { return isClosed(w.done) }

func (s *scene) waits(w *waiter) {
	if w.returned() && !s.mayHaveExpired(w.key) {
		s.fail("%v returned %s, %w, while another token held the key", w, show(w.answer), orNone(w.err))
	}
}

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

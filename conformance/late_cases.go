package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

func isErr(err, target error) bool { return errors.Is(err, target) }

// renewBy renews g with Renew or RenewBatch.
func (c *client) renewBy(ctx context.Context, call string, g grant) error {
	if call == "Renew" {
		_, err := c.Renew(ctx, g.key, g.token, long)
		return err
	}
	_, err := c.RenewBatch(ctx, []dlock.Renewal{{Key: g.key, Token: g.token, TTL: long}})
	return err
}

var errReplyLost = errors.New("conformance: the reply was lost")

// A lossy Locker has the store do what it is asked, and loses some of the
// replies.
type lossy struct {
	dlock.Forward
	mu   sync.Mutex
	lose map[string]int // call → how many replies of it are still to be lost
}

func newLossy(l dlock.Locker) *lossy {
	return &lossy{Forward: dlock.Forward{Locker: l}, lose: make(map[string]int)}
}

func (l *lossy) loseNext(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose[call]++
}

// reply is err, or errReplyLost if a reply of call is to be lost.
func (l *lossy) reply(call string, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || l.lose[call] == 0 {
		return err
	}
	l.lose[call]--
	return errReplyLost
}

func (l *lossy) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.TryAcquire(ctx, key, token, ttl)
	if err := l.reply("TryAcquire", err); err != nil {
		return dlock.Attempt{}, err
	}
	return a, nil
}

func (l *lossy) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	if err := l.reply("Acquire", err); err != nil {
		return dlock.Attempt{}, err
	}
	return a, nil
}

func (l *lossy) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := l.Forward.Renew(ctx, key, token, ttl)
	if err := l.reply("Renew", err); err != nil {
		return false, err
	}
	return held, nil
}

func (l *lossy) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := l.Forward.Release(ctx, key, token)
	if err := l.reply("Release", err); err != nil {
		return false, err
	}
	return held, nil
}

func lostReply(s *scene) error {
	a, b := s.clients2()
	s.repeatAll(a, b)
	s.repeatAcquire(s.client(), b)
	s.givenUpOwesNoMore(a, b)
	s.givenUpIsNoLoss(b)

	store := newLossy(s.client())
	c := dlock.New(store, dlock.WithTTL(long), dlock.WithRenewal(false))
	defer c.Close()
	s.loseAcquired(c, store, b)
	s.loseRenewed(c, store, b)
	s.loseReleased(c, store, b)
	s.loseServed(c, store, b)
	return s.result()
}

// repeatAll makes every call twice, as one does whose first reply is lost.
func (s *scene) repeatAll(a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.again(a, g, long)
	s.renew(a, g, long, true)
	s.renew(a, g, long, true)
	s.held(b, g)
	s.release(a, g, true)
	s.release(a, g, false)
	next := s.grant(b, g.key, s.token("next"), long)
	s.release(a, g, false)
	s.held(a, next)
	s.release(b, next, true)
}

// repeatAcquire has a token that holds already wait for its key.
func (s *scene) repeatAcquire(a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.waitCtx(s.ctx, a, g.key, g.token, long)
	if s.over() {
		return
	}
	if s.await(w.done) && !supported(w.err) {
		s.release(a, g, true)
		return
	}
	s.served(w, "it was called by the token that holds the key already")
	s.release(a, g, true)
	s.free(b, g.key)
}

// loseAcquired: after an attempt without an answer, the core gives back what the
// store may have granted.
func (s *scene) loseAcquired(c *dlock.Client, store *lossy, b *client) {
	if s.over() {
		return
	}
	key := s.key()
	store.loseNext("TryAcquire")
	lease, err := c.TryAcquire(s.ctx, key)
	if err == nil {
		s.noError(lease.Release(), "Lease.Release", key)
	} else if !isErr(err, errReplyLost) || isErr(err, dlock.ErrHeld) {
		s.fail("Client.TryAcquire(%s), whose reply was lost, returned the error %w; want the loss and not ErrHeld", brief(key), err)
	}
	s.soonFree(b, key)
}

// soonFree checks that key becomes free well within the TTL of a lease on it.
func (s *scene) soonFree(c *client, key string) {
	for end := time.Now().Add(s.h.patience()); !s.over() && time.Now().Before(end); {
		g := s.takeFenced(c, key, "next")
		if g.Acquired {
			s.release(c, g, true)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !s.over() {
		s.fail("%s is still held %v after a Client gave up what it had acquired", brief(key), s.h.patience())
	}
}

func (s *scene) lease(c *dlock.Client) *dlock.Lease {
	if s.over() {
		return nil
	}
	key := s.key()
	lease, err := c.TryAcquire(s.ctx, key)
	if err != nil {
		s.fail("Client.TryAcquire(%s) = %w; want a lease", brief(key), err)
		return nil
	}
	s.uses(key, lease.Token())
	return lease
}

// loseRenewed: a renewal without an answer is not a loss.
func (s *scene) loseRenewed(c *dlock.Client, store *lossy, b *client) {
	lease := s.lease(c)
	if lease == nil {
		return
	}
	store.loseNext("Renew")
	if err := lease.Renew(s.ctx); err != nil && !isErr(err, errReplyLost) {
		s.fail("Lease.Renew, whose reply was lost, returned %w; want nil, or the loss", err)
	}
	if err := lease.Renew(s.ctx); err != nil {
		s.fail("Lease.Renew after one whose reply was lost returned %w; want nil, because the lease is held", err)
	}
	s.noError(lease.Release(), "Lease.Release", lease.Key())
	s.soonFree(b, lease.Key())
}

// loseReleased: a release without an answer can be repeated, and then worked.
func (s *scene) loseReleased(c *dlock.Client, store *lossy, b *client) {
	lease := s.lease(c)
	if lease == nil {
		return
	}
	store.loseNext("Release")
	if err := lease.Release(); err != nil && !isErr(err, errReplyLost) {
		s.fail("Lease.Release, whose reply was lost, returned %w; want nil, or the loss", err)
	}
	if err := lease.Release(); err != nil {
		s.fail("Lease.Release after one whose reply was lost returned %w; want nil", err)
	}
	s.soonFree(b, lease.Key())
}

// loseServed: a waiter whose grant is lost on its way goes on waiting, and what
// it was granted does not stand in its way.
func (s *scene) loseServed(c *dlock.Client, store *lossy, b *client) {
	g := s.grant(b, s.key(), s.token("holder"), long)
	if s.over() {
		return
	}
	store.loseNext("Acquire")
	ctx, cancel := context.WithTimeout(s.ctx, 2*s.h.patience())
	defer cancel()
	var lease *dlock.Lease
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		lease, err = c.Acquire(ctx, g.key)
	}()
	s.gap()
	s.release(b, g, true)
	<-done
	if err != nil {
		s.fail("Client.Acquire(%s), whose first grant was lost on its way, returned %w; want a lease", brief(g.key), err)
		return
	}
	s.noError(lease.Release(), "Lease.Release", g.key)
	s.soonFree(b, g.key)
}

func lateDuplicate(s *scene) error {
	a, b := s.clients2()
	s.lateAfterRelease(a, b)
	s.lateAfterTakeover(a, b)
	s.lateAndShorter(a, b)
	s.lateTry(a, b)
	return s.result()
}

// batch renews like renew, where the store can.
func (s *scene) batch(c *client, g grant, ttl time.Duration, want bool) {
	if !s.over() && s.offers(c.inner.Locker, renewBatch) {
		s.renewAll(c, []wish{g.wish(ttl, want)})
	}
}

// lateAfterRelease: what arrives after the release revives nothing.
func (s *scene) lateAfterRelease(a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.renew(a, g, long, false)
	s.batch(a, g, long, false)
	s.release(a, g, false)
	s.free(b, g.key)

	g = s.grant(a, s.key(), s.token("holder"), long)
	s.release(b, g, true)
	s.renew(a, g, long, false)
	s.free(b, g.key)
	eachWay(a, b, s.renewAtRelease)
}

// lateAfterTakeover: nor does it touch whoever holds the key by then.
func (s *scene) lateAfterTakeover(a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(a, g, true)
	next := s.grant(b, g.key, s.token("next"), long)
	s.refused(a, next, g.token, ttl)
	s.renew(a, g, ttl, false)
	s.batch(a, g, ttl, false)
	s.release(a, g, false)
	s.lapse(ttl)
	s.held(a, next)
	s.release(b, next, true)
}

// lateAndShorter: what asks for less than has been granted since shortens
// nothing.
func (s *scene) lateAndShorter(a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), 2*ttl)
	s.renew(a, g, long, true)
	s.renew(a, g, ttl, true)
	s.batch(a, g, ttl, true)
	s.again(a, g, ttl)
	s.lapse(2 * ttl)
	s.held(b, g)
	s.release(a, g, true)
}

// lateTry: an attempt that arrives after the release of what it acquired is
// granted, since nothing tells it from a new one, but for no longer than its
// TTL, and a release ends it.
func (s *scene) lateTry(a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), ttl)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.grant(a, g.key, g.token, ttl)
	s.lapse(ttl)
	s.free(b, g.key)

	s.grant(a, g.key, g.token, long)
	s.release(a, g, true)
	s.free(b, g.key)
}

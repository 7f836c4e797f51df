package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func lostReply(s *scene) error {
	a, b := s.clients2()
	repeatAll(s, a, b)
	repeatAcquire(s, s.client(), b)
	givenUpOwesNoMore(s, a, b)
	givenUpIsNoLoss(s, b)

	store := newLossy(s.client())
	c := dlock.New(store, dlock.WithTTL(long), dlock.WithRenewal(false))
	defer c.Close()
	loseAcquired(s, c, store, b)
	loseRenewed(s, c, store, b)
	loseReleased(s, c, store, b)
	loseServed(s, c, store, b)
	return s.result()
}

// repeatAll makes every call twice, as one does whose first reply is lost.
func repeatAll(s *scene, a, b *client) {
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
func repeatAcquire(s *scene, a, b *client) {
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

// givenUpOwesNoMore: the release that is owed for an attempt that was given up ends
// what that has acquired, and nothing else.
func givenUpOwesNoMore(s *scene, a, b *client) {
	s.atMoments(func(d time.Duration) {
		lost := s.giveUp(b, s.key(), long, d)
		next := s.takeFenced(b, lost.key, "next")
		_, err := b.Release(s.ctx, lost.key, lost.token)
		s.noError(err, "Release", lost.key)
		if next.Acquired {
			s.certain(next.key, next.start.Add(long), true)
			s.held(a, next)
		}
	})
}

// givenUpIsNoLoss: a renewal that was given up on its way may have worked; in any case
// the next one does.
func givenUpIsNoLoss(s *scene, c *client) {
	s.atMoments(func(d time.Duration) {
		g := s.grant(c, s.key(), s.token("holder"), long)
		s.renew(c, g, long, true)
		ctx, cancel := context.WithTimeout(s.ctx, d)
		defer cancel()
		_, _ = c.Renew(ctx, g.key, g.token, long) // whatever the outcome
		s.renew(c, g, long, true)
		s.release(c, g, true)
	})
}

var errReplyLost = errors.New("conformance: the reply was lost")

// A lossy Locker passes calls on to the store, and loses some of the replies.
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

// loseAcquired: after an attempt without an answer, the core gives back what the
// store may have granted.
func loseAcquired(s *scene, c *dlock.Client, store *lossy, b *client) {
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
	soonFree(s, b, key)
}

// soonFree checks that key becomes free well within the TTL of a lease on it.
func soonFree(s *scene, c *client, key string) {
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

func leaseOf(s *scene, c *dlock.Client) *dlock.Lease {
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
func loseRenewed(s *scene, c *dlock.Client, store *lossy, b *client) {
	lease := leaseOf(s, c)
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
	soonFree(s, b, lease.Key())
}

// loseReleased: a release without an answer can be repeated, and then worked.
func loseReleased(s *scene, c *dlock.Client, store *lossy, b *client) {
	lease := leaseOf(s, c)
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
	soonFree(s, b, lease.Key())
}

// loseServed: a waiter whose grant is lost on its way goes on waiting, and what
// it was granted does not stand in its way.
func loseServed(s *scene, c *dlock.Client, store *lossy, b *client) {
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
	soonFree(s, b, g.key)
}

func lostReplyOverNetwork(s *scene) error {
	s.overClearNetworks(append(inBothWays([]func(*network, faultproxy.Ending){
		loseAcquireReply,
		loseRenewReply,
		loseBatch,
		loseReleaseReply,
		loseClientsAcquired,
		loseClientsRenewed,
	}),
		loseWithTime,
		loseClientsReleased,
		loseClientsRelease,
		loseClientsPoll,
		loseClientsGrant,
		loseKept,
	)...)
	return s.result()
}

// lose has the reply to a call about g be lost.
func lose(n *network, g grant, e faultproxy.Ending, name string, call func(context.Context) error) error {
	err := n.spoil(n.DropReply(about(g), e), name, call)
	n.reconnect()
	return err
}

// answered checks that a call whose reply was lost returned an error or, because the
// client sent it again, the answer yes. It must not return that the token does not hold
// the key: it does, or did when the call was made.
func answered(n *network, name string, g grant, yes bool, err error) {
	if err == nil && !yes {
		n.fail("%s(%s, %s), whose reply was lost, answered that the token does not hold the key; want an error, or the answer that was lost",
			name, brief(g.key), brief(g.token))
	}
}

func loseAcquireReply(n *network, e faultproxy.Ending) {
	g := n.another("holder")
	acquired := false
	err := lose(n, g, e, "TryAcquire", func(ctx context.Context) error {
		a, err := n.via.TryAcquire(ctx, g.key, g.token, long)
		acquired = a.Acquired
		return err
	})
	answered(n, "TryAcquire", g, acquired, err)
	n.again(n.via, g, long)
	n.held(n.direct, g)
	n.release(n.via, g, true)
	n.free(n.direct, g.key)
}

// loseWithTime: an attempt that has time left when its reply is lost may be answered all
// the same, but not with anything that the store has not said.
func loseWithTime(n *network) {
	before := n.grant(n.direct, n.key(), n.token("before"), long)
	n.release(n.direct, before, true)
	g := grant{key: before.key, token: n.token("holder")}
	n.uses(g.key, g.token)
	if n.over() {
		return
	}
	f := n.DropReply(about(g), faultproxy.Cut)
	ctx, cancel := context.WithTimeout(n.ctx, 5*time.Second)
	defer cancel()
	a, err := n.via.TryAcquire(ctx, g.key, g.token, long)
	g.Attempt = a
	n.Lift(f)
	answered(n, "TryAcquire", g, a.Acquired, err)
	n.reconnect()
	again := n.again(n.via, g, long)
	if err == nil {
		n.above(before, g)
		n.above(g, again)
	}
	n.release(n.via, g, true)
	n.free(n.direct, g.key)
}

func loseRenewReply(n *network, e faultproxy.Ending) {
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	held := false
	err := lose(n, g, e, "Renew", func(ctx context.Context) (err error) {
		held, err = n.via.Renew(ctx, g.key, g.token, long)
		return err
	})
	answered(n, "Renew", g, held, err)
	n.renew(n.via, g, long, true)
	n.held(n.direct, g)
	n.release(n.via, g, true)
	n.free(n.direct, g.key)
}

// loseBatch loses the reply for one of several renewals. None may be said to be lost.
func loseBatch(n *network, e faultproxy.Ending) {
	if !n.offers(n.via.inner.Locker, renewBatch) {
		return
	}
	var grants []grant
	var batch []dlock.Renewal
	for range 3 {
		g := n.grant(n.via, n.key(), n.token("holder"), long)
		grants = append(grants, g)
		batch = append(batch, g.wish(long, true).renewal)
	}
	var results []dlock.RenewResult
	err := lose(n, grants[1], e, "RenewBatch", func(ctx context.Context) (err error) {
		results, err = n.via.RenewBatch(ctx, batch)
		return err
	})
	if n.over() {
		return
	}
	if err == nil && len(results) != len(batch) {
		n.fail("RenewBatch of %d renewals, one reply of which was lost, returned %d results; want one for each, or an error", len(batch), len(results))
		return
	}
	var wishes []wish
	for i, g := range grants {
		if err == nil {
			answered(n, "RenewBatch", g, results[i].Held, results[i].Err)
		}
		wishes = append(wishes, g.wish(long, true))
	}
	n.renewAll(n.via, wishes)
	for _, g := range grants {
		n.held(n.direct, g)
		n.release(n.via, g, true)
	}
}

// loseReleaseReply: whatever the repeated release says, the key is free after it, and
// nobody is harmed by one more.
func loseReleaseReply(n *network, e faultproxy.Ending) {
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	held := false
	err := lose(n, g, e, "Release", func(ctx context.Context) (err error) {
		held, err = n.via.Release(ctx, g.key, g.token)
		return err
	})
	answered(n, "Release", g, held, err)
	if n.over() {
		return
	}
	_, err = n.via.Release(n.ctx, g.key, g.token)
	n.noError(err, "Release", g.key)
	next := n.grant(n.direct, g.key, n.token("next"), long)
	n.release(n.via, g, false)
	n.held(n.direct, next)
	n.release(n.direct, next, true)
}

// loseClientsAcquired: a Client that does not hear of its grant gives it back.
func loseClientsAcquired(n *network, e faultproxy.Ending) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	key := n.key()
	err := n.spoil(n.DropReply(faultproxy.Contains(key), e), "Client.TryAcquire", func(ctx context.Context) error {
		lease, err := c.TryAcquire(ctx, key)
		if err == nil {
			n.noError(lease.Release(), "Lease.Release", key)
		}
		return err
	})
	n.unansweredBy(err, "Client.TryAcquire")
	n.reconnect()
	soonFree(n.scene, n.direct, key)
}

// loseClientsRenewed: a Client that does not hear of its renewal still holds its lease.
func loseClientsRenewed(n *network, e faultproxy.Ending) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	lease := leaseOf(n.scene, c)
	if lease == nil {
		return
	}
	err := n.spoil(n.DropReply(faultproxy.Contains(lease.Token()), e), "Lease.Renew", lease.Renew)
	n.unansweredBy(err, "Lease.Renew")
	n.reconnect()
	if n.over() {
		return
	}
	n.noError(lease.Renew(n.ctx), "Lease.Renew", lease.Key())
	n.noError(lease.Release(), "Lease.Release", lease.Key())
	soonFree(n.scene, n.direct, lease.Key())
}

// loseClientsReleased: when a Client hears "not held" after a release without an answer,
// it knows that the release has worked.
func loseClientsReleased(n *network) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	lease := leaseOf(n.scene, c)
	if lease == nil {
		return
	}
	release := func(context.Context) error { return lease.Release() }
	err := n.spoil(n.DropReply(faultproxy.Contains(lease.Token()), faultproxy.Cut), "Lease.Release", release)
	n.unansweredBy(err, "Lease.Release")
	n.reconnect()
	for end := time.Now().Add(n.h.patience()); err != nil && !n.over() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		err = lease.Release()
		n.unansweredBy(err, "Lease.Release after one")
	}
	n.noError(err, "Lease.Release again and again", lease.Key())
	soonFree(n.scene, n.direct, lease.Key())
}

// loseClientsRelease: a release that has not reached the store is owed.
func loseClientsRelease(n *network) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	lease := leaseOf(n.scene, c)
	if lease == nil {
		return
	}
	f := n.DropRequest(faultproxy.Contains(lease.Token()), faultproxy.Cut)
	err := n.spoil(f, "Lease.Release", func(context.Context) error { return lease.Release() })
	n.unansweredBy(err, "Lease.Release")
	soonFree(n.scene, n.direct, lease.Key())
}

// loseClientsPoll: a waiter that does not hear of the grant of an attempt goes on
// waiting, and what it was granted does not stand in its way.
func loseClientsPoll(n *network) {
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	w := waitAgain(n, c, held.key)
	f := n.DropReply(faultproxy.Contains(held.key), faultproxy.Cut)
	n.release(n.direct, held, true)
	succeeds(n, w)
	n.Lift(f) // with a queue there may be no further call
	soonFree(n.scene, n.direct, held.key)
}

// loseClientsGrant: nor if it is the answer to the call in which the waiter waits.
func loseClientsGrant(n *network) {
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	first := n.Watch(faultproxy.Contains(held.key))
	n.DropReply(faultproxy.Contains(held.key), faultproxy.Cut)
	w := startWait(n, c, held.key)
	if !n.soon(first.Answered()) {
		n.fail("the store has not answered Client.Acquire(%s) within %v", brief(held.key), n.h.patience())
	}
	n.release(n.direct, held, true)
	succeeds(n, w)
	soonFree(n.scene, n.direct, held.key)
}

// A wait is an Acquire of a Client, followed by a Release.
type wait struct {
	done chan struct{}
	err  error
}

func startWait(n *network, c *dlock.Client, key string) *wait {
	w := &wait{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		ctx, cancel := context.WithTimeout(n.ctx, 2*n.h.patience())
		defer cancel()
		var lease *dlock.Lease
		if lease, w.err = c.Acquire(ctx, key); w.err != nil {
			return
		}
		if err := lease.Release(); isErr(err, dlock.ErrLost) { // else it is owed
			w.err = err
		}
	}()
	return w
}

// waitAgain is startWait, and returns when the store has answered c that the key is held,
// and c has sent one more call.
func waitAgain(n *network, c *dlock.Client, key string) *wait {
	first, second := n.Watch(faultproxy.Contains(key)), n.Watch(faultproxy.Contains(key))
	w := startWait(n, c, key)
	if !n.over() && !(n.soon(first.Struck()) && n.soon(second.Struck())) {
		n.fail("Client.Acquire(%s) has not asked the store for a key that is held, and then once more, within %v", brief(key), n.h.patience())
	}
	if len(n.proxies) > 1 {
		n.scene.gap() // nodes may have been asked twice before they have answered
	}
	return w
}

// succeeds checks that a wait succeeds.
func succeeds(n *network, w *wait) {
	if n.over() {
		return
	}
	<-w.done
	if w.err != nil {
		n.fail("Client.Acquire of a key that has become free, over a network that was faulty, and the Release after it, returned %w; want a lease", w.err)
	}
}

// loseKept: leases that a Client keeps alive outlast the loss of a reply.
func loseKept(n *network) {
	c := n.core(dlock.WithTTL(n.h.keptTTL()))
	defer c.Close()
	var leases []*dlock.Lease
	for range 3 {
		if lease := n.leaseSlowly(c, n.key()); lease != nil {
			leases = append(leases, lease)
		}
	}
	if n.over() {
		return
	}
	f := n.DropReply(faultproxy.Contains(leases[1].Token()), faultproxy.Cut)
	if !n.soon(f.Struck()) {
		n.fail("a Client has not renewed its lease, with a TTL of %v, within %v", n.h.keptTTL(), n.h.patience())
		return
	}
	for _, lease := range leases {
		n.stays(lease, time.Now().Add(n.h.keptTTL()*4/5)) // that of a renewal after this one
	}
	for _, lease := range leases {
		if !n.over() {
			err := lease.Release()
			if isErr(err, dlock.ErrLost) && time.Now().After(lease.Deadline()) {
				n.stop(errInconclusive) // the machine was too slow to renew it
			}
			n.unansweredBy(err, "Lease.Release")
			soonFree(n.scene, n.direct, lease.Key())
		}
	}
}

// keptTTL is a TTL of leases that are kept alive over a network that fails for a
// moment.
func (h Harness) keptTTL() time.Duration { return 10 * h.coreTTL() }

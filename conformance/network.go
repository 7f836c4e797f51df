package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// A network is a client of the store, the faulty proxies that it goes through, and a
// client that goes straight to the store.
type network struct {
	*scene
	*fleet
	via    *client
	direct *client
	clear  bool // requests contain keys and tokens literally
}

// A part is what a case does with one network.
type part func(*network)

// overNetworks runs each part with a network of its own, all at the same time. If the store has
// several addresses, the faults strike one of them, as many as a majority can spare, a majority, and
// all.
func (s *scene) overNetworks(parts ...part) {
	if s.h.spared() > 0 {
		s.overFaulty([]int{1, s.h.spared()}, parts...)
	}
	s.overFailed(parts...)
}

// overFailed is overNetworks without the faults that leave a majority alone.
func (s *scene) overFailed(parts ...part) {
	s.overFaulty([]int{s.h.quorum(), len(s.h.addrs())}, parts...)
}

// overFaulty runs each part with networks in which the faults strike so many addresses.
func (s *scene) overFaulty(struck []int, parts ...part) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, k := range slices.Compact(struck) {
		for _, p := range parts {
			n := s.network(k)
			if n == nil {
				return
			}
			all.Go(func() {
				defer n.Close()
				if !n.over() {
					n.warm()
				}
				if !n.over() {
					p(n)
				}
			})
		}
	}
}

// overClearNetworks is overNetworks for parts that have to find the request about a
// certain key or token in the traffic.
func (s *scene) overClearNetworks(parts ...part) {
	for i, p := range parts {
		parts[i] = func(n *network) {
			if !n.clear {
				n.skip("requests do not contain key and token literally: the suite cannot find them in the network's traffic")
				return
			}
			p(n)
		}
	}
	s.overNetworks(parts...)
}

// network returns one of which faults strike so many addresses.
func (s *scene) network(struck int) *network {
	via, f, err := s.fleet(struck)
	if err != nil {
		s.stop(err)
		return nil
	}
	return &network{scene: s, fleet: f, via: via, direct: s.client()}
}

// warm makes every call once. Stores then have done what they do only the first time,
// such as loading a script or preparing a statement.
func (n *network) warm() {
	for _, o := range optionalMethods {
		n.offers(n.via.inner.Locker, o)
	}
	key, token := n.key(), n.token("warm")
	seen := n.Watch(func(r faultproxy.Request) bool {
		return faultproxy.Contains(key)(r) && faultproxy.Contains(token)(r)
	})
	g := n.grant(n.via, key, token, long)
	if n.minor { // it need not have waited for those that are struck
		n.awaitFor(seen.Struck(), n.h.gap())
	}
	n.clear = !n.Lift(seen)
	n.renew(n.via, g, long, true)
	n.release(n.via, g, true)
}

// spoil makes a call that f is to strike, and returns its error. Once the fault has
// struck, the caller gives up, unless the call is to succeed all the same.
func (n *network) spoil(f *faults, name string, call func(context.Context) error) error {
	if n.over() {
		return nil
	}
	ctx, giveUp := context.WithCancel(n.ctx)
	defer giveUp()
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = call(ctx)
	}()
	select {
	case <-f.Struck():
		if !f.harmless {
			giveUp()
		}
	case <-done:
		if n.minor { // it need not have waited for those that are struck
			n.awaitFor(f.Struck(), n.h.gap())
		}
	}
	if !n.await(done) {
		n.fail("%s did not return within %v, over a network that is faulty at %d of %d addresses", name, n.h.patience(), len(n.struck), len(n.proxies))
		giveUp()
		n.await(done)
		return nil
	}
	switch met := !n.Lift(f); {
	case f.harmless && err != nil:
		n.fail("%s, which was lost or not answered at %d of %d addresses, returned %w; want no error", name, len(n.struck), len(n.proxies), err)
	case met:
	case err != nil:
		n.fail("%s, over a network that has spoilt nothing yet, returned %w", name, err)
	default:
		n.skip("nothing that %s sends contains key and token literally, as what TryAcquire sends does", name)
	}
	return err
}

// soon reports whether done is closed within the harness's patience. It stops waiting
// when the case is decided.
func (n *network) soon(done <-chan struct{}) bool {
	for end := time.Now().Add(n.h.patience()); !n.over() && time.Now().Before(end); {
		if n.awaitFor(done, 20*time.Millisecond) {
			return true
		}
	}
	return false
}

// about chooses the requests that concern a grant.
func about(g grant) faultproxy.Match { return faultproxy.Contains(g.token) }

// recovers waits until calls through a network that has healed succeed: many in a row,
// since a client with several connections notices the end of each by itself, and chooses
// one by the key.
func (n *network) recovers() {
	const enough = 32
	end := time.Now().Add(n.h.patience())
	for good := 0; good < enough && !n.over(); {
		switch err := n.tryOnce(); {
		case err == nil:
			good++
		case time.Now().After(end) && (timedOut(err) || errors.Is(err, context.DeadlineExceeded)) && n.attempt < tries-2:
			n.stop(errInconclusive) // a busy machine may answer too late
		case time.Now().After(end):
			n.fail("calls still fail %v after the network has healed: %w", n.h.patience(), err)
		default:
			good = 0
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// tryOnce makes a call that changes nothing.
func (n *network) tryOnce() error {
	ctx, cancel := context.WithTimeout(n.ctx, time.Second<<n.attempt)
	defer cancel()
	_, err := n.via.Renew(ctx, n.key(), n.token("nobody"), long)
	return err
}

// reconnect cuts all connections, and waits until there are new ones.
func (n *network) reconnect() {
	n.Cut()
	n.recovers()
}

// another is a grant of a new key to a new token, which is still to be made.
func (n *network) another(name string) grant {
	g := grant{key: n.key(), token: n.token(name), start: n.now()}
	n.uses(g.key, g.token)
	return g
}

// endings are the ways in which faults leave a client.
var endings = []faultproxy.Ending{faultproxy.Cut, faultproxy.Stall}

// inBothWays makes a part of f for each ending.
func inBothWays(parts []func(*network, faultproxy.Ending)) (all []part) {
	for _, p := range parts {
		for _, e := range endings {
			all = append(all, func(n *network) { p(n, e) })
		}
	}
	return all
}

// core returns a Client over the network.
func (n *network) core(opts ...dlock.Option) *dlock.Client {
	return dlock.New(n.via, append([]dlock.Option{dlock.WithTTL(long)}, opts...)...)
}

// unansweredBy checks that err is not one that only an answer of the store could justify.
func (n *network) unansweredBy(err error, call string) {
	invalid := isErr(err, dlock.ErrInvalid) && dlock.NoEffect(err)
	if isErr(err, dlock.ErrHeld) || isErr(err, dlock.ErrLost) || invalid {
		n.fail("%s, whose reply was lost, returned %q; want that the store did not answer", call, err)
	}
}

// leaseSlowly acquires key, again and again if need be: a grant that was in flight for
// nearly as long as its TTL is an error.
func (n *network) leaseSlowly(c *dlock.Client, key string) *dlock.Lease {
	for end := time.Now().Add(n.h.patience()); !n.over(); {
		lease, err := c.Acquire(n.ctx, key)
		if err == nil {
			n.uses(key, lease.Token())
			return lease
		}
		if time.Now().After(end) {
			n.t.Logf("Client.Acquire(%s), again and again for %v, returns %v", brief(key), n.h.patience(), err)
			n.stop(errInconclusive)
		}
	}
	return nil
}

// stays checks that a lease that its Client renews is held until its deadline is later
// than then. A loss before the deadline is the store's fault. A loss after it is not: the
// machine was too slow to renew the lease.
func (n *network) stays(lease *dlock.Lease, then time.Time) {
	for !n.over() && !lease.Deadline().After(then) {
		now := time.Now()
		if err := lease.Err(); err != nil {
			if now.Before(lease.Deadline()) {
				n.fail("the lease on %s was lost before its deadline, though nobody else had acquired it: %w", brief(lease.Key()), err)
			} else {
				n.stop(errInconclusive)
			}
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

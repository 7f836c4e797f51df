package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	lossy  *lossy // nil, unless via is in this process, and the fleet has no proxy
	clear  bool   // requests contain keys and tokens literally
}

// A part is what a case does with one network.
type part func(*network)

// A faulty part is one for each of the ways in which faults leave a client.
type faulty func(*network, faultproxy.Ending)

// overLossy runs all parts at the same time, with one client in this process that can only lose
// replies.
func (s *scene) overLossy(parts ...faulty) {
	direct, via := s.clients2()
	l := &lossy{store: via.inner}
	via.inner.Locker = hooked{l.pass}
	n := &network{scene: s, fleet: new(fleet), via: via, direct: direct, lossy: l, clear: true}
	var calls []func()
	for _, p := range parts {
		calls = append(calls, func() { p(n, faultproxy.Cut) })
	}
	s.atOnce(calls...)
}

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
	n.abilities(n.via)
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

// lose makes a call that loses its reply: one about a key or token.
func (n *network) lose(about string, e faultproxy.Ending, name string, call func(context.Context) error) error {
	if n.over() {
		return nil
	}
	f := n.dropReply(about, e, name)
	if f == nil {
		return call(n.ctx)
	}
	err := n.spoil(f, name, call)
	n.reconnect()
	return err
}

// dropReply loses the reply to the next call about a key or token. In this process, it is one of
// the named method.
func (n *network) dropReply(about string, e faultproxy.Ending, name string) *faults {
	if n.lossy != nil {
		n.lossy.loseNext(name[strings.LastIndex(name, ".")+1:], about)
		return nil
	}
	return n.DropReply(faultproxy.Contains(about), e)
}

// holdBack keeps a call back. Its caller has given up when holdBack returns. In this process, the call
// is made when it is delivered.
func (n *network) holdBack(x *trial, ttl time.Duration, e faultproxy.Ending) (deliver func()) {
	call, _ := x.make(n.via, ttl)
	if n.lossy != nil {
		return func() { _ = call(n.ctx) } // nobody hears of the answer
	}
	f := n.Hold(faultproxy.Contains(x.token), e)
	_ = n.spoil(f, x.name, call)
	return func() { n.deliver(f, x.name) }
}

// deliver delivers a call that was kept back. That the store closes the connection without a reply
// is its right: the client is gone. It need not reply to a wait before it can.
func (n *network) deliver(f *faults, name string) {
	if n.over() {
		return
	}
	patience := n.h.patience()
	if name == "Acquire" {
		patience = n.h.gap() << n.attempt
	}
	ctx, cancel := context.WithTimeout(n.ctx, patience)
	defer cancel()
	if err := f.Deliver(ctx); ctx.Err() != nil && name != "Acquire" {
		n.fail("the store has neither answered a request that was delivered late, nor closed its connection, within %v: %w", patience, err)
	}
}

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
	if n.lossy == nil {
		n.Cut()
		n.recovers()
	}
}

// inWays makes a part of each of parts for each ending.
func inWays(parts []faulty, endings ...faultproxy.Ending) (all []part) {
	for _, p := range parts {
		for _, e := range endings {
			all = append(all, func(n *network) { p(n, e) })
		}
	}
	return all
}

// eachKind makes a part of f for each kind of the calls with these names. It is left out where the
// client does not offer them.
func eachKind(f func(*network, kind, faultproxy.Ending), names ...string) (all []faulty) {
	for _, k := range kinds {
		if slices.Contains(names, k.name) {
			all = append(all, func(n *network, e faultproxy.Ending) {
				if n.can(n.via, k) {
					f(n, k, e)
				}
			})
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

// stays checks that a lease that its Client renews is held until its deadline is later than then,
// and releases it. A loss before its own deadline is the store's fault, and so is any while a
// majority can be reached. Another is not: the machine was too slow to renew the lease.
func (n *network) stays(lease *dlock.Lease, then time.Time) {
	for !n.over() && lease.Err() == nil && !lease.Deadline().After(then) {
		time.Sleep(5 * time.Millisecond)
	}
	early := time.Now().Before(lease.Deadline())
	switch err := lease.Release(); {
	case !isErr(err, dlock.ErrLost): // a release that was not answered is owed
	case early || n.minor:
		n.fail("the lease on %s was lost, though nobody else had acquired it: %w", brief(lease.Key()), err)
	default:
		n.stop(errInconclusive)
	}
	soonFree(n.scene, n.direct, lease.Key())
}

// A lossy client loses some of the replies to its calls.
type lossy struct {
	store dlock.Forward
	mu    sync.Mutex
	next  []lostCall
}

// A lostCall is the next of a method about a key or token.
type lostCall struct{ method, about string }

var errReplyLost = errors.New("conformance: the reply was lost")

func (l *lossy) loseNext(method, about string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = append(l.next, lostCall{method, about})
}

func (l *lossy) pass(ctx context.Context, r request) (answer any, err error) {
	if answer, err = r.send(ctx, l.store); err == nil && l.loses(r) {
		return nil, errReplyLost
	}
	return answer, err
}

func (l *lossy) loses(r request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.next, func(c lostCall) bool { return c.method == r.name && strings.Contains(r.String(), c.about) })
	if i >= 0 {
		l.next = slices.Delete(l.next, i, i+1)
	}
	return i >= 0
}

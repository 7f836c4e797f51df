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

// A network is a client of the store, the faulty proxy that it goes through, and a client that goes straight to the store.
type network struct {
	*scene
	*faultproxy.Proxy
	via    *client
	direct *client
	lossy  *lossy // nil, unless via is in this process, and there is no proxy
	clear  bool   // requests contain keys and tokens literally
}

// A part is what a case does with one network.
type part func(*network)

// Where a call meets a fault: in this process, which can only lose replies, or on a network, where the client's
// connection is cut or stalls.
const (
	inProcess = 1 << iota
	cut
	stall

	onNetwork  = cut | stall
	everywhere = inProcess | onNetwork
)

// A faultyCall is what a case does with calls of some kinds, a key for each, and each of the faults.
type faultyCall struct {
	do    func(*network, kind, faultproxy.Ending)
	calls string // the kinds, by the names of their methods; all that are not there are left out
	where int
}

// parts returns a part for each kind of each call, and each way in which the fault leaves the client.
func parts(of []faultyCall, where int) (all []part) {
	for _, c := range of {
		for _, k := range kinds {
			if !slices.Contains(strings.Fields(c.calls), k.name) {
				continue
			}
			for way, e := range map[int]faultproxy.Ending{inProcess: faultproxy.Cut, cut: faultproxy.Cut, stall: faultproxy.Stall} {
				if c.where&where&way != 0 {
					all = append(all, func(n *network) {
						if n.can(n.via, k) {
							c.do(n, k, e)
						}
					})
				}
			}
		}
	}
	return all
}

// overLossy makes all calls at the same time, by one client in this process that can only lose replies.
func (s *scene) overLossy(of []faultyCall) {
	direct, via := s.clients2()
	l := &lossy{store: via.inner}
	via.inner.Locker = hooked{l.pass}
	n := &network{scene: s, via: via, direct: direct, lossy: l, clear: true}
	var calls []func()
	for _, p := range parts(of, inProcess) {
		calls = append(calls, func() { p(n) })
	}
	s.atOnce(calls...)
}

// overNetworks runs each part with a network of its own, all at the same time.
func (s *scene) overNetworks(parts ...part) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, p := range parts {
		proxy, err := faultproxy.New(s.h.Addr)
		if err != nil {
			s.stop(err)
			return
		}
		n := &network{scene: s, Proxy: proxy, via: s.clientOf(s.h.Dial(s.t, proxy.Addr()), "Harness.Dial"), direct: s.client()}
		all.Go(func() {
			defer n.Close()
			n.warm()
			p(n)
		})
	}
}

// overClearNetworks is overNetworks for parts that have to find the request about a certain key or token in the traffic.
func (s *scene) overClearNetworks(parts ...part) {
	for i, p := range parts {
		parts[i] = func(n *network) {
			if !n.clear {
				n.skip("requests do not contain key and token literally: the suite cannot find them in the network's traffic")
			}
			p(n)
		}
	}
	s.overNetworks(parts...)
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
	n.clear = !n.Lift(seen)
	n.renew(n.via, g, long, true)
	n.release(n.via, g, true)
}

// spoil makes a call that f is to strike, and returns its error. The caller gives up once the fault has struck.
func (n *network) spoil(f *faultproxy.Fault, name string, call func(context.Context) error) error {
	n.goOn()
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
		giveUp()
	case <-done:
	}
	if !n.await(done) {
		n.fail("%s did not return within %v, over a network that is faulty", name, n.h.patience())
	}
	switch struck := !n.Lift(f); {
	case struck:
	case err != nil:
		n.fail("%s, over a network that has spoilt nothing yet, returned %w", name, err)
	default:
		n.skip("nothing that %s sends contains key and token literally, as what TryAcquire sends does", name)
	}
	return err
}

// soon reports whether done is closed within the harness's patience. It stops waiting when the case is decided.
func (n *network) soon(done <-chan struct{}) bool {
	for end := time.Now().Add(n.h.patience()); time.Now().Before(end); n.goOn() {
		if await(done, 20*time.Millisecond) {
			return true
		}
	}
	return false
}

// lose makes a call that loses its reply: one about a key or token.
func (n *network) lose(about string, e faultproxy.Ending, name string, call func(context.Context) error) error {
	n.goOn()
	f := n.dropReply(about, e, name)
	if f == nil {
		return call(n.ctx)
	}
	err := n.spoil(f, name, call)
	n.reconnect()
	return err
}

// dropReply loses the reply to the next call about a key or token. In this process, it is one of the named method.
func (n *network) dropReply(about string, e faultproxy.Ending, name string) *faultproxy.Fault {
	if n.lossy != nil {
		lost := [2]string{name[strings.LastIndex(name, ".")+1:], about}
		n.lossy.mu.locked(func() { n.lossy.next = append(n.lossy.next, lost) })
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
func (n *network) deliver(f *faultproxy.Fault, name string) {
	n.goOn()
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

// recovers waits until calls through a network that has healed succeed: many in a row, since a client with several
// connections notices the end of each by itself, and chooses one by the key.
func (n *network) recovers() {
	const enough = 32
	end := time.Now().Add(n.h.patience())
	for good := 0; good < enough; n.goOn() {
		ctx, cancel := context.WithTimeout(n.ctx, time.Second<<n.attempt)
		_, err := n.via.Renew(ctx, n.key(), n.token("nobody"), long) // changes nothing
		cancel()
		switch {
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

// reconnect cuts all connections, and waits until there are new ones.
func (n *network) reconnect() {
	if n.lossy == nil {
		n.Cut()
		n.recovers()
	}
}

func (n *network) core(opts ...dlock.Option) *dlock.Client {
	return dlock.New(n.via, append([]dlock.Option{dlock.WithTTL(long)}, opts...)...)
}

// leaseSlowly acquires key, again and again if need be: a grant that was in flight for nearly as long as its TTL is an error.
func (n *network) leaseSlowly(c *dlock.Client, key string) *dlock.Lease {
	for end := time.Now().Add(n.h.patience()); ; n.goOn() {
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
}

// A lossy client loses some of the replies to its calls.
type lossy struct {
	store dlock.Forward
	mu    mutex
	next  [][2]string // the next of a method about a key or token
}

var errReplyLost = errors.New("conformance: the reply was lost")

func (l *lossy) pass(ctx context.Context, r request) (answer any, err error) {
	if answer, err = r.send(ctx, l.store); err != nil {
		return answer, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.next, func(c [2]string) bool { return c[0] == r.name && strings.Contains(r.String(), c[1]) })
	if i < 0 {
		return answer, nil
	}
	l.next = slices.Delete(l.next, i, i+1)
	return nil, errReplyLost
}

// A role is what a token is to its key when a call is made in its name.
type role int

const (
	ofNobody   role = iota // the key is free
	ofHolder               // the token holds the key
	ofStranger             // another token holds the key
)

// A kind is one of the calls that are lost, delayed or interrupted.
type kind struct {
	name string
	role role
}

// kinds are those that change something.
var kinds = []kind{
	{"TryAcquire", ofNobody},
	{"TryAcquireSet", ofNobody}, // of one key
	{"Acquire", ofNobody},
	{"Acquire", ofStranger},
	{"Renew", ofHolder},
	{"RenewBatch", ofHolder},
	{"Release", ofHolder},
}

var inspection = kind{"Inspect", ofHolder}

// prolongs reports whether the call prolongs the lease of its token.
func (k kind) prolongs() bool {
	return k.role == ofHolder && k.name != "Release" && k.name != "Inspect"
}

func (s *scene) can(c *client, k kind) bool {
	for _, o := range optionalMethods {
		if o.name == k.name {
			return s.offers(c, o)
		}
	}
	return true
}

func (s *scene) kindsOf(c *client) []kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !s.can(c, k) })
}

// A trial is a call on a key of its own.
type trial struct {
	s *scene
	kind
	grant          // in whose name the call is made
	by     *client // which made the key what the call finds
	holder grant   // of the key, if the token is a stranger
}

// prepare makes a key what a call is to find. The lease that the call would prolong has this TTL.
func (s *scene) prepare(k kind, by *client, ttl time.Duration) *trial {
	x := &trial{s: s, kind: k, by: by, grant: s.another("caller")}
	if !k.prolongs() {
		ttl = long
	}
	switch k.role {
	case ofHolder:
		x.grant = s.grant(by, x.key, x.token, ttl)
	case ofStranger:
		x.holder = s.grant(by, x.key, s.token("holder"), long)
	}
	return x
}

// another is a grant of a new key to a new token, which is still to be made.
func (s *scene) another(name string) grant {
	g := grant{key: s.key(), token: s.token(name), start: time.Now()}
	s.uses(g.key, g.token)
	return g
}

// make returns a function for the call, and where that puts the answer.
func (x *trial) make(c *client, ttl time.Duration) (call func(context.Context) error, answer *dlock.Attempt) {
	answer = new(dlock.Attempt)
	return func(ctx context.Context) (err error) {
		*answer, err = c.call(ctx, x.name, x.grant, ttl)
		return err
	}, answer
}

// settle has the holder release the key that a stranger wants.
func (x *trial) settle() {
	if x.role == ofStranger {
		x.s.release(x.by, x.holder, true)
	}
}

// lapse waits until a lease of this TTL has expired that the call would have prolonged.
func (x *trial) lapse(ttl time.Duration) {
	if x.prolongs() {
		x.s.lapse(ttl)
	}
}

// hadNoEffect checks that, after a settle, and when a lease that the call would have prolonged has expired.
func (x *trial) hadNoEffect(why string) {
	if x.role != ofHolder || x.prolongs() {
		x.s.freeAfter(x.by, x.key, why)
		return
	}
	x.s.goOn()
	held, err := x.by.Renew(x.s.ctx, x.key, x.token, long)
	x.s.noError(err, "Renew", x.key)
	if err == nil && !held {
		x.s.fail("%s.Renew(%s, %s, %v): held = false, %s", x.by.name, brief(x.key), brief(x.token), long, why)
	}
}

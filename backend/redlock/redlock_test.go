package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness keeps n nodes for each test, and makes clients of them.
func harness(n int, client func(stores) *redlock.Locker) conformance.Harness {
	var all sync.Map
	of := func(t testing.TB) stores {
		s, ok := all.Load(t)
		if !ok {
			s, _ = all.LoadOrStore(t, newStores(n))
			t.Cleanup(func() { all.Delete(t) })
		}
		return s.(stores)
	}
	return conformance.Harness{
		New: func(t *testing.T) dlock.Locker {
			l := client(of(t))
			t.Cleanup(func() { l.Close() })
			return l
		},
		Wipe: func(t *testing.T) {
			for _, s := range of(t) {
				s.Wipe()
				s.SetAge(2 * longest) // else it would not vote for a while
			}
		},
		TTL:       10 * time.Millisecond,
		Bubble:    true,
		Unordered: true,
	}
}

// Package sim runs the suite on 3 and on 5 servers, which have no guard.
func TestConformance(t *testing.T) {
	for name, h := range map[string]conformance.Harness{
		"1 node": harness(1, func(s stores) *redlock.Locker { return redlock.New(s.nodes(), redlock.WithoutGuard()) }),
		"plain":  harness(3, func(s stores) *redlock.Locker { return redlock.New(s.forwarded()) }),
		"guarded": harness(3, func(s stores) *redlock.Locker {
			return redlock.New(s.nodes(), redlock.WithLongestTTL(longest))
		}),
	} {
		t.Run(name, func(t *testing.T) { conformance.Run(t, h) })
	}
}

// A MinHold that the nodes would not keep is refused.
func TestMinHold(t *testing.T) {
	for hold, want := range map[time.Duration]string{
		longest:     "",
		longest + 1: "WithMinHold(1h0m0.000000001s): longer than 1h0m0s",
	} {
		l := redlock.New(newStores(3).nodes(), redlock.WithLongestTTL(longest))
		c := dlock.New(l, dlock.WithMinHold(hold))
		_, err := c.TryAcquire(t.Context(), "key")
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, dlock.ErrInvalid)
			require.ErrorContains(t, err, want)
		}
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
}

const longest = time.Hour // TTL of guarded nodes

var (
	errDial   = &net.OpError{Op: "dial", Err: errors.New("refused")}
	errReset  = errors.New("connection reset")
	errRights = none(fmt.Errorf("%w: no right to do so", dlock.ErrInvalid))
)

func none(err error) error { return &dlock.NoEffectError{Err: err} }

// stores are the nodes in memory of a test.
type stores []*memory.Locker

func newStores(n int) stores {
	s := make(stores, n)
	for i := range s {
		s[i] = memory.New()
		s[i].SetAge(2 * longest)
	}
	return s
}

func (s stores) nodes() []dlock.Locker {
	nodes := make([]dlock.Locker, len(s))
	for i := range s {
		nodes[i] = s[i]
	}
	return nodes
}

// forwarded are the nodes without the methods of a Voter.
func (s stores) forwarded() []dlock.Locker {
	nodes := s.nodes()
	for i := range nodes {
		nodes[i] = dlock.Forward{Locker: nodes[i]}
	}
	return nodes
}

// each does something to all stores.
func (s stores) each(do func(*memory.Locker)) {
	for _, n := range s {
		do(n)
	}
}

func delay(d time.Duration) func(*memory.Locker) { return func(n *memory.Locker) { n.Delay(d) } }
func fail(err error) func(*memory.Locker)        { return func(n *memory.Locker) { n.Fail(err) } }

// A bench is that of a test in virtual time: three stores, a Locker that is closed in the end, and the key that it is asked for.
type bench struct {
	*testing.T
	stores
	*redlock.Locker
	key string
}

// scenes runs each scene on a bench of its own.
func scenes(t *testing.T, all map[string]func(*bench)) {
	cases(t, all, func(b *bench, scene func(*bench)) { scene(b) })
}

// cases does something with each case, on a bench of its own.
func cases[C any](t *testing.T, all map[string]C, do func(*bench, C)) {
	for name, c := range all {
		t.Run(name, func(t *testing.T) { onBench(t, func(b *bench) { do(b, c) }) })
	}
}

func onBench(t *testing.T, do func(*bench)) { onBenchFor(t, "key", do) }

func onBenchFor(t *testing.T, key string, do func(*bench)) {
	bubble.Test(t, func(t *testing.T) { do(&bench{T: t, stores: newStores(3), key: key}) })
}

// withAnyArbiter runs each scene with keys that have different arbiters.
func withAnyArbiter(t *testing.T, all map[string]func(*bench)) {
	for name, scene := range all {
		for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
			t.Run(name+"/"+key, func(t *testing.T) { onBenchFor(t, key, scene) })
		}
	}
}

// open makes the Locker.
func (b *bench) open(nodes []dlock.Locker, opts ...redlock.Option) {
	l := redlock.New(nodes, opts...)
	b.Cleanup(func() { l.Close() })
	b.Locker = l
}

// client makes a Client of the Locker.
func (b *bench) client(opts ...dlock.Option) *dlock.Client {
	c := dlock.New(b.Locker, opts...)
	b.Cleanup(func() { c.Close() })
	return c
}

// tries makes an attempt.
func (b *bench) tries(token string, ttl time.Duration) (dlock.Attempt, error) {
	return b.TryAcquire(b.Context(), b.key, token, ttl)
}

// takes makes an attempt that must be granted.
func (b *bench) takes(token string, ttl time.Duration) dlock.Attempt {
	b.Helper()
	return b.granted(b.tries(token, ttl))
}

// granted is the answer of a call that must be a grant.
func (b *bench) granted(a dlock.Attempt, err error) dlock.Attempt {
	b.Helper()
	require.True(b, a.Acquired && err == nil, "%+v, %v", a, err)
	return a
}

// fails makes an attempt that must not be granted.
func (b *bench) fails(token string, ttl time.Duration, why string) (dlock.Attempt, error) {
	b.Helper()
	a, err := b.tries(token, ttl)
	require.False(b, a.Acquired && err == nil, why)
	return a, err
}

// finds makes an attempt that must name the holder.
func (b *bench) finds(token, holder string, ttl time.Duration) {
	b.Helper()
	a, err := b.tries(token, ttl)
	require.NoError(b, err)
	require.Equal(b, holder, a.Holder)
}

// waits makes a wait that must be granted.
func (b *bench) waits(token string, ttl time.Duration) {
	b.Helper()
	b.granted(b.Acquire(b.Context(), b.key, token, ttl))
}

// waitsFor makes a wait that must end with its ctx.
func (b *bench) waitsFor(patience time.Duration, token string, ttl time.Duration) (dlock.Attempt, error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	a, err := b.Acquire(ctx, b.key, token, ttl)
	require.ErrorIs(b, err, context.DeadlineExceeded)
	return a, err
}

func (b *bench) renews(token string, ttl time.Duration) {
	b.Helper()
	held, err := b.Renew(b.Context(), b.key, token, ttl)
	require.True(b, held && err == nil, "%v, %v", held, err)
}

func (b *bench) releases(token string) {
	b.Helper()
	held, err := b.Release(b.Context(), b.key, token)
	require.True(b, held && err == nil, "%v, %v", held, err)
}

// by has these nodes vote for a token, for so long.
func (b *bench) by(token string, ttl time.Duration, nodes ...int) {
	b.Helper()
	for _, i := range nodes {
		_, err := b.stores[i].Vote(b.Context(), b.key, token, ttl, 0)
		require.NoError(b, err)
	}
}

// hold is who holds the key at a node.
func (b *bench) hold(node int) dlock.Hold {
	b.Helper()
	hold, err := b.stores[node].Inspect(b.Context(), b.key)
	require.NoError(b, err)
	return hold
}

// free fails if a node has a vote, or a waiter.
func (b *bench) free(format string, args ...any) {
	b.Helper()
	for i := range b.stores {
		require.Equal(b, dlock.Hold{}, b.hold(i), "node %d, %s", i, fmt.Sprintf(format, args...))
	}
}

// A tap is on the way to a node. It may make, delay, lose, repeat, change or refuse each request.
type tap func(*request) error

// A request is one to a node. A tap may change where it goes, its TTLs, and its ballots.
type request struct {
	ctx        context.Context
	method     string // of Voter, or Inspect
	key, token string // "" for Inspect
	to         *memory.Locker
	ttl        time.Duration // of Vote and AcquireVote
	batch      []quorum.Confirmation
	ballot     quorum.Ballot   // of Vote and AcquireVote
	ballots    []quorum.Ballot // of Confirm
	call       func(*request, context.Context) error
}

// make makes a request.
func (r *request) make(ctx context.Context) error { return r.call(r, ctx) }

// A tapped node is reached through a tap.
type tapped struct {
	*memory.Locker
	tap
}

func (n tapped) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	r := request{ctx: ctx, method: "Vote", key: key, token: token, to: n.Locker, ttl: ttl, call: func(r *request, ctx context.Context) (err error) {
		r.ballot, err = r.to.Vote(ctx, key, token, r.ttl, floor)
		return err
	}}
	err := n.tap(&r)
	return r.ballot, err
}

func (n tapped) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	r := request{ctx: ctx, method: "AcquireVote", key: key, token: token, to: n.Locker, ttl: ttl, call: func(r *request, ctx context.Context) (err error) {
		r.ballot, err = r.to.AcquireVote(ctx, key, token, r.ttl, floor, place)
		return err
	}}
	err := n.tap(&r)
	return r.ballot, err
}

func (n tapped) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	r := request{ctx: ctx, method: "Confirm", key: batch[0].Key, token: batch[0].Token, to: n.Locker, batch: slices.Clone(batch), call: func(r *request, ctx context.Context) (err error) {
		r.ballots, err = r.to.Confirm(ctx, r.batch)
		return err
	}}
	err := n.tap(&r)
	return r.ballots, err
}

func (n tapped) Pass(ctx context.Context, key, token, to string, floor int64) (held bool, err error) {
	err = n.tap(&request{ctx: ctx, method: "Pass", key: key, token: token, to: n.Locker, call: func(r *request, ctx context.Context) (err error) {
		held, err = r.to.Pass(ctx, key, token, to, floor)
		return err
	}})
	return held, err
}

func (n tapped) Inspect(ctx context.Context, key string) (hold dlock.Hold, err error) {
	err = n.tap(&request{ctx: ctx, method: "Inspect", to: n.Locker, call: func(r *request, ctx context.Context) (err error) {
		hold, err = r.to.Inspect(ctx, key)
		return err
	}})
	return hold, err
}

// tapped are the nodes that are all reached through taps.
func (s stores) tapped(of func(node int) tap) []dlock.Locker {
	nodes := s.nodes()
	for i := range nodes {
		nodes[i] = tapped{s[i], of(i)}
	}
	return nodes
}

// all are the nodes that are all reached through the same tap.
func (s stores) all(t tap) []dlock.Locker { return s.tapped(func(int) tap { return t }) }

// on is a node where requests of one method meet something.
func on(s *memory.Locker, method string, meet tap) tapped {
	return tapped{s, func(r *request) error {
		if r.method == method {
			return meet(r)
		}
		return r.make(r.ctx)
	}}
}

// firstOn is on for the first of these requests.
func firstOn(s *memory.Locker, method string, meet tap) tapped {
	var met atomic.Bool
	return on(s, method, func(r *request) error {
		if met.Swap(true) {
			return r.make(r.ctx)
		}
		return meet(r)
	})
}

// loses makes a request, and loses the answer.
func loses(r *request) error {
	_ = r.make(r.ctx)
	r.ballot, r.ballots = quorum.Ballot{}, nil
	return errReset
}

// refuses is a request that is answered with an error.
func refuses(err error) tap { return func(*request) error { return err } }

// lasts is how long a request takes.
func lasts(d time.Duration) tap {
	return func(r *request) error {
		time.Sleep(d)
		return r.make(r.ctx)
	}
}

// hangs is a request that never comes.
func hangs(r *request) error {
	<-r.ctx.Done()
	return r.ctx.Err()
}

// remote is a node to which messages take a while, each way.
func remote(s *memory.Locker, pause func() time.Duration) tapped {
	return tapped{s, func(r *request) error {
		time.Sleep(pause())
		defer func() { time.Sleep(pause()) }()
		return r.make(r.ctx)
	}}
}

// remotes are nodes to which messages take as long as pause says, each way.
func (s stores) remotes(pause func() time.Duration) []dlock.Locker {
	return s.tapped(func(i int) tap { return remote(s[i], pause).tap })
}

// farFrom is a node whose votes take longer for one token than for others.
func farFrom(s *memory.Locker, token string) tapped {
	return on(s, "Vote", func(r *request) error {
		if r.token == token {
			time.Sleep(time.Millisecond)
		}
		return r.make(r.ctx)
	})
}

// lossy is a node that grants a vote, loses the answer and is away then.
func lossy(s *memory.Locker) tapped {
	var voted atomic.Bool
	return on(s, "Vote", func(r *request) error {
		if voted.Swap(true) {
			return errDial
		}
		return loses(r)
	})
}

// counted counts the requests of one method.
func counted(n *atomic.Int64, method string) tap {
	return func(r *request) error {
		if r.method == method {
			n.Add(1)
		}
		return r.make(r.ctx)
	}
}

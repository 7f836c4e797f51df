package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A request that fails is made again after 2 ms, and once more after 20 ms.
func TestTries(t *testing.T) {
	for failures, want := range []time.Duration{0, 2 * time.Millisecond, 22 * time.Millisecond, 22 * time.Millisecond} {
		onBench(t, func(b *bench) {
			made := 0
			b.stores = newStores(1)
			b.by("x", time.Second, 0)
			b.open(b.all(func(r *request) error {
				if made++; made <= failures {
					return errReset
				}
				return r.make(r.ctx)
			}))
			begun := time.Now()
			_, err := b.Renew(b.Context(), "key", "x", time.Second)
			require.Equal(b, failures == 3, err != nil, "after %d failures: %v", failures, err)
			require.Equal(b, want, time.Since(begun))
		})
	}
}

func TestRequests(t *testing.T) {
	scenes(t, map[string]func(*bench){
		"a token has one request at a time at a node, whatever its clients do at the same time": func(b *bench) {
			const ttl = 100 * time.Millisecond
			b.open(b.tapped(func(node int) tap {
				var flying atomic.Int64
				return func(r *request) error {
					if r.method != "AcquireVote" && r.method != "Inspect" {
						assert.EqualValues(b, 1, flying.Add(1), "requests at node %d, with %s", node, r.method)
						time.Sleep(time.Millisecond)
						defer flying.Add(-1)
					}
					return r.make(r.ctx)
				}
			}), redlock.WithoutGuard())
			ctx, stop := context.WithTimeout(b.Context(), 4*time.Second)
			defer stop()
			var all sync.WaitGroup
			for range 6 {
				all.Go(func() {
					for ctx.Err() == nil {
						short, cancel := context.WithTimeout(ctx, rand.N(2*ttl))
						switch rand.N(6) {
						case 0:
							_, _ = b.TryAcquire(short, "key", "x", ttl)
						case 1:
							_, _ = b.Acquire(short, "key", "x", ttl)
						case 2:
							_, _ = b.Release(short, "key", "x")
						case 3:
							b.stores[rand.N(len(b.stores))].Expire("key")
						default:
							_, _ = b.Renew(short, "key", "x", ttl)
						}
						cancel()
						time.Sleep(rand.N(ttl / 5))
					}
				})
			}
			all.Wait()
		},
		"a TTL beyond all limits is the node's to refuse, and does not become a short one": func(b *bench) {
			b.open(b.nodes(), redlock.WithoutGuard())
			b.takes("x", math.MaxInt64)
			require.Greater(b, b.hold(0).Remaining, 365*24*time.Hour)
		},
		// The lease is then kept by one store, twice; so it is not renewed, but its votes can be released.
		"the name of a node leads to the store of another one for a while": func(b *bench) {
			var leads atomic.Pointer[memory.Locker]
			leads.Store(b.stores[2])
			b.open([]dlock.Locker{b.stores[0], named(&leads), b.stores[1]})
			b.takes("x", 30*time.Second)
			time.Sleep(time.Second)
			leads.Store(b.stores[0])
			b.stores[1].Expire("key")
			_, err := b.Renew(b.Context(), "key", "x", 30*time.Second)
			require.ErrorIs(b, err, dlock.ErrInvalid, "Renew, by two answers of one store")
			require.False(b, dlock.NoEffect(err), "NoEffect(%v)", err)
			leads.Store(b.stores[2])
			b.renews("x", 30*time.Second)
			hold, err := b.Inspect(b.Context(), "key")
			require.NoError(b, err)
			require.Equal(b, "x", hold.Token)
			leads.Store(b.stores[0])
			_, err = b.Renew(b.Context(), "key", "x", 30*time.Second)
			require.ErrorIs(b, err, dlock.ErrInvalid)
			held, err := b.Release(b.Context(), "key", "x")
			require.NoError(b, err)
			require.False(b, b.stores[0].Expire("key"), "%v", held)
		},
	})
}

// A plain node has the methods of a Locker only, and perhaps RenewBatch.
type plain struct {
	dlock.Locker
	renewals *atomic.Int64
}

func (n plain) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	n.renewals.Add(1)
	return n.Locker.Renew(ctx, key, token, ttl)
}

type batching struct {
	plain
	err     error
	batches *atomic.Int64
}

func (n batching) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if n.batches.Add(1); n.err != nil {
		return nil, n.err
	}
	return n.Locker.(dlock.BatchRenewer).RenewBatch(ctx, batch)
}

// A node that is no Voter renews a batch at once, if it can.
func TestBatchesOfPlainNodes(t *testing.T) {
	var renewals, batches atomic.Int64
	type test struct {
		node              func(dlock.Locker) dlock.Locker
		keys              int
		renewals, batches int64
	}
	can := func(l dlock.Locker) dlock.Locker { return batching{plain{l, &renewals}, nil, &batches} }
	cannot := func(l dlock.Locker) dlock.Locker {
		return batching{plain{l, &renewals}, errors.ErrUnsupported, &batches}
	}
	cases(t, map[string]test{
		"it can":              {can, 2, 0, 3},
		"a batch of one":      {can, 1, 3, 0},
		"it has no method":    {func(l dlock.Locker) dlock.Locker { return plain{l, &renewals} }, 2, 6, 0},
		"it answers it can't": {cannot, 2, 6, 3},
	}, func(b *bench, c test) {
		renewals.Store(0)
		batches.Store(0)
		nodes := b.nodes()
		for i := range nodes {
			nodes[i] = c.node(nodes[i])
		}
		b.open(nodes)
		var batch []dlock.Renewal
		for i := range c.keys {
			key := fmt.Sprint(i)
			_, err := b.TryAcquire(b.Context(), key, "x", time.Second)
			require.NoError(b, err)
			batch = append(batch, dlock.Renewal{Key: key, Token: "x", TTL: time.Second})
		}
		synctest.Wait() // one node may still be asked for its vote, and a token has one request at a time there
		results, err := b.RenewBatch(b.Context(), batch)
		require.NoError(b, err)
		for _, r := range results {
			require.Equal(b, dlock.RenewResult{Held: true}, r)
		}
		require.NoError(b, b.Close())
		require.Equal(b, []int64{c.renewals, c.batches}, []int64{renewals.Load(), batches.Load()}, "renewals, and batches")
	})
}

// A standIn grants while its store is away, as a breaker does.
type standIn struct{ dlock.Locker }

func (standIn) TryAcquire(context.Context, string, string, time.Duration) (dlock.Attempt, error) {
	return dlock.Attempt{Acquired: true, Degraded: true, Since: time.Now()}, nil
}

func TestAStandInHasNoVote(t *testing.T) {
	s := newStores(3)
	l := redlock.New([]dlock.Locker{s[0], standIn{s[1]}, standIn{s[2]}})
	defer l.Close()
	a, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
	require.ErrorContains(t, err, "granted by a stand-in")
	require.False(t, a.Acquired)
}

// Bad arguments and a closed Locker are refused, and nothing is sent.
func TestRefusedCalls(t *testing.T) {
	const ttl, year = time.Second, 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		opts       []redlock.Option
		key, token string
		ttl        time.Duration
		close      bool
		want       string // in the error; or empty
	}{
		"no key":               {nil, "", "x", ttl, false, "key: empty"},
		"no token":             {nil, "key", "", ttl, false, "token: empty"},
		"a short TTL":          {nil, "key", "x", time.Millisecond - 1, false, "TTL 999.999µs: less than 1ms"},
		"a long TTL":           {nil, "key", "x", 30*time.Second + 1, false, "longer than 30s, the longest"},
		"the longest":          {nil, "key", "x", 30 * time.Second, false, ""},
		"longer than a year":   {[]redlock.Option{redlock.WithLongestTTL(year + 1)}, "key", "x", ttl, false, "not between 1ms and 365 days"},
		"shorter than allowed": {[]redlock.Option{redlock.WithLongestTTL(time.Millisecond - 1)}, "key", "x", ttl, false, "not between 1ms and 365 days"},
		"no node limit":        {[]redlock.Option{redlock.WithNodeLimit(time.Millisecond - 1)}, "key", "x", ttl, false, "WithNodeLimit(999.999µs): less than 1ms"},
		"a nil option":         {[]redlock.Option{redlock.WithoutGuard(), nil}, "key", "x", ttl, false, "Option 2 of 2: nil"},
		"closed":               {nil, "key", "x", ttl, true, dlock.ErrClosed.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStores(3)
			l := redlock.New(s.nodes(), c.opts...)
			defer l.Close()
			if c.close {
				require.NoError(t, l.Close())
			}
			for method, call := range map[string]func() error{
				"TryAcquire": func() error { _, err := l.TryAcquire(t.Context(), c.key, c.token, c.ttl); return err },
				"Acquire":    func() error { _, err := l.Acquire(t.Context(), c.key, c.token, c.ttl); return err },
				"Renew":      func() error { _, err := l.Renew(t.Context(), c.key, c.token, c.ttl); return err },
			} {
				switch err := call(); {
				case c.want == "":
					require.NoError(t, err, method)
				default:
					require.ErrorContains(t, err, c.want, method)
					require.True(t, dlock.NoEffect(err), "%s: NoEffect(%v)", method, err)
				}
			}
		})
	}
	for _, opt := range []redlock.Option{redlock.WithoutGuard(), redlock.WithLongestTTL(year)} {
		l := redlock.New(newStores(3).nodes(), opt)
		_, err := l.Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, year, l.LongestTTL())
		require.NoError(t, l.Close())
	}
}

// A holder is certain for its TTL, with its fraction of a millisecond. Nodes keep votes for whole milliseconds.
func TestFractionsOfMilliseconds(t *testing.T) {
	const ttl = 60*time.Millisecond + 999*time.Microsecond
	cases(t, map[string]func(*bench) time.Time{
		"TryAcquire": func(b *bench) time.Time { return b.takes("x", ttl).Since },
		"Acquire": func(b *bench) time.Time {
			a, err := b.Acquire(b.Context(), "key", "x", ttl)
			require.NoError(b, err)
			return a.Since
		},
		"Renew": func(b *bench) time.Time {
			b.takes("x", time.Millisecond)
			begun := time.Now()
			b.renews("x", ttl)
			return begun
		},
		"RenewBatch": func(b *bench) time.Time {
			b.takes("x", time.Millisecond)
			begun := time.Now()
			_, err := b.RenewBatch(b.Context(), []dlock.Renewal{{Key: "key", Token: "x", TTL: time.Millisecond}, {Key: "key", Token: "x", TTL: ttl}})
			require.NoError(b, err)
			return begun
		},
	}, func(b *bench, take func(*bench) time.Time) {
		b.open(b.all(func(r *request) error {
			r.ttl = r.ttl.Truncate(time.Millisecond)
			for i := range r.batch {
				r.batch[i].TTL = r.batch[i].TTL.Truncate(time.Millisecond)
			}
			return r.make(r.ctx)
		}))
		since := take(b)
		time.Sleep(time.Until(since.Add(ttl - time.Microsecond)))
		b.fails("y", time.Second, "another has the key 1µs before the deadline")
		time.Sleep(2 * time.Millisecond)
		b.takes("y", time.Second)
	})
}

// Nodes that are 600 ms away, on the other side of the world, serve four processes without an error if the TTL is at least
// five round trips.
func TestFarNodes(t *testing.T) {
	const rtt, lasts = 600 * time.Millisecond, time.Minute
	for _, ttl := range []time.Duration{5 * rtt, 10 * time.Second, 30 * time.Second} {
		bubble.Test(t, func(t *testing.T) {
			var nodes []dlock.Locker
			for range 3 {
				conn := sim.Dial(sim.NewServer(), func(sim.Trip) (f sim.Fate) {
					f.Request.Delay, f.Reply.Delay = rtt/2, rtt/2
					return f
				})
				node := rediscore.New(conn)
				defer func() { _ = node.Close(); conn.Close() }()
				nodes = append(nodes, node)
			}
			var grants atomic.Int64
			var running sync.WaitGroup
			ctx, fail := context.WithCancel(t.Context()) // a process that fails ends the others, which would wait for its lease
			defer fail()
			for range 4 {
				running.Go(func() {
					l := redlock.New(nodes, redlock.WithoutGuard())
					c := dlock.New(l, dlock.WithTTL(ttl))
					defer func() {
						assert.NoError(t, c.Close())
						assert.NoError(t, l.Close())
					}()
					for end := time.Now().Add(lasts); time.Now().Before(end); grants.Add(1) {
						lease, err := c.Acquire(ctx, "k")
						if err == nil {
							time.Sleep(rtt / 6)
							err = lease.Release()
						}
						if !assert.NoError(t, err) {
							fail()
							return
						}
					}
				})
			}
			running.Wait()
			require.Greater(t, grants.Load(), int64(lasts/rtt/3))
		})
	}
}

// acquire is TryAcquire or Acquire.
type acquire func(*redlock.Locker, context.Context, string, string, time.Duration) (dlock.Attempt, error)

// acquires are both.
var acquires = map[string]acquire{"TryAcquire": (*redlock.Locker).TryAcquire, "Acquire": (*redlock.Locker).Acquire}

// named is a node behind a name that leads to one store or another, by a longer way.
func named(leads *atomic.Pointer[memory.Locker]) tapped {
	const far = 10 * time.Millisecond
	return tapped{leads.Load(), func(r *request) error {
		r.to = leads.Load()
		time.Sleep(far)
		defer time.Sleep(far)
		return r.make(r.ctx)
	}}
}

// A list has one store twice, and the answers by one of the ways are late. No majority has them both, and the calls say why.
func TestAStoreIsNotCountedTwice(t *testing.T) {
	type test struct {
		call    string
		holders []int                             // the stores that another token holds
		other   func(*memory.Locker) dlock.Locker // the node that is there once
	}
	fails := func(m *memory.Locker) dlock.Locker { m.Fail(errDial); return m }
	votesThenFails := func(m *memory.Locker) dlock.Locker {
		return on(m, "Vote", func(r *request) error {
			defer m.Fail(errDial)
			return r.make(r.ctx)
		})
	}
	cases(t, map[string]test{
		"TryAcquire, others have a majority":              {"TryAcquire", []int{1, 2}, nil},
		"Acquire, others have a majority":                 {"Acquire", []int{1, 2}, nil},
		"TryAcquire, held by one store":                   {"TryAcquire", []int{0}, fails},
		"Acquire, held":                                   {"Acquire", []int{0, 1, 2}, nil},
		"TryAcquire, the other node fails after its vote": {"TryAcquire", nil, votesThenFails},
		"Acquire, the other node fails after its vote":    {"Acquire", nil, votesThenFails},
	}, func(b *bench, test test) {
		b.by("holder", 30*time.Second, test.holders...)
		b.stores[0].SetClock(time.Minute) // so its fence is confirmed by others
		var leads atomic.Pointer[memory.Locker]
		leads.Store(b.stores[0])
		nodes := []dlock.Locker{b.stores[0], named(&leads), b.stores[1]}
		if test.other != nil {
			nodes[2] = test.other(b.stores[1])
		}
		b.open(nodes)
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		a, err := acquires[test.call](b.Locker, ctx, "key", "x", 30*time.Second)
		require.False(b, a.Acquired, "by one store")
		require.ErrorIs(b, err, dlock.ErrInvalid)
		require.Less(b, time.Since(begun), time.Second)
	})
}

// What calls cost: requests to three nodes, of which one is a little slower.
func TestCosts(t *testing.T) {
	const ttl = long
	type requests = map[string]int
	try := func(ctx context.Context, l *redlock.Locker) error {
		_, err := l.TryAcquire(ctx, "key", "x", ttl)
		return err
	}
	renew := func(ctx context.Context, l *redlock.Locker) error {
		_, err := l.Renew(ctx, "key", "x", ttl)
		return err
	}
	type test struct {
		holder string
		err    error // of the slower node
		call   func(context.Context, *redlock.Locker) error
		want   requests
	}
	cases(t, map[string]test{
		"an attempt":                      {"", nil, try, requests{"Vote": 3}},
		"an attempt, and the key is held": {"y", nil, try, requests{"Vote": 3}},
		"a renewal":                       {"x", nil, renew, requests{"Confirm": 3}},
		"a renewal that a node answers too late with an error": {"x", errReset, renew, requests{"Confirm": 3}},
		"a release": {"x", nil, func(ctx context.Context, l *redlock.Locker) error {
			_, err := l.Release(ctx, "key", "x")
			return err
		}, requests{"Pass": 3}},
		"a look": {"x", nil, func(ctx context.Context, l *redlock.Locker) error {
			_, err := l.Inspect(ctx, "key")
			return err
		}, requests{"Inspect": 3}},
		"a wait for a minute": {"y", nil, func(ctx context.Context, l *redlock.Locker) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := l.Acquire(ctx, "key", "x", ttl)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return nil
		}, requests{"Vote": 3, "AcquireVote": 3}},
	}, func(b *bench, c test) {
		if c.holder != "" {
			b.by(c.holder, time.Hour, 0, 1, 2)
		}
		made := make(requests)
		var mu sync.Mutex
		b.open(b.tapped(func(node int) tap {
			return func(r *request) error {
				mu.Lock()
				made[r.method]++
				mu.Unlock()
				err := r.make(r.ctx)
				if time.Sleep(time.Millisecond); node == 2 {
					if time.Sleep(50 * time.Microsecond); c.err != nil {
						time.Sleep(20 * time.Millisecond)
						return c.err
					}
				}
				return err
			}
		}))
		require.NoError(b, c.call(b.Context(), b.Locker))
		time.Sleep(time.Second)
		require.NoError(b, b.Close())
		require.Equal(b, c.want, made)
	})
}

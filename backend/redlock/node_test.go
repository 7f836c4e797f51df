package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// A request that fails is made again after 2 ms, and once more after 20 ms.
func TestTries(t *testing.T) {
	for failures, want := range []time.Duration{0, 2 * time.Millisecond, 22 * time.Millisecond, 22 * time.Millisecond} {
		bubble.Test(t, func(t *testing.T) {
			s, made := newStores(1), 0
			_, err := s[0].Vote(t.Context(), "key", "x", time.Second, 0)
			require.NoError(t, err)
			l := redlock.New(s.tapped(func(int) tap {
				return func(r request) error {
					if made++; made <= failures {
						return errReset
					}
					return r.make(r.ctx)
				}
			}))
			defer l.Close()
			begun := time.Now()
			_, err = l.Renew(t.Context(), "key", "x", time.Second)
			require.Equal(t, failures == 3, err != nil, "after %d failures: %v", failures, err)
			require.Equal(t, want, time.Since(begun))
		})
	}
}

// A token has one request at a time at a node, whatever its clients do at the same time.
func TestOneRequestOfATokenAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const ttl = 100 * time.Millisecond
		s := newStores(3)
		l := redlock.New(s.tapped(func(node int) tap {
			var flying atomic.Int64
			return func(r request) error {
				if r.method != "AcquireVote" && r.method != "Inspect" {
					assert.EqualValues(t, 1, flying.Add(1), "requests at node %d, with %s", node, r.method)
					time.Sleep(time.Millisecond)
					defer flying.Add(-1)
				}
				return r.make(r.ctx)
			}
		}), redlock.WithoutGuard())
		defer l.Close()
		ctx, stop := context.WithTimeout(t.Context(), 4*time.Second)
		defer stop()
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				for ctx.Err() == nil {
					short, cancel := context.WithTimeout(ctx, rand.N(2*ttl))
					switch rand.N(6) {
					case 0:
						_, _ = l.TryAcquire(short, "key", "x", ttl)
					case 1:
						_, _ = l.Acquire(short, "key", "x", ttl)
					case 2:
						_, _ = l.Release(short, "key", "x")
					case 3:
						s[rand.N(len(s))].Expire("key")
					default:
						_, _ = l.Renew(short, "key", "x", ttl)
					}
					cancel()
					time.Sleep(rand.N(ttl / 5))
				}
			})
		}
		all.Wait()
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
	for name, c := range map[string]struct {
		node              func(dlock.Locker) dlock.Locker
		keys              int
		renewals, batches int64
	}{
		"it can":           {func(l dlock.Locker) dlock.Locker { return batching{plain{l, &renewals}, nil, &batches} }, 2, 0, 3},
		"a batch of one":   {func(l dlock.Locker) dlock.Locker { return batching{plain{l, &renewals}, nil, &batches} }, 1, 3, 0},
		"it has no method": {func(l dlock.Locker) dlock.Locker { return plain{l, &renewals} }, 2, 6, 0},
		"it answers it can't": {func(l dlock.Locker) dlock.Locker {
			return batching{plain{l, &renewals}, errors.ErrUnsupported, &batches}
		}, 2, 6, 3},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				renewals.Store(0)
				batches.Store(0)
				nodes := newStores(3).nodes()
				for i := range nodes {
					nodes[i] = c.node(nodes[i])
				}
				l := redlock.New(nodes)
				var batch []dlock.Renewal
				for i := range c.keys {
					key := fmt.Sprint(i)
					_, err := l.TryAcquire(t.Context(), key, "x", time.Second)
					require.NoError(t, err)
					batch = append(batch, dlock.Renewal{Key: key, Token: "x", TTL: time.Second})
				}
				synctest.Wait() // one node may still be asked for its vote, and a token has one request at a time there
				results, err := l.RenewBatch(t.Context(), batch)
				require.NoError(t, err)
				for _, r := range results {
					require.Equal(t, dlock.RenewResult{Held: true}, r)
				}
				require.NoError(t, l.Close())
				require.Equal(t, []int64{c.renewals, c.batches}, []int64{renewals.Load(), batches.Load()}, "renewals, and batches")
			})
		})
	}
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

package rediscore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// A batchConn is a fakeConn whose calls take a round trip. It records the batches.
type batchConn struct {
	*fakeConn
	pool      int
	roundTrip time.Duration
	execution time.Duration // of one call
	fail      func(Call) error

	mu       sync.Mutex
	batches  []batch
	inFlight int
	most     int // in flight at once
}

type batch struct {
	at    time.Time
	calls []Call
}

func (c *batchConn) PoolSize() int { return c.pool }

func (c *batchConn) Eval(ctx context.Context, call Call) (any, error) {
	results := make([]Result, 1)
	c.EvalAll(ctx, []Call{call}, results)
	return results[0].Reply, results[0].Err
}

func (c *batchConn) EvalAll(ctx context.Context, calls []Call, results []Result) {
	c.note(1, calls)
	defer c.note(-1, nil)
	time.Sleep(c.roundTrip + time.Duration(len(calls))*c.execution)
	for i, call := range calls {
		if c.fail != nil {
			results[i].Err = c.fail(call)
		}
		if results[i].Err == nil {
			results[i].Reply, results[i].Err = c.fakeConn.Eval(ctx, call)
		}
	}
}

func (c *batchConn) note(n int, calls []Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight += n
	c.most = max(c.most, c.inFlight)
	if calls != nil {
		c.batches = append(c.batches, batch{time.Now(), slices.Clone(calls)})
	}
}

func (c *batchConn) sizes() (sizes []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.batches {
		sizes = append(sizes, len(b.calls))
	}
	return sizes
}

func withBatches(t *testing.T, c *batchConn, test func(t *testing.T, l *Locker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c.fakeConn = &fakeConn{cluster: c.fakeConn != nil && c.cluster}
		c.eval = waitsAlways(3, "H", -1)
		l := New(c)
		defer l.Close()
		test(t, l)
	})
}

// An ask that is alone goes at once, and needs one round trip.
func TestLoneAskGoesAtOnce(t *testing.T) {
	c := &batchConn{pool: 1, roundTrip: time.Millisecond}
	withBatches(t, c, func(t *testing.T, l *Locker) {
		for i := range 3 {
			start := time.Now()
			c.eval = always(func() []any { return []any{int64(answerGranted), int64(8)} })
			_, err := l.Acquire(t.Context(), "k", fmt.Sprint("t", i), time.Minute)
			require.NoError(t, err)
			require.Equal(t, c.roundTrip, time.Since(start))
		}
		require.Equal(t, []int{1, 1, 1}, c.sizes())
	})
}

// Ten thousand waits check in often enough to stay alive, over any network, and take at most a
// share of the pool.
func TestAsksOfManyWaits(t *testing.T) {
	const waits = 10_000
	for _, c := range []*batchConn{
		{pool: 1, roundTrip: 5 * time.Millisecond},
		{pool: 1, roundTrip: 100 * time.Millisecond},
		{pool: 20, roundTrip: 100 * time.Millisecond},
	} {
		c.execution = 20 * time.Microsecond
		t.Run(fmt.Sprint(c.pool, c.roundTrip), func(t *testing.T) {
			withBatches(t, c, func(t *testing.T, l *Locker) {
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range waits {
					all.Go(func() {
						_, err := l.Acquire(ctx, "k", fmt.Sprint("t", i), time.Minute)
						require.ErrorIs(t, err, context.Canceled)
					})
				}
				time.Sleep(5 * time.Second)
				n := len(c.sizes())
				const steady = 5 * time.Second
				time.Sleep(steady)
				cancel()
				all.Wait()

				last, longest := make(map[string]time.Time), time.Duration(0)
				var busy time.Duration
				for i, b := range c.batches {
					if i >= n {
						busy += c.roundTrip + time.Duration(len(b.calls))*c.execution
					}
					for _, call := range b.calls {
						if was, ok := last[call.Args[0]]; ok {
							longest = max(longest, b.at.Sub(was))
						}
						last[call.Args[0]] = b.at
					}
				}
				require.Len(t, last, waits)
				require.Less(t, longest, 4500*time.Millisecond, "between two check-ins of a wait")
				require.LessOrEqual(t, c.most, l.outbox.lanes, "batches at once")
				require.LessOrEqual(t, slices.Max(c.sizes()), maxBatch)
				share := float64(busy) / float64(steady)
				require.Less(t, share, 0.3*float64(c.pool), "connections in use")
				t.Logf("at most %v between check-ins, %.2f connections in use, batches of at most %d", longest, share, slices.Max(c.sizes()))
			})
		})
	}
}

// The lanes are a quarter of the pool, at least one and at most four.
func TestLanes(t *testing.T) {
	for pool, want := range map[int]int{0: 4, 1: 1, 7: 1, 8: 2, 15: 3, 16: 4, 1000: 4} {
		require.Equal(t, want, New(&batchConn{pool: pool}).outbox.lanes, "pool of %d", pool)
	}
}

// A wait that ends while its ask stands in the outbox has sent nothing, and says so.
func TestAskIsWithdrawn(t *testing.T) {
	c := &batchConn{pool: 1, roundTrip: time.Second}
	withBatches(t, c, func(t *testing.T, l *Locker) {
		first := begin(t, l, "k", "first")
		second := begin(t, l, "k", "second")
		third := begin(t, l, "k", "third")
		second.cancel()
		require.True(t, second.isDone())
		require.ErrorIs(t, second.err, context.Canceled)
		var noEffect *dlock.NoEffectError
		require.ErrorAs(t, second.err, &noEffect)
		first.cancel()
		require.True(t, first.isDone())
		require.NotErrorAs(t, first.err, &noEffect, "its ask is in flight")
		time.Sleep(time.Minute)
		require.False(t, third.isDone())
		for _, b := range c.batches {
			for _, call := range b.calls {
				require.NotEqual(t, "second", call.Args[0], "sent")
			}
		}
		third.cancel()
	})
}

// A wait whose token is released while its ask stands in the outbox does not send it: it would put
// the token back into the queue.
func TestReleaseOvertakesAsk(t *testing.T) {
	c := &batchConn{pool: 1, roundTrip: time.Second}
	withBatches(t, c, func(t *testing.T, l *Locker) {
		first, second := begin(t, l, "k", "first"), begin(t, l, "k", "second")
		_, err := l.Release(t.Context(), "k", "second")
		require.Error(t, err, "of a fake")
		time.Sleep(time.Minute)
		require.True(t, second.isDone())
		require.ErrorIs(t, second.err, dlock.ErrReleased)
		for _, call := range c.evals(0) {
			require.False(t, call.script == enqueueScript && call.args[0] == "second")
		}
		first.cancel()
	})
}

// Close takes back what stands in the outbox, and waits for what is in flight.
func TestCloseWithdrawsAsks(t *testing.T) {
	c := &batchConn{pool: 1, roundTrip: time.Second}
	withBatches(t, c, func(t *testing.T, l *Locker) {
		first, second := begin(t, l, "k", "first"), begin(t, l, "k", "second")
		require.NoError(t, l.Close())
		require.True(t, first.isDone())
		require.True(t, second.isDone())
		require.ErrorIs(t, second.err, dlock.ErrClosed)
		for _, b := range c.batches {
			for _, call := range b.calls {
				require.False(t, call.Script == enqueueScript && call.Args[0] == "second")
			}
		}
	})
}

// The failure of one call of a batch is that of one wait.
func TestFailuresInABatch(t *testing.T) {
	refusal, lost := errors.New("READONLY You can't write against a read only replica."), errors.New("connection lost")
	c := &batchConn{pool: 1, roundTrip: time.Second, fail: func(call Call) error {
		return map[string]error{"refused": refusal, "lost": lost}[call.Args[0]]
	}}
	withBatches(t, c, func(t *testing.T, l *Locker) {
		first := begin(t, l, "k", "first")
		refused, lost, waits := begin(t, l, "k", "refused"), begin(t, l, "k", "lost"), begin(t, l, "k", "waits")
		time.Sleep(2*time.Second + time.Millisecond)
		require.Contains(t, c.sizes(), 3)
		var noEffect *dlock.NoEffectError
		require.True(t, refused.isDone())
		require.ErrorAs(t, refused.err, &noEffect)
		require.True(t, noEffect.Temporary)
		require.True(t, lost.isDone())
		require.NotErrorAs(t, lost.err, &noEffect)
		require.False(t, waits.isDone())
		first.cancel()
		waits.cancel()
	})
}

// A routedConn is a batchConn that knows two masters, by the first letter of the key. One of
// them does not answer.
type routedConn struct{ *batchConn }

func (c routedConn) Master(_ context.Context, call Call) any { return call.Keys()[0][0] }

func (c routedConn) Eval(ctx context.Context, call Call) (any, error) {
	if call.Keys()[0][0] == 'd' {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.batchConn.Eval(ctx, call)
}

// A master that does not answer does not hold up the asks for another, whether the Conn knows the
// masters or not.
func TestAsksForADeadMaster(t *testing.T) {
	for _, routed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := &batchConn{fakeConn: &fakeConn{cluster: true, eval: waitsAlways(3, "H", -1)}, pool: 1}
			var l *Locker
			if r := (routedConn{c}); routed {
				l = New(r)
			} else {
				l = New(struct {
					Conn
					Pooled
				}{r, r})
			}
			defer l.Close()
			dead := begin(t, l, "dead", "dead")
			begin(t, l, "alive", "t")
			require.NotEmpty(t, c.sizes(), "routed: %v", routed)
			time.Sleep(callLimit)
			require.True(t, dead.isDone())
			require.ErrorIs(t, dead.err, context.DeadlineExceeded)
		})
	}
}

// Nothing is kept for a master that nobody asks.
func TestOutboxIsEmptied(t *testing.T) {
	c := &batchConn{}
	withBatches(t, c, func(t *testing.T, l *Locker) {
		w := begin(t, l, "k", "t")
		require.False(t, w.isDone())
		require.Empty(t, l.outbox.queues)
		w.cancel()
	})
}

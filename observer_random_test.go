package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
)

// A census counts what its workers do, to be compared with a ledger.
type census struct {
	mu                  sync.Mutex
	acquisitions        int
	granted             map[int64]bool // fences of leases
	lost, detached      int
	released, shut, ran int
}

func (c *census) count(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *census) acquired(l *dlock.Lease, err error) *dlock.Lease {
	c.count(func() {
		c.acquisitions++
		if err == nil {
			c.granted[l.Fence()] = true
			c.ran++
		}
	})
	return l
}

// end ends a lease, and counts how.
func (c *census) end(l *dlock.Lease) {
	before := l.Err()
	err := l.Release()
	c.count(func() {
		switch {
		case before == dlock.ErrClosed:
			c.shut++
		case errors.Is(err, dlock.ErrLost):
			c.lost++
		default:
			c.released++
		}
	})
}

// Whatever happens, each acquisition has one AcquireDone, and each lease one LeaseDone: over a
// line that fails in all ways, with losses, cancelled waits, turns in a line, leases that are
// detached and adopted, operators, and a Shutdown in the middle of it all.
func TestEveryAcquisitionAndLeaseEndsOnce(t *testing.T) {
	for seed := range uint64(200 / israce.Slower) {
		for _, turns := range []int{1, 8} {
			t.Run(fmt.Sprintf("seed=%d,turns=%d", seed, turns), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { endsOnce(t, seed, turns) })
			})
		}
	}
}

func endsOnce(t *testing.T, seed uint64, turns int) {
	store, line := overWire(t)
	line.setRTT(2 * time.Millisecond)
	rng := rand.New(rand.NewPCG(seed, uint64(turns)))
	seen, did := new(ledger), &census{granted: make(map[int64]bool)}
	c := dlock.New(line, dlock.WithTTL(time.Second), dlock.WithLocalTurns(turns), dlock.WithObserver(seen.observer()))
	until := time.Now().Add(20 * time.Second)
	var wg sync.WaitGroup
	for range 6 {
		mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() { work(t, c, did, mine, until) })
	}
	wg.Go(func() {
		for time.Now().Before(until) {
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
			switch rng.IntN(6) {
			case 0:
				store.Steal("k", 100*time.Millisecond)
			case 1, 2:
				line.fail([]fault{refuse, hang, lose}[rng.IntN(3)], time.Duration(rng.IntN(1500))*time.Millisecond)
			case 3:
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if status, err := c.Inspect(ctx, "k"); err == nil && status.Held {
					_ = c.Break(ctx, status)
				}
				cancel()
			}
		}
	})
	if seed%2 == 0 {
		time.Sleep(15 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_ = c.Shutdown(ctx)
	}
	wg.Wait()
	_ = c.Close()
	synctest.Wait()
	compare(t, seen, did)
	require.Zero(t, c.Stats().EventsDropped)
	require.Zero(t, c.Stats().Leases)
}

// work acquires the key k in all ways, and ends the leases in all ways.
func work(t *testing.T, c *dlock.Client, did *census, rng *rand.Rand, until time.Time) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	for time.Now().Before(until) {
		ctx, cancel := context.WithTimeout(t.Context(), upTo(3*time.Second))
		client := c
		if rng.IntN(3) == 0 {
			client = c.With(dlock.WithRenewal(false))
		}
		try := client.Acquire
		if rng.IntN(4) == 0 {
			try = client.TryAcquire
		}
		l := did.acquired(try(ctx, "k"))
		cancel()
		if l == nil {
			time.Sleep(upTo(200 * time.Millisecond))
			continue
		}
		time.Sleep(upTo([]time.Duration{10 * time.Millisecond, 3 * time.Second}[rng.IntN(2)]))
		if rng.IntN(4) == 0 {
			_ = l.Renew(t.Context())
		}
		if rng.IntN(4) == 0 {
			if d, err := l.Detach(); err == nil {
				did.count(func() { did.detached++ })
				time.Sleep(upTo(1500 * time.Millisecond))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				l = did.acquired(client.Adopt(ctx, d))
				cancel()
				if l == nil {
					continue
				}
			}
		}
		did.end(l)
	}
}

func compare(t *testing.T, seen *ledger, did *census) {
	t.Helper()
	require.NotZero(t, did.ran)
	starts, dones := of[dlock.AcquireStartInfo](seen), of[dlock.AcquireDoneInfo](seen)
	require.Len(t, starts, did.acquisitions)
	require.Len(t, dones, did.acquisitions)
	began, ended := make(map[int64]int), make(map[int64]int)
	for _, i := range dones {
		if i.Err == nil {
			began[i.Fence]++
		}
	}
	ends := make(map[dlock.LeaseEnd]int)
	for _, i := range of[dlock.LeaseDoneInfo](seen) {
		ended[i.Fence]++
		ends[i.End]++
	}
	for fence := range did.granted {
		require.Equal(t, 1, began[fence], "AcquireDone of fence %d", fence)
		require.Equal(t, 1, ended[fence], "LeaseDone of fence %d", fence)
	}
	require.Len(t, began, len(did.granted))
	require.Len(t, ended, len(did.granted))
	require.Equal(t, did.released, ends[dlock.EndReleased])
	require.Equal(t, did.detached, ends[dlock.EndDetached])
	require.Equal(t, did.shut, ends[dlock.EndShutdown])
	require.Equal(t, did.lost, ends[dlock.EndExpired]+ends[dlock.EndRemoved])
	require.Len(t, of[dlock.ReleaseDoneInfo](seen), did.ran-did.detached)
	for _, event := range seen.events {
		require.NotContains(t, fmt.Sprintf("%+v", event), "dlock1.", "a token")
	}
}

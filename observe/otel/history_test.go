package otel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
)

// A tally is what the workers count themselves, from what the methods return.
type tally struct {
	mu       sync.Mutex
	acquired map[string]*sum // by outcome
	held     map[string]*sum // by end
	overrun  sum
	renewals map[string]int // by success; from an Observer
	tokens   []string
}

func (c *tally) count(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func add(to map[string]*sum, by string, d time.Duration) {
	if to[by] == nil {
		to[by] = new(sum)
	}
	to[by].add(d.Seconds())
}

// acquire calls f, and counts it.
func (c *tally) acquire(ctx context.Context, f func() (*dlock.Lease, error)) *dlock.Lease {
	start := time.Now()
	lease, err := f()
	outcome := "failed"
	switch {
	case err == nil:
		outcome = "granted"
	case errors.Is(err, dlock.ErrUnavailable) && !errors.Is(err, dlock.ErrHeld): // whoever has ended the silence
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		outcome = "canceled"
	case errors.Is(err, dlock.ErrHeld):
		outcome = "held"
	}
	c.count(func() {
		add(c.acquired, outcome, time.Since(start))
		if lease != nil {
			c.tokens = append(c.tokens, lease.Token())
		}
	})
	return lease
}

// end ends a lease in one way or another, and counts that.
func (c *tally) end(l *dlock.Lease, granted time.Time, detach bool) (d dlock.Detached) {
	end, overrun, loss := "released", time.Duration(0), l.Err()
	if loss != nil {
		overrun = time.Since(l.Deadline())
	}
	if detach && loss == nil {
		end = "detached"
		d, loss = l.Detach()
		if loss != nil { // if it was not lost, it goes on
			detach, end = false, "released"
		}
	}
	if !detach || loss != nil {
		before := loss
		if loss = l.Release(); errors.Is(before, dlock.ErrLost) {
			loss = before
		}
	}
	var lost *dlock.LostError
	if errors.As(loss, &lost) {
		end = map[dlock.LossReason]string{dlock.LossExpired: "expired", dlock.LossRemoved: "removed", dlock.LossMaxHold: "max_hold"}[lost.Reason]
	}
	c.count(func() {
		add(c.held, end, l.Deadline().Sub(granted))
		if overrun > 0 {
			c.overrun.add(overrun.Seconds())
		}
	})
	return d
}

func (c *tally) work(ctx context.Context, client *dlock.Client, rng *rand.Rand, until time.Time) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	for time.Now().Before(until) {
		key := fmt.Sprintf("class%d:secret", rng.IntN(2))
		ctx, cancel := context.WithTimeout(ctx, upTo(4*time.Second))
		client := client.With(dlock.WithRenewal(rng.IntN(3) > 0), dlock.WithMaxWait([]time.Duration{dlock.NoLimit, time.Second}[rng.IntN(2)]))
		f := client.Acquire
		if rng.IntN(4) == 0 {
			f = client.TryAcquire
		}
		lease := c.acquire(ctx, func() (*dlock.Lease, error) { return f(ctx, key) })
		for granted := time.Now(); lease != nil; granted = time.Now() {
			time.Sleep(upTo([]time.Duration{10 * time.Millisecond, 5 * time.Second}[rng.IntN(2)]))
			d := c.end(lease, granted, rng.IntN(5) == 0)
			if d == (dlock.Detached{}) {
				break
			}
			lease = c.acquire(ctx, func() (*dlock.Lease, error) { return client.Adopt(ctx, d) })
		}
		cancel()
		time.Sleep(upTo(100 * time.Millisecond))
	}
}

// trouble makes the store fail, cut connections, and lose data.
func trouble(store *memory.Locker, rng *rand.Rand, until time.Time) {
	for time.Now().Before(until) {
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
		switch rng.IntN(6) {
		case 0:
			store.Fail(syscall.ECONNRESET)
		case 1:
			store.FailReplies(io.EOF)
		case 2:
			store.Delay(time.Duration(rng.IntN(3000)) * time.Millisecond)
		case 3:
			store.Wipe()
		case 4:
			store.Steal("class0:secret", 100*time.Millisecond)
		default:
			store.Expire("class1:secret")
		}
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		store.Fail(nil)
		store.FailReplies(nil)
		store.Delay(0)
	}
}

// Metrics and spans agree with what the callers have seen: every acquisition is counted once, and every lease.
func TestRandomHistory(t *testing.T) {
	for seed := range uint64(60 / israce.Slower) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { randomHistory(t, seed) })
		})
	}
}

func randomHistory(t *testing.T, seed uint64) {
	r, store, rng := record(), memory.New(), rand.New(rand.NewPCG(seed, 0))
	c := &tally{acquired: make(map[string]*sum), held: make(map[string]*sum), renewals: make(map[string]int)}
	client := dlock.New(store, dlock.WithTTL(2*time.Second), dlock.WithLocalTurns(int(1+seed%2*3)), dlock.WithObserver(r.observer(t)),
		dlock.WithObserver(&dlock.Observer{RenewDone: func(_ context.Context, i dlock.RenewDoneInfo) {
			c.count(func() { c.renewals[fmt.Sprint(i.Err == nil, errors.Is(i.Err, dlock.ErrLost))]++ })
		}}))
	until := time.Now().Add(30 * time.Second)
	var workers sync.WaitGroup
	for range 5 {
		mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
		workers.Go(func() { c.work(t.Context(), client, mine, until) })
	}
	workers.Go(func() { trouble(store, rng, until) })
	workers.Wait()
	_ = client.Close()
	synctest.Wait()

	acquisitions := compare(t, c.acquired, r.sums(t, "dlock.acquire.duration", "dlock.outcome"))
	leases := compare(t, c.held, r.sums(t, "dlock.hold.duration", "dlock.end"))
	require.NotZero(t, leases)
	require.Equal(t, c.acquired["granted"].count, leases)
	require.Len(t, r.named("dlock acquire"), acquisitions)
	require.Len(t, r.named("dlock hold"), leases)
	if c.overrun.count > 0 {
		compare(t, map[string]*sum{"": &c.overrun}, r.sums(t, "dlock.lease.overrun", ""))
	}
	lost := 0
	for end, s := range c.held {
		if end != "released" && end != "detached" {
			lost += s.count
		}
	}
	require.Equal(t, lost, r.told("dlock lost"))
	require.Equal(t, c.overrun.count, r.told("dlock late release"))
	require.Equal(t, c.renewals["false false"], r.told("dlock renewal failed"))
	margins, renewals := 0, 0
	for _, s := range r.sums(t, "dlock.renewal.margin", "error.type") {
		margins += s.count
	}
	for _, n := range c.renewals {
		renewals += n
	}
	require.Equal(t, renewals, margins)
	text := r.exported(t)
	require.NotContains(t, text, "secret")
	for _, token := range c.tokens {
		require.False(t, strings.Contains(text, token), "exported: a token")
	}
}

// compare compares what was counted with what was measured, and returns how many there are.
func compare(t *testing.T, counted map[string]*sum, measured map[string]sum) (n int) {
	t.Helper()
	require.Len(t, measured, len(counted))
	for by, want := range counted {
		require.Equal(t, want.count, measured[by].count, by)
		require.InDelta(t, want.total, measured[by].total, 1e-6, by)
		n += want.count
	}
	return n
}

package memory_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/votetest"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness keeps one store for each test or benchmark.
func harness() conformance.Harness {
	var stores sync.Map
	store := func(t testing.TB) *memory.Locker {
		s, ok := stores.Load(t)
		if !ok {
			s, _ = stores.LoadOrStore(t, memory.New())
			t.Cleanup(func() { stores.Delete(t) })
		}
		return s.(*memory.Locker)
	}
	return conformance.Harness{
		New:    func(t *testing.T) dlock.Locker { return store(t) },
		Wipe:   func(t *testing.T) { store(t).Wipe() },
		Count:  func(t *testing.T) int { return store(t).Len() },
		TTL:    10 * time.Millisecond,
		Bubble: true,
	}
}

func TestConformance(t *testing.T) { conformance.Run(t, harness()) }

// A dlock.Forward changes nothing.
func TestForward(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	h := harness()
	inner := h.New
	h.New = func(t *testing.T) dlock.Locker { return dlock.Forward{Locker: inner(t)} }
	conformance.Run(t, h)
}

func TestVotes(t *testing.T) {
	votetest.Run(t, bubble.Test, func(*testing.T) votetest.Store {
		m := memory.New()
		return votetest.Store{New: func() votetest.Client { return m }, Wipe: m.Wipe}
	})
}

const ttl = time.Minute

func try(t *testing.T, m *memory.Locker, key, token string) dlock.Attempt {
	t.Helper()
	a, err := m.TryAcquire(t.Context(), key, token, ttl)
	require.NoError(t, err)
	return a
}

// A set is granted as a whole or not at all. Its own tokens do not hinder it, nor does a lease that has ended; but a
// waiter gets that key.
func TestSet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var m memory.Locker
		set := []dlock.Acquisition{{Key: "a", Token: "x", TTL: ttl}, {Key: "b", Token: "y", TTL: ttl}}
		a := try(t, &m, "a", "x")
		m.Steal("b", time.Second)
		got, err := m.TryAcquireSet(t.Context(), set)
		require.NoError(t, err)
		require.Equal(t, dlock.Attempt{Free: true}, got[0])
		require.False(t, got[1].Acquired || got[1].Free || got[1].Holder == "")
		require.Equal(t, time.Second, got[1].Remaining)

		go m.Acquire(t.Context(), "b", "waiter", time.Second)
		synctest.Wait()
		time.Sleep(time.Second)
		got, err = m.TryAcquireSet(t.Context(), set)
		require.NoError(t, err)
		require.Equal(t, "waiter", got[1].Holder)

		time.Sleep(time.Second)
		got, err = m.TryAcquireSet(t.Context(), set)
		require.NoError(t, err)
		require.True(t, got[0].Acquired && got[1].Acquired)
		require.Less(t, a.Fence, got[0].Fence)
		require.NotEqual(t, got[0].Fence, got[1].Fence)
	})
}

func TestZeroValue(t *testing.T) {
	var m memory.Locker
	held, err := m.Release(t.Context(), "k", "a")
	require.NoError(t, err)
	require.False(t, held)
	require.True(t, try(t, &m, "k", "a").Acquired)
}

func TestExpire(t *testing.T) {
	m := memory.New()
	require.False(t, m.Expire("k"))
	require.True(t, try(t, m, "k", "a").Acquired)
	require.True(t, m.Expire("k"))
	held, err := m.Renew(t.Context(), "k", "a", ttl)
	require.NoError(t, err)
	require.False(t, held)
	require.True(t, try(t, m, "k", "b").Acquired)
}

func TestExpireServesTheNext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		try(t, m, "k", "a")
		go func() { time.Sleep(time.Second); m.Expire("k") }()
		start := time.Now()
		a, err := m.Acquire(t.Context(), "k", "b", ttl)
		require.NoError(t, err)
		require.True(t, a.Acquired)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestSteal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		first := try(t, m, "k", "a")
		result := make(chan dlock.Attempt)
		go func() { a, _ := m.Acquire(t.Context(), "k", "waits", ttl); result <- a }()
		synctest.Wait()
		require.True(t, m.Steal("k", time.Second))
		require.False(t, m.Steal("free", time.Second), "there was no lease")
		held, err := m.Release(t.Context(), "k", "a")
		require.NoError(t, err)
		require.False(t, held)
		require.False(t, try(t, m, "free", "a").Acquired)
		start := time.Now()
		a := <-result
		require.Equal(t, time.Second, time.Since(start), "the stranger is served first")
		require.GreaterOrEqual(t, a.Fence, first.Fence+16, "the stranger has had a fence too")
	})
}

// operations makes each call once, all for the same token, and returns their errors.
func operations(ctx context.Context, m *memory.Locker) map[string]error {
	errs := make(map[string]error)
	_, errs["TryAcquire"] = m.TryAcquire(ctx, "k", "a", ttl)
	_, errs["Acquire"] = m.Acquire(ctx, "k", "a", ttl)
	_, errs["Vote"] = m.Vote(ctx, "k", "a", ttl, 0)
	_, errs["AcquireVote"] = m.AcquireVote(ctx, "k", "a", ttl, 0, 1)
	_, errs["Renew"] = m.Renew(ctx, "k", "a", ttl)
	_, errs["RenewBatch"] = m.RenewBatch(ctx, nil)
	_, errs["Confirm"] = m.Confirm(ctx, nil)
	_, errs["Inspect"] = m.Inspect(ctx, "k")
	_, errs["Release"] = m.Release(ctx, "k", "a")
	_, errs["Pass"] = m.Pass(ctx, "k", "a", "", 0)
	return errs
}

func TestFail(t *testing.T) {
	m := memory.New()
	broken := errors.New("broken")
	m.Fail(broken)
	for name, err := range operations(t.Context(), m) {
		require.Equal(t, broken, err, name)
	}
	_, err := m.TryAcquire(t.Context(), "k", "a", ttl)
	require.Equal(t, broken, err)
	m.Fail(nil)
	require.True(t, try(t, m, "k", "b").Acquired, "a failed call has no effect")
	m.Release(t.Context(), "k", "b")

	m.FailReplies(broken)
	for name, err := range operations(t.Context(), m) {
		require.Equal(t, broken, err, name)
	}
	_, err = m.TryAcquire(t.Context(), "k", "a", ttl)
	require.Equal(t, broken, err)
	m.FailReplies(nil)
	require.False(t, try(t, m, "k", "b").Acquired, "the failed call took effect")
}

func TestDelay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		m.Delay(time.Second)
		start := time.Now()
		a := try(t, m, "k", "a")
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, time.Now(), a.Since)
		for name, err := range operations(t.Context(), m) {
			require.NoError(t, err, name)
		}
		require.Equal(t, 11*time.Second, time.Since(start))
		try(t, m, "k", "a")

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := m.Release(ctx, "k", "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		m.Delay(0)
		require.False(t, try(t, m, "k", "b").Acquired, "the call has no effect")
	})
}

func TestWipe(t *testing.T) {
	m := memory.New()
	before := try(t, m, "k", "a").Fence
	m.Wipe()
	a := try(t, m, "k", "b")
	require.True(t, a.Acquired)
	require.Greater(t, a.Fence, before)
}

// A waiter's lease may end before the previous holder's lease would have ended. The next waiter
// is served in time.
func TestWaiterBehindAShorterLease(t *testing.T) {
	for _, leave := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			m := memory.New()
			try(t, m, "k", "a")
			short, cancel := context.WithCancel(t.Context())
			defer cancel()
			go m.Acquire(short, "k", "dies", time.Second)
			synctest.Wait()
			gone, leaves := context.WithCancel(t.Context())
			defer leaves()
			go m.Acquire(gone, "k", "leaves", time.Second)
			synctest.Wait()
			go func() {
				time.Sleep(time.Second)
				if leave {
					leaves()
				}
				m.Release(t.Context(), "k", "a")
			}()
			start := time.Now()
			_, err := m.Acquire(t.Context(), "k", "b", ttl)
			require.NoError(t, err)
			want := 3 * time.Second
			if leave {
				want = 2 * time.Second
			}
			require.Equal(t, want, time.Since(start))
		})
	}
}

func TestReleaseEndsAWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		try(t, m, "k", "a")
		result := make(chan error)
		go func() { _, err := m.Acquire(t.Context(), "k", "b", ttl); result <- err }()
		synctest.Wait()
		held, err := m.Release(t.Context(), "k", "b")
		require.NoError(t, err)
		require.False(t, held)
		require.ErrorIs(t, <-result, dlock.ErrReleased)
	})
}

func TestBadArguments(t *testing.T) {
	m := memory.New()
	for _, bad := range []struct {
		key, token string
		ttl        time.Duration
		want       string
	}{
		{"", "a", ttl, "key: empty"},
		{"k", "", ttl, "token: empty"},
		{"k", "a", 0, "TTL 0s"},
		{"k", "a", -ttl, "TTL -1m0s"},
	} {
		_, err := m.TryAcquire(t.Context(), bad.key, bad.token, bad.ttl)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, bad.want)
		ballots, err := m.Confirm(t.Context(), []quorum.Confirmation{{Renewal: dlock.Renewal{Key: bad.key, Token: bad.token, TTL: bad.ttl}}})
		require.NoError(t, err)
		require.ErrorContains(t, ballots[0].Err, bad.want)
		results, err := m.RenewBatch(t.Context(), []dlock.Renewal{{Key: bad.key, Token: bad.token, TTL: bad.ttl}})
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, dlock.ErrInvalid)
	}
}

func TestBadPlace(t *testing.T) {
	m := memory.New()
	for _, place := range []int64{-1, 0, 1<<53 + 1} {
		b, err := m.AcquireVote(t.Context(), "k", "a", ttl, 0, place)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, fmt.Sprintf("place %d", place))
		require.Zero(t, b)
	}
	require.Zero(t, m.Len())
}

func TestAge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var zero memory.Locker
		m := memory.New()
		ages := func(want, wantZero time.Duration) {
			t.Helper()
			require.Equal(t, want, vote(t, m).Age)
			require.Equal(t, wantZero, vote(t, &zero).Age)
		}
		time.Sleep(time.Minute)
		ages(time.Minute, 0)
		time.Sleep(time.Second)
		ages(61*time.Second, time.Second)
		m.Wipe()
		zero.SetAge(time.Hour)
		time.Sleep(time.Second)
		ages(time.Second, time.Hour+time.Second)
	})
}

func TestSetClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		for _, wrong := range []time.Duration{0, time.Minute, -time.Minute} {
			m.SetClock(wrong)
			clock := time.Now().Add(wrong).UnixMicro()
			b := vote(t, m)
			require.Equal(t, clock, b.Clock, "wrong by %v", wrong)
			require.GreaterOrEqual(t, b.Fence, clock, "wrong by %v", wrong)
			other, err := m.Vote(t.Context(), "k", "b", ttl, 0)
			require.NoError(t, err)
			require.Equal(t, clock, other.Place, "wrong by %v", wrong)
		}
		time.Sleep(ttl - time.Millisecond)
		require.False(t, try(t, m, "k", "b").Acquired)
		time.Sleep(time.Millisecond)
		require.True(t, try(t, m, "k", "b").Acquired)
	})
}

func vote(t *testing.T, m *memory.Locker) quorum.Ballot {
	t.Helper()
	b, err := m.Vote(t.Context(), "k", "a", ttl, 0)
	require.NoError(t, err)
	return b
}

// Fences rise across processes, for resources that outlive a process.
func TestFencesOfANewStoreAreHigher(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		before := try(t, memory.New(), "k", "a").Fence
		time.Sleep(time.Second)
		require.Greater(t, try(t, memory.New(), "k", "a").Fence, before)
	})
}

func TestForgottenKeysAreRemoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		for i := range 10_000 {
			_, err := m.TryAcquire(t.Context(), strconv.Itoa(i), "a", 10*time.Millisecond)
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		require.Less(t, m.Len(), 200, "locks that nobody asked for any more are still there")
	})
}

// A service's own test of what it does when it loses its lock.
func Example() {
	// See the test of the same program, in virtual time: TestWorkerStopsWhenItsLockIsLost.
	store := memory.New()
	worker := &worker{client: dlock.New(store)}
	fmt.Println(worker.run(context.Background(), func() { store.Expire("report") }))
	// Output: stopped: lease lost
}

// A worker is a service that works in steps under a lock.
type worker struct{ client *dlock.Client }

func (w *worker) run(ctx context.Context, step func()) string {
	lease, err := w.client.Acquire(ctx, "report")
	if err != nil {
		return err.Error()
	}
	step()
	if err := lease.Renew(ctx); errors.Is(err, dlock.ErrLost) {
		return "stopped: lease lost"
	}
	return fmt.Sprint("done ", lease.Release())
}

func TestWorkerStopsWhenItsLockIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memory.New()
		stopped := make(chan error, 1)
		go func() {
			stopped <- dlock.New(store).Do(t.Context(), "report", func(ctx context.Context, _ *dlock.Lease) error {
				<-ctx.Done() // works until ctx ends
				return context.Cause(ctx)
			})
		}()
		synctest.Wait() // the worker holds its lock
		if !store.Steal("report", time.Hour) {
			t.Fatal("the worker does not hold report")
		}
		require.ErrorIs(t, <-stopped, dlock.ErrLost)
	})
}

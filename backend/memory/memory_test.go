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

func vote(t *testing.T, m *memory.Locker) quorum.Ballot {
	t.Helper()
	b, err := m.Vote(t.Context(), "k", "a", ttl, 0)
	require.NoError(t, err)
	return b
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

// scenes runs each scene with a new store, in virtual time.
func scenes(t *testing.T, all map[string]func(*testing.T, *memory.Locker)) {
	for name, scene := range all {
		t.Run(name, func(t *testing.T) { bubble.Test(t, func(t *testing.T) { scene(t, memory.New()) }) })
	}
}

func TestLocker(t *testing.T) {
	scenes(t, map[string]func(*testing.T, *memory.Locker){
		// Its own tokens do not hinder it, nor does a lease that has ended; but a waiter gets that key.
		"a set is granted as a whole or not at all": func(t *testing.T, _ *memory.Locker) {
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
		},
		"the zero value": func(t *testing.T, _ *memory.Locker) {
			var m memory.Locker
			held, err := m.Release(t.Context(), "k", "a")
			require.NoError(t, err)
			require.False(t, held)
			require.True(t, try(t, &m, "k", "a").Acquired)
		},
		// The next waiter is served in time.
		"a waiter's lease ends before the previous holder's lease would have ended": func(t *testing.T, m *memory.Locker) {
			for _, leave := range []bool{false, true} {
				try(t, m, "k", "a")
				short, cancel := context.WithCancel(t.Context())
				defer cancel()
				go m.Acquire(short, "k", "dies", time.Second)
				synctest.Wait()
				gone, leaves := context.WithCancel(t.Context())
				defer leaves()
				go m.Acquire(gone, "k", "leaves", time.Second)
				synctest.Wait()
				start, want := time.Now(), 3*time.Second
				if leave {
					want = 2 * time.Second
				}
				time.AfterFunc(time.Second, func() {
					if leave {
						leaves()
					}
					m.Release(t.Context(), "k", "a")
				})
				_, err := m.Acquire(t.Context(), "k", "b", ttl)
				require.NoError(t, err)
				require.Equal(t, want, time.Since(start))
				m.Release(t.Context(), "k", "b")
			}
		},
		// It does not report a lease that never ends.
		"a wait is cut when the holder's lease ends": func(t *testing.T, m *memory.Locker) {
			for _, cut := range []time.Duration{time.Second - 1, time.Second, time.Second + 1} {
				m.Steal("k", time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), cut)
				defer cancel()
				a, err := m.Acquire(ctx, "k", "b", time.Minute)
				require.GreaterOrEqual(t, a.Remaining, time.Duration(0), "cut after %v: %+v, %v", cut, a, err)
			}
		},
		"Inspect counts waiters": func(t *testing.T, m *memory.Locker) {
			waiting := func(want int) {
				t.Helper()
				synctest.Wait()
				hold, err := m.Inspect(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, want, hold.Waiting)
			}
			ctx, cancel := context.WithCancel(t.Context())
			for want := range 3 {
				go m.Acquire(ctx, "k", string(rune('a'+want)), time.Hour)
				waiting(want)
			}
			cancel()
			waiting(0)
		},
		"bad arguments": func(t *testing.T, m *memory.Locker) {
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
			for _, place := range []int64{-1, 0, 1<<53 + 1} {
				b, err := m.AcquireVote(t.Context(), "k", "a", ttl, 0, place)
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, fmt.Sprintf("place %d", place))
				require.Zero(t, b)
			}
			require.Zero(t, m.Len())
		},
		// Across processes, for resources that outlive a process.
		"fences of a new store are higher": func(t *testing.T, m *memory.Locker) {
			before := try(t, m, "k", "a").Fence
			time.Sleep(time.Second)
			require.Greater(t, try(t, memory.New(), "k", "a").Fence, before)
		},
		"locks that nobody asks for any more are removed": func(t *testing.T, m *memory.Locker) {
			for i := range 10_000 {
				_, err := m.TryAcquire(t.Context(), strconv.Itoa(i), "a", 10*time.Millisecond)
				require.NoError(t, err)
				time.Sleep(time.Millisecond)
			}
			require.Less(t, m.Len(), 200)
		},
	})
}

func TestFaults(t *testing.T) {
	scenes(t, map[string]func(*testing.T, *memory.Locker){
		"Expire": func(t *testing.T, m *memory.Locker) {
			require.False(t, m.Expire("k"))
			require.True(t, try(t, m, "k", "a").Acquired)
			require.True(t, m.Expire("k"))
			held, err := m.Renew(t.Context(), "k", "a", ttl)
			require.NoError(t, err)
			require.False(t, held)
			require.True(t, try(t, m, "k", "b").Acquired)
		},
		"Expire serves the next": func(t *testing.T, m *memory.Locker) {
			try(t, m, "k", "a")
			time.AfterFunc(time.Second, func() { m.Expire("k") })
			start := time.Now()
			a, err := m.Acquire(t.Context(), "k", "b", ttl)
			require.NoError(t, err)
			require.True(t, a.Acquired)
			require.Equal(t, time.Second, time.Since(start))
		},
		"Steal": func(t *testing.T, m *memory.Locker) {
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
		},
		"Fail and FailReplies": func(t *testing.T, m *memory.Locker) {
			broken := errors.New("broken")
			fails := func() {
				t.Helper()
				for name, err := range operations(t.Context(), m) {
					require.Equal(t, broken, err, name)
				}
				_, err := m.TryAcquire(t.Context(), "k", "a", ttl)
				require.Equal(t, broken, err)
			}
			m.Fail(broken)
			fails()
			m.Fail(nil)
			require.True(t, try(t, m, "k", "b").Acquired, "a failed call has no effect")
			m.Release(t.Context(), "k", "b")

			m.FailReplies(broken)
			fails()
			m.FailReplies(nil)
			require.False(t, try(t, m, "k", "b").Acquired, "the failed call took effect")
		},
		"Delay": func(t *testing.T, m *memory.Locker) {
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
		},
		"Wipe": func(t *testing.T, m *memory.Locker) {
			before := try(t, m, "k", "a").Fence
			m.Wipe()
			a := try(t, m, "k", "b")
			require.True(t, a.Acquired)
			require.Greater(t, a.Fence, before)
		},
		"SetAge": func(t *testing.T, m *memory.Locker) {
			var zero memory.Locker
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
		},
		"SetClock": func(t *testing.T, m *memory.Locker) {
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
		},
	})
}

func errorOf[T any](_ T, err error) error { return err }

// A caller makes a call of a store in which "H" holds "k".
type caller struct {
	*testing.T
	m   *memory.Locker
	ctx context.Context
}

func (c *caller) try() error { return errorOf(c.m.TryAcquire(c.ctx, "k", "t", time.Second)) }

func (c *caller) trySet(set ...dlock.Acquisition) error {
	return errorOf(c.m.TryAcquireSet(c.ctx, set))
}

// A call that changed nothing returns a NoEffectError. So does a cancelled wait, which also reports
// the holder. A call that Fail makes fail does not: it simulates an unknown outcome.
func TestMarks(t *testing.T) {
	errDown, one := errors.New("down"), dlock.Acquisition{Key: "a", Token: "t", TTL: time.Second}
	for name, test := range map[string]struct {
		patience time.Duration
		call     func(*caller) error
		want     error
		marked   bool
	}{
		"TryAcquire":    {0, (*caller).try, context.DeadlineExceeded, true},
		"TryAcquireSet": {0, func(c *caller) error { return c.trySet(one) }, context.DeadlineExceeded, true},
		"Twice":         {ttl, func(c *caller) error { return c.trySet(one, one) }, dlock.ErrInvalid, true},
		"Empty":         {ttl, func(c *caller) error { return c.trySet() }, dlock.ErrInvalid, true},
		"Renew":         {0, func(c *caller) error { return errorOf(c.m.Renew(c.ctx, "k", "t", time.Second)) }, context.DeadlineExceeded, true},
		"RenewBatch": {ttl, func(c *caller) error {
			results, err := c.m.RenewBatch(c.ctx, []dlock.Renewal{{Key: "k", Token: "t"}})
			require.NoError(c, err)
			return results[0].Err
		}, dlock.ErrInvalid, true},
		"Release": {ttl, func(c *caller) error { return errorOf(c.m.Release(c.ctx, "", "t")) }, dlock.ErrInvalid, true},
		"Acquire": {time.Second, func(c *caller) error {
			attempt, err := c.m.Acquire(c.ctx, "k", "t", time.Second)
			require.Equal(c, "H", attempt.Holder)
			return err
		}, context.DeadlineExceeded, true},
		"Released": {ttl, func(c *caller) error {
			time.AfterFunc(time.Second, func() {
				held, err := c.m.Release(c.ctx, "k", "t")
				require.True(c, !held && err == nil, "%v, %v", held, err)
			})
			attempt, err := c.m.Acquire(c.ctx, "k", "t", time.Second)
			require.Zero(c, attempt)
			return err
		}, dlock.ErrReleased, true},
		"Fail":  {ttl, func(c *caller) error { c.m.Fail(errDown); return c.try() }, errDown, false},
		"Delay": {time.Second, func(c *caller) error { c.m.Delay(time.Minute); return c.try() }, context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := memory.New()
				require.NoError(t, errorOf(m.TryAcquire(t.Context(), "k", "H", time.Hour)))
				ctx, cancel := context.WithTimeout(t.Context(), test.patience)
				defer cancel()
				err := test.call(&caller{t, m, ctx})
				require.ErrorIs(t, err, test.want)
				var mark *dlock.NoEffectError
				require.Equal(t, test.marked, errors.As(err, &mark), "%#v", err)
			})
		})
	}
}

// A wait that is cut while its call is delayed has had no reply: after a second, its error says so.
func TestSilentWait(t *testing.T) {
	for name, wait := range map[string]func(*caller) (dlock.Attempt, error){
		"Acquire": func(c *caller) (dlock.Attempt, error) { return c.m.Acquire(c.ctx, "k", "t", time.Second) },
		"AcquireVote": func(c *caller) (dlock.Attempt, error) {
			b, err := c.m.AcquireVote(c.ctx, "k", "t", time.Second, 0, 1)
			return b.Attempt, err
		},
	} {
		for after, silent := range map[time.Duration]bool{time.Second - 1: false, time.Second: true, time.Minute: true} {
			t.Run(name+" "+after.String(), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					m := memory.New()
					m.Steal("k", time.Hour)
					m.Delay(time.Hour)
					ctx, cancel := context.WithTimeout(t.Context(), after)
					defer cancel()
					a, err := wait(&caller{t, m, ctx})
					require.Zero(t, a)
					require.False(t, dlock.NoEffect(err), "%v", err)
					if !silent {
						require.Equal(t, context.DeadlineExceeded, errors.Unwrap(err))
						return
					}
					joined, ok := errors.Unwrap(err).(interface{ Unwrap() []error })
					require.True(t, ok, "%#v", err)
					require.Len(t, joined.Unwrap(), 2)
					require.Equal(t, context.DeadlineExceeded, joined.Unwrap()[0])
					require.EqualError(t, joined.Unwrap()[1], "no reply for "+after.String())
				})
			})
		}
	}
}

// A service loses its lock: see also TestWorkerStopsWhenItsLockIsLost, in virtual time.
func Example() {
	store := memory.New()
	lease, err := dlock.New(store).Acquire(context.Background(), "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	store.Expire("report")
	fmt.Println(errors.Is(lease.Renew(context.Background()), dlock.ErrLost))
	// Output: true
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

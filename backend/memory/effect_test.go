package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

// A call that changed nothing returns a NoEffectError. So does a cancelled wait, which also reports
// the holder. A call that Fail makes fail does not: it simulates an unknown outcome.
func TestMarks(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	errDown := errors.New("down")
	for name, c := range map[string]struct {
		call   func(t *testing.T, m *memory.Locker) error
		want   error
		marked bool
	}{
		"TryAcquire": {func(t *testing.T, m *memory.Locker) error {
			_, err := m.TryAcquire(over, "k", "t", time.Second)
			return err
		}, context.Canceled, true},
		"TryAcquireSet": {func(t *testing.T, m *memory.Locker) error {
			_, err := m.TryAcquireSet(over, []dlock.Acquisition{{Key: "a", Token: "t", TTL: time.Second}})
			return err
		}, context.Canceled, true},
		"Twice": {func(t *testing.T, m *memory.Locker) error {
			a := dlock.Acquisition{Key: "a", Token: "t", TTL: time.Second}
			_, err := m.TryAcquireSet(t.Context(), []dlock.Acquisition{a, a})
			return err
		}, dlock.ErrInvalid, true},
		"Empty": {func(t *testing.T, m *memory.Locker) error {
			_, err := m.TryAcquireSet(t.Context(), nil)
			return err
		}, dlock.ErrInvalid, true},
		"Renew": {func(t *testing.T, m *memory.Locker) error {
			_, err := m.Renew(over, "k", "t", time.Second)
			return err
		}, context.Canceled, true},
		"RenewBatch": {func(t *testing.T, m *memory.Locker) error {
			results, err := m.RenewBatch(t.Context(), []dlock.Renewal{{Key: "k", Token: "t"}})
			require.NoError(t, err)
			return results[0].Err
		}, dlock.ErrInvalid, true},
		"Release": {func(t *testing.T, m *memory.Locker) error {
			_, err := m.Release(t.Context(), "", "t")
			return err
		}, dlock.ErrInvalid, true},
		"Acquire": {func(t *testing.T, m *memory.Locker) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			attempt, err := m.Acquire(ctx, "k", "t", time.Second)
			require.Equal(t, "H", attempt.Holder)
			return err
		}, context.DeadlineExceeded, true},
		"Released": {func(t *testing.T, m *memory.Locker) error {
			time.AfterFunc(time.Second, func() { m.Release(context.Background(), "k", "t") })
			attempt, err := m.Acquire(t.Context(), "k", "t", time.Second)
			require.Zero(t, attempt)
			return err
		}, dlock.ErrReleased, true},
		"Fail": {func(t *testing.T, m *memory.Locker) error {
			m.Fail(errDown)
			_, err := m.TryAcquire(t.Context(), "k", "t", time.Second)
			return err
		}, errDown, false},
		"Delay": {func(t *testing.T, m *memory.Locker) error {
			m.Delay(time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := m.TryAcquire(ctx, "k", "t", time.Second)
			return err
		}, context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := memory.New()
				_, err := m.TryAcquire(t.Context(), "k", "H", time.Hour)
				require.NoError(t, err)
				err = c.call(t, m)
				require.ErrorIs(t, err, c.want)
				var mark *dlock.NoEffectError
				require.Equal(t, c.marked, errors.As(err, &mark), "%#v", err)
			})
		})
	}
}

// A wait that is cut while its call is delayed has had no reply: after a second, its error says so.
func TestSilentWait(t *testing.T) {
	waits := map[string]func(ctx context.Context, m *memory.Locker) (dlock.Attempt, error){
		"Acquire": func(ctx context.Context, m *memory.Locker) (dlock.Attempt, error) {
			return m.Acquire(ctx, "k", "t", time.Second)
		},
		"AcquireVote": func(ctx context.Context, m *memory.Locker) (dlock.Attempt, error) {
			b, err := m.AcquireVote(ctx, "k", "t", time.Second, 0, 1)
			return b.Attempt, err
		},
	}
	for name, wait := range waits {
		for after, silent := range map[time.Duration]bool{time.Second - 1: false, time.Second: true, time.Minute: true} {
			t.Run(name+" "+after.String(), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					m := memory.New()
					m.Steal("k", time.Hour)
					m.Delay(time.Hour)
					ctx, cancel := context.WithTimeout(t.Context(), after)
					defer cancel()
					a, err := wait(ctx, m)
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

func TestInspectCountsWaiters(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		ctx, cancel := context.WithCancel(t.Context())
		for want := range 3 {
			go m.Acquire(ctx, "k", string(rune('a'+want)), time.Hour)
			synctest.Wait()
			hold, err := m.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, want, hold.Waiting)
		}
		cancel()
		synctest.Wait()
		hold, err := m.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, hold.Waiting)
	})
}

// A wait that is cut when the holder's lease ends does not report a lease that never ends.
func TestWaitCutAtTheEndOfALease(t *testing.T) {
	for _, cut := range []time.Duration{time.Second - 1, time.Second, time.Second + 1} {
		bubble.Test(t, func(t *testing.T) {
			m := memory.New()
			m.Steal("k", time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), cut)
			defer cancel()
			a, err := m.Acquire(ctx, "k", "b", time.Minute)
			require.GreaterOrEqual(t, a.Remaining, time.Duration(0), "cut after %v: %+v, %v", cut, a, err)
		})
	}
}

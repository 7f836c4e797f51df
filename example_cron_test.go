package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// cronOptions are for a job that cron starts on several machines in every period, and that
// should run once per period. They satisfy TTL ≤ MinHold < period.
//
//   - MinHold < period: otherwise the next period's job finds the key still taken.
//   - The machines' clocks differ by less than MinHold: otherwise the last machine finds the
//     key free again, and runs the job a second time.
//   - TTL ≤ MinHold: a machine that loses power keeps the key no longer than one that
//     finishes normally.
//   - The job may take longer than the TTL and MinHold: its lease is renewed. If it takes
//     longer than the period, the next run is skipped.
func cronOptions(period time.Duration) []dlock.Option {
	hold := period / 2
	return []dlock.Option{dlock.WithMinHold(hold), dlock.WithTTL(min(hold, dlock.DefaultTTL))}
}

// runFromCron is the whole work of the process that cron starts. ctx ends with SIGTERM:
//
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
//	defer stop()
//
// After any end except SIGKILL, the key stays taken until MinHold has passed since the grant,
// so no other machine repeats an interrupted job before the next period. Close ensures that:
// it waits until the store has confirmed it. After SIGKILL the key stays taken for at most
// one TTL.
func runFromCron(ctx context.Context, store dlock.Locker, period time.Duration, job func(context.Context) error) error {
	locks := dlock.New(store, cronOptions(period)...)
	err := locks.With(dlock.WithMaxWait(0)).Do(ctx, "cron:report", func(ctx context.Context, _ *dlock.Lease) error {
		return job(ctx)
	})
	return errors.Join(err, locks.Close())
}

// Cron starts a job on each of three machines. It is interrupted on the first, and does not
// start again before the next hour.
func Example_cron() {
	store := memory.New()
	const period = time.Hour
	for machine := range 3 {
		ctx, sigterm := context.WithCancel(context.Background())
		err := runFromCron(ctx, store, period, func(ctx context.Context) error {
			fmt.Println("machine", machine, "runs the job")
			sigterm()
			<-ctx.Done()
			return ctx.Err()
		})
		sigterm()
		switch {
		case errors.Is(err, dlock.ErrHeld):
			fmt.Println("machine", machine, "leaves it to another")
		case errors.Is(err, context.Canceled):
			fmt.Println("machine", machine, "was interrupted")
		case err != nil:
			fmt.Println(err)
		}
	}
	left, err := dlock.New(store).Inspect(context.Background(), "cron:report")
	fmt.Println("the key remains for", left.Remaining.Round(time.Minute), err)
	// Output:
	// machine 0 runs the job
	// machine 0 was interrupted
	// machine 1 leaves it to another
	// machine 2 leaves it to another
	// the key remains for 30m0s <nil>
}

// The job runs once per period on five machines whose clocks differ, however long it takes.
func TestCronRecipe(t *testing.T) {
	for _, period := range []time.Duration{10 * time.Second, 5 * time.Minute, 24 * time.Hour} {
		t.Run(period.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New()
				apart := period / 12 // between the first machine and the last
				for n := range 10 {
					start, runs := time.Now(), 0
					for range 5 {
						took := period / 100 * time.Duration(n) // in part longer than the TTL
						err := runFromCron(t.Context(), store, period, func(context.Context) error {
							runs++
							time.Sleep(took)
							return nil
						})
						if err != nil {
							require.ErrorIs(t, err, dlock.ErrHeld)
						}
						time.Sleep(apart / 5)
					}
					require.Equal(t, 1, runs, "runs in one period")
					time.Sleep(time.Until(start.Add(period)))
				}
			})
		})
	}
}

// How long the key stays taken after each end of the process.
func TestCronEnds(t *testing.T) {
	const period = time.Hour
	rest := func(t *testing.T, store *memory.Locker) time.Duration {
		hold, err := store.Inspect(t.Context(), "cron:report")
		require.NoError(t, err)
		return hold.Remaining
	}
	t.Run("SIGTERM", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			start := time.Now()
			ctx, sigterm := context.WithTimeout(t.Context(), 100*time.Second)
			defer sigterm()
			err := runFromCron(ctx, store, period, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, dlock.ErrLost)
			require.Equal(t, 100*time.Second, time.Since(start), "Close does not wait for MinHold")
			require.InDelta(t, (period/2 - 100*time.Second).Seconds(), rest(t, store).Seconds(), 0.01)
		})
	})
	t.Run("SIGKILL", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			_, err := store.TryAcquire(t.Context(), "cron:report", "killed", dlock.DefaultTTL)
			require.NoError(t, err)
			require.LessOrEqual(t, rest(t, store), dlock.DefaultTTL)
			time.Sleep(dlock.DefaultTTL)
			require.NoError(t, runFromCron(t.Context(), store, period, func(context.Context) error { return nil }))
		})
	})
}

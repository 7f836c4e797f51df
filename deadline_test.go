package dlock_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// When a lease has ended its deadline is not in the future, however it ended, so that a
// loop until the deadline ends.
func TestDeadlineAfterTheEnd(t *testing.T) {
	const ttl = 30 * time.Second
	await := func(t *testing.T, l *dlock.Lease) { <-l.Done() }
	for name, c := range map[string]struct {
		options []dlock.Option
		end     func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease)
	}{
		"Release": {nil, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			require.NoError(t, l.Release())
		}},
		"Release that fails": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
		}},
		"Release with MinHold": {[]dlock.Option{dlock.WithMinHold(time.Minute)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			require.NoError(t, l.Release())
		}},
		"Detach": {nil, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			_, err := l.Detach()
			require.NoError(t, err)
		}},
		"taken by another": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Steal("k", time.Hour)
			await(t, l)
		}},
		"Renew finds it taken": {[]dlock.Option{dlock.WithRenewal(false)}, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Steal("k", time.Hour)
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		}},
		"store out of reach": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			await(t, l)
		}},
		"MaxHold": {[]dlock.Option{dlock.WithMaxHold(time.Minute)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			await(t, l)
		}},
		"no renewal": {[]dlock.Option{dlock.WithRenewal(false)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			await(t, l)
		}},
		"Close": {nil, func(t *testing.T, _ *memory.Locker, c *dlock.Client, l *dlock.Lease) {
			require.NoError(t, c.Close())
			await(t, l)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				client := dlock.New(s, append(c.options, dlock.WithTTL(ttl))...)
				l := acquire(t, client, "k")
				require.True(t, l.Deadline().After(time.Now()), "Deadline of a lease that is held: not in the future")
				time.Sleep(time.Second)
				c.end(t, store, client, l)
				if left := time.Until(l.Deadline()); left > 0 {
					t.Errorf("Deadline is %v in the future after the end (%v), want it not to be", left, l.Err())
				}
				turns := 0
				for time.Now().Before(l.Deadline()) && turns < 10 {
					turns++
					time.Sleep(time.Second)
				}
				if turns > 0 {
					t.Errorf("a loop until the deadline went on for %d turns or more, want none", turns)
				}
				_ = client.Close()
			})
		})
	}
}

// A context of the lease for each tick costs nothing that stays.
func TestContextOncePerTick(t *testing.T) {
	const (
		ticks = 100_000 / slower
		most  = 100 // bytes
	)
	for name, derive := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"background": func(context.Context) (context.Context, context.CancelFunc) {
			return context.Background(), func() {}
		},
		"cancellable": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dlock.New(memory.New())
				l := acquire(t, c, "k")
				parent, cancel := derive(t.Context())
				defer cancel()
				before := heap()
				for range ticks {
					if err := l.Context(parent).Err(); err != nil {
						t.Fatal(err)
					}
				}
				if each := (heap() - before) / ticks; each > most {
					t.Errorf("Context keeps %d bytes per call, want at most %d", each, most)
				}
				last := l.Context(parent)
				require.NoError(t, l.Release())
				<-last.Done()
				require.ErrorIs(t, context.Cause(last), dlock.ErrReleased)
				runtime.KeepAlive(parent)
				require.NoError(t, c.Close())
			})
		})
	}
}

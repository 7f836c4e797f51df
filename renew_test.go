package dlock_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// drift is what the design takes off a TTL of 30 s.
const drift = 302 * time.Millisecond

// Both ways of renewing.
func renewing(t *testing.T, f func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker)) {
	t.Helper()
	t.Run("batch", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) { f(t, store, s, s) })
	})
	t.Run("single", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) { f(t, store, s, plain{s}) })
	})
	t.Run("unsupported", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) { f(t, store, s, single{s}) })
	})
}

func TestRenewalKeepsTheLease(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		l := acquire(t, dlock.New(locker), "k")
		time.Sleep(time.Hour - time.Second) // when no renewal is due
		require.NoError(t, l.Err())
		requireHeld(t, store, "k", l.Token())
		require.InDelta(t, 360, len(s.made("renew", "batch")), 2, "renewals at a third of the TTL")
		require.NoError(t, l.Release())
		n := len(s.made())
		time.Sleep(time.Hour)
		require.Len(t, s.made(), n, "calls after Release")
	})
}

func TestWithoutRenewal(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		start := time.Now()
		require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
		time.Sleep(20 * time.Second)
		require.NoError(t, l.Renew(t.Context()))
		require.Equal(t, time.Now().Add(30*time.Second-drift), l.Deadline())
		<-l.Done()
		require.Equal(t, start.Add(50*time.Second-drift), time.Now())
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		synctest.Wait()
		require.Len(t, s.made("renew", "batch"), 1)
		require.Len(t, s.made("release"), 1, "a loss on the deadline owes a release")
		requireFree(t, store, "k")
	})
}

func TestLossIsAnnouncedOnTheDeadline(t *testing.T) {
	hang := func(c *call) {
		if c.op == "renew" || c.op == "batch" {
			<-c.ctx.Done()
			c.err = c.ctx.Err()
		}
	}
	hangForGood := func(c *call) {
		if c.op == "renew" || c.op == "batch" {
			time.Sleep(time.Hour)
		}
	}
	fail := func(c *call) {
		if c.op == "renew" || c.op == "batch" {
			c.err = errStore
		}
	}
	for name, hook := range map[string]func(*call){"hang": hang, "ignore the context": hangForGood, "fail": fail} {
		t.Run(name, func(t *testing.T) {
			renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
				s.hook = hook
				start := time.Now()
				l := acquire(t, dlock.New(locker), "k")
				work := l.Context(t.Context())
				<-work.Done()
				require.Equal(t, start.Add(30*time.Second-drift), time.Now())
				require.ErrorIs(t, context.Cause(work), dlock.ErrLost)
				require.ErrorIs(t, l.Release(), dlock.ErrLost)
				require.ErrorIs(t, l.Release(), dlock.ErrLost)
				requireNoContextError(t, l.Err())
				if name == "fail" {
					require.ErrorIs(t, l.Err(), errStore, "the cause is told")
				}
				if name != "ignore the context" {
					require.Greater(t, len(s.made("renew", "batch")), 2, "retried until the deadline")
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

func TestRenewalThatAnswersLateRevivesNothing(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		s.hook = func(c *call) {
			if c.op == "renew" || c.op == "batch" {
				c.delay = 25 * time.Second // takes effect at once, and says so when it is too late
			}
		}
		start := time.Now()
		l := acquire(t, dlock.New(locker), "k")
		<-l.Done()
		require.Equal(t, start.Add(30*time.Second-drift), time.Now())
		time.Sleep(20 * time.Second)
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		time.Sleep(time.Minute)
		require.Len(t, s.made("release"), 1, "the release that is owed, after the renewal")
		requireFree(t, store, "k")
	})
}

func TestLostReplyOfRenewalIsRetried(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		s.hook = func(c *call) {
			if n := len(s.made("renew", "batch")); n > 0 && n < 4 && c.op != "release" {
				c.reply = errStore
			}
		}
		l := acquire(t, dlock.New(locker), "k")
		time.Sleep(time.Hour)
		require.NoError(t, l.Err())
		require.NoError(t, l.Release())
	})
}

func TestRenewalHearsOfTheLoss(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		l := acquire(t, dlock.New(locker), "k")
		start := time.Now()
		store.Steal("k", time.Hour)
		<-l.Done()
		require.LessOrEqual(t, time.Since(start), 12*time.Second)
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		hold, err := store.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, hold.Held)
	})
}

func TestDeadlineCountsFromSending(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) { c.delay = 3 * time.Second }
		start := time.Now()
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
		sent := time.Now()
		require.NoError(t, l.Renew(t.Context()))
		require.Equal(t, sent.Add(30*time.Second-drift), l.Deadline())
		require.NoError(t, l.Release())
	})
}

func TestRenewByHand(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Renew(ended), context.Canceled)
		require.Empty(t, s.made("renew"))

		store.Fail(errStore)
		require.ErrorIs(t, l.Renew(t.Context()), errStore)
		require.NoError(t, l.Err(), "it is held until the deadline")
		store.Fail(nil)

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		store.Delay(time.Minute)
		require.ErrorIs(t, l.Renew(short), context.DeadlineExceeded)
		require.NoError(t, l.Err())
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost, "it returns on the deadline")
		store.Delay(0)

		l = acquire(t, c, "k2")
		store.Steal("k2", time.Hour)
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		require.ErrorIs(t, l.Err(), dlock.ErrLost)

		l = acquire(t, c, "k3")
		require.NoError(t, l.Release())
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrReleased)
		require.ErrorContains(t, l.Renew(t.Context()), `dlock: renew "k3": lease released`)
		time.Sleep(time.Hour)
	})
}

func TestMaxHold(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		start := time.Now()
		l := acquire(t, dlock.New(locker, dlock.WithMaxHold(5*time.Minute)), "k")
		time.Sleep(5*time.Minute - time.Nanosecond)
		require.NoError(t, l.Renew(t.Context()))
		time.Sleep(time.Nanosecond)
		require.NoError(t, l.Err(), "nothing is released early")
		before := l.Deadline()
		require.ErrorContains(t, l.Renew(t.Context()), "WithMaxHold")
		require.NoError(t, l.Err())
		require.Equal(t, before, l.Deadline())
		<-l.Done()
		require.Equal(t, before, time.Now())
		require.LessOrEqual(t, time.Since(start), 5*time.Minute+30*time.Second)
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.ErrorContains(t, l.Err(), "WithMaxHold")
		synctest.Wait()
	})
}

func TestThousandsOfLeases(t *testing.T) {
	const leases = 10_000
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		var most atomic.Int64
		s.hook = func(c *call) {
			if c.op == "batch" {
				most.Store(max(most.Load(), int64(goroutines())))
			}
		}
		all := make([]*dlock.Lease, leases)
		for i := range all {
			all[i] = acquire(t, c, fmt.Sprint(i))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		n := len(s.made("batch"))
		time.Sleep(100 * time.Second)
		synctest.Wait()
		atRest, renewing := goroutines(), most.Load()
		calls := (len(s.made("batch")) - n) / 10
		t.Logf("%d leases: %d goroutines at rest, %d while renewing; %d calls to renew them all", leases, atRest, renewing, calls)
		require.Zero(t, atRest)
		require.LessOrEqual(t, renewing, int64(33))
		require.LessOrEqual(t, calls, 25)
		for _, l := range all {
			require.NoError(t, l.Err())
			require.NoError(t, l.Release())
		}
	})
}

// goroutines returns how many goroutines run code of the core, apart from those
// that run the test.
func goroutines() int {
	buf := make([]byte, 1<<20)
	n := 0
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "dlock-go/dlock.") && !strings.Contains(g, "testing.tRunner") {
			n++
		}
	}
	return n
}

// One key whose renewal makes every batch fail that it is in.
func TestSpoiledBatch(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(spoiled{s})
		var leases []*dlock.Lease
		for i := range 500 {
			leases = append(leases, acquire(t, c, fmt.Sprint(i)))
		}
		bad := acquire(t, c, "bad")
		time.Sleep(10 * time.Minute)
		for _, l := range leases {
			require.NoError(t, l.Err())
			require.NoError(t, l.Release())
		}
		require.ErrorIs(t, bad.Err(), dlock.ErrLost)
	})
}

type spoiled struct{ *spy }

func (s spoiled) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if key == "bad" {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return s.spy.Renew(ctx, key, token, ttl)
}

func (s spoiled) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	for _, r := range batch {
		if r.Key == "bad" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	return s.spy.RenewBatch(ctx, batch)
}

type shortBatch struct{ dlock.Forward }

func (shortBatch) RenewBatch(context.Context, []dlock.Renewal) ([]dlock.RenewResult, error) {
	return []dlock.RenewResult{}, nil
}

func TestBatchWithTooFewResults(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(shortBatch{s.Forward})
		l := acquire(t, c, "k")
		m := acquire(t, c, "l")
		time.Sleep(time.Hour)
		require.NoError(t, l.Err(), "it is renewed singly")
		require.NoError(t, l.Release())
		require.NoError(t, m.Release())
	})
}

func TestPartlyFailedBatch(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		a, b := acquire(t, c, "a"), acquire(t, c, "b")
		store.Steal("a", time.Hour)
		<-a.Done()
		time.Sleep(time.Hour)
		require.NoError(t, b.Err())
		require.NoError(t, b.Release())
	})
}

func TestNoGoroutineWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlock.New(memory.New())
		l := acquire(t, c, "k")
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, goroutines(), "with a lease, between renewals")
		require.NoError(t, l.Release())
		synctest.Wait()
		require.Zero(t, goroutines())
	})
}

// A lease that is lost to a store that hangs tells for how long there was no answer.
func TestLossToAStoreThatHangs(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		l := acquire(t, dlock.New(locker, dlock.WithTTL(3*time.Second)), "k")
		store.Delay(time.Hour)
		<-l.Done()
		store.Delay(0)
		require.EqualError(t, l.Err(), `dlock: "k": lease lost: not renewed before its deadline (last renewal: no answer for 1.968s)`)
	})
}

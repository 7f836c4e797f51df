package dlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/long"
)

// drift is subtracted from a TTL of 30 s.
const drift = 302 * time.Millisecond

func TestRenewals(t *testing.T) {
	renewing.cases(t, map[string]test{
		"renewal keeps the lease": func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
			l := acquire(t, dlock.New(locker), "k")
			time.Sleep(time.Hour - time.Second) // when no renewal is due
			require.NoError(t, l.Err())
			requireHeld(t, store, "k", l.Token())
			require.InDelta(t, 360, len(s.made("renew", "batch")), 2, "renewals at a third of the TTL")
			require.NoError(t, l.Release())
			n := len(s.made())
			time.Sleep(time.Hour)
			require.Len(t, s.made(), n, "calls after Release")
		},
		"renewal that answers late revives nothing": func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
			s.on("renew batch", func(c *call) { c.delay = 25 * time.Second }) // takes effect at once, and says so when it is too late
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
		},
		"lost reply of renewal is retried": func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
			s.onCall(func(c *call) {
				if n := len(s.made("renew", "batch")); n > 0 && n < 4 && c.op != "release" {
					c.reply = errStore
				}
			})
			l := acquire(t, dlock.New(locker), "k")
			time.Sleep(time.Hour)
			require.NoError(t, l.Err())
			require.NoError(t, l.Release())
		},
		"the error of a loss to a store that hangs says for how long there was no answer": func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
			l := acquire(t, dlock.New(locker, dlock.WithTTL(3*time.Second)), "k")
			store.Delay(time.Hour)
			<-l.Done()
			store.Delay(0)
			require.EqualError(t, l.Err(), `dlock: "k": lease lost: not renewed before its deadline (last renewal: no answer for 1.968s)`)
		},
		"renewal hears of the loss": func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
			l := acquire(t, dlock.New(locker), "k")
			start := time.Now()
			store.Steal("k", time.Hour)
			<-l.Done()
			require.LessOrEqual(t, time.Since(start), 12*time.Second)
			require.ErrorIs(t, l.Err(), dlock.ErrLost)
			requireTaken(t, store, "k")
		},
		"MaxHold": func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
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
			requireErr(t, l.Err(), dlock.ErrLost, "WithMaxHold")
			synctest.Wait()
		},
	})
}

func TestRenew(t *testing.T) {
	inCases{
		"without renewal": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"deadline counts from sending": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) { c.delay = 3 * time.Second })
			start := time.Now()
			l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
			require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
			sent := time.Now()
			require.NoError(t, l.Renew(t.Context()))
			require.Equal(t, sent.Add(30*time.Second-drift), l.Deadline())
			require.NoError(t, l.Release())
		},
		"a lease is released while its renewal waits for a worker": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.on("renew", func(c *call) { time.Sleep(5 * time.Second) })
			c := dlock.New(plain{s})
			leases, _ := acquireAll(t, c, "", 33)
			time.Sleep(10*time.Second + 10*time.Millisecond)
			renewed := make(map[string]bool)
			for _, c := range s.made("renew") {
				renewed[c.key] = true
			}
			require.Len(t, renewed, 32, "at most so many at once, while they are quick")
			for _, l := range leases {
				if !renewed[l.Key()] {
					require.NoError(t, l.Release())
					time.Sleep(10 * time.Second)
					for _, c := range s.made("renew") {
						require.NotEqual(t, l.Key(), c.key, "renewed after its release")
					}
				}
			}
			releaseAll(t, leases)
			time.Sleep(time.Minute) // for the renewals
		},
		"renew by hand": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithRenewal(false))
			l := acquire(t, c, "k")
			ended := ended(t)
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
			deadline := l.Deadline()
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
			require.Equal(t, deadline, time.Now())
			store.Delay(0)
			l = acquire(t, c, "k2")
			store.Steal("k2", time.Hour)
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
			require.ErrorIs(t, l.Err(), dlock.ErrLost)
			l = acquire(t, c, "k3")
			require.NoError(t, l.Release())
			requireErr(t, l.Renew(t.Context()), dlock.ErrReleased, `dlock: renew "k3": lease released`)
			time.Sleep(time.Hour)
		},
		"renew does not wait for one that hangs": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.first("renew", func(c *call) { time.Sleep(time.Hour) })
			l := acquire(t, c, "k")
			time.Sleep(11 * time.Second)
			require.NoError(t, l.Renew(t.Context()))
			require.Len(t, s.made("renew"), 2)
			time.Sleep(time.Hour)
			require.NoError(t, l.Release())
		},
		"a Renew that fails after the loss reports the loss": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			var n atomic.Int32
			s.onCall(func(c *call) {
				if c.op == "renew" && n.Add(1) == 1 {
					time.Sleep(time.Minute) // does not look at its ctx
					c.err = errStore
				}
			})
			c := dlock.New(single{s}, dlock.WithTTL(3*time.Second))
			l := acquire(t, c, "k")
			result := async(func() error { return l.Renew(t.Context()) })
			time.Sleep(2 * time.Second) // renewed in the background meanwhile
			store.Fail(errStore)
			err := <-result
			require.ErrorIs(t, l.Err(), dlock.ErrLost)
			require.ErrorIs(t, err, dlock.ErrLost)
			store.Fail(nil)
			c.Close()
		},
		"renew of a lost lease after close": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l, r := acquire(t, c, "k"), acquire(t, c, "r")
			require.NoError(t, r.Release())
			c.Close()
			<-l.Done()
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
			require.ErrorIs(t, r.Renew(t.Context()), dlock.ErrReleased)
		},
		"short lease beside a long one": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			long := acquire(t, c, "long")
			short := acquire(t, c.With(dlock.WithTTL(100*time.Millisecond)), "short")
			time.Sleep(time.Minute)
			require.NoError(t, short.Err())
			require.NoError(t, short.Release())
			require.NoError(t, long.Release())
		},
		"at most32 renewals at once": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			var now, most atomic.Int64
			s.on("renew", func(c *call) {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Millisecond)
				now.Add(-1)
			})
			c := dlock.New(plain{s})
			leases, _ := acquireAll(t, c, "", 1000)
			time.Sleep(time.Minute)
			require.EqualValues(t, 32, most.Load())
			releaseAll(t, leases)
		},
		"leases are renewed by deadline, however many others came earlier": func(t *testing.T, _ *memory.Locker, n *spy, _ *dlock.Client) {
			const (
				leases = 10_000 / israce.Slower
				rtt    = 10 * time.Millisecond
			)
			c := dlock.New(plain{n})
			long, _ := acquireAll(t, c, "long", leases)
			n.setRTT(rtt)
			time.Sleep(10*time.Second - time.Second/3 - rtt/2) // so that all are due together
			short := acquire(t, c.With(dlock.WithTTL(time.Second)), "short")
			time.Sleep(time.Minute)
			if err := short.Err(); err != nil {
				t.Errorf("the lease of 1 s behind %d of 30 s: %v, want it held", leases, err)
			}
			requireNoneLost(t, long)
			require.NoError(t, c.Close())
		},
		"thousands of leases": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			const leases = 10_000
			var most atomic.Int64
			s.on("batch", func(c *call) { most.Store(max(most.Load(), int64(goroutines()))) })
			all := make([]*dlock.Lease, leases)
			for i := range all {
				all[i] = acquire(t, c, fmt.Sprint(i))
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Minute)
			n := len(s.made("batch"))
			settle(100 * time.Second)
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
		},
	}.run(t)
}

func TestLossIsAnnouncedOnTheDeadline(t *testing.T) {
	for name, hook := range map[string]func(*call){
		"hang":               (*call).hang,
		"ignore the context": func(*call) { time.Sleep(time.Hour) },
		"fail":               func(c *call) { c.err = errStore },
	} {
		t.Run(name, func(t *testing.T) {
			renewing.run(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
				s.on("renew batch", func(c *call) { hook(c) })
				start := time.Now()
				l := acquire(t, dlock.New(locker), "k")
				work := l.Context(t.Context())
				<-work.Done()
				require.Equal(t, start.Add(30*time.Second-drift), time.Now())
				require.ErrorIs(t, context.Cause(work), dlock.ErrLost)
				require.ErrorIs(t, l.Release(), dlock.ErrLost)
				require.ErrorIs(t, l.Release(), dlock.ErrLost)
				requireErr(t, l.Err(), noContext)
				if name == "fail" {
					require.ErrorIs(t, l.Err(), errStore, "the error has the cause")
				}
				if name != "ignore the context" {
					require.Greater(t, len(s.made("renew", "batch")), 2, "retried until the deadline")
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// A Renew whose request is lost does not keep the background from renewing.
func TestRenewThatHangs(t *testing.T) {
	for name, wrap := range lockers {
		run(t, name, func(t *testing.T, _ *memory.Locker, n *spy) {
			n.setRTT(time.Millisecond)
			c := dlock.New(wrap(n), dlock.WithTTL(3*time.Second))
			l := acquire(t, c, "k")
			ctx := within(t, time.Minute)
			ended := make(chan error, 1)
			n.set(hang)
			go func() { ended <- l.Renew(ctx) }()
			synctest.Wait()
			n.set(up)
			time.Sleep(2 * time.Minute)
			t.Logf("Renew: %v", <-ended)
			if err := l.Err(); err != nil {
				t.Errorf("after a Renew of which the request was lost: %v, want the lease held", err)
			}
			require.NoError(t, c.Close())
		})
	}
}

func TestNoGoroutineWithoutALease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := dlock.New(memory.New())
		l := acquire(t, c, "k")
		settle(time.Hour)
		require.Zero(t, goroutines(), "with a lease, between renewals")
		require.NoError(t, l.Release())
		synctest.Wait()
		require.Zero(t, goroutines())
	})
}

// A store that hangs does not cost a goroutine for each lease.
func TestGoroutinesOfAStoreThatHangs(t *testing.T) {
	notShort(t)
	const (
		leases = 10_000 / israce.Slower
		most   = 600
		ttl    = 30 * time.Second
	)
	for _, f := range []fault{hang, ignore, lose} {
		run(t, string(f), func(t *testing.T, _ *memory.Locker, n *spy) {
			c := dlock.New(plain{n}, dlock.WithTTL(ttl))
			all, _ := acquireAll(t, c, "k", leases)
			n.setRTT(time.Millisecond)
			before, peak := runtime.NumGoroutine(), atomic.Int64{}
			n.onCall(func(*call) { peak.Store(max(peak.Load(), int64(runtime.NumGoroutine()-before))) })
			time.Sleep(8 * time.Second)
			n.fail(f, ttl/3)
			time.Sleep(time.Minute)
			requireNoneLost(t, all)
			n.fail(f, time.Minute) // of which no lease survives
			if lost := lostOf(all); lost != leases {
				t.Errorf("%d of %d leases were lost in an outage of twice their TTL, want all", lost, leases)
			}
			if peak.Load() > most {
				t.Errorf("%d goroutines more than before, with %d leases; want at most %d", peak.Load(), leases, most)
			}
			_ = c.Close()
		})
	}
}

// However many renewals hang, at most 512 calls for them are in flight, with those for MinHolds.
func TestRenewalCallsInFlight(t *testing.T) {
	for name, locker := range lockers {
		run(t, name, func(t *testing.T, _ *memory.Locker, n *spy) {
			c := dlock.New(locker(n), dlock.WithTTL(time.Minute))
			acquireAll(t, c, "held", 600)
			kept, _ := acquireAll(t, c.With(dlock.WithMinHold(time.Hour)), "kept", 600)
			n.set(ignore)
			releaseAll(t, kept)
			most := 0
			for range 2000 { // in 50 s: no lease is lost, and so no release is owed
				time.Sleep(25 * time.Millisecond)
				most = max(most, n.busy())
			}
			t.Log("most in flight:", most)
			require.LessOrEqual(t, most, 512, "calls in flight")
			if name == "single" {
				require.Greater(t, most, 32, "calls in flight")
			}
			c.Close()
		})
	}
}

func TestBatches(t *testing.T) {
	inCases{
		"batches are used again after a failure": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l, m := acquire(t, c, "k"), acquire(t, c, "l")
			s.fail(refuse, 20*time.Second)
			time.Sleep(20 * time.Second)
			n, singly := len(s.made("batch")), len(s.made("renew"))
			require.NotZero(t, singly)
			time.Sleep(time.Minute)
			require.Greater(t, len(s.made("batch")), n)
			require.Len(t, s.made("renew"), singly)
			require.NoError(t, l.Release())
			require.NoError(t, m.Release())
		},
		"batch with too few results": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(shortBatch{s.Forward})
			leases, _ := acquireAll(t, c, "k", 2)
			time.Sleep(time.Hour)
			requireNoneLost(t, leases) // they are renewed singly
			require.NoError(t, c.Close())
		},
		"partly failed batch": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			a, b := acquire(t, c, "a"), acquire(t, c, "b")
			store.Steal("a", time.Hour)
			<-a.Done()
			time.Sleep(time.Hour)
			require.NoError(t, b.Err())
			require.NoError(t, b.Release())
		},
		"a key whose every renewal hangs costs no other its lease": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(&spoiled{Forward: dlock.Forward{Locker: s}, alone: hangIf("bad"), batch: hangIf("bad")})
			leases, _ := acquireAll(t, c, "", 500)
			bad := acquire(t, c, "bad")
			time.Sleep(10 * time.Minute)
			requireNoneLost(t, leases)
			require.ErrorIs(t, bad.Err(), dlock.ErrLost)
			require.NoError(t, c.Close())
		},
		"the look for a key that makes batches hang leaves time for round trips": func(t *testing.T, store *memory.Locker, _ *spy, _ *dlock.Client) {
			c := dlock.New(&spoiled{Forward: dlock.Forward{Locker: store}, rtt: 50 * time.Millisecond, alone: hangIf("none"), batch: hangIf("poison")})
			leases, _ := acquireAll(t, c, "good", 999)
			leases = append(leases, acquire(t, c, "poison"))
			time.Sleep(time.Minute)
			requireNoneLost(t, leases)
			_ = c.Close()
		},
		"a renewal that fails slowly delays those of its batch once": func(t *testing.T, store *memory.Locker, _ *spy, _ *dlock.Client) {
			start, slow := time.Now(), atomic.Int32{}
			slowly := func(ctx context.Context, key string) error {
				if key == "bad" {
					time.Sleep(2 * time.Second)
					return errStore
				}
				return nil
			}
			c := dlock.New(&spoiled{Forward: dlock.Forward{Locker: store}, alone: slowly}, dlock.WithObserver(&dlock.Observer{
				RenewDone: func(_ context.Context, i dlock.RenewDoneInfo) {
					if i.Err == nil && i.Took > time.Second && time.Since(start) > 15*time.Second {
						slow.Add(1)
					}
				},
			}))
			acquire(t, c, "bad")
			good, _ := acquireAll(t, c, "good", 10)
			time.Sleep(time.Minute)
			requireNoneLost(t, good)
			require.Zero(t, slow.Load(), "renewals that waited for the slow one")
			_ = c.Close()
		},
		"a probe that hangs does not keep others from having one": func(t *testing.T, store *memory.Locker, _ *spy, _ *dlock.Client) {
			var poisonous atomic.Bool
			long := dlock.New(&spoiled{
				Forward: dlock.Forward{Locker: store},
				rtt:     5 * time.Millisecond,
				alone:   hangIf("hangs"),
				batch: func(_ context.Context, key string) error {
					if key == "hangs" || key == "poison" && poisonous.Load() {
						return errStore
					}
					return nil
				},
			}, dlock.WithTTL(time.Hour))
			c := long.With(dlock.WithTTL(30 * time.Second))
			acquire(t, long, "hangs")
			time.Sleep(time.Second)
			acquire(t, long, "beside")
			time.Sleep(21 * time.Minute) // the batch of both has failed, and the probe hangs
			others, _ := acquireAll(t, c, "good", 100)
			acquire(t, c, "poison")
			poisonous.Store(true)
			time.Sleep(5 * time.Minute)
			requireNoneLost(t, others)
			require.NoError(t, c.Close())
			time.Sleep(time.Hour)
		},
		"the remaining time of a short lease does not limit its whole batch": func(t *testing.T, _ *memory.Locker, n *spy, c *dlock.Client) {
			const rtt = 400 * time.Millisecond
			long, _ := acquireAll(t, c, "long", 100)
			n.setRTT(rtt)
			time.Sleep(10*time.Second - time.Second/3 - rtt/2) // so that all are due together
			short := acquire(t, c.With(dlock.WithTTL(time.Second)), "short")
			time.Sleep(time.Minute)
			if err := short.Err(); err != nil {
				t.Errorf("the lease of 1 s in a batch with 100 of 30 s: %v, want it held", err)
			}
			requireNoneLost(t, long)
			for _, c := range n.made("batch") {
				require.False(t, c.cut, "it was ended before its reply came")
			}
			require.NoError(t, c.Close())
		},
		"while the store refuses, all leases are asked for once a second, in batches, and one alone": func(t *testing.T, _ *memory.Locker, n *spy, c *dlock.Client) {
			leases, _ := acquireAll(t, c, "k", 2*perBatch)
			time.Sleep(9 * time.Second)
			n.fail(refuse, 16*time.Second)
			require.LessOrEqual(t, len(n.made("batch", "renew")), 16*(2+1), "calls in an outage of 16 s")
			time.Sleep(time.Minute)
			requireNoneLost(t, leases)
			require.NoError(t, c.Close())
		},
	}.run(t)
}

// Renewals stay in batches after an outage.
func TestBatchesAfterAnOutage(t *testing.T) {
	const ttl = 30 * time.Second
	for _, leases := range []int{10, 5000 / israce.Slower} {
		for _, f := range []fault{refuse, hang, ignore, lose} {
			run(t, fmt.Sprintf("leases=%d,%s", leases, f), func(t *testing.T, _ *memory.Locker, n *spy) {
				c := dlock.New(n, dlock.WithTTL(ttl))
				all, _ := acquireAll(t, c, "k", leases)
				n.setRTT(25 * time.Millisecond)
				time.Sleep(8 * time.Second)
				n.fail(f, 15*time.Second)
				n.forget()
				time.Sleep(time.Minute)
				requireNoneLost(t, all)
				requireBatches(t, n, leases, ttl)
				require.NoError(t, c.Close())
			})
		}
	}
}

// requireBatches says that the calls of the last minute were few.
func requireBatches(t *testing.T, n *spy, leases int, ttl time.Duration) {
	t.Helper()
	rounds := int(3 * time.Minute / ttl)
	most := 4 * rounds * ((leases + perBatch - 1) / perBatch)
	if calls := len(n.made("batch", "renew")); calls > most {
		t.Errorf("%d RenewBatch and %d Renew in a minute for %d leases with a TTL of %v, want at most %d",
			len(n.made("batch")), len(n.made("renew")), leases, ttl, most)
	}
}

type shortBatch struct{ dlock.Forward }

func (shortBatch) RenewBatch(context.Context, []dlock.Renewal) ([]dlock.RenewResult, error) {
	return []dlock.RenewResult{}, nil
}

// A key that makes every batch fail costs no other its lease. When batches succeed again, leases are renewed in batches.
func TestPoisonedBatch(t *testing.T) {
	notShort(t)
	const ttl = 30 * time.Second
	for _, leases := range []int{10, 1500 / israce.Slower} {
		for _, alone := range []bool{false, true} { // the key fails also by itself
			for name, fails := range map[string]func(context.Context, string) error{"hangs": hangIf("poison"), "fails": failIf("poison")} {
				for _, outage := range []time.Duration{0, 6 * time.Second, 15 * time.Second} {
					run(t, fmt.Sprintf("leases=%d,fails alone=%v,%s,outage=%v", leases, alone, name, outage), func(t *testing.T, _ *memory.Locker, n *spy) {
						var poisonous atomic.Bool
						poison := func(ctx context.Context, key string) error {
							if !poisonous.Load() {
								return nil
							}
							return fails(ctx, key)
						}
						p := &spoiled{Forward: dlock.Forward{Locker: n}, batch: poison, alone: func(ctx context.Context, key string) error {
							if !alone {
								return nil
							}
							return poison(ctx, key)
						}}
						c := dlock.New(p, dlock.WithTTL(ttl))
						others, _ := acquireAll(t, c, "good", leases-1)
						bad := acquire(t, c, "poison")
						n.setRTT(time.Millisecond)
						time.Sleep(8 * time.Second)
						n.fail(refuse, outage)
						poisonous.Store(true)
						time.Sleep(5 * time.Minute)
						requireNoneLost(t, others)
						if err := bad.Err(); !alone && err != nil {
							t.Errorf("the poisonous lease, which can be renewed alone: %v, want it held", err)
						}
						poisonous.Store(false)
						time.Sleep(2 * time.Minute)
						n.forget()
						time.Sleep(time.Minute)
						requireNoneLost(t, others)
						requireBatches(t, n, leases, ttl)
						require.NoError(t, c.Close())
					})
				}
			}
		}
	}
}

// A key that every batch is refused for is alone after a few batches: one, one while a lease is renewed
// alone to hear whether the store answers, and then one for each halving.
func TestStepsToASpoiler(t *testing.T) {
	for leases, most := range map[int]int32{2: 3, 100: 9, 1000: 12} {
		run(t, fmt.Sprint(leases), func(t *testing.T, store *memory.Locker, _ *spy) {
			var refused, alone atomic.Int32
			fails := failIf("poison")
			c := dlock.New(&spoiled{
				Forward: dlock.Forward{Locker: store},
				rtt:     time.Millisecond,
				alone: func(ctx context.Context, key string) error {
					if key == "poison" {
						alone.Add(1)
					}
					return nil
				},
				batch: func(ctx context.Context, key string) error {
					err := fails(ctx, key)
					if err != nil && alone.Load() == 0 {
						refused.Add(1)
					}
					return err
				},
			})
			others, _ := acquireAll(t, c, "good", leases-1)
			bad := acquire(t, c, "poison")
			time.Sleep(30 * time.Second)
			requireNoneLost(t, append(others, bad))
			require.NotZero(t, alone.Load())
			require.LessOrEqual(t, refused.Load(), most, "batches that were refused before the key was alone")
			time.Sleep(5 * time.Minute)
			requireNoneLost(t, append(others, bad))
			require.NoError(t, c.Close())
		})
	}
}

var wraps = map[string]func(dlock.Locker) dlock.Locker{
	"single": func(l dlock.Locker) dlock.Locker { return plain{l} },
	"batch":  func(l dlock.Locker) dlock.Locker { return l },
}

// Renewals for MinHolds that hang cost no lease.
func TestMinHoldsThatHang(t *testing.T) {
	for name, wrap := range wraps {
		run(t, name, func(t *testing.T, store *memory.Locker, _ *spy) {
			c := dlock.New(wrap(&spoiled{Forward: dlock.Forward{Locker: store}, alone: hangIf("kept")}))
			kept, _ := acquireAll(t, c.With(dlock.WithMinHold(time.Hour)), "kept", 1000)
			held, _ := acquireAll(t, c, "held", 300)
			time.Sleep(9 * time.Second)
			releaseAll(t, kept)
			time.Sleep(5 * time.Minute)
			requireNoneLost(t, held)
			_ = c.Close()
		})
	}
}

// A poisonous lease that is the first of its batch (the earliest deadline) is chosen as the probe.
func TestPoisonIsTheProbe(t *testing.T) {
	for _, rtt := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 100 * time.Millisecond} {
		for _, first := range []int{1, 2, 3} {
			run(t, fmt.Sprintf("rtt=%v,poisons=%d", rtt, first), func(t *testing.T, store *memory.Locker, _ *spy) {
				c := dlock.New(&spoiled{Forward: dlock.Forward{Locker: store}, rtt: rtt, alone: failIf("poison"), batch: failIf("poison")})
				for i := range first {
					acquire(t, c, fmt.Sprint("poison", i))
					time.Sleep(time.Millisecond)
				}
				others, _ := acquireAll(t, c, "good", 100)
				time.Sleep(10 * time.Minute)
				requireNoneLost(t, others)
				require.NoError(t, c.Close())
			})
		}
	}
}

// A dead shard does not cost the leases of the others.
func TestHeadOfLineRenewals(t *testing.T) {
	for name, wrap := range wraps {
		for _, n := range []int{40, 100, 200, 300, 500, 1000} {
			run(t, fmt.Sprint(name, n), func(t *testing.T, store *memory.Locker, s *spy) {
				s.on("renew batch", func(c *call) { time.Sleep(5 * time.Millisecond) })
				c := dlock.New(wrap(&spoiled{Forward: dlock.Forward{Locker: s}, alone: hangIf("bad")}))
				var good []*dlock.Lease
				for i := range n {
					acquire(t, c, fmt.Sprint("bad", i))
					good = append(good, acquire(t, c, fmt.Sprint("good", i)))
				}
				time.Sleep(time.Minute)
				requireNoneLost(t, good)
				for _, l := range good {
					l.Release()
				}
			})
		}
	}
}

// How many RenewBatch calls a Client has in flight, and how many leases each has.
const (
	parallel = 32
	perBatch = 1000
)

// An outage of a store on which a Client has leases.
type outage struct {
	ttl    time.Duration
	leases int
	rtt    time.Duration
	fault  fault
	begun  string // how the leases were acquired
	length time.Duration
	phase  int // when the outage begins, in tenths of the renewal period after the last acquisition
}

// How the leases were acquired.
const (
	atOnce = "together" // at one instant
	spread = "spread"   // over a renewal period, so that deadlines differ
	mixed  = "mixed"    // at one instant, with TTLs of one, two and three thirds
)

func (o outage) String() string {
	return fmt.Sprintf("ttl=%v,leases=%d,rtt=%v,%s,%s,length=%v,phase=%d", o.ttl, o.leases, o.rtt, o.fault, o.begun, o.length, o.phase)
}

// needed is how long the store must be back until all leases are renewed: the round trips of the batches, and one for a call
// in flight. Calls that ignore their ctx occupy all workers until they return.
func (o outage) needed() time.Duration {
	batches := (o.leases + perBatch - 1) / perBatch
	needed := time.Duration((batches+parallel-1)/parallel+1)*o.rtt + 2*time.Millisecond
	if o.fault == ignore {
		needed += ignored
	}
	return needed
}

// outages returns each outage whose number is a multiple of stride, and some that once lost leases.
func outages(stride int, leases ...int) []outage {
	const first, step = 500 * time.Millisecond, 100 * time.Millisecond
	some := []outage{
		{30 * time.Second, 30_000 / israce.Slower, 25 * time.Millisecond, refuse, atOnce, 6 * time.Second, 6},
		{30 * time.Second, 30_000 / israce.Slower, 25 * time.Millisecond, refuse, atOnce, 6 * time.Second, 9},
		{5 * time.Second, 5000 / israce.Slower, 25 * time.Millisecond, refuse, atOnce, 2700 * time.Millisecond, 5},
	}
	n := 0
	for _, ttl := range []time.Duration{5 * time.Second, 30 * time.Second} {
		for _, leases := range leases {
			for _, rtt := range []time.Duration{1, 25, 100} {
				for _, f := range []fault{refuse, hang, ignore, lose} {
					for _, begun := range []string{atOnce, spread, mixed} {
						for length := first; length <= ttl-first; length += step {
							for phase := range 10 {
								if n++; n%stride == 1%stride {
									some = append(some, outage{ttl, leases, rtt * time.Millisecond, f, begun, length, phase})
								}
							}
						}
					}
				}
			}
		}
	}
	return some
}

// No lease is lost in an outage that leaves it the time to be renewed. By default it is a sample. With
// DLOCK_LONG=outages=all it is each, in random order; with a time in place of all, as many as it allows.
func TestOutages(t *testing.T) {
	notShort(t)
	const stride = 3002*israce.Slower - 1 // has no factor in common with the numbers of values
	all, end := outages(stride, 1000), time.Now().Add(time.Hour)
	if text := long.Of("outages"); text != "" {
		d, err := time.ParseDuration(strings.Replace(text, "all", "100h", 1))
		require.NoError(t, err)
		all, end = outages(1, 1000, 30_000), time.Now().Add(d)
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	for _, o := range all {
		if time.Now().After(end) {
			break
		}
		run(t, o.String(), func(t *testing.T, _ *memory.Locker, s *spy) {
			require.Zero(t, o.lost(t, s), "leases lost that had %v or more left when the store was back", o.needed())
		})
	}
}

// lost makes the outage happen. It returns how many leases were lost although they had enough time when it was over.
func (o outage) lost(t *testing.T, n *spy) (lost int) {
	c := dlock.New(n, dlock.WithTTL(o.ttl))
	leases := o.acquire(t, c)
	n.setRTT(o.rtt)
	time.Sleep(o.ttl / 30 * time.Duration(o.phase))
	back := n.fail(o.fault, o.length)
	deadlines := make([]time.Time, len(leases))
	for i, l := range leases {
		deadlines[i] = l.Deadline()
	}
	for i, l := range leases {
		for l.Err() == nil && !l.Deadline().After(deadlines[i]) {
			if time.Since(back) > o.ttl {
				t.Fatalf("lease %d is neither renewed nor lost %v after the return of the store", i, time.Since(back))
			}
			time.Sleep(o.ttl / 20)
		}
		if l.Err() != nil && !deadlines[i].Before(back.Add(o.needed())) {
			lost++
		}
	}
	n.setRTT(0)
	if err := c.Close(); err != nil {
		t.Log(err)
	}
	return lost
}

// acquire acquires the leases in no time, or in one renewal period.
func (o outage) acquire(t *testing.T, c *dlock.Client) []*dlock.Lease {
	const steps = 100
	clients := []*dlock.Client{c}
	if o.begun == mixed {
		clients = append(clients, c.With(dlock.WithTTL(o.ttl*2/3)), c.With(dlock.WithTTL(o.ttl/3)))
	}
	leases := make([]*dlock.Lease, o.leases)
	for i := range leases {
		if o.begun == spread && i%(o.leases/steps) == 0 {
			time.Sleep(o.ttl / 3 / steps)
		}
		leases[i] = acquire(t, clients[i%len(clients)], strconv.Itoa(i))
	}
	return leases
}

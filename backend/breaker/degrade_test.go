package breaker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/history"
)

func TestDegrades(t *testing.T) {
	scenes(t, map[string]func(*bed){
		"attempts": func(w *bed) {
			refused := func(c *dlock.Client, key, why string) {
				_, err := c.TryAcquire(w.Context(), key)
				require.ErrorIs(w, err, dlock.ErrUnavailable, why)
			}
			w.open()
			time.Sleep(29 * time.Second)
			refused(w.locks, "k", "too early")
			time.Sleep(time.Second)
			refused(w.locks, "money", "not this key")
			refused(w.locks.With(dlock.WithFence(true)), "k", "not with fences")

			sent := w.s.calls.Load() + 1 // the attempt whose ctx has ended is passed on
			lease := w.degraded("k")
			require.Zero(w, lease.Fence())
			w.requireHeld("k", "")
			ended, cancel := context.WithCancel(w.Context())
			cancel()
			_, err := w.TryAcquire(ended, "k", "t", time.Second)
			require.ErrorIs(w, err, context.Canceled)
			time.AfterFunc(time.Minute, func() { _ = lease.Release() })
			next, err := w.locks.Acquire(w.Context(), "k") // a wait
			require.NoError(w, err)
			require.ErrorIs(w, lease.Err(), dlock.ErrReleased, "it was renewed until then")
			require.True(w, next.Degraded())
			require.NoError(w, next.Release())
			require.Equal(w, sent, w.s.calls.Load())
			require.Zero(w, w.locks.Stats().ReleasesOwed)
		},
		// All keys or none.
		"sets": func(w *bed) {
			set := func(token string, keys ...string) ([]dlock.Attempt, error) {
				return trySet(w.Context(), w, token, keys...)
			}
			require.NoError(w, w.try()) // k, for a minute, in the store
			w.open()
			_, err := set("early", "k1", "k2")
			require.ErrorIs(w, err, dlock.ErrUnavailable)
			time.Sleep(30 * time.Second)
			calls := w.s.calls.Load()
			grant := dlock.Attempt{Acquired: true, Degraded: true, Since: time.Now()}
			for range 2 {
				granted, err := set("t", "k1", "k2")
				require.NoError(w, err)
				require.Equal(w, []dlock.Attempt{grant, grant}, granted)
			}
			for _, held := range []string{"k", "k2"} { // by a lease of the store, and by a degraded one
				refused, err := set("other", "k3", held, "k4")
				require.NoError(w, err)
				free := dlock.Attempt{Free: true, Degraded: true}
				require.Equal(w, []dlock.Attempt{free, free}, []dlock.Attempt{refused[0], refused[2]})
				require.Equal(w, "t", refused[1].Holder)
				require.True(w, refused[1].Degraded && !refused[1].Acquired && !refused[1].Free)
			}
			for _, keys := range [][]string{{"k3", "money"}, {"k3", "k3"}, {"k3", ""}} {
				_, err = set("other", keys...)
				require.ErrorIs(w, err, dlock.ErrUnavailable)
			}
			_, err = set("next", "k3", "k4")
			require.NoError(w, err, "what was refused has left nothing")
			require.Equal(w, calls, w.s.calls.Load())

			w.back()
			calls = w.s.calls.Load()
			_, err = set("other", "k5", "k2")
			require.ErrorIs(w, err, errors.ErrUnsupported, "half of it is the store's")
			require.Equal(w, calls, w.s.calls.Load())
			w.renews("k2", "t", 10*time.Second)
			_, err = set("other", "k1", "k2")
			require.ErrorIs(w, err, errors.ErrUnsupported, "k1 is still degraded")
			refused, err := set("other", "k5", "k2")
			require.NoError(w, err)
			require.False(w, refused[1].Degraded, "it is in the store by now")
			require.True(w, refused[0].Free)
			released, err := w.Release(w.Context(), "k1", "t")
			require.True(w, released && err == nil, "each of the set is a lease of its own: %v", err)
		},
		// Another lease was granted in memory meanwhile.
		"a set that the store grants is of no use": func(w *bed) {
			done := make(chan error)
			w.s.arrives = make(chan struct{})
			go func() { _, err := trySet(w.Context(), w, "set", "ka", "k", "kb"); done <- err }()
			synctest.Wait()
			w.down()
			require.True(w, w.take("k", "t", time.Minute).Degraded)
			w.up()
			close(w.s.arrives)
			require.ErrorIs(w, <-done, dlock.ErrUnavailable)
		},
		"a lease that the store has granted blocks its key until its deadline": func(w *bed) {
			lease, err := w.locks.With(dlock.WithTTL(time.Minute), dlock.WithRenewal(false)).Acquire(w.Context(), "k")
			require.NoError(w, err)
			w.open()
			time.Sleep(40 * time.Second)
			w.requireHeld("k", "")
			next, err := w.locks.Acquire(w.Context(), "k")
			require.NoError(w, err)
			require.ErrorIs(w, lease.Err(), dlock.ErrLost)
			require.True(w, next.Degraded())
			require.NoError(w, next.Release())
		},
		"renewals go through an open breaker, and keep the key blocked": func(w *bed) {
			lease, err := w.locks.Acquire(w.Context(), "k")
			require.NoError(w, err)
			for i := range 10 { // so many are renewed in a batch
				_, err := w.locks.Acquire(w.Context(), "kb"+strconv.Itoa(i))
				require.NoError(w, err)
			}
			w.take("k2", "t", 10*time.Second)
			w.open()
			for range 20 {
				time.Sleep(5 * time.Second)
				w.renews("k2", "t", 10*time.Second)
			}
			for _, key := range []string{"k", "k2", "kb0", "kb9"} {
				w.requireHeld(key, key)
			}
			require.NoError(w, lease.Release())
			w.degraded("k")
		},
		// It is of no use while a degraded lease holds the key.
		"a grant of the store comes late, to a wait that began before the breaker opened": func(w *bed) {
			w.other("k")
			late := make(chan error)
			go func() { _, err := w.Acquire(w.Context(), "k", "late", time.Minute); late <- err }()
			synctest.Wait()
			w.down()
			lease := w.degraded("k")
			_, err := w.store.Release(w.Context(), "k", "of another process")
			require.NoError(w, err)
			err = <-late
			require.ErrorIs(w, err, dlock.ErrUnavailable)
			require.False(w, errors.As(err, new(*dlock.NoEffectError)), "it has to be released")
			require.NoError(w, lease.Err())
		},
		"keys of leases that have ended are not remembered for ever": func(w *bed) {
			for i := range 1000 {
				w.take("k"+strconv.Itoa(i), "t", time.Second)
			}
			w.down()
			for i := range 1000 {
				w.take("kd"+strconv.Itoa(i), "t", time.Second)
			}
			w.back()
			for i := range 2000 {
				w.take("k", strconv.Itoa(i), 2*time.Millisecond)
				time.Sleep(2 * time.Millisecond)
			}
			require.Less(w, w.Remembered(), 10)
		},
		"a renewal does not shorten the lease, in memory or when it takes the key in the store": func(w *bed) {
			w.down()
			w.take("k", "t", time.Hour)
			w.renews("k", "t", time.Second)
			w.back()
			w.renews("k", "t", time.Second)
			time.Sleep(time.Minute)
			w.requireHeld("k", "")
		},
		// The first has no answer and extends the lease in memory. The second waits for it, and takes the key in the store, for
		// no less.
		"two renewals of a degraded lease": func(w *bed) {
			w.down()
			w.take("k", "t", 10*time.Second)
			w.back()
			w.s.slow(100*time.Millisecond, errStore)
			go func() {
				w.renews("k", "t", time.Hour)
				w.s.slow(0, nil)
			}()
			synctest.Wait()
			w.renews("k", "t", 10*time.Second)
			require.Equal(w, "t", w.stored("k").Token)
			require.Greater(w, w.stored("k").Remaining, 59*time.Minute)
		},
		"leases of the store and degraded ones in a batch are renewed independently": func(w *bed) {
			w.take("k", "t", time.Hour)
			w.down()
			require.True(w, w.take("kd", "t", time.Hour).Degraded)
			for _, c := range []struct {
				fails, err error
				of         dlock.RenewResult
			}{
				{errStore, nil, dlock.RenewResult{Err: errStore}},
				{errors.ErrUnsupported, errors.ErrUnsupported, dlock.RenewResult{}},
				{nil, nil, dlock.RenewResult{Held: true}},
			} {
				w.s.renew = c.fails
				results, err := w.RenewBatch(w.Context(), []dlock.Renewal{{Key: "k", Token: "t", TTL: time.Hour}, {Key: "kd", Token: "t", TTL: time.Hour}})
				require.ErrorIs(w, err, c.err)
				if c.err == nil {
					require.Equal(w, []dlock.RenewResult{c.of, {Held: true}}, results)
				}
			}
		},
		"a degraded lease cannot be adopted by another process": func(w *bed) {
			w.down()
			lease := w.degraded("k")
			_, err := lease.Detach()
			require.ErrorIs(w, err, dlock.ErrInvalid)
			require.ErrorContains(w, err, "degraded")
			require.NoError(w, lease.Err(), "it is still held")
			require.NoError(w, lease.Release())
			_, err = lease.Detach()
			require.ErrorIs(w, err, dlock.ErrReleased)
		},
		"the end of a wait behind a degraded lease says that the key is held": func(w *bed) {
			w.down()
			lease := w.degraded("k")
			waits := func(wait time.Duration) {
				w.Helper()
				begun := time.Now()
				_, err := w.locks.With(dlock.WithMaxWait(wait)).Acquire(w.Context(), "k")
				require.ErrorIs(w, err, dlock.ErrHeld)
				require.NotErrorIs(w, err, dlock.ErrUnavailable)
				require.Equal(w, wait, time.Since(begun))
				require.Zero(w, w.locks.Stats().ReleasesOwed, "nothing was sent")
			}
			waits(time.Second)
			waits(time.Minute) // longer than the TTL
			time.AfterFunc(2*time.Second, func() { _ = lease.Release() })
			begun := time.Now()
			lease, err := w.locks.Acquire(w.Context(), "k")
			require.NoError(w, err)
			require.Equal(w, 2*time.Second, time.Since(begun))
			waits(time.Minute) // its key has just been contended, so it begins without an attempt
			require.NoError(w, lease.Release())
		},
		"a waiter behind a degraded lease joins the queue of the store once the key is taken there": func(w *bed) {
			w.down()
			lease := w.degraded("k")
			done := make(chan *dlock.Lease)
			go func() {
				next, err := w.locks.Acquire(w.Context(), "k")
				if err != nil {
					w.Error(err)
				}
				done <- next
			}()
			w.up()
			time.Sleep(20 * time.Second)
			require.Equal(w, lease.Token(), w.stored("k").Token)
			require.Equal(w, 1, w.stored("k").Waiting)
			require.NoError(w, lease.Release())
			next := <-done
			require.False(w, next.Degraded())
			require.NoError(w, next.Release())
		},
		// The store may have it, and only its part of the release has failed. That is not "no effect": the next release that is
		// answered would take the lease for lost.
		"the release of a lease that the store may have": func(w *bed) {
			w.down()
			lease := w.degraded("k")
			w.back()
			w.store.Fail(errDial)                        // away again
			require.NoError(w, lease.Renew(w.Context())) // asks the store
			require.Error(w, lease.Release())
			w.store.Fail(nil)
			require.NoError(w, lease.Release(), "nobody else has held the key")
			require.Zero(w, w.locks.Stats().Lost)
		},
		// It must not replace what the breaker knows of the next holder.
		"the reply of a renewal is overtaken by the release of the same lease": func(w *bed) {
			w.locks = dlock.New(w.Locker, dlock.WithTTL(3*time.Second))
			second := dlock.New(w.Locker, dlock.WithTTL(30*time.Second), dlock.WithRenewal(false))
			l1, err := w.locks.Acquire(w.Context(), "k")
			require.NoError(w, err)
			got := make(chan *dlock.Lease, 1)
			go func() { l, err := second.Acquire(w.Context(), "k"); require.NoError(w, err); got <- l }()
			time.Sleep(time.Second)
			w.open()
			time.Sleep(35 * time.Second)
			_, _ = w.TryAcquire(w.Context(), "kother", "t", time.Second)
			require.NoError(w, l1.Err())
			w.s.mu.Lock()
			w.s.renewed = 500 * time.Millisecond
			w.s.mu.Unlock()
			done := make(chan error, 1)
			go func() { done <- l1.Renew(w.Context()) }()
			time.Sleep(10 * time.Millisecond)
			require.NoError(w, l1.Release())
			l2 := <-got
			require.False(w, l2.Degraded())
			<-done
			time.Sleep(4 * time.Second)
			require.NoError(w, l2.Err())
			w.requireHeld("k", l2.String())
			w.up()
			require.NoError(w, l2.Release())
			require.NoError(w, second.Close())
		},
		// While the breaker is open, they are renewed without a call. When it has closed, a bounded number of calls takes their
		// keys in the store.
		"renewals of many degraded leases": func(w *bed) {
			const leases = 5000
			locks := w.locks
			w.locks = dlock.New(w.Locker)
			w.down()
			for i := range leases {
				w.degraded("k" + strconv.Itoa(i))
			}
			sent := w.s.calls.Load()
			time.Sleep(15 * time.Second) // one renewal of each
			require.Equal(w, sent, w.s.calls.Load(), "attempts while the breaker was open")
			require.Equal(w, leases, w.locks.Stats().Leases)
			w.back()
			w.s.slow(5*time.Millisecond, nil)
			time.Sleep(15 * time.Second) // one renewal of each
			require.Equal(w, leases, w.locks.Stats().Leases)
			require.GreaterOrEqual(w, w.s.calls.Load(), sent+leases)
			require.LessOrEqual(w, w.s.most, 64, "calls at the same time")
			w.s.slow(0, nil)
			ended, cancel := context.WithCancel(w.Context())
			cancel()
			require.Error(w, w.locks.Shutdown(ended))
			w.locks = locks
		},
	}, degrading(withK))
}

// When the store is back, the next renewal takes the key there: also that of a process that holds a degraded lease, and
// acquires nothing else.
func TestStoreIsBack(t *testing.T) {
	for _, other := range []bool{false, true} {
		for _, alone := range []bool{false, true} {
			in(t, func(w *bed) {
				w.down()
				lease := w.degraded("k")
				if other {
					w.other("k")
				}
				if alone {
					w.up()
					time.Sleep(10 * time.Second)
				} else {
					w.back()
					w.requireHeld("k", "by the degraded lease")
				}
				time.Sleep(10 * time.Second)
				if other {
					require.ErrorIs(w, lease.Err(), dlock.ErrLost)
					require.Equal(w, "of another process", w.stored("k").Token)
					return
				}
				require.NoError(w, lease.Err())
				require.Equal(w, lease.Token(), w.stored("k").Token)
				require.NoError(w, lease.Release())
				require.False(w, w.stored("k").Held)
			}, degrading(withK))
		}
	}
}

// Nothing is granted in memory on evidence that is old: one probe decides.
func TestIdleBreaker(t *testing.T) {
	for _, idle := range []time.Duration{5 * time.Second, time.Hour} {
		for _, queued := range []bool{false, true} {
			in(t, func(w *bed) {
				attempt := w.TryAcquire
				if queued {
					attempt = w.Acquire
				}
				granted := func(key string, degraded bool, after time.Duration, why string) {
					w.Helper()
					begun := time.Now()
					a, err := attempt(w.Context(), key, "t", 10*time.Second)
					require.NoError(w, err)
					require.True(w, a.Acquired)
					require.Equal(w, degraded, a.Degraded, why)
					require.Equal(w, after, time.Since(begun), why)
				}
				w.down()
				require.NoError(w, w.degraded("k").Release())
				time.Sleep(idle)
				w.s.hang = hangs
				granted("k", true, time.Second, "for the probe: the store is still away")
				synctest.Wait()
				granted("k2", true, 0, "the evidence is new")
				time.Sleep(idle)
				ctx, cancel := context.WithTimeout(w.Context(), 300*time.Millisecond)
				defer cancel()
				_, err := attempt(ctx, "k3", "t", 10*time.Second)
				require.ErrorIs(w, err, context.DeadlineExceeded)
				require.ErrorIs(w, err, dlock.ErrUnavailable)
				require.True(w, dlock.NoEffect(err))

				w.up()
				time.Sleep(idle)
				granted("k4", false, 0, "the store is back")
				require.False(w, w.State().Open)
			}, degrading(withK))
		}
	}
}

// A lease that was lost to another process is forgotten at once.
func TestLostDegradedLease(t *testing.T) {
	for _, batch := range []bool{false, true} {
		in(t, func(w *bed) {
			w.down()
			require.True(w, w.take("k", "t", time.Hour).Degraded)
			w.other("k")
			w.back()
			held, err := true, error(nil)
			if batch {
				var results []dlock.RenewResult
				results, err = w.RenewBatch(w.Context(), []dlock.Renewal{{Key: "k", Token: "t", TTL: time.Hour}})
				require.NoError(w, results[0].Err)
				held = results[0].Held
			} else {
				held, err = w.Renew(w.Context(), "k", "t", time.Hour)
			}
			require.NoError(w, err)
			require.False(w, held)
			require.Zero(w, w.Remembered(), "keys that are remembered")
			_, err = w.store.Release(w.Context(), "k", "of another process")
			require.NoError(w, err)
			lease, err := w.locks.TryAcquire(w.Context(), "k")
			require.NoError(w, err, "the key is free in the store")
			require.False(w, lease.Degraded())
			require.NoError(w, lease.Release())
		}, degrading(withK))
	}
}

// Keys may change its mind. The process has one holder nevertheless.
func TestFickleKeys(t *testing.T) {
	for _, first := range []bool{false, true} {
		degrades := first
		in(t, func(w *bed) {
			w.locks = dlock.New(w.Locker, dlock.WithTTL(time.Minute))
			if first { // then the lease is degraded, else it is one of the store
				w.down()
			}
			lease, err := w.locks.TryAcquire(w.Context(), "k")
			require.NoError(w, err)
			require.Equal(w, first, lease.Degraded())
			if first {
				w.back()
			} else {
				w.down()
			}
			degrades = !first
			w.requireHeld("k", "")
			require.NoError(w, lease.Err())
			require.NoError(w, lease.Release())
			w.s.err = nil
		}, degrading(func(string) bool { return degrades }))
	}
}

// A degraded lease leaves nothing in the store, even if it was released while the store was
// asked for it, or if the answer was lost. The release waits for the answer.
func TestReleaseOfALeaseThatWasAsked(t *testing.T) {
	for _, c := range []struct {
		delay  time.Duration // of the question
		lost   error         // in place of the answer
		client bool          // the calls are those of a Client
	}{{time.Second, nil, false}, {time.Second, errStore, false}, {0, errStore, false}, {time.Second, nil, true}} {
		in(t, func(w *bed) {
			w.down()
			renew := func() { _, _ = w.Renew(w.Context(), "k", "t", time.Hour) }
			release := func() (bool, error) { return w.Release(w.Context(), "k", "t") }
			if c.client {
				lease := w.degraded("k")
				renew = func() { _ = lease.Renew(w.Context()) }
				release = func() (bool, error) { return true, lease.Release() }
			} else {
				require.True(w, w.take("k", "t", time.Hour).Degraded)
			}
			w.back()
			w.s.slow(c.delay, c.lost)
			go renew()
			synctest.Wait()
			held, err := release()
			require.True(w, held && err == nil, err)
			time.Sleep(10 * time.Second)
			require.False(w, w.stored("k").Held)
		}, degrading(withK))
	}
}

// Holds of one process never overlap, whatever the store does: neither those in memory, nor
// those in the store, nor one with the other.
func TestHistoryOfDegradation(t *testing.T) {
	kinds := make(map[bool]int) // of holds: degraded, and others
	for seed := range uint64(20) {
		bubble.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			fails, random := 0, rand.New(rand.NewPCG(seed, 0)) // nothing; all calls; or all but renewals and releases
			between := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(random.Int64N(int64(d)))
			}
			set := func(now int) {
				mu.Lock()
				defer mu.Unlock()
				fails = now
			}
			store := &away{Forward: dlock.Forward{Locker: memory.New()}, fate: func(method string) error {
				time.Sleep(between(50 * time.Millisecond))
				mu.Lock()
				defer mu.Unlock()
				if fails == 1 || fails == 2 && !strings.HasPrefix(method, "Re") {
					return errStore
				}
				return nil
			}}
			fickle := func(string) bool { return between(2) == 0 }
			b := breaker.New(store, breaker.WithDegradation(breaker.Degradation{After: 5 * time.Second, Keys: fickle}))
			locks := dlock.New(b, dlock.WithTTL(4*time.Second), dlock.WithMaxWait(3*time.Second))
			r, begun := history.NewRecorder(time.Now()), time.Now()
			var workers sync.WaitGroup
			for range 8 {
				workers.Go(func() {
					for time.Since(begun) < 2*time.Minute {
						keys := []string{"k0", "k1", "k2"}[between(3):]
						set, err := locks.AcquireAll(t.Context(), keys[:1+between(time.Duration(len(keys)))]...)
						if err != nil {
							time.Sleep(between(200 * time.Millisecond))
							continue
						}
						var holds []*history.Hold
						for _, lease := range set.All() {
							holds = append(holds, r.Hold("", lease, 0))
						}
						d := between(time.Second)
						if between(10) == 0 {
							d *= 10
						}
						select {
						case <-time.After(d):
						case <-set.Done():
						}
						for i, lease := range set.All() {
							r.End(holds[i], lease)
							mu.Lock()
							kinds[lease.Degraded()]++
							mu.Unlock()
						}
						_ = set.Release()
					}
				})
			}
			for time.Since(begun) < 2*time.Minute {
				time.Sleep(between(20 * time.Second))
				set(int(between(3)))
			}
			set(0)
			workers.Wait()
			require.NoError(t, locks.Close())
			time.Sleep(time.Minute)
			require.Empty(t, r.History().Overlaps())
		})
	}
	require.Greater(t, kinds[true], 100, "degraded holds")
	require.Greater(t, kinds[false], 100, "other holds")
}

package breaker_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
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
)

// degrading runs a test with a breaker that degrades keys that begin with "k" after 30 s.
func degrading(t *testing.T, f func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client)) {
	t.Helper()
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		locks := dlock.New(b, dlock.WithTTL(10*time.Second))
		f(t, s, b, locks)
		require.NoError(t, locks.Close())
	}, breaker.WithDegradation(breaker.Degradation{
		After: 30 * time.Second,
		Keys:  func(key string) bool { return strings.HasPrefix(key, "k") },
	}))
}

// back lets the store answer, and waits until the breaker is closed.
func back(t *testing.T, s *away, b *breaker.Locker) {
	t.Helper()
	synctest.Wait()
	s.err = nil
	for b.State().Open {
		time.Sleep(time.Second)
		_, _ = b.TryAcquire(t.Context(), "other", "t", time.Second)
		synctest.Wait()
	}
}

// While the store is away, a set is granted in memory, all keys or none.
func TestDegradesSets(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		ctx := t.Context()
		stored := try(ctx, b) // k, for a minute
		require.NoError(t, stored)
		open(t, s, b)
		_, err := trySet(ctx, b, "early", "k1", "k2")
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		time.Sleep(30 * time.Second)
		calls := s.calls.Load()
		granted, err := trySet(ctx, b, "t", "k1", "k2")
		require.NoError(t, err)
		grant := dlock.Attempt{Acquired: true, Degraded: true, Since: time.Now()}
		require.Equal(t, []dlock.Attempt{grant, grant}, granted)
		again, err := trySet(ctx, b, "t", "k1", "k2")
		require.NoError(t, err)
		require.Equal(t, granted, again)

		for _, held := range []string{"k", "k2"} { // by a lease of the store, and by a degraded one
			refused, err := trySet(ctx, b, "other", "k3", held, "k4")
			require.NoError(t, err)
			free := dlock.Attempt{Free: true, Degraded: true}
			require.Equal(t, []dlock.Attempt{free, free}, []dlock.Attempt{refused[0], refused[2]})
			require.Equal(t, "t", refused[1].Holder)
			require.True(t, refused[1].Degraded && !refused[1].Acquired && !refused[1].Free)
		}
		for _, keys := range [][]string{{"k3", "money"}, {"k3", "k3"}, {"k3", ""}} {
			_, err = trySet(ctx, b, "other", keys...)
			require.ErrorIs(t, err, dlock.ErrUnavailable)
		}
		_, err = trySet(ctx, b, "next", "k3", "k4")
		require.NoError(t, err, "what was refused has left nothing")
		require.Equal(t, calls, s.calls.Load())

		back(t, s, b)
		calls = s.calls.Load()
		_, err = trySet(ctx, b, "other", "k5", "k2")
		require.ErrorIs(t, err, errors.ErrUnsupported, "half of it is the store's")
		require.Equal(t, calls, s.calls.Load())
		held, err := b.Renew(ctx, "k2", "t", 10*time.Second)
		require.NoError(t, err)
		require.True(t, held)
		_, err = trySet(ctx, b, "other", "k1", "k2")
		require.ErrorIs(t, err, errors.ErrUnsupported, "k1 is still degraded")
		refused, err := trySet(ctx, b, "other", "k5", "k2")
		require.NoError(t, err)
		require.False(t, refused[1].Degraded, "it is in the store by now")
		require.True(t, refused[0].Free)
		released, err := b.Release(ctx, "k1", "t")
		require.NoError(t, err)
		require.True(t, released, "each of the set is a lease of its own")
	})
}

// A set that the store grants is of no use if another lease was granted in memory meanwhile.
func TestSetMeetsADegradedLease(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		arrives := make(chan struct{})
		slow := breaker.New(slowSet{s, arrives}, breaker.WithDegradation(breaker.Degradation{After: time.Second, Keys: all}))
		done := make(chan error)
		go func() {
			_, err := trySet(t.Context(), slow, "set", "a", "k", "b")
			done <- err
		}()
		synctest.Wait()
		open(t, s, slow)
		time.Sleep(time.Second)
		a, err := slow.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		require.True(t, a.Degraded)
		synctest.Wait()
		s.err = nil
		close(arrives)
		require.ErrorIs(t, <-done, dlock.ErrUnavailable)
	})
}

// To a slowSet, sets arrive late.
type slowSet struct {
	*away
	arrives chan struct{}
}

func (s slowSet) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	<-s.arrives
	return s.away.TryAcquireSet(ctx, set)
}

func TestDegrades(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		open(t, s, b)
		time.Sleep(29 * time.Second)
		_, err := locks.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrUnavailable, "too early")
		time.Sleep(time.Second)
		_, err = locks.TryAcquire(t.Context(), "money")
		require.ErrorIs(t, err, dlock.ErrUnavailable, "not this key")
		_, err = locks.With(dlock.WithFence(true)).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrUnavailable, "not with fences")

		sent := s.calls.Load() + 1 // the attempt whose ctx has ended is passed on
		lease, err := locks.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, lease.Degraded())
		require.Zero(t, lease.Fence())
		_, err = locks.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = b.TryAcquire(ended, "k", "t", time.Second)
		require.ErrorIs(t, err, context.Canceled)
		time.AfterFunc(time.Minute, func() { _ = lease.Release() })
		next, err := locks.Acquire(t.Context(), "k") // a wait
		require.NoError(t, err)
		require.ErrorIs(t, lease.Err(), dlock.ErrReleased, "it was renewed until then")
		require.True(t, next.Degraded())
		require.NoError(t, next.Release())
		require.Equal(t, sent, s.calls.Load())
		require.Zero(t, locks.Stats().ReleasesOwed)
	})
}

// A lease that the store has granted blocks its key until its deadline.
func TestGrantedLeaseBlocks(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		lease, err := locks.With(dlock.WithTTL(time.Minute), dlock.WithRenewal(false)).Acquire(t.Context(), "k")
		require.NoError(t, err)
		open(t, s, b)
		time.Sleep(40 * time.Second)
		_, err = locks.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		next, err := locks.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.ErrorIs(t, lease.Err(), dlock.ErrLost)
		require.True(t, next.Degraded())
		require.NoError(t, next.Release())
	})
}

// Renewals go through an open breaker, and keep the key blocked.
func TestRenewedLeaseBlocks(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		lease, err := locks.Acquire(t.Context(), "k")
		require.NoError(t, err)
		for i := range 10 { // so many are renewed in a batch
			_, err := locks.Acquire(t.Context(), "kb"+strconv.Itoa(i))
			require.NoError(t, err)
		}
		_, err = b.TryAcquire(t.Context(), "k2", "t", 10*time.Second)
		require.NoError(t, err)
		open(t, s, b)
		for range 20 {
			time.Sleep(5 * time.Second)
			held, err := b.Renew(t.Context(), "k2", "t", 10*time.Second)
			require.NoError(t, err)
			require.True(t, held)
		}
		for _, key := range []string{"k", "k2", "kb0", "kb9"} {
			_, err = locks.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, dlock.ErrHeld)
		}
		require.NoError(t, lease.Release())
		lease, err = locks.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, lease.Degraded())
	})
}

// A grant of the store that comes late, to a wait that began before the breaker opened, is of
// no use while a degraded lease holds the key.
func TestLateGrant(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		store := s.Forward.Locker.(*memory.Locker)
		_, err := store.TryAcquire(t.Context(), "k", "of another process", time.Hour)
		require.NoError(t, err)
		late := make(chan error)
		go func() {
			_, err := b.Acquire(t.Context(), "k", "late", time.Minute)
			late <- err
		}()
		synctest.Wait()
		open(t, s, b)
		time.Sleep(30 * time.Second)
		lease, err := locks.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		_, err = store.Release(t.Context(), "k", "of another process")
		require.NoError(t, err)
		err = <-late
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		require.False(t, errors.As(err, new(*dlock.NoEffectError)), "it has to be released")
		require.NoError(t, lease.Err())
	})
}

// When the store is back, the next renewal takes the key there.
func TestStoreIsBack(t *testing.T) {
	for _, other := range []bool{false, true} {
		degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
			open(t, s, b)
			time.Sleep(30 * time.Second)
			lease, err := locks.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			store := s.Forward.Locker.(*memory.Locker)
			if other {
				_, err := store.TryAcquire(t.Context(), "k", "of another process", time.Hour)
				require.NoError(t, err)
			}
			back(t, s, b)
			_, err = locks.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, dlock.ErrHeld, "by the degraded lease")
			time.Sleep(10 * time.Second)
			hold, err := store.Inspect(t.Context(), "k")
			require.NoError(t, err)
			if other {
				require.ErrorIs(t, lease.Err(), dlock.ErrLost)
				require.Equal(t, "of another process", hold.Token)
				return
			}
			require.NoError(t, lease.Err())
			require.Equal(t, lease.Token(), hold.Token)
			require.NoError(t, lease.Release())
			hold, err = store.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.False(t, hold.Held)
		})
	}
}

// down makes the store fail, and waits until degraded leases are granted.
func down(t *testing.T, s *away, b *breaker.Locker) {
	t.Helper()
	open(t, s, b)
	time.Sleep(30 * time.Second)
}

// up lets the store answer. It locks the breaker, so that other goroutines see this.
func up(s *away, b *breaker.Locker) {
	synctest.Wait()
	s.err, s.hang = nil, false
	b.State()
}

// degraded acquires a degraded lease.
func degraded(t *testing.T, locks *dlock.Client, key string) *dlock.Lease {
	t.Helper()
	lease, err := locks.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.True(t, lease.Degraded())
	return lease
}

// A process that holds a degraded lease, and acquires nothing else, notices that the store is back.
func TestLeaderAlone(t *testing.T) {
	for _, other := range []bool{false, true} {
		degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
			down(t, s, b)
			leader := degraded(t, locks, "k")
			store := s.Forward.Locker.(*memory.Locker)
			if other {
				_, err := store.TryAcquire(t.Context(), "k", "of another process", time.Hour)
				require.NoError(t, err)
			}
			up(s, b)
			time.Sleep(20 * time.Second)
			hold, err := store.Inspect(t.Context(), "k")
			require.NoError(t, err)
			if other {
				require.ErrorIs(t, leader.Err(), dlock.ErrLost)
			} else {
				require.NoError(t, leader.Err())
				require.Equal(t, leader.Token(), hold.Token, "the leader is that of the store")
			}
		})
	}
}

// Nothing is granted in memory on evidence that is old: one probe decides.
func TestIdleBreaker(t *testing.T) {
	for _, idle := range []time.Duration{5 * time.Second, time.Hour} {
		for _, queued := range []bool{false, true} {
			degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
				attempt := b.TryAcquire
				if queued {
					attempt = b.Acquire
				}
				down(t, s, b)
				require.NoError(t, degraded(t, locks, "k").Release())
				time.Sleep(idle)
				s.hang = true
				begun := time.Now()
				a, err := attempt(t.Context(), "k", "t", 10*time.Second)
				require.NoError(t, err)
				require.True(t, a.Degraded, "the store is still away")
				require.Equal(t, time.Second, time.Since(begun), "for the probe")
				synctest.Wait()
				begun = time.Now()
				a, err = attempt(t.Context(), "k2", "t", 10*time.Second)
				require.NoError(t, err)
				require.True(t, a.Degraded)
				require.Zero(t, time.Since(begun), "the evidence is new")
				time.Sleep(idle)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				_, err = attempt(ctx, "k3", "t", 10*time.Second)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, dlock.ErrUnavailable)
				require.True(t, dlock.NoEffect(err))

				up(s, b)
				time.Sleep(idle)
				a, err = attempt(t.Context(), "k4", "t", 10*time.Second)
				require.NoError(t, err)
				require.True(t, a.Acquired)
				require.False(t, a.Degraded, "the store is back")
				require.False(t, b.State().Open)
			})
		}
	}
}

// A lease that was lost to another process is forgotten at once.
func TestLostDegradedLease(t *testing.T) {
	for _, batch := range []bool{false, true} {
		degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
			down(t, s, b)
			a, err := b.TryAcquire(t.Context(), "k", "t", time.Hour)
			require.NoError(t, err)
			require.True(t, a.Degraded)
			store := s.Forward.Locker.(*memory.Locker)
			_, err = store.TryAcquire(t.Context(), "k", "of another process", time.Hour)
			require.NoError(t, err)
			back(t, s, b)
			held := true
			if batch {
				results, err := b.RenewBatch(t.Context(), []dlock.Renewal{{Key: "k", Token: "t", TTL: time.Hour}})
				require.NoError(t, err)
				require.NoError(t, results[0].Err)
				held = results[0].Held
			} else {
				held, err = b.Renew(t.Context(), "k", "t", time.Hour)
				require.NoError(t, err)
			}
			require.False(t, held)
			require.Zero(t, b.Remembered(), "keys that are remembered")
			_, err = store.Release(t.Context(), "k", "of another process")
			require.NoError(t, err)
			lease, err := locks.TryAcquire(t.Context(), "k")
			require.NoError(t, err, "the key is free in the store")
			require.False(t, lease.Degraded())
			require.NoError(t, lease.Release())
		})
	}
}

// Keys of leases that have ended are not remembered for ever.
func TestForgets(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		for i := range 1000 {
			_, err := b.TryAcquire(t.Context(), "k"+strconv.Itoa(i), "t", time.Second)
			require.NoError(t, err)
		}
		down(t, s, b)
		for i := range 1000 {
			_, err := b.TryAcquire(t.Context(), "kd"+strconv.Itoa(i), "t", time.Second)
			require.NoError(t, err)
		}
		back(t, s, b)
		for i := range 2000 {
			_, err := b.TryAcquire(t.Context(), "k", strconv.Itoa(i), 2*time.Millisecond)
			require.NoError(t, err)
			time.Sleep(2 * time.Millisecond)
		}
		require.Less(t, b.Remembered(), 10)
	})
}

// A renewal that takes the key in the store does not shorten the lease.
func TestRenewalNeverShortens(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		down(t, s, b)
		_, err := b.TryAcquire(t.Context(), "k", "t", time.Hour)
		require.NoError(t, err)
		back(t, s, b)
		held, err := b.Renew(t.Context(), "k", "t", time.Second)
		require.NoError(t, err)
		require.True(t, held)
		time.Sleep(time.Minute)
		_, err = locks.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
	})
}

// Of two renewals of a degraded lease, the second waits for the first, which has no answer and
// extends the lease in memory. Then it takes the key in the store, for no less.
func TestCrossingRenewals(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, _ *breaker.Locker, _ *dlock.Client) {
		slow := &slowTry{Forward: dlock.Forward{Locker: s}}
		b := breaker.New(slow, breaker.WithDegradation(breaker.Degradation{After: 30 * time.Second, Keys: all}))
		down(t, s, b)
		_, err := b.TryAcquire(t.Context(), "k", "t", 10*time.Second)
		require.NoError(t, err)
		back(t, s, b)
		slow.set(100*time.Millisecond, errStore)
		go func() {
			held, err := b.Renew(t.Context(), "k", "t", time.Hour)
			require.True(t, held && err == nil, "the first renewal: %v, %v", held, err)
			slow.set(0, nil)
		}()
		synctest.Wait()
		held, err := b.Renew(t.Context(), "k", "t", 10*time.Second)
		require.True(t, held && err == nil, "the second renewal: %v, %v", held, err)
		hold, err := s.Forward.Locker.(*memory.Locker).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "t", hold.Token)
		require.Greater(t, hold.Remaining, 59*time.Minute)
	})
}

// Leases of the store and degraded ones in a batch are renewed independently.
func TestMixedBatch(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		_, err := b.TryAcquire(t.Context(), "k", "t", time.Hour)
		require.NoError(t, err)
		down(t, s, b)
		a, err := b.TryAcquire(t.Context(), "kd", "t", time.Hour)
		require.NoError(t, err)
		require.True(t, a.Degraded)
		batch := []dlock.Renewal{{Key: "k", Token: "t", TTL: time.Hour}, {Key: "kd", Token: "t", TTL: time.Hour}}
		s.renew = errStore
		results, err := b.RenewBatch(t.Context(), batch)
		require.NoError(t, err)
		require.Equal(t, []dlock.RenewResult{{Err: errStore}, {Held: true}}, results)
		s.renew = errors.ErrUnsupported
		_, err = b.RenewBatch(t.Context(), batch)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		s.renew = nil
		results, err = b.RenewBatch(t.Context(), batch)
		require.NoError(t, err)
		require.Equal(t, []dlock.RenewResult{{Held: true}, {Held: true}}, results)
	})
}

// While the breaker is open, degraded leases are renewed without a call. When it has closed, a
// bounded number of calls takes their keys in the store.
func TestRenewalsOfMany(t *testing.T) {
	const leases = 5000
	bubble.Test(t, func(t *testing.T) {
		s := &away{Forward: dlock.Forward{Locker: memory.New()}}
		slow := &slowTry{Forward: dlock.Forward{Locker: s}}
		b := breaker.New(slow, breaker.WithDegradation(breaker.Degradation{After: 30 * time.Second, Keys: all}))
		locks := dlock.New(b)
		down(t, s, b)
		for i := range leases {
			degraded(t, locks, strconv.Itoa(i))
		}
		sent := s.calls.Load()
		time.Sleep(15 * time.Second) // one renewal of each
		require.Equal(t, sent, s.calls.Load(), "attempts while the breaker was open")
		require.Equal(t, leases, locks.Stats().Leases)
		back(t, s, b)
		slow.set(5*time.Millisecond, nil)
		time.Sleep(15 * time.Second) // one renewal of each
		require.Equal(t, leases, locks.Stats().Leases)
		require.GreaterOrEqual(t, s.calls.Load(), sent+leases)
		require.LessOrEqual(t, slow.most, 64, "calls at the same time")
		slow.set(0, nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, locks.Shutdown(ended))
	})
}

// A degraded lease cannot be adopted by another process.
func TestDetachOfADegradedLease(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		down(t, s, b)
		lease := degraded(t, locks, "k")
		_, err := lease.Detach()
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "degraded")
		require.NoError(t, lease.Err(), "it is still held")
		require.NoError(t, lease.Release())
		_, err = lease.Detach()
		require.ErrorIs(t, err, dlock.ErrReleased)
	})
}

// The end of a wait behind a degraded lease says that the key is held.
func TestWaitBehindADegradedLease(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		down(t, s, b)
		lease := degraded(t, locks, "k")
		waits := func(wait time.Duration) {
			t.Helper()
			begun := time.Now()
			_, err := locks.With(dlock.WithMaxWait(wait)).Acquire(t.Context(), "k")
			require.ErrorIs(t, err, dlock.ErrHeld)
			require.NotErrorIs(t, err, dlock.ErrUnavailable)
			require.Equal(t, wait, time.Since(begun))
			require.Zero(t, locks.Stats().ReleasesOwed, "nothing was sent")
		}
		waits(time.Second)
		waits(time.Minute) // longer than the TTL
		time.AfterFunc(2*time.Second, func() { _ = lease.Release() })
		begun := time.Now()
		lease, err := locks.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, time.Since(begun))
		waits(time.Minute) // its key has just been contended, so it begins without an attempt
		require.NoError(t, lease.Release())
	})
}

// A waiter behind a degraded lease joins the queue of the store once the key is taken there.
func TestWaitBecomesOneOfTheStore(t *testing.T) {
	degrading(t, func(t *testing.T, s *away, b *breaker.Locker, locks *dlock.Client) {
		down(t, s, b)
		lease := degraded(t, locks, "k")
		done := make(chan *dlock.Lease)
		go func() {
			next, err := locks.Acquire(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			done <- next
		}()
		up(s, b)
		time.Sleep(20 * time.Second)
		hold, err := s.Forward.Locker.(*memory.Locker).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, lease.Token(), hold.Token)
		require.Equal(t, 1, hold.Waiting)
		require.NoError(t, lease.Release())
		next := <-done
		require.False(t, next.Degraded())
		require.NoError(t, next.Release())
	})
}

// Keys may change its mind. The process has one holder nevertheless.
func TestFickleKeys(t *testing.T) {
	for _, first := range []bool{false, true} {
		degrades := first
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			locks := dlock.New(b, dlock.WithTTL(time.Minute))
			if first { // then the lease is degraded, else it is one of the store
				down(t, s, b)
			}
			lease, err := locks.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, first, lease.Degraded())
			if first {
				back(t, s, b)
			} else {
				down(t, s, b)
			}
			degrades = !first
			_, err = locks.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, dlock.ErrHeld)
			require.NoError(t, lease.Err())
			require.NoError(t, lease.Release())
			s.err = nil
			require.NoError(t, locks.Close())
		}, breaker.WithDegradation(breaker.Degradation{After: 30 * time.Second, Keys: func(string) bool { return degrades }}))
	}
}

// A degraded lease leaves nothing in the store, even if it was released while the store was
// asked for it, or if the answer was lost.
func TestReleaseOfALeaseThatWasAsked(t *testing.T) {
	for _, test := range []struct {
		delay time.Duration // of the question
		lost  error         // in place of the answer
	}{{time.Second, nil}, {time.Second, errStore}, {0, errStore}} {
		bubble.Test(t, func(t *testing.T) {
			store := memory.New()
			s := &away{Forward: dlock.Forward{Locker: store}}
			slow := &slowTry{Forward: dlock.Forward{Locker: s}}
			b := breaker.New(slow, breaker.WithDegradation(breaker.Degradation{After: time.Second, Keys: all}))
			open(t, s, b)
			time.Sleep(time.Second)
			a, err := b.TryAcquire(t.Context(), "k", "t", time.Hour)
			require.NoError(t, err)
			require.True(t, a.Degraded)
			back(t, s, b)
			slow.set(test.delay, test.lost)
			go func() { _, _ = b.Renew(t.Context(), "k", "t", time.Hour) }()
			synctest.Wait()
			held, err := b.Release(t.Context(), "k", "t")
			require.NoError(t, err)
			require.True(t, held)
			time.Sleep(10 * time.Second)
			hold, err := store.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.False(t, hold.Held)
		})
	}
}

// A slowTry delays attempts, may lose their answers, and counts those in flight.
type slowTry struct {
	dlock.Forward
	mu             sync.Mutex
	delay          time.Duration
	reply          error
	inFlight, most int
}

func (s *slowTry) set(delay time.Duration, reply error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay, s.reply = delay, reply
}

func (s *slowTry) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	s.mu.Lock()
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	pause := time.After(s.delay)
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-pause:
	}
	s.mu.Lock()
	s.inFlight--
	reply := s.reply
	s.mu.Unlock()
	a, err := s.Forward.TryAcquire(ctx, key, token, ttl)
	return a, cmp.Or(err, reply)
}

// Holds of one process never overlap, whatever the store does: neither those in memory, nor
// those in the store, nor one with the other.
func TestHistoryOfDegradation(t *testing.T) {
	type hold struct {
		key        string
		begun, end time.Time
		degraded   bool
	}
	var kinds [2]int
	for seed := range uint64(20) {
		bubble.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			away, random := false, rand.New(rand.NewPCG(seed, 0))
			chance := func(n int) bool { mu.Lock(); defer mu.Unlock(); return random.IntN(n) == 0 }
			between := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(random.Int64N(int64(d)))
			}
			fails := func(string) error {
				time.Sleep(between(50 * time.Millisecond))
				mu.Lock()
				defer mu.Unlock()
				if away {
					return errStore
				}
				return nil
			}
			store := &hooked{dlock.Forward{Locker: memory.New()}, fails, fails}
			fickle := func(string) bool { return chance(2) }
			b := breaker.New(store, breaker.WithDegradation(breaker.Degradation{After: 5 * time.Second, Keys: fickle}))
			locks := dlock.New(b, dlock.WithTTL(4*time.Second), dlock.WithMaxWait(3*time.Second))
			var holds []hold
			begun := time.Now()
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
						begun := time.Now()
						d := between(time.Second)
						if chance(10) {
							d *= 10
						}
						select {
						case <-time.After(d):
						case <-set.Done():
						}
						mu.Lock()
						for _, lease := range set.All() {
							h := hold{key: lease.Key(), begun: begun, end: time.Now(), degraded: lease.Degraded()}
							if deadline := lease.Deadline(); deadline.Before(h.end) {
								h.end = deadline
							}
							holds = append(holds, h)
						}
						mu.Unlock()
						_ = set.Release()
					}
				})
			}
			for time.Since(begun) < 2*time.Minute {
				time.Sleep(between(20 * time.Second))
				mu.Lock()
				away = !away
				mu.Unlock()
			}
			mu.Lock()
			away = false
			mu.Unlock()
			workers.Wait()
			require.NoError(t, locks.Close())
			time.Sleep(time.Minute)
			slices.SortFunc(holds, func(a, b hold) int { return cmp.Or(cmp.Compare(a.key, b.key), a.begun.Compare(b.begun)) })
			for i, h := range holds {
				if h.degraded {
					kinds[0]++
				} else {
					kinds[1]++
				}
				if i > 0 && holds[i-1].key == h.key && h.begun.Before(holds[i-1].end) {
					t.Errorf("%+v overlaps %+v", holds[i-1], h)
				}
			}
		})
	}
	require.Greater(t, kinds[0], 100, "degraded holds")
	require.Greater(t, kinds[1], 100, "other holds")
}

// A hooked Locker calls a function before and after each call, with its name. An error takes the place of
// the call, or of its answer.
type hooked struct {
	dlock.Forward
	before, after func(op string) error
}

func through[R any](h *hooked, op string, call func() (R, error)) (R, error) {
	var none R
	if err := h.before(op); err != nil {
		return none, err
	}
	r, err := call()
	if lost := h.after(op); lost != nil {
		return none, errors.Join(lost, err)
	}
	return r, err
}

func (h *hooked) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return through(h, "try", func() (dlock.Attempt, error) { return h.Forward.TryAcquire(ctx, key, token, ttl) })
}

func (h *hooked) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	return through(h, "try", func() ([]dlock.Attempt, error) { return h.Locker.(dlock.SetAcquirer).TryAcquireSet(ctx, set) })
}

func (h *hooked) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return through(h, "acquire", func() (dlock.Attempt, error) { return h.Forward.Acquire(ctx, key, token, ttl) })
}

func (h *hooked) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return through(h, "renew", func() (bool, error) { return h.Forward.Renew(ctx, key, token, ttl) })
}

func (h *hooked) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return through(h, "batch", func() ([]dlock.RenewResult, error) { return h.Forward.RenewBatch(ctx, batch) })
}

func (h *hooked) Release(ctx context.Context, key, token string) (bool, error) {
	return through(h, "release", func() (bool, error) { return h.Forward.Release(ctx, key, token) })
}

func (h *hooked) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return through(h, "inspect", func() (dlock.Hold, error) { return h.Forward.Inspect(ctx, key) })
}

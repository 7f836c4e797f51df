package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

var errDial = &net.OpError{Op: "dial", Err: errors.New("refused")}

// A poisonous lease that is the first of its batch (the earliest deadline) is chosen as the probe.
func TestPoisonIsTheProbe(t *testing.T) {
	for _, rtt := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 100 * time.Millisecond} {
		for _, first := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("rtt=%v,poisons=%d", rtt, first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := &poisonFirst{Locker: memory.New(), rtt: rtt}
					c := dlock.New(p, dlock.WithTTL(30*time.Second))
					for i := range first {
						acquire(t, c, fmt.Sprintf("poison%d", i))
						time.Sleep(time.Millisecond)
					}
					var others []*dlock.Lease
					for i := range 100 {
						others = append(others, acquire(t, c, fmt.Sprint("good", i)))
					}
					time.Sleep(10 * time.Minute)
					requireNoneLost(t, others)
					require.NoError(t, c.Close())
				})
			})
		}
	}
}

type poisonFirst struct {
	*memory.Locker
	hangs bool
	rtt   time.Duration
}

func (p *poisonFirst) bad(key string) bool { return len(key) > 6 && key[:6] == "poison" }
func (p *poisonFirst) fail(ctx context.Context) error {
	if p.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return errStore
}
func (p *poisonFirst) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	time.Sleep(p.rtt)
	if p.bad(key) {
		return false, p.fail(ctx)
	}
	return p.Locker.Renew(ctx, key, token, ttl)
}
func (p *poisonFirst) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	time.Sleep(p.rtt)
	if slices.ContainsFunc(batch, func(r dlock.Renewal) bool { return p.bad(r.Key) }) {
		return nil, p.fail(ctx)
	}
	return p.Locker.RenewBatch(ctx, batch)
}

// Verdict of a slow first background try after another has released.
func TestSlowTryOfAReleaseGivesNoVerdict(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var n atomic.Int32
		s.hook = func(c *call) {
			if c.op != "release" {
				return
			}
			switch n.Add(1) {
			case 1: // of the holder: there is no connection
				c.err = errDial
			case 2: // of the Client, in the background: slow on the way
				time.Sleep(300 * time.Millisecond)
			}
		}
		c := dlock.New(s)
		l := acquire(t, c, "k")
		require.Error(t, l.Release())
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, l.Release(), "held, now free")
		time.Sleep(time.Second)
		require.NoError(t, l.Release(), "the store released it at the holder's will")
	})
}

// Release after Shutdown and after the deadline.
func TestReleaseLongAfterShutdown(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(3*time.Second))
		l := acquire(t, c, "k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, c.Shutdown(ctx))
		time.Sleep(time.Minute)
		other := acquire(t, dlock.New(store), "k") // works at the same time
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		require.NoError(t, other.Release())
	})
}

func TestDoLongAfterShutdown(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(3*time.Second))
		err := c.Do(t.Context(), "k", func(_ context.Context, l *dlock.Lease) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, c.Shutdown(ctx))
			time.Sleep(time.Minute)
			return nil
		})
		require.ErrorIs(t, err, dlock.ErrLost)
	})
}

// Release after Shutdown within a MinHold: twice, and at once.
func TestReleaseTwiceAfterShutdownWithMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "renew" {
				c.delay = 10 * time.Millisecond
			}
		}
		c := dlock.New(s, dlock.WithTTL(30*time.Second), dlock.WithMinHold(time.Minute))
		l := acquire(t, c, "k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, c.Shutdown(ctx))
		s.forget()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { l.Release() })
		}
		wg.Wait()
		require.NoError(t, l.Release())
		require.Len(t, s.made("renew"), 1, "one renewal keeps it")
	})
}

// Close waits for a release whose MinHold is over.
func TestCloseWaitsForAReleaseAfterItsMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Second))
		l := acquire(t, c, "k")
		require.NoError(t, l.Release())
		store.Fail(errStore)
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, 1, c.Stats().ReleasesOwed)
		time.AfterFunc(time.Second, func() { store.Fail(nil) })
		if err := c.Close(); err == nil {
			requireFree(t, store, "k")
		}
	})
}

// How often a MinHold is asked for in an outage.
func TestCallsForMinHoldsInAnOutage(t *testing.T) {
	for name, err := range map[string]error{"refused": &dlock.NoEffectError{Err: errors.New("NOPERM")}, "down": errStore} {
		for _, ttl := range []time.Duration{10 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprint(name, ttl), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					c := dlock.New(s, dlock.WithTTL(ttl), dlock.WithMinHold(time.Hour))
					l := acquire(t, c, "k")
					store.Fail(err)
					require.NoError(t, l.Release())
					time.Sleep(10 * time.Second) // the lease has ended long ago
					s.forget()
					time.Sleep(10 * time.Second)
					require.LessOrEqual(t, len(s.made("renew")), 20, "calls in 10 s for a lease that has ended")
					c.Close()
				})
			})
		}
	}
}

// What is tried again behind a stream of what is new.
func TestOwedAgainIsNotStarved(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var failed atomic.Int32
		s.hook = func(c *call) {
			switch {
			case c.op == "release" && c.key == "real" && failed.Add(1) <= 2: // of the holder, and the first of the Client
				c.err = errStore
			case c.op == "release":
				time.Sleep(100 * time.Millisecond) // RTT
			case c.op == "try" && c.key != "real":
				c.err = errStore
			}
		}
		c := dlock.New(s, dlock.WithTTL(time.Minute))
		l := acquire(t, c, "real")
		stop := make(chan struct{})
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond): // 100 cut attempts a second
					c.TryAcquire(t.Context(), fmt.Sprint(i))
				}
			}
		}()
		time.Sleep(time.Second)
		require.Error(t, l.Release())
		time.Sleep(10 * time.Second)
		hold, err := store.Inspect(t.Context(), "real")
		require.NoError(t, err)
		close(stop)
		c.Close()
		time.Sleep(time.Minute)
		require.False(t, hold.Held, "the release that failed once, 10 s ago")
	})
}

// One dead shard, and a release of a live one that failed once.
func TestDeadShardAndLiveDebts(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var failed atomic.Int32
		s.hook = func(c *call) {
			dead := c.key[0] == 'd'
			switch {
			case c.op == "release" && c.key == "real" && failed.Add(1) == 1:
				c.err = errStore
			case dead && c.op == "release":
				<-c.ctx.Done()
				c.err = c.ctx.Err()
			case dead && c.op == "try":
				c.err = errStore
			}
		}
		c := dlock.New(s, dlock.WithTTL(time.Minute))
		l := acquire(t, c, "real")
		for i := range 200 {
			c.TryAcquire(t.Context(), fmt.Sprint("dead", i))
		}
		time.Sleep(5 * time.Second)
		require.Error(t, l.Release())
		time.Sleep(10 * time.Second)
		hold, err := store.Inspect(t.Context(), "real")
		require.NoError(t, err)
		c.Close()
		time.Sleep(time.Minute)
		require.False(t, hold.Held, "the release to the live shard that failed once, 10 s ago")
	})
}

// Adopt with a shorter TTL, and a release that gets no answer for longer than that.
func TestReleaseOfALeaseAdoptedWithAShorterTTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(time.Hour))
		d, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		l, err := c.With(dlock.WithTTL(time.Second)).Adopt(t.Context(), d)
		require.NoError(t, err)
		store.Fail(errStore)
		require.Error(t, l.Release())
		time.Sleep(3 * time.Second)
		store.Fail(nil)
		time.Sleep(10 * time.Second)
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
	})
}

// A Renew by hand that fails after the lease was lost.
func TestRenewThatFailsAfterTheLoss(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var n atomic.Int32
		s.hook = func(c *call) {
			if c.op == "renew" && n.Add(1) == 1 {
				time.Sleep(time.Minute) // does not look at its ctx
				c.err = errStore
			}
		}
		c := dlock.New(single{s}, dlock.WithTTL(3*time.Second))
		l := acquire(t, c, "k")
		result := make(chan error)
		go func() { result <- l.Renew(t.Context()) }()
		time.Sleep(2 * time.Second) // renewed in the background meanwhile
		store.Fail(errStore)
		err := <-result
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.ErrorIs(t, err, dlock.ErrLost)
		store.Fail(nil)
		c.Close()
	})
}

// Renew with a Locker that returns the cause of its ctx, which another lease ended.
func TestRenewWhereTheLockerReturnsTheCause(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(single{s}, dlock.WithTTL(30*time.Second))
		var n atomic.Int32
		other := acquire(t, c, "other")
		l := acquire(t, c, "k")
		s.hook = func(c *call) {
			if c.op == "renew" && c.key == "k" && c.ctx.Done() != nil && n.Add(1) == 1 {
				<-c.ctx.Done()
				c.err = context.Cause(c.ctx)
			}
		}
		ctx := other.Context(t.Context())
		time.AfterFunc(time.Second, func() { store.Expire("other") })
		err := l.Renew(ctx)
		require.ErrorIs(t, other.Err(), dlock.ErrLost)
		require.Error(t, err)
		require.NotErrorIs(t, err, dlock.ErrLost)
		require.NoError(t, l.Err())
		require.NoError(t, c.Close())
	})
}

// MinHold of what Shutdown abandons.
func TestShutdownKeepsMinHoldOfWhatIsStillHeld(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(3*time.Second), dlock.WithMinHold(time.Minute))
		acquire(t, c, "k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, c.Shutdown(ctx))
		time.Sleep(30 * time.Second)
		hold, err := store.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, hold.Held)
	})
}

// Debts of a store that is away for good, and whose TTL has passed.
func TestNothingIsOwedWhenTheTTLHasPassed(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(10*time.Second))
		store.Fail(errStore)
		for i := range 100 {
			c.TryAcquire(t.Context(), fmt.Sprint(i))
		}
		time.Sleep(5 * time.Minute)
		require.Zero(t, c.Stats().ReleasesOwed)
		require.NoError(t, c.Close(), "no key can stay")
	})
}

// A probe that hangs keeps others from having one.
func TestProbeThatHangsDoesNotBlockTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &hungAndSpoilt{Locker: memory.New()}
		long := dlock.New(x, dlock.WithTTL(time.Hour))
		c := long.With(dlock.WithTTL(30 * time.Second))
		acquire(t, long, "hangs")
		time.Sleep(time.Second)
		acquire(t, long, "beside")
		time.Sleep(21 * time.Minute) // the batch of both has failed, and the probe hangs
		var others []*dlock.Lease
		for i := range 100 {
			others = append(others, acquire(t, c, fmt.Sprint("good", i)))
		}
		acquire(t, c, "poison")
		x.spoilt.Store(true)
		time.Sleep(5 * time.Minute)
		requireNoneLost(t, others)
		require.NoError(t, c.Close())
		time.Sleep(time.Hour)
	})
}

type hungAndSpoilt struct {
	*memory.Locker
	spoilt atomic.Bool
}

func (x *hungAndSpoilt) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	time.Sleep(5 * time.Millisecond)
	if key == "hangs" {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return x.Locker.Renew(ctx, key, token, ttl)
}

func (x *hungAndSpoilt) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	time.Sleep(5 * time.Millisecond)
	for _, r := range batch {
		switch {
		case r.Key == "hangs" && len(batch) > 1:
			return nil, errStore
		case r.Key == "poison" && x.spoilt.Load():
			return nil, errStore
		}
	}
	return x.Locker.RenewBatch(ctx, batch)
}

package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A Release that had no effect was the first of none: when the background finds the lease
// gone, that is a loss.
func TestReleaseWithoutEffectThenNotHeld(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "release" && len(s.made("release")) == 1 {
				c.err = &dlock.NoEffectError{Err: errStore}
				store.Steal("k", time.Hour)
			}
		}
		l := acquire(t, dlock.New(s), "k")
		require.ErrorIs(t, l.Release(), errStore)
		synctest.Wait()
		require.Len(t, s.made("release"), 2)
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		require.Len(t, s.made("release"), 2)
	})
}

// One dead shard must not cost the leases of the others.
func TestHeadOfLineRenewals(t *testing.T) {
	for name, wrap := range map[string]func(*spy) dlock.Locker{
		"single": func(s *spy) dlock.Locker { return plain{shard{s}} },
		"batch":  func(s *spy) dlock.Locker { return shard{s} },
	} {
		for _, n := range []int{40, 100, 200, 300, 500, 1000} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					s.hook = func(c *call) {
						if c.op == "renew" || c.op == "batch" {
							time.Sleep(5 * time.Millisecond)
						}
					}
					c := dlock.New(wrap(s))
					var good []*dlock.Lease
					for i := range n {
						acquire(t, c, fmt.Sprint("bad", i))
						good = append(good, acquire(t, c, fmt.Sprint("good", i)))
					}
					time.Sleep(time.Minute)
					lost := 0
					for _, l := range good {
						if l.Err() != nil {
							lost++
						}
						l.Release()
					}
					t.Logf("LOST %d of %d healthy", lost, n)
					require.Zero(t, lost, "of %d healthy leases lost", n)
				})
			})
		}
	}
}

type shard struct{ *spy }

func (s shard) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if strings.HasPrefix(key, "bad") {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return s.spy.Renew(ctx, key, token, ttl)
}

// A batch to a cluster: answers of the good shard, errors of the bad one when the ctx ends
func (s shard) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	r := make([]dlock.RenewResult, len(batch))
	for i, b := range batch {
		if strings.HasPrefix(b.Key, "bad") {
			<-ctx.Done()
			r[i].Err = ctx.Err()
			continue
		}
		r[i].Held, r[i].Err = s.spy.Renew(context.Background(), b.Key, b.Token, b.TTL)
	}
	return r, nil
}

// 3,000 leases with a MinHold that are released at once.
func TestMinHoldOfMany(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
		s.hook = func(c *call) {
			if c.op == "renew" {
				time.Sleep(time.Millisecond)
			}
		}
		const n = 3000
		var all []*dlock.Lease
		for i := range n {
			all = append(all, acquire(t, c, fmt.Sprint(i)))
		}
		for _, l := range all {
			require.NoError(t, l.Release())
		}
		time.Sleep(2 * time.Minute)
		free := 0
		for i := range n {
			hold, err := store.Inspect(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			if !hold.Held {
				free++
			}
		}
		c.Close()
		require.Zero(t, free, "keys free long before the MinHold")
	})
}

func TestMinHoldAfterClose(t *testing.T) {
	for _, minHold := range []time.Duration{time.Minute, 10 * time.Minute} {
		t.Run(minHold.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				c := dlock.New(s, dlock.WithMinHold(minHold))
				l := acquire(t, c, "k")
				start := time.Now()
				require.NoError(t, c.Close())
				require.NoError(t, l.Release())
				next := acquire(t, dlock.New(store), "k")
				require.InDelta(t, minHold.Seconds(), time.Since(start).Seconds(), 0.01)
				require.NoError(t, next.Release())
			})
		})
	}
}

func TestMinHoldBehindHungReleases(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
		s.hook = func(c *call) {
			if strings.HasPrefix(c.key, "bad") && c.op != "renew" {
				<-c.ctx.Done()
				c.err = c.ctx.Err()
			}
		}
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := c.TryAcquire(ctx, fmt.Sprint("bad", i))
			require.Error(t, err)
			cancel()
		}
		l := acquire(t, c, "good")
		require.NoError(t, l.Release())
		time.Sleep(time.Minute)
		hold, err := store.Inspect(t.Context(), "good")
		require.NoError(t, err)
		require.True(t, hold.Held, "free long before the MinHold")
		c.Close()
	})
}

func TestCancelledCallsMatchTheContextError(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		h, err := acquire(t, c, "h").Detach()
		require.NoError(t, err)
		s.hook = func(c *call) {
			if c.op == "renew" {
				<-c.ctx.Done()
				c.err = errors.New("read tcp: i/o timeout") // what a client library may say
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = l.Renew(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("Renew: not the ctx's error")
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Adopt(ctx, h)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("Adopt: not the ctx's error")
		}
		require.NoError(t, l.Release())
	})
}

func TestRenewOfALostLeaseAfterClose(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l, r := acquire(t, c, "k"), acquire(t, c, "r")
		require.NoError(t, r.Release())
		c.Close()
		<-l.Done()
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		require.ErrorIs(t, r.Renew(t.Context()), dlock.ErrReleased)
	})
}

func TestRenewDoesNotWaitForOneThatHangs(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "renew" && len(s.made("renew")) == 1 {
				time.Sleep(time.Hour)
			}
		}
		l := acquire(t, dlock.New(s), "k")
		time.Sleep(11 * time.Second)
		require.NoError(t, l.Renew(t.Context()))
		require.Len(t, s.made("renew"), 2)
		time.Sleep(time.Hour)
		require.NoError(t, l.Release())
	})
}

type panicky struct {
	dlock.Forward
	op string
}

func (p *panicky) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if p.op == "renew" {
		panic("renew")
	}
	return p.Forward.Renew(ctx, key, token, ttl)
}
func (p *panicky) Release(ctx context.Context, key, token string) (bool, error) {
	if p.op == "release" {
		panic("release")
	}
	return p.Forward.Release(ctx, key, token)
}
func (p *panicky) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := p.Forward.TryAcquire(ctx, key, token, ttl)
	if p.op == "try" {
		panic("try")
	}
	return a, err
}

func TestPanicInRelease(t *testing.T) {
	if os.Getenv("CHILD") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPanicInRelease$")
		cmd.Env = append(os.Environ(), "CHILD=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%.300s", out)
		return
	}
	p := &panicky{Forward: dlock.Forward{Locker: memory.New()}}
	l, _ := dlock.New(p).Acquire(context.Background(), "k")
	p.op = "release"
	func() {
		defer func() { fmt.Println("recovered", recover()) }()
		l.Release()
	}()
}

func TestPanicInRenew(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		p := &panicky{Forward: dlock.Forward{Locker: store}, op: "renew"}
		l := acquire(t, dlock.New(p, dlock.WithRenewal(false)), "k")
		require.Panics(t, func() { l.Renew(t.Context()) })
		require.NoError(t, l.Release())
	})
}

func TestPanicInTryAcquire(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		p := &panicky{Forward: dlock.Forward{Locker: store}, op: "try"}
		require.Panics(t, func() { dlock.New(p).TryAcquire(t.Context(), "k") })
		synctest.Wait()
		requireFree(t, store, "k")
	})
}

func TestCloseWithACallOnItsWay(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.delay, c.reply = 10*time.Second, errStore // granted, reply lost
			}
		}
		c := dlock.New(s)
		done := make(chan error)
		go func() { _, err := c.TryAcquire(t.Context(), "k"); done <- err }()
		time.Sleep(time.Second)
		closeErr := c.Close()
		require.ErrorIs(t, <-done, errStore)
		synctest.Wait()
		if closeErr == nil {
			requireFree(t, store, "k")
		}
	})
}

func TestDetachedLeaks(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		for _, f := range []string{"%d", "%x", "%t"} {
			if out := fmt.Sprintf(f, l); strings.Contains(out, l.Token()) {
				t.Errorf("lease with %s: %s", f, out)
			}
		}
		h, err := l.Detach()
		require.NoError(t, err)
		type job struct {
			id int
			h  dlock.Detached
		}
		if out := fmt.Sprintf("%+v", job{1, h}); strings.Contains(out, l.Token()) {
			t.Errorf("Detached in a struct: %s", out)
		}
	})
}

// The lease of a waiter that was served ends before the timers of those behind it.
func TestMemoryWaiterSleepsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		_, err := store.TryAcquire(t.Context(), "k", "first", time.Hour)
		require.NoError(t, err)
		go store.Acquire(t.Context(), "k", "second", time.Second)
		synctest.Wait()
		served := make(chan time.Time, 1)
		go func() {
			_, err := store.Acquire(t.Context(), "k", "third", time.Second)
			if err == nil {
				served <- time.Now()
			}
		}()
		synctest.Wait()
		start := time.Now()
		_, err = store.Release(t.Context(), "k", "first") // second is granted the key for 1 s and dies
		require.NoError(t, err)
		require.Equal(t, time.Second, (<-served).Sub(start))
	})
}

func TestMemorySteal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		_, err := store.TryAcquire(t.Context(), "k", "first", time.Hour)
		require.NoError(t, err)
		served := make(chan time.Time, 1)
		go func() {
			store.Acquire(t.Context(), "k", "second", time.Second)
			served <- time.Now()
		}()
		synctest.Wait()
		start := time.Now()
		store.Steal("k", time.Second)
		require.Equal(t, time.Second, (<-served).Sub(start))
	})
}

func TestMemoryCancelledWaitSaysNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		_, err := store.TryAcquire(t.Context(), "k", "first", time.Hour)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(time.Second, func() { store.Steal("k", time.Second) })
		a, err := store.Acquire(ctx, "k", "second", time.Second)
		t.Log(a, err)
		require.False(t, a.Remaining < 0, "%v: never ends?", a.Remaining)
	})
}

// A Locker of several stores joins their errors: one could not be dialled, another
// did not answer (and has granted the key).
func TestJoinedDialErrorCountsAsUnsent(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		dial := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
		s.hook = func(c *call) {
			if c.op == "try" {
				c.reply = errors.Join(dial, errStore)
			}
		}
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		synctest.Wait()
		requireFree(t, store, "k")
	})
}

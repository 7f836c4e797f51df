package semaphore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/cast"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/semaphore"
)

// Eight processes work, and about two a second are killed.
func TestNeverMore(t *testing.T) {
	const permits = 3
	everywhere(t, func(w *cast.World) {
		length := time.Minute
		if len(w.Servers) > 1 || israce.Enabled || testing.Short() {
			length /= 6
		}
		end := time.Now().Add(length)
		j := newJudge()
		var work sync.WaitGroup
		join := func() *process {
			p := begin(w, permits, dlock.WithLocalTurns(1+7*rand.IntN(2)))
			for range 2 {
				work.Go(func() { j.work(w, p, end, func() time.Duration { return rand.N(60 * time.Millisecond) }) })
			}
			return p
		}
		var all []*process
		for range 8 {
			all = append(all, join())
		}
		kills := 0
		for ; time.Now().Before(end); kills++ {
			time.Sleep(rand.N(time.Second))
			n := rand.IntN(len(all))
			all[n].Kill()
			all[n] = join()
		}
		work.Wait()
		w.Logf("%d servers: %d kills, %d permits taken, at most %d at once", len(w.Servers), kills, len(j.waits), j.most)
		require.Equal(w, permits, j.most)
		require.Less(w, time.Since(j.last), 6*time.Second)
	})
}

// Many processes want a permit all the time. Few of their waits leave a release that is owed for long.
func TestRate(t *testing.T) {
	const length, hold = 2 * time.Second, 40 * time.Millisecond
	for _, c := range []struct {
		permits, waiters, runs int
		rate                   float64 // at least, of permits / (hold + 1 RTT)
	}{
		{4, 16, 5, 0.8},
		{16, 64, 1, 0.48}, // one permit in 2.7 RTT
	} {
		var rates, spreads []float64
		for range c.runs {
			cast.In(t, "redis", func(w *cast.World) {
				var work sync.WaitGroup
				j, end, owed := newJudge(), time.Now().Add(length), 0
				for range c.waiters {
					p := begin(w, c.permits)
					work.Go(func() { j.work(w, p, end, func() time.Duration { return hold }) })
					time.AfterFunc(length, func() { j.change(0, func() { owed += p.Stats().ReleasesOwed }) })
				}
				work.Wait()
				require.Less(w, owed, 2*c.waiters)
				slices.Sort(j.waits)
				n := len(j.waits)
				rates = append(rates, float64(n-c.waiters)/length.Seconds()/float64(c.permits)*(hold+rtt).Seconds())
				spreads = append(spreads, float64(j.waits[n*99/100])/float64(j.waits[n/2]))
			})
		}
		slices.Sort(rates)
		slices.Sort(spreads)
		t.Logf("%d waiters for %d permits: %.2f of permits / (hold + 1 RTT), p99 of waits %.2f of p50", c.waiters, c.permits, rates, spreads)
		require.GreaterOrEqual(t, rates[c.runs/2], c.rate)
		require.LessOrEqual(t, spreads[c.runs/2], 1.5)
	}
}

func TestWaitersAreServedInOrder(t *testing.T) {
	everywhere(t, func(w *cast.World) {
		leases := fill(w, begin(w, 2), 2)
		var waiters []<-chan acquired
		for range 8 {
			time.Sleep(100 * time.Millisecond)
			waiters = append(waiters, begin(w, 2).start(w.Context()))
		}
		time.Sleep(100 * time.Millisecond)
		for n, waiter := range waiters {
			require.NoError(w, leases[n%2].Release())
			got := <-waiter
			require.NoError(w, got.err)
			require.Equal(w, n%2, got.permit)
			leases[n%2] = got.lease
			time.Sleep(100 * time.Millisecond)
			for _, later := range waiters[n+1:] {
				require.Empty(w, later)
			}
		}
	})
}

// The permits of dead processes are free when their own TTLs have passed. Those of the living stay.
func TestDeadPermit(t *testing.T) {
	everywhere(t, func(w *cast.World) {
		last := begin(w, 3)
		living, _, err := last.Acquire(w.Context())
		require.NoError(w, err)
		begun := time.Now()
		for _, own := range []time.Duration{ttl, 10 * time.Second} {
			p := begin(w, 3, dlock.WithTTL(own))
			_, _, err := p.Acquire(w.Context())
			require.NoError(w, err)
			time.Sleep(10 * rtt) // it has given the gate back
			p.Kill()
		}
		for _, own := range []time.Duration{ttl, 10 * time.Second} {
			_, _, err := last.Acquire(w.Context())
			require.NoError(w, err)
			after := time.Since(begun)
			require.GreaterOrEqual(w, after, own)
			require.Less(w, after, own+600*time.Millisecond) // a majority may have to sort its votes out
		}
		waiter := last.start(w.Context())
		time.Sleep(time.Minute)
		require.Empty(w, waiter)
		require.NoError(w, living.Release())
		require.NoError(w, (<-waiter).err)
	})
}

// The first who waits dies or is cut off, and the permits are free from then on, or later.
func TestDeadGateHolder(t *testing.T) {
	for name, c := range map[string]struct {
		strike func(*process)
		limit  time.Duration
	}{
		"killed":  {func(p *process) { p.Kill() }, 3*time.Second + 50*time.Millisecond},
		"cut off": {func(p *process) { p.Cut.Store(true) }, 5*time.Second + 50*time.Millisecond},
	} {
		var longest time.Duration
		for n := range 48 {
			cast.In(t, []string{"redis", "redlock"}[n%2], func(w *cast.World) {
				leases := fill(w, begin(w, 2), 2)
				first := begin(w, 2, dlock.WithTTL(dlock.DefaultTTL))
				ctx, cancel := context.WithCancel(w.Context())
				first.start(ctx)
				time.Sleep(20*time.Millisecond + time.Duration(n/12)*1500*time.Millisecond)
				second := begin(w, 2).start(w.Context())
				time.Sleep(20 * time.Millisecond)
				c.strike(first)
				time.Sleep(time.Duration(n%12) * 500 * time.Millisecond)
				for _, l := range leases {
					require.NoError(w, l.Release())
				}
				freed := time.Now()
				got := <-second
				require.NoError(w, got.err)
				longest = max(longest, got.at.Sub(freed))
				cancel()
			})
		}
		t.Logf("the first is %s: the others wait for %v more at most", name, longest)
		require.LessOrEqual(t, longest, c.limit)
	}
}

// The gate is lost during the wait, in an outage, or because an operator breaks it. The waits for permits
// end, and the caller waits for the gate again, no longer than MaxWait in all.
func TestLostGate(t *testing.T) {
	for _, stolen := range []time.Duration{0, 4 * time.Second, time.Hour} { // 0: an outage
		cast.In(t, "memory", func(w *cast.World) {
			p := begin(w, 2, dlock.WithMaxWait(20*time.Second), dlock.WithTTL(time.Minute))
			leases := fill(w, p, 2)
			begun := time.Now()
			waiter := p.start(w.Context())
			waiting := func() [2]int { return [2]int{status(w, p, slot(0)).Waiting, status(w, p, slot(1)).Waiting} }
			time.Sleep(10 * time.Second)
			require.Equal(w, [2]int{1, 1}, waiting())
			if stolen == 0 {
				w.Memory.Fail(errAway)
				time.Sleep(5 * time.Second)
				w.Memory.Fail(nil)
			} else {
				w.Memory.Steal("sem", stolen)
				time.Sleep(2 * time.Second)
				require.Zero(w, waiting())
			}
			time.Sleep(3 * time.Second)
			if stolen < time.Hour {
				require.Equal(w, [2]int{1, 1}, waiting())
			}
			if stolen == 0 {
				require.NoError(w, leases[1].Release())
				require.NoError(w, (<-waiter).err)
				return
			}
			got := <-waiter
			require.ErrorIs(w, got.err, dlock.ErrHeld)
			require.Equal(w, 20*time.Second, got.at.Sub(begun))
		})
	}
}

// The store of one permit fails, hangs, is full or refuses when the caller begins to wait.
func TestPermitOutOfReach(t *testing.T) {
	for n, fault := range []func(context.Context) error{
		func(context.Context) error { return errAway },
		func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		func(context.Context) error { return &dlock.NoEffectError{Err: errors.New("OOM"), State: true} },
		func(context.Context) error { return &dlock.NoEffectError{Err: errors.New("WRONGPASS")} },
	} {
		cast.In(t, "memory", func(w *cast.World) {
			p := begin(w, 2)
			leases := fill(w, p, 2)
			var over atomic.Bool
			w.Try = func(ctx context.Context, key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
				if key == slot(0) && !over.Load() {
					return dlock.Attempt{}, fault(ctx)
				}
				return call()
			}
			waiter := p.start(w.Context())
			require.NoError(w, leases[0].Release())
			time.Sleep(5 * time.Second)
			if n == 3 {
				require.ErrorContains(w, (<-waiter).err, "the store refused: WRONGPASS")
				return
			}
			require.Empty(w, waiter)
			if n%2 == 0 {
				over.Store(true)
			} else {
				require.NoError(w, leases[1].Release())
			}
			freed := time.Now()
			got := <-waiter
			require.NoError(w, got.err)
			require.Equal(w, n%2, got.permit)
			require.Less(w, got.at.Sub(freed), time.Second)
		})
	}
}

// MaxWait and ctx limit the wait for gate and permit together. After an error nothing is left.
func TestLimits(t *testing.T) {
	everywhere(t, func(w *cast.World) {
		p, none := begin(w, 2, dlock.WithMaxWait(10*time.Second), dlock.WithOwner("a")), begin(w, 2, dlock.WithMaxWait(0))
		leases := fill(w, p, 2)
		try := func() (permit int, err error) {
			for _, acquire := range []func(context.Context) (*dlock.Lease, int, error){none.Acquire, p.TryAcquire} {
				var lease *dlock.Lease
				if lease, permit, err = acquire(w.Context()); err == nil {
					require.NoError(w, lease.Release())
				}
			}
			return permit, err
		}
		begun := time.Now()
		six, cancel := context.WithTimeout(w.Context(), 6*time.Second)
		defer cancel()
		one := begin(w, 2).start(six)
		time.Sleep(time.Second)
		two := p.start(w.Context())
		_, err := try()
		require.ErrorIs(w, err, dlock.ErrHeld)
		require.Less(w, time.Since(begun), time.Second+10*rtt)

		got := <-one
		require.ErrorIs(w, got.err, context.DeadlineExceeded)
		require.ErrorIs(w, got.err, dlock.ErrHeld)
		require.Equal(w, 6*time.Second, got.at.Sub(begun))
		got = <-two
		require.ErrorIs(w, got.err, dlock.ErrHeld)
		require.NotErrorIs(w, got.err, context.DeadlineExceeded)
		require.ErrorContains(w, got.err, `semaphore: "sem": dlock: acquire "sem#`)
		require.ErrorContains(w, got.err, `held by "a"`)
		require.InDelta(w, 11*time.Second, got.at.Sub(begun), float64(rtt))

		require.NoError(w, leases[1].Release())
		permit, err := try()
		require.NoError(w, err)
		require.Equal(w, 1, permit)
		require.NoError(w, leases[0].Release())
		time.Sleep(2 * ttl)
		left := p.Stats()
		require.Zero(w, left.Leases+left.Waiters+left.ReleasesOwed, "%+v", left)
		for _, key := range []string{"sem", slot(0), slot(1)} {
			found := status(w, p, key)
			require.False(w, found.Held || found.Waiting > 0, "%s: %+v", key, found)
		}
	})
}

// Whatever else an Acquire finds free is given back. If some are free, nobody who tries all is refused.
func TestCrossingGrants(t *testing.T) {
	const permits = 64
	cast.In(t, "redis", func(w *cast.World) {
		p := begin(w, permits)
		var leases []*dlock.Lease
		requests := func() int { time.Sleep(10 * rtt); return w.Servers[0].Cost().Scripts }
		before := requests()
		for n := range permits {
			lease, _, err := p.Acquire(w.Context())
			require.NoError(w, err)
			leases = append(leases, lease)
			after := requests()
			if n == 0 {
				require.Equal(w, 3, after-before)
			}
			require.Equal(w, n+1, p.Stats().Leases)
			require.Zero(w, p.Stats().ReleasesOwed)
		}
		before = requests()
		waiter := p.start(w.Context())
		time.Sleep(10 * rtt)
		require.NoError(w, leases[0].Release())
		require.NoError(w, (<-waiter).err)
		require.InDelta(w, 4.5*permits, requests()-before, permits)
		for _, l := range leases[10:] {
			require.NoError(w, l.Release())
		}
		var all []<-chan acquired
		for range permits - 10 {
			all = append(all, begin(w, permits, dlock.WithMaxWait(0)).start(w.Context()))
		}
		for _, one := range all {
			require.NoError(w, (<-one).err)
		}
	})
}

// A permit is a lock, with an owner, which is detached and broken like others. A process that names a larger
// number has more.
func TestPermitIsALock(t *testing.T) {
	cast.In(t, "memory", func(w *cast.World) {
		p, three := begin(w, 2, dlock.WithOwner("a")), begin(w, 3)
		leases := fill(w, p, 2)
		d, err := leases[0].Detach()
		require.NoError(w, err)
		_, err = three.Adopt(w.Context(), d)
		require.NoError(w, err)
		time.Sleep(time.Minute)
		_, _, err = p.TryAcquire(w.Context())
		require.ErrorIs(w, err, dlock.ErrHeld)
		found := status(w, three, slot(1))
		require.Equal(w, "a", found.Owner)
		_, permit, err := three.TryAcquire(w.Context())
		require.NoError(w, err)
		require.Equal(w, 2, permit)
		require.NoError(w, three.Break(w.Context(), found))
		_, permit, err = p.TryAcquire(w.Context())
		require.NoError(w, err)
		require.Equal(w, 1, permit)
	})
}

// Options that are about the work do not change the gate.
func TestOptions(t *testing.T) {
	cast.In(t, "memory", func(w *cast.World) {
		leases := fill(w, begin(w, 2), 2)
		p := begin(w, 2, dlock.WithRenewal(false), dlock.WithMaxHold(time.Second),
			dlock.WithTTLFrom(func(string) time.Duration { return time.Second }))
		waiter := p.start(w.Context())
		time.Sleep(time.Second)
		gate := status(w, p, "sem")
		require.InDelta(w, 3*time.Second, gate.Remaining, float64(time.Second))
		time.Sleep(time.Minute)
		require.Equal(w, gate.Started, status(w, p, "sem").Started)
		require.NoError(w, leases[0].Release())
		lease := (<-waiter).lease
		require.InDelta(w, time.Second, time.Until(lease.Deadline()), float64(20*time.Millisecond))
	})
}

func TestRefusals(t *testing.T) {
	cast.In(t, "memory", func(w *cast.World) {
		p, calls := begin(w, 2), 0
		client := p.With(dlock.WithObserver(&dlock.Observer{AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context {
			calls++
			return ctx
		}}))
		for text, s := range map[string]*semaphore.Semaphore{
			"permits: 0, not between 1 and 64":  semaphore.New(client, "sem", 0),
			"permits: 65, not between 1 and 64": semaphore.New(client, "sem", 65),
			"name: 0 bytes":                     semaphore.New(client, "", 1),
			"name: 1022 bytes":                  semaphore.New(client, strings.Repeat("x", 1022), 1),
			"WithMinHold(1s): a permit is free": semaphore.New(client.With(dlock.WithMinHold(time.Second)), "sem", 1),
			"WithMaxWait(-1s): negative":        semaphore.New(p.With(dlock.WithMaxWait(-time.Second)), "sem", 1),
		} {
			_, _, err := s.Acquire(w.Context())
			_, _, try := s.TryAcquire(w.Context())
			for _, err := range []error{err, try, s.Do(w.Context(), nil)} {
				require.ErrorIs(w, err, dlock.ErrInvalid)
			}
			require.ErrorContains(w, err, text)
			require.ErrorContains(w, try, text)
		}
		require.ErrorContains(w, semaphore.New(client, "sem", 1).Do(w.Context(), nil), "function: nil")
		require.Zero(w, calls)
		for range 64 {
			_, _, err := semaphore.New(p.Client, strings.Repeat("x", 1021), 64).TryAcquire(w.Context())
			require.NoError(w, err)
		}
		w.Memory.Fail(&dlock.NoEffectError{Err: errors.New("OOM"), State: true})
		_, _, err := semaphore.New(client, "sem", 2).TryAcquire(w.Context())
		require.ErrorContains(w, err, "the store refused: OOM")
		require.Equal(w, 1, calls)
		_, _, err = p.Acquire(w.Context())
		require.ErrorContains(w, err, "the store refused: OOM")
		_, _, err = semaphore.New(p.With(dlock.WithOutage(2*time.Second)), "sem", 1).Acquire(w.Context())
		require.ErrorContains(w, err, "store unavailable: no success for 2s: the store refused: OOM")
		time.AfterFunc(time.Second, func() { w.Memory.Fail(nil) })
		_, _, err = semaphore.New(p.With(dlock.WithOutage(time.Minute)), "other", 1).Acquire(w.Context())
		require.NoError(w, err)
		fill(w, p, 2)
		waiter := p.start(w.Context())
		time.Sleep(time.Second)
		require.NoError(w, p.Close())
		require.ErrorIs(w, (<-waiter).err, dlock.ErrClosed)
	})
}

// A Client is shut down at any instant of a call of Acquire. The error says so, and not that the caller's ctx has ended.
func TestShutdownDuringAcquire(t *testing.T) {
	everywhere(t, func(w *cast.World) {
		holder := begin(w, 2)
		over, end := context.WithCancel(w.Context())
		end()
		for after := time.Duration(0); after < 8*rtt; after += rtt / 4 {
			for _, full := range []bool{false, true} {
				var leases []*dlock.Lease
				if full {
					leases = fill(w, holder, 2)
				}
				p := begin(w, 2)
				done := p.start(w.Context())
				time.Sleep(after)
				_ = p.Shutdown(over)
				if a := <-done; a.err != nil {
					require.ErrorIs(w, a.err, dlock.ErrClosed)
					require.NotErrorIs(w, a.err, context.Canceled)
				} else {
					require.NoError(w, a.lease.Release())
				}
				for _, l := range leases {
					require.NoError(w, l.Release())
				}
				time.Sleep(2 * ttl)
			}
		}
	})
}

func TestDo(t *testing.T) {
	cast.In(t, "memory", func(w *cast.World) {
		p := begin(w, 1)
		do := func(work func(context.Context) error) error {
			defer func() { require.False(w, status(w, p, slot(0)).Held) }()
			return p.Do(w.Context(), func(ctx context.Context, permit int, lease *dlock.Lease) error {
				found, _ := dlock.LeaseFromContext(ctx, slot(permit))
				require.Same(w, lease, found)
				return work(ctx)
			})
		}
		lose := func(ctx context.Context) { w.Memory.Expire(slot(0)); <-ctx.Done() }
		require.NoError(w, do(func(context.Context) error { return nil }))
		require.Equal(w, errAway, do(func(context.Context) error { return errAway }))
		require.PanicsWithValue(w, "oops", func() { _ = do(func(context.Context) error { panic("oops") }) })
		two := semaphore.New(p.Client, "sem", 2) // another is free
		require.ErrorIs(w, do(func(ctx context.Context) error { _, _, err := two.Acquire(ctx); return err }), dlock.ErrNested)
		for _, result := range []func(context.Context) error{
			func(context.Context) error { return nil }, func(context.Context) error { return errAway }, context.Context.Err, context.Cause,
		} {
			var own error
			err := do(func(ctx context.Context) error { lose(ctx); own = result(ctx); return own })
			require.ErrorIs(w, err, dlock.ErrLost)
			require.Equal(w, 1, strings.Count(err.Error(), "lease lost"), err)
			require.Equal(w, own == errAway, errors.Is(err, errAway))
			require.NotErrorIs(w, err, context.Canceled)
		}
		over, end := context.WithCancel(w.Context())
		end()
		require.ErrorIs(w, p.Do(w.Context(), func(ctx context.Context, _ int, _ *dlock.Lease) error {
			go p.Shutdown(over)
			<-ctx.Done()
			return ctx.Err()
		}), dlock.ErrClosed)
	})
}

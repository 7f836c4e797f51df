package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// An inLine is a goroutine that acquires the key k.
type inLine struct {
	cancel context.CancelFunc
	result atomic.Pointer[result]
}

type result struct {
	lease *dlock.Lease
	err   error
}

func (w *inLine) ended() bool { return w.result.Load() != nil }

func (w *inLine) lease() *dlock.Lease { return w.result.Load().lease }

func (w *inLine) err() error {
	if r := w.result.Load(); r != nil {
		return r.err
	}
	return nil
}

// standInLine starts n acquisitions of k, one after the other.
func standInLine(t *testing.T, c *dlock.Client, n int) []*inLine {
	t.Helper()
	all := make([]*inLine, n)
	for i := range all {
		ctx, cancel := context.WithCancel(context.Background())
		w := &inLine{cancel: cancel}
		all[i] = w
		go func() {
			l, err := c.Acquire(ctx, "k")
			w.result.Store(&result{l, err})
		}()
		synctest.Wait()
	}
	return all
}

// requireTurn says that w holds k now, and that those behind it wait.
func requireTurn(t *testing.T, w *inLine, behind ...*inLine) *dlock.Lease {
	t.Helper()
	synctest.Wait()
	require.True(t, w.ended(), "not served")
	require.NoError(t, w.err())
	require.NoError(t, w.lease().Err())
	for _, b := range behind {
		require.False(t, b.ended(), "one behind it has not waited: %v", b.err())
	}
	return w.lease()
}

// serveAll releases the leases of all in their order.
func serveAll(t *testing.T, all []*inLine) {
	t.Helper()
	for i, w := range all {
		require.NoError(t, requireTurn(t, w, all[i+1:]...).Release())
		time.Sleep(time.Microsecond) // a MinHold may have to pass
	}
}

// block stands in line behind a holder, who releases the key then.
func block(t *testing.T, c *dlock.Client, n int) []*inLine {
	t.Helper()
	first := acquire(t, c, "k")
	all := standInLine(t, c, n)
	require.NoError(t, first.Release())
	return all
}

// leave ends waits.
func leave(all []*inLine) {
	for _, w := range all {
		w.cancel()
	}
	synctest.Wait()
}

func requireErrs(t *testing.T, all []*inLine, want ...any) {
	t.Helper()
	synctest.Wait()
	for _, w := range all {
		requireErr(t, w.err(), want...)
	}
}

// serveAny releases what is held, as often as some wait.
func serveAny(t *testing.T, all []*inLine) {
	t.Helper()
	for range all {
		settle(time.Second)
		for _, w := range all {
			if w.ended() && w.lease().Err() == nil {
				require.NoError(t, w.lease().Release())
			}
		}
	}
	synctest.Wait()
	for _, w := range all {
		require.True(t, w.ended())
	}
}

func waitingFor(t *testing.T, store *memory.Locker) int {
	t.Helper()
	return holder(t, store, "k").Waiting
}

// inTurns runs a test with a Client that has local turns. Nothing may be left at its end.
func inTurns(t *testing.T, n int, f func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client)) {
	t.Helper()
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithLocalTurns(n))
		f(t, store, s, c)
		synctest.Wait()
		require.Zero(t, c.Lines(), "lines")
		require.NoError(t, c.Close())
		require.Zero(t, c.Stats().Waiters)
		requireFree(t, store, "k")
	})
}

// inTurnsCases are the tests of lines of eight turns, by what they say of them.
type inTurnsCases map[string]func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client)

func (all inTurnsCases) run(t *testing.T) {
	for name, f := range all {
		t.Run(name, func(t *testing.T) { inTurns(t, 8, f) })
	}
}

// A line has one place. Each block costs one wait and one release; its holders share the
// token and have fences that follow each other.
func TestTurns(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inTurns(t, n, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
				first := acquire(t, c, "k")
				all := standInLine(t, c, 3*n)
				require.Equal(t, 1, waitingFor(t, store))
				require.Equal(t, 3*n, c.Stats().Waiters)
				s.forget()
				require.NoError(t, first.Release())
				for i, w := range all {
					l := requireTurn(t, w, all[i+1:]...)
					if i%n > 0 {
						before := all[i-1].lease()
						require.Equal(t, before.Token(), l.Token())
						require.Equal(t, before.Fence()+1, l.Fence())
						require.Equal(t, before.Deadline().IsZero(), l.Deadline().IsZero())
					} else if i > 0 {
						require.NotEqual(t, all[i-1].lease().Token(), l.Token())
						require.GreaterOrEqual(t, l.Fence(), all[i-n].lease().Fence()+8)
					}
					require.Equal(t, min(1, (3*n-1-i)/n), waitingFor(t, store), "places of those for whom no turn is left")
					require.NoError(t, l.Release())
				}
				require.Len(t, s.made("acquire"), 2, "the first errand was sent before")
				require.Len(t, s.made("release"), 4)
				require.Len(t, s.made(), 6)
			})
		})
	}
}

func TestLines(t *testing.T) {
	inTurnsCases{
		"when the taker has the lease, everything of the giver has ended, and its Release does nothing any more": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			first := acquire(t, c, "k")
			type value struct{}
			ctx := context.WithValue(t.Context(), value{}, "giver")
			var giver *dlock.Lease
			go func() { giver, _ = c.Acquire(ctx, "k") }()
			synctest.Wait()
			var taker *dlock.Lease
			var work context.Context
			var seen []error
			go func() {
				taker, _ = c.Acquire(context.WithValue(t.Context(), value{}, "taker"), "k")
				select {
				case <-giver.Done():
				default:
					seen = append(seen, errors.New("Done is open"))
				}
				seen = append(seen, giver.Err(), context.Cause(work))
			}()
			synctest.Wait()
			require.NoError(t, first.Release())
			synctest.Wait()
			work = giver.Context(ctx)
			giver.Done()
			require.NoError(t, giver.Release())
			synctest.Wait()
			require.Equal(t, []error{dlock.ErrReleased, dlock.ErrReleased}, seen)
			require.Equal(t, 1, c.Stats().Leases)
			s.forget()
			require.NoError(t, giver.Release())
			require.ErrorIs(t, giver.Renew(t.Context()), dlock.ErrReleased)
			require.Empty(t, s.made())
			require.NoError(t, taker.Err())
			time.Sleep(time.Minute)
			require.NoError(t, taker.Err())
			require.Equal(t, "taker", s.made("renew", "batch")[0].ctx.Value(value{}))
			require.NoError(t, taker.Release())
		},
		"one who leaves gives up its own turn, not the place in the queue": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			other := dlock.New(store)
			first := acquire(t, other, "k")
			all := standInLine(t, c, 2)
			stranger := standInLine(t, other, 1)
			all = append(all, standInLine(t, c.With(dlock.WithMaxWait(time.Minute)), 1)...)
			leave(all[:1])
			requireErr(t, all[0].err(), context.Canceled, dlock.ErrHeld)
			settle(time.Minute)
			requireErr(t, all[2].err(), dlock.ErrHeld, noContext, "waited for 1m0s")
			require.NoError(t, first.Release())
			require.NoError(t, requireTurn(t, all[1], stranger[0]).Release())
			require.NoError(t, requireTurn(t, stranger[0]).Release())
			require.Len(t, s.made("acquire"), 1)
		},
		"the last who leaves calls the errand off, and is told what it has heard": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Hour)
			all := standInLine(t, c.With(dlock.WithMaxWait(time.Minute)), 1)
			all = append(all, standInLine(t, c.With(dlock.WithMaxWait(2*time.Minute)), 1)...)
			settle(2 * time.Minute)
			for _, w := range all {
				requireErr(t, w.err(), dlock.ErrHeld, noContext)
			}
			held := as[*dlock.HeldError](t, all[1].err())
			require.Equal(t, 58*time.Minute, held.Remaining)
			require.Zero(t, waitingFor(t, store))
			again := standInLine(t, c, 1)
			leave(again[:1])
			require.ErrorIs(t, again[0].err(), context.Canceled)
			_, err := c.Acquire(within(t, time.Second), "k")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, context.Canceled, "of the errand")
			require.Zero(t, waitingFor(t, store))
			store.Expire("k")
		},
		// For a second, those who join rely on the store's word to the line. Then each asks for
		// itself: a store that is away must not look like a long wait.
		"word to the line": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Hour)
			all := standInLine(t, c, 1)
			s.forget()
			time.Sleep(time.Second - time.Nanosecond)
			all = append(all, standInLine(t, c, 2)...)
			require.Empty(t, s.made())
			require.False(t, all[1].ended())
			time.Sleep(time.Nanosecond)
			store.Fail(errStore)
			told := standInLine(t, c, 2)
			requireErrs(t, told, errStore)
			require.Len(t, s.made("try"), 2)
			store.Fail(nil)
			s.forget()
			all = append(all, standInLine(t, c, 2)...)
			require.Len(t, s.made("try"), 1, "the first has the word for the second")
			leave(all)
			store.Expire("k")
		},
		// An errand that fails is repeated for all who wait. Newcomers ask for themselves.
		"errand fails": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, 10*time.Second)
			var fails atomic.Bool
			fails.Store(true)
			s.onCall(func(c *call) { c.failIf(c.op == "acquire" && fails.Load(), errStore) })
			all := standInLine(t, c, 3)
			time.Sleep(500 * time.Millisecond)
			s.forget()
			all = append(all, standInLine(t, c, 1)...)
			require.Len(t, s.made("try"), 1, "not known to be held since a call has failed")
			hurried := standInLine(t, c.With(dlock.WithMaxWait(5*time.Second)), 1)
			settle(7 * time.Second)
			requireErr(t, hurried[0].err(), dlock.ErrHeld, errStore, "the store last answered 5")
			require.Less(t, len(s.made("acquire")), 20, "one errand, with pauses")
			fails.Store(false)
			time.Sleep(3 * time.Second)
			serveAll(t, all)
		},
		"Without fences there are none in a block either": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Second)
			s.on("acquire", func(c *call) { c.attempt = &dlock.Attempt{Acquired: true} })
			all := standInLine(t, c, 2)
			time.Sleep(time.Second)
			serveAll(t, all)
			require.Zero(t, all[0].lease().Fence())
			require.Zero(t, all[1].lease().Fence())
		},
		"an errand without an answer owes a release of its own token, and nobody else's": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Second)
			s.first("acquire", func(c *call) { c.reply = errStore }) // the grant is lost on its way
			all := standInLine(t, c, 3)
			settle(3 * time.Second)
			lost := s.made("acquire")[0].token
			l := requireTurn(t, all[0], all[1:]...)
			require.NotEqual(t, lost, l.Token())
			for _, c := range s.made("release") {
				require.Equal(t, lost, c.token)
			}
			serveAll(t, all)
			time.Sleep(time.Minute)
		},
		// A Locker that ends the goroutine of an errand leaves nobody waiting: all ask for themselves.
		"goexit in an errand": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Minute)
			end := make(chan struct{})
			s.first("acquire", func(c *call) {
				<-end
				runtime.Goexit()
			})
			all := standInLine(t, c, 3)
			close(end)
			synctest.Wait()
			require.Equal(t, 2, waitingFor(t, store), "the first, and a line of the others")
			store.Expire("k")
			serveAny(t, all)
		},
		"a late grant that nobody wants any more is released once": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			c = c.With(dlock.WithTTL(time.Second))
			hold(t, store, time.Second)
			s.onCall(func(c *call) {
				switch {
				case c.op == "acquire" && len(s.made("acquire")) == 1:
					c.delay = 950 * time.Millisecond
				case c.op == "try" && len(s.made("try")) == 2:
					c.delay = 100 * time.Millisecond
				}
			})
			left := standInLine(t, c, 1)
			time.Sleep(1960 * time.Millisecond)
			leave(left[:1])
			next := standInLine(t, c, 1)
			time.Sleep(100 * time.Millisecond)
			require.ErrorIs(t, left[0].err(), context.Canceled)
			require.Len(t, s.made("release"), 1)
			serveAll(t, next)
		},
		"the first of a block has the values of its own ctx, also if another has sent the errand": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			type value struct{}
			first := acquire(t, c, "k")
			sender := standInLine(t, c, 1)
			go c.Do(context.WithValue(t.Context(), value{}, "mine"), "k", noWork)
			synctest.Wait()
			leave(sender[:1])
			s.forget()
			require.NoError(t, first.Release())
			synctest.Wait()
			require.Equal(t, "mine", s.made("release")[1].ctx.Value(value{}))
		},
		"when an errand has found that the store has no queue, no other is sent": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.on("acquire", says(errors.ErrUnsupported))
			hold(t, store, time.Hour)
			all := standInLine(t, c, 4)
			require.Len(t, s.made("acquire"), 1)
			leave(all)
			store.Expire("k")
		},
	}.run(t)
}

// Only waits with the same options share a line; each has a MaxWait and a ctx of its own.
func TestClassesOfTurns(t *testing.T) {
	pauses := func(int) time.Duration { return time.Second }
	backoff := dlock.WithBackoff(pauses)
	for name, test := range map[string]struct {
		one, other []dlock.Option
		places     int
	}{
		"same":          {places: 1},
		"MaxWait":       {other: []dlock.Option{dlock.WithMaxWait(time.Hour)}, places: 1},
		"TTL":           {other: []dlock.Option{dlock.WithTTL(time.Hour)}, places: 2},
		"MaxHold":       {other: []dlock.Option{dlock.WithMaxHold(time.Hour)}, places: 2},
		"owner":         {other: []dlock.Option{dlock.WithOwner("o")}, places: 2},
		"fence":         {other: []dlock.Option{dlock.WithFence(true)}, places: 2},
		"turns":         {other: []dlock.Option{dlock.WithLocalTurns(4)}, places: 2},
		"off":           {other: []dlock.Option{dlock.WithLocalTurns(1)}, places: 2},
		"backoff":       {one: []dlock.Option{backoff}, other: []dlock.Option{backoff, dlock.WithMaxWait(time.Hour)}, places: 1},
		"backoffs":      {one: []dlock.Option{backoff}, other: []dlock.Option{dlock.WithBackoff(pauses)}, places: 2},
		"off, both":     {[]dlock.Option{dlock.WithLocalTurns(1)}, []dlock.Option{dlock.WithLocalTurns(1)}, 2},
		"no renewal":    {[]dlock.Option{dlock.WithRenewal(false)}, []dlock.Option{dlock.WithRenewal(false)}, 2},
		"MinHold":       {[]dlock.Option{dlock.WithMinHold(1)}, []dlock.Option{dlock.WithMinHold(1)}, 2},
		"short MaxHold": {[]dlock.Option{dlock.WithMaxHold(9 * time.Second)}, []dlock.Option{dlock.WithMaxHold(9 * time.Second)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
				first := acquire(t, c, "k")
				all := append(standInLine(t, c.With(test.one...), 1), standInLine(t, c.With(test.other...), 1)...)
				require.Equal(t, test.places, waitingFor(t, store))
				require.NoError(t, first.Release())
				serveAll(t, all)
			})
		})
	}
}

// In a store without a queue each polls for itself.
func TestTurnsWithoutQueue(t *testing.T) {
	for _, wrapped := range []bool{false, true} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			var l dlock.Locker = plain{s}
			if wrapped {
				l = dlock.Forward{Locker: l}
			}
			c := dlock.New(l, dlock.WithLocalTurns(8))
			first := acquire(t, c, "k")
			all := standInLine(t, c, 4)
			require.Zero(t, c.Lines())
			s.forget()
			time.Sleep(time.Second)
			require.Greater(t, len(s.made("try")), 16, "all of them poll")
			require.NoError(t, first.Release())
			serveAny(t, all)
		})
	}
}

// A grant is passed on while it is young, and only by Release. Whatever ends its block, the
// place in the queue is taken at that moment.
func TestEndOfABlock(t *testing.T) {
	pause := func(d time.Duration) func(*testing.T, *memory.Locker, *spy, *dlock.Lease) {
		return func(*testing.T, *memory.Locker, *spy, *dlock.Lease) { time.Sleep(d) }
	}
	for name, test := range map[string]struct {
		ttl    time.Duration
		what   func(t *testing.T, store *memory.Locker, s *spy, l *dlock.Lease)
		passes bool
	}{
		"nothing":        {what: pause(0), passes: true},
		"young":          {what: pause(70 * time.Millisecond), passes: true},
		"old":            {what: pause(110 * time.Millisecond)},
		"old, 4 s":       {ttl: 4 * time.Second, what: pause(110 * time.Millisecond)},
		"young, 150 ms":  {ttl: 150 * time.Millisecond, what: pause(30 * time.Millisecond), passes: true},
		"old, 150 ms":    {ttl: 150 * time.Millisecond, what: pause(55 * time.Millisecond)},
		"young, 10 ms":   {ttl: 10 * time.Millisecond, what: pause(time.Millisecond), passes: true},
		"renewed":        {what: func(t *testing.T, _ *memory.Locker, _ *spy, l *dlock.Lease) { require.NoError(t, l.Renew(t.Context())) }},
		"renewal failed": {what: func(t *testing.T, _ *memory.Locker, s *spy, l *dlock.Lease) { failRenew(t, s, l) }},
		"renewal in flight": {what: func(t *testing.T, _ *memory.Locker, s *spy, l *dlock.Lease) {
			s.on("renew", func(c *call) { time.Sleep(10 * time.Millisecond) })
			go l.Renew(context.Background())
			synctest.Wait()
		}},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s, dlock.WithLocalTurns(8), dlock.WithTTL(max(test.ttl, 10*time.Millisecond)))
			if test.ttl == 0 {
				c = c.With(dlock.WithTTL(dlock.DefaultTTL))
			}
			all := block(t, c, 2)
			l := requireTurn(t, all[0], all[1])
			require.Zero(t, waitingFor(t, store))
			test.what(t, store, s, l)
			synctest.Wait()
			if !test.passes {
				require.Equal(t, 1, waitingFor(t, store), "the next place is taken")
			}
			require.NoError(t, l.Release())
			next := requireTurn(t, all[1])
			require.Equal(t, test.passes, next.Token() == l.Token())
			require.NoError(t, next.Release())
			require.Zero(t, c.Lines())
		})
	}
}

func failRenew(t *testing.T, s *spy, l *dlock.Lease) {
	s.on("renew", says(errStore))
	require.ErrorIs(t, l.Renew(t.Context()), errStore)
}

// A grant that comes late is not passed on: not enough of its TTL remains.
func TestLateGrantIsNotPassedOn(t *testing.T) {
	for late, passes := range map[time.Duration]bool{2 * time.Second: true, 3 * time.Second: false} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s, dlock.WithLocalTurns(8))
			s.on("acquire", func(c *call) { c.delay = late })
			hold(t, store, time.Second)
			all := standInLine(t, c, 2)
			time.Sleep(time.Second + late)
			l := requireTurn(t, all[0], all[1])
			require.NoError(t, l.Release())
			settle(time.Hour)
			require.Equal(t, passes, all[1].lease().Token() == l.Token())
			require.NoError(t, all[1].lease().Release())
			require.Zero(t, c.Lines())
		})
	}
}

// The taker has what remains of the giver's first TTL, and the giver's first renewal. A MaxHold is each holder's own.
func TestTurnInheritsTheFirstTTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(single{s}, dlock.WithLocalTurns(8), dlock.WithMaxHold(20*time.Second))
		all := block(t, c, 3)
		granted := time.Now()
		deadline := requireTurn(t, all[0]).Deadline()
		time.Sleep(30 * time.Millisecond)
		require.NoError(t, all[0].lease().Release())
		require.Equal(t, deadline, requireTurn(t, all[1], all[2]).Deadline())
		time.Sleep(30 * time.Millisecond)
		require.NoError(t, all[1].lease().Release())
		last := requireTurn(t, all[2])
		require.Empty(t, s.made("renew"))
		time.Sleep(time.Second)
		renewed := s.made("renew")[0]
		require.LessOrEqual(t, renewed.at, granted.Add(100*time.Millisecond))
		require.Equal(t, dlock.DefaultTTL, renewed.ttl)
		time.Sleep(time.Until(granted.Add(20*time.Second + 30*time.Millisecond)))
		require.NoError(t, last.Renew(t.Context()), "the MaxHold of the third counts from its turn")
		time.Sleep(30 * time.Millisecond)
		require.ErrorContains(t, last.Renew(t.Context()), "WithMaxHold")
		require.NoError(t, last.Release())
	})
}

// A grant serves as many as stood in line when it came. Others who come later take the turns
// of those who have left, and no more.
func TestGate(t *testing.T) {
	inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		all := block(t, c, 4)
		block := requireTurn(t, all[0]).Token()
		all[3].cancel()
		synctest.Wait()
		late := standInLine(t, c, 1)
		require.Zero(t, waitingFor(t, store), "a turn is left for it")
		late = append(late, standInLine(t, c, 2)...)
		require.Equal(t, 1, waitingFor(t, store))
		all = append(all[:3], late...)
		serveAll(t, all)
		for i, w := range all {
			require.Equal(t, i < 4, w.lease().Token() == block, "waiter %d", i)
		}
	})
	inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) { // two alternate
		l := acquire(t, c, "k")
		for range 10 {
			next := standInLine(t, c, 1)
			require.NoError(t, l.Release())
			require.NotEqual(t, l.Token(), requireTurn(t, next[0]).Token())
			l = next[0].lease()
		}
		require.NoError(t, l.Release())
	})
}

// One whose ctx has ended before the release gets no lease, also if it has not noticed yet.
func TestEndedWaitGetsNoLease(t *testing.T) {
	for range 50 { // for the order in which goroutines notice
		inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			for _, others := range []bool{true, false} { // the lease of another, or that of a block
				first := acquire(t, dlock.New(store), "k")
				all := standInLine(t, c, 6)
				if !others {
					require.NoError(t, first.Release())
					first, all = requireTurn(t, all[0], all[1:]...), all[1:]
				}
				for i, w := range all {
					if others || i != 3 {
						w.cancel()
					}
				}
				require.NoError(t, first.Release())
				synctest.Wait()
				for i, w := range all {
					if !others && i == 3 {
						require.NoError(t, requireTurn(t, w).Release())
						continue
					}
					requireErr(t, w.err(), context.Canceled, dlock.ErrHeld)
				}
				requireFree(t, store, "k")
			}
		})
	}
}

// tooLate grants a key only to those who do not want it any more.
type tooLate struct {
	*spy
	store *memory.Locker
}

func (l tooLate) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	<-ctx.Done()
	time.Sleep(time.Second)
	l.store.Expire(key)
	return l.TryAcquire(context.Background(), key, token, ttl)
}

// A grant at the moment at which the last one leaves is its own; if others have come
// meanwhile, and sent an errand, it is given back.
func TestGrantForTheLast(t *testing.T) {
	for _, late := range []bool{false, true} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			hold(t, store, time.Hour)
			c := dlock.New(tooLate{s, store}, dlock.WithLocalTurns(8))
			w := standInLine(t, c, 1)
			leave(w[:1])
			require.False(t, w[0].ended(), "the errand's answer is awaited")
			var others []*inLine
			if late {
				others = standInLine(t, c, 1)
			}
			settle(time.Second)
			if late {
				require.ErrorIs(t, w[0].err(), context.Canceled)
				require.NotContains(t, w[0].err().Error(), "nobody")
				require.Len(t, s.made("release"), 1)
				others[0].cancel()
				settle(time.Second)
				w = others
			}
			require.NoError(t, requireTurn(t, w[0]).Release())
			require.Zero(t, c.Lines())
		})
	}
}

// While a key is contended, the first of a line makes no attempt, and the others do until the
// store has answered. If the errand fails before that, the first asks for itself.
func TestFirstOfACrowd(t *testing.T) {
	for _, fails := range []bool{false, true} {
		inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, 100*time.Millisecond)
			require.NoError(t, acquire(t, c, "k").Release())
			hold(t, store, time.Minute)
			s.forget()
			if fails {
				store.Fail(errStore)
			}
			all := standInLine(t, c, 1)
			if fails {
				require.Len(t, s.made("acquire"), 1)
				require.Len(t, s.made("try"), 1)
				require.ErrorIs(t, all[0].err(), errStore)
				store.Fail(nil)
				store.Expire("k")
				return
			}
			all = append(all, standInLine(t, c, 1)...)
			require.Equal(t, []string{"acquire", "try"}, s.ops())
			store.Expire("k")
			serveAll(t, all)
		})
	}
}

// Errors that end a wait are told to all.
func TestErrandFailsForGood(t *testing.T) {
	for _, final := range []error{dlock.ErrInvalid, dlock.ErrClosed} {
		inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Minute)
			fail := make(chan struct{})
			s.on("acquire", func(c *call) {
				<-fail
				c.err = final
			})
			all := standInLine(t, c, 3)
			close(fail)
			synctest.Wait()
			requireErrs(t, all, final)
			store.Expire("k")
		})
	}
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithLocalTurns(8), dlock.WithFence(true))
		hold(t, store, time.Second)
		s.on("acquire", func(c *call) { c.attempt = &dlock.Attempt{Acquired: true} })
		all := standInLine(t, c, 3)
		settle(time.Second)
		requireErrs(t, all, errors.ErrUnsupported)
		requireFree(t, store, "k")
	})
}

// Detach ends a block. Its turns and the leases detached after them share 8 fences.
func TestDetachAfterTurns(t *testing.T) {
	for _, n := range []int{4, 8} {
		inTurns(t, n, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			all := block(t, c, n+1)
			for _, w := range all[:n-1] {
				require.NoError(t, requireTurn(t, w).Release())
			}
			l := requireTurn(t, all[n-1], all[n])
			fence := l.Fence()
			for range 8 - n {
				d, err := l.Detach()
				require.NoError(t, err)
				l, err = c.Adopt(t.Context(), d)
				require.NoError(t, err)
				fence++
				require.Equal(t, fence, l.Fence())
			}
			requireErr(t, errOf(l.Detach()), dlock.ErrInvalid, "passed on 7 times")
			require.NoError(t, l.Err())
			require.NoError(t, l.Release())
			require.NoError(t, requireTurn(t, all[n]).Release())
		})
	}
	inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		all := block(t, c, 2)
		d, err := requireTurn(t, all[0]).Detach()
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, waitingFor(t, store))
		adopted, err := c.Adopt(t.Context(), d)
		require.NoError(t, err)
		require.False(t, all[1].ended())
		require.NoError(t, adopted.Release())
		require.NotEqual(t, adopted.Token(), requireTurn(t, all[1]).Token())
		require.NoError(t, all[1].lease().Release())
	})
}

// A lease that is lost is not passed on. A line that knows a newer grant passes on that one.
func TestLostLeaseIsNotPassedOn(t *testing.T) {
	inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		all := block(t, c, 3)
		l := requireTurn(t, all[0])
		s.fail(refuse, 6*time.Second)
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		time.Sleep(time.Second)
		require.NotEqual(t, l.Token(), requireTurn(t, all[1], all[2]).Token())
		serveAll(t, all[1:])
	})
	inTurns(t, 2, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		all := block(t, c, 6)
		old := requireTurn(t, all[0], all[1])
		store.Wipe()
		newer := requireTurn(t, all[1], all[2])
		require.NotEqual(t, old.Token(), newer.Token())
		_ = old.Release()
		requireTurn(t, all[1], all[2:]...)
		serveAll(t, all[1:])
	})
}

// Close ends the waits in a line and its errand, and nothing is passed on any more.
func TestCloseEndsTheLine(t *testing.T) {
	for _, shutdown := range []bool{false, true} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s, dlock.WithLocalTurns(2))
			all := block(t, c, 5)
			l := requireTurn(t, all[0])
			require.Equal(t, 1, waitingFor(t, store))
			closed := make(chan error, 1)
			go func() {
				if shutdown {
					closed <- c.Shutdown(context.Background())
				} else {
					closed <- c.Close()
				}
			}()
			synctest.Wait()
			requireErrs(t, all[1:], dlock.ErrClosed)
			require.Zero(t, waitingFor(t, store))
			require.NoError(t, l.Release())
			require.NoError(t, <-closed)
			requireFree(t, store, "k")
			require.Zero(t, c.Lines())
		})
	}
}

// Close counts an errand as a call: it waits for its end.
func TestCloseWaitsForTheErrand(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Hour)
		c := dlock.New(tooLate{s, store}, dlock.WithLocalTurns(8))
		all := standInLine(t, c, 2)
		start := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, time.Second, time.Since(start))
		synctest.Wait()
		require.ErrorIs(t, all[0].err(), dlock.ErrClosed)
		require.ErrorIs(t, all[1].err(), dlock.ErrClosed)
		require.Len(t, s.made("release"), 1, "the grant was given back")
	})
}

// Close at the same time as Release: each waiter gets a lease or ErrClosed, and no lease is left in the store.
func TestCloseRacesRelease(t *testing.T) {
	for range 300 {
		store := memory.New()
		c := dlock.New(store, dlock.WithLocalTurns(8))
		first := acquire(t, c, "k")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				l, err := c.Acquire(context.Background(), "k")
				switch {
				case err == nil:
					err = l.Release()
				case errors.Is(err, dlock.ErrClosed):
					err = nil
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		for waitingFor(t, store) == 0 {
			runtime.Gosched()
		}
		all.Go(func() { first.Release() })
		all.Go(func() { c.Close() })
		all.Wait()
		requireFree(t, store, "k")
		require.Zero(t, c.Lines())
	}
}

// A waiter of another process is passed by at most 2n-1 others: those of the rest of a block,
// and of one place that stood before its own. The store notes how many have held the key when
// a stranger takes its place, which is when nothing else happens.
func TestPassedByAtMost(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		run(t, fmt.Sprint(n), func(t *testing.T, store *memory.Locker, s *spy) {
			var mu sync.Mutex
			held, most := 0, 0
			places := make(map[string]int) // of strangers, by token: how many of the crowd had held the key by then
			s.onCall(func(c *call) {
				mu.Lock()
				defer mu.Unlock()
				if c.op == "acquire" {
					places[c.token] = held
				}
			})
			hold := func(c *dlock.Client, d time.Duration) bool { // each wait ends, also after a failure
				return assert.NoError(t, c.Do(within(t, time.Minute), "k", func(_ context.Context, l *dlock.Lease) error {
					mu.Lock()
					if place, ok := places[l.Token()]; ok {
						most = max(most, held-place)
					} else {
						held++
					}
					mu.Unlock()
					time.Sleep(d)
					return nil
				}))
			}
			var all sync.WaitGroup
			end := time.Now().Add(2 * time.Second)
			crowd, stranger := dlock.New(store, dlock.WithLocalTurns(n)), dlock.New(s)
			t.Cleanup(func() { crowd.Close(); stranger.Close() }) // or renewals go on for ever after a failure
			for i := range 3 * n {
				all.Go(func() {
					for time.Now().Before(end) && hold(crowd, time.Duration(1+i%3)*time.Millisecond) {
					}
				})
			}
			for i := range 2 {
				all.Go(func() {
					time.Sleep(time.Duration(1+i) * 300 * time.Microsecond)
					for time.Now().Before(end) && hold(stranger, 0) {
						time.Sleep(3*time.Millisecond + time.Duration(1+i)*300*time.Microsecond)
					}
				})
			}
			over := make(chan struct{})
			go func() { all.Wait(); close(over) }()
			select {
			case <-over:
			case <-time.After(time.Hour):
				t.Fatal("a wait does not end")
			}
			require.LessOrEqual(t, most, 2*n-1)
			require.GreaterOrEqual(t, most, n, "the strangers had it too easy to prove anything")
		})
	}
}

// Leases of each TTL are passed on, and none is lost.
func TestTurnsWithShortTTLs(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Millisecond, 35 * time.Millisecond, 150 * time.Millisecond, time.Second, 6 * time.Second} {
		in(t, func(t *testing.T, _ *memory.Locker, n *spy) {
			n.setRTT(time.Millisecond)
			c := dlock.New(n, dlock.WithLocalTurns(8), dlock.WithTTL(ttl))
			var all sync.WaitGroup
			busy := 0
			for i := range 32 {
				all.Go(func() {
					for round := range 20 {
						l, err := c.Acquire(context.Background(), "k")
						if err != nil {
							t.Error(err)
							return
						}
						if busy++; busy != 1 {
							t.Error("two hold the key")
						}
						time.Sleep(time.Duration((i+round)%7) * ttl / 14)
						busy--
						if err := l.Release(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			require.Zero(t, c.Stats().Lost)
			require.Zero(t, c.Lines())
			require.NoError(t, c.Close())
		})
	}
}

// Lines of many keys do not meet, and nothing is kept of them.
func TestTurnsOfManyKeys(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(store, dlock.WithLocalTurns(8))
		together(3000, func(i int) {
			assert.NoError(t, c.Do(t.Context(), fmt.Sprint(i%1000), func(_ context.Context, l *dlock.Lease) error {
				time.Sleep(time.Millisecond)
				return l.Release()
			}))
		})
		require.Zero(t, c.Lines())
	})
}

// A failure of the errand does not outlive its next wait in the queue, and is no reason to
// forget a newer answer: one who leaves is told that the key is held.
func TestFailuresOfAnErrandEnd(t *testing.T) {
	fail := func(s *spy, until time.Duration, early, late error) {
		begin := time.Now()
		s.onCall(func(c *call) {
			switch {
			case c.op != "acquire":
			case time.Since(begin) < until:
				c.answers(dlock.Attempt{Holder: "other", Remaining: 10 * time.Second}, early)
			default:
				c.err = late
			}
		})
	}
	inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		first := acquire(t, dlock.New(store), "k") // renewed: its answers are about 30 s
		fail(s, 10*time.Millisecond, errStore, nil)
		leaver := standInLine(t, c.With(dlock.WithMaxWait(40*time.Second)), 1)
		last := standInLine(t, c, 1)
		settle(40 * time.Second)
		require.ErrorIs(t, leaver[0].err(), dlock.ErrHeld)
		require.NoError(t, first.Release())
		serveAll(t, last)
	})
	inTurns(t, 8, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		hold(t, store, time.Hour)
		fail(s, 20*time.Second, errStore, errStore)
		first := standInLine(t, c, 1)
		time.Sleep(20 * time.Second)
		last := standInLine(t, c.With(dlock.WithMaxWait(20*time.Second)), 1)
		first[0].cancel()
		settle(20 * time.Second)
		require.ErrorIs(t, last[0].err(), dlock.ErrHeld, "by its own attempt")
		require.ErrorIs(t, last[0].err(), errStore)
		store.Expire("k")
	})
}

// Close may come between the end of a lease and its successor, or before an errand: the one
// who should get the lease is told, and no errand is sent.
func TestCloseBetweenTwoTurns(t *testing.T) {
	for _, renews := range []bool{false, true} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s, dlock.WithLocalTurns(8))
			all := block(t, c, 3)
			l := requireTurn(t, all[0], all[1:]...)
			c.RefuseCalls()
			s.forget()
			if renews {
				require.NoError(t, l.Renew(t.Context()))
				synctest.Wait()
				require.Empty(t, s.made("acquire"), "an errand")
			}
			require.NoError(t, l.Release())
			synctest.Wait()
			require.Equal(t, !renews, all[1].ended())
			if !renews {
				require.ErrorIs(t, all[1].err(), dlock.ErrClosed)
			}
			requireFree(t, store, "k")
			leave(all[1:])
			require.Zero(t, c.Lines())
			require.Empty(t, s.made("acquire"), "an errand")
		})
	}
}

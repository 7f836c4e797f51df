package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

func TestOwedReleaseIsRepeated(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		time.Sleep(10 * time.Second)
		requireOwed := len(s.made("release"))
		require.Greater(t, requireOwed, 4)
		require.Less(t, requireOwed, 15)
		store.Fail(nil)
		time.Sleep(8 * time.Second)
		requireFree(t, store, "k")
		n := len(s.made("release"))
		require.NoError(t, l.Release())
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), n)
	})
}

func TestFailedReleaseIsOwedOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		store.Fail(errStore)
		for range 3 {
			require.ErrorIs(t, l.Release(), errStore)
		}
		require.ErrorContains(t, c.Close(), "1 releases not answered")
	})
}

func TestOwedReleaseIsNotSentAfterRelease(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		synctest.Wait()
		store.Fail(nil)
		require.NoError(t, l.Release())
		n := len(s.made("release"))
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), n)
	})
}

func TestOwedReleaseIsGivenUpAfterATTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.Fail(errStore)
		start := time.Now()
		require.ErrorIs(t, l.Release(), errStore)
		time.Sleep(time.Hour)
		releases := s.made("release")
		require.Equal(t, start.Add(30*time.Second), releases[len(releases)-1].at)
		require.ErrorIs(t, l.Release(), errStore, "there is no time left for another try")
	})
}

func TestLostLeaseThatTheStoreForgotIsReleasedOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		time.Sleep(29 * time.Second)
		require.True(t, store.Expire("k"))
		<-l.Done()
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), 1)
	})
}

// A lease is adopted with a shorter TTL, and its release gets no answer for longer than that.
func TestReleaseOfALeaseAdoptedWithAShorterTTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(time.Hour))
		d := detach(t, acquire(t, c, "k"))
		l := adopt(t, c.With(dlock.WithTTL(time.Second)), d)
		store.Fail(errStore)
		require.Error(t, l.Release())
		time.Sleep(3 * time.Second)
		store.Fail(nil)
		time.Sleep(10 * time.Second)
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
	})
}

func TestEachTryOfAReleaseEnds(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.err = errStore
				return
			}
			c.hang()
		})
		c := dlock.New(s)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(5500 * time.Millisecond)
		releases := s.made("release")
		require.Len(t, releases, 6, "one a second")
		require.Error(t, releases[0].ctx.Err(), "it ends after 5 s")
		require.NoError(t, releases[1].ctx.Err())
		start := time.Now()
		require.Error(t, c.Close())
		require.Equal(t, 5*time.Second, time.Since(start))
		synctest.Wait()
		for _, r := range s.made("release") {
			require.Error(t, r.ctx.Err(), "it outlives Close")
		}
	})
}

func TestFailedAcquireIsReleased(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		_, err := dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		synctest.Wait()
		tokens := s.made("acquire")
		require.Len(t, tokens, 1)
		require.True(t, s.released(tokens[0].token))
	})
}

// A cut wait in the queue needs one release, if the store knows what the wait has left.
func TestCutWaitIsReleasedOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Hour)
		_, err := dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), 1)
	})
}

func TestCancelledPollOwesNothing(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		_, err := dlock.New(plain{s}, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Minute)
		require.Empty(t, s.made("release"), "every attempt was answered")
	})
}

func TestWhatWasNotSentIsNotOwed(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("pool: %w", errDial),
		fmt.Errorf("%w key: has a hash tag", dlock.ErrInvalid),
		errors.ErrUnsupported,
	} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s)
			store.Fail(err)
			_, got := c.Acquire(t.Context(), "k")
			require.ErrorIs(t, got, err)
			time.Sleep(time.Minute)
			require.Empty(t, s.made("release"))
			require.NoError(t, c.Close())
		})
	}
}

// A Locker of several stores joins their errors: one could not be dialled, another
// did not answer (and has granted the key).
func TestJoinedDialErrorIsOwed(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.reply = errors.Join(errDial, errStore)
			}
		})
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		synctest.Wait()
		requireFree(t, store, "k")
	})
}

// What is owed after an acquisition that failed.
func TestWhatAnAcquisitionOwes(t *testing.T) {
	mark := func(err error) error { return &dlock.NoEffectError{Err: err} }
	held, none := dlock.Attempt{Holder: "other", Remaining: time.Minute}, dlock.Attempt{}
	const once, forATTL = 1, 2
	for _, test := range []struct {
		name   string
		queue  error         // of Acquire; nil: only TryAcquire is called
		answer dlock.Attempt // with queue
		try    error         // of TryAcquire
		want   int
	}{
		{"try, unknown", nil, none, errStore, forATTL},
		{"try, marked", nil, none, mark(errStore), 0},
		{"try, marked within", nil, none, fmt.Errorf("client: %w", mark(errStore)), 0},
		{"try, not dialled", nil, none, errDial, 0},
		{"try, marked among others", nil, none, errors.Join(mark(errStore), io.EOF), forATTL},
		{"queue, unknown", errStore, none, nil, forATTL},
		{"queue, unknown, held", errStore, held, nil, forATTL},
		{"queue, marked", mark(errStore), none, nil, 0},
		{"queue, marked, held", mark(errStore), held, nil, once},
		{"queue, marked, only when", mark(errStore), dlock.Attempt{Since: time.Now()}, nil, once},
	} {
		t.Run(test.name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				s.onCall(func(c *call) {
					switch c.op {
					case "try":
						c.err = test.try
					case "acquire":
						time.Sleep(time.Second)
						c.answers(test.answer, test.queue)
					}
				})
				c, err := dlock.New(s), test.try
				if test.queue != nil {
					hold(t, store, time.Hour)
					c, err = c.With(dlock.WithMaxWait(time.Second)), dlock.ErrHeld
				}
				_, got := c.Acquire(t.Context(), "k")
				require.ErrorIs(t, got, err)
				time.Sleep(time.Hour)
				releases := len(s.made("release"))
				switch test.want {
				case forATTL:
					require.Greater(t, releases, 3, "a call may be on its way for a TTL")
				default:
					require.Equal(t, test.want, releases)
				}
			})
		})
	}
}

// What is owed after an attempt that was given up, whose answer comes later. The release waits for it for a moment. If it
// was sent before, the answer decides whether it is repeated.
func TestWhatALateAnswerOwes(t *testing.T) {
	mark := func(err error) error { return &dlock.NoEffectError{Err: err} }
	held, none := dlock.Attempt{Holder: "other", Remaining: time.Minute}, dlock.Attempt{}
	const soon, later, afterATTL = 100 * time.Millisecond, time.Second, time.Minute
	for name, test := range map[string]struct {
		op     string
		after  time.Duration
		answer dlock.Attempt
		err    error
		want   int // releases from then on
	}{
		"try, held":                {"try", soon, held, nil, 0},
		"try, held, later":         {"try", later, held, nil, 0},
		"try, granted":             {"try", soon, dlock.Attempt{Acquired: true}, nil, 1},
		"try, granted, later":      {"try", later, dlock.Attempt{Acquired: true}, nil, 1},
		"try, granted, much later": {"try", afterATTL, dlock.Attempt{Acquired: true}, nil, 1},
		"try, refused":             {"try", soon, none, mark(errStore), 0},
		"try, failed":              {"try", soon, none, errStore, 8},
		"queue, waits":             {"acquire", soon, held, mark(errStore), 1},
		"queue, waits, later":      {"acquire", later, held, mark(errStore), 1},
		"queue, waits, much later": {"acquire", afterATTL, held, mark(errStore), 1},
		"queue, granted":           {"acquire", soon, dlock.Attempt{Acquired: true}, nil, 1},
		"queue, refused":           {"acquire", soon, none, mark(errStore), 0},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				hold(t, store, time.Hour)
				var ended time.Time
				s.onCall(func(c *call) {
					if c.op == "try" && test.op != "try" || c.op == "release" {
						return
					}
					<-c.ctx.Done()
					ended = time.Now()
					c.answers(none, fmt.Errorf("decorated: %w", &dlock.UnansweredError{Err: c.ctx.Err(), Late: func(f func(dlock.Attempt, error)) {
						time.AfterFunc(test.after, func() { f(test.answer, test.err) })
					}}))
				})
				c := dlock.New(s)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				_, err := c.Acquire(ctx, "k")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				time.Sleep(time.Hour)
				require.Zero(t, c.Stats().ReleasesOwed)
				before, from := 0, 0
				for _, r := range s.made("release") {
					if since := r.at.Sub(ended); since < test.after {
						require.GreaterOrEqual(t, since, 250*time.Millisecond)
						before++
					} else {
						from++
					}
				}
				require.Equal(t, test.after > soon, before > 0)
				require.Equal(t, test.want, from)
				require.NoError(t, c.Close())
			})
		})
	}
}

// An answer that comes when the Client is closed causes no call.
func TestLateAnswerAfterClose(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.err = &dlock.UnansweredError{Err: errStore, Late: func(f func(dlock.Attempt, error)) {
					time.AfterFunc(time.Minute, func() { f(dlock.Attempt{Acquired: true}, nil) })
				}}
			}
		})
		c := dlock.New(s)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		require.NoError(t, c.Close())
		n := len(s.made("release"))
		require.Equal(t, 1, n)
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), n)
	})
}

// Callers give up before the answer to their attempt comes. There are no more releases than attempts whose answer never
// comes: those that travelled alone.
func TestReleasesOfAnsweredAttempts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := sim.NewServer()
		conn := sim.Dial(server, func(sim.Trip) (f sim.Fate) {
			f.Request.Delay, f.Reply.Delay = 5*time.Millisecond, 5*time.Millisecond
			return f
		})
		l := rediscore.New(conn)
		c := dlock.New(l)
		defer func() { _ = c.Close(); _ = l.Close(); conn.Close() }()
		acquire(t, c, "k")
		before := server.Cost().Scripts
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				_, err := c.Acquire(ctx, "k")
				require.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		const alone, repeated, renewals = 2, 8, 6
		require.LessOrEqual(t, server.Cost().Scripts-before, 100+alone*repeated+renewals)
		require.Zero(t, c.Stats().ReleasesOwed)
	})
}

// Where waiters give up soon and the server is busy, locks are granted nevertheless: the server is not kept busy by those
// who have gone. A hundred and twenty goroutines want twelve keys for 10 ms each, and wait for 10 to 30 ms. If several
// Clients share the server, each has to do without it for a while, and no estimate of one knows of the others.
func TestGrantsWhereWaitersGiveUp(t *testing.T) {
	type load struct {
		call, trip time.Duration
		clients    int
		queue      bool
	}
	const near, far = 500 * time.Microsecond, 5 * time.Millisecond
	for l, want := range map[load]int{ // grants in a second
		{85 * time.Microsecond, near, 1, true}: 900, {100 * time.Microsecond, near, 1, true}: 500, {150 * time.Microsecond, near, 1, true}: 300,
		{200 * time.Microsecond, near, 4, true}: 200,
		{30 * time.Microsecond, far, 1, true}:   700, {100 * time.Microsecond, far, 1, true}: 120,
		{100 * time.Microsecond, near, 1, false}: 900, {150 * time.Microsecond, near, 1, false}: 500,
	} {
		bubble.Test(t, func(t *testing.T) {
			require.GreaterOrEqual(t, grantsOfQuitters(t, l.call, l.trip, l.clients, l.queue), want, "%+v", l)
		})
	}
}

// grantsOfQuitters is how many grants there are in a second, if a server makes one call after the other.
func grantsOfQuitters(t *testing.T, call, trip time.Duration, clients int, queue bool) (grants int) {
	const keys, hold, patience = 12, 10 * time.Millisecond, 20 * time.Millisecond
	server, free, end := sim.NewServer(), time.Now(), time.Now().Add(time.Second)
	var mu sync.Mutex
	fate := func(trips sim.Trip) (f sim.Fate) {
		mu.Lock()
		defer mu.Unlock()
		free = slices.MaxFunc([]time.Time{free, time.Now().Add(trip / 2)}, time.Time.Compare).Add(time.Duration(len(trips.Calls)) * call)
		f.Request.Delay, f.Reply.Delay = time.Until(free), trip/2
		return f
	}
	var all []*dlock.Client
	for range clients {
		conn := sim.Dial(server, fate)
		l := rediscore.New(conn, rediscore.WithQueue(queue))
		c := dlock.New(l)
		all = append(all, c)
		defer func() { _ = c.Close(); _ = l.Close(); conn.Close() }()
	}
	random := rand.New(rand.NewPCG(1, 2))
	var callers sync.WaitGroup
	for i := range 10 * keys {
		callers.Go(func() {
			for time.Now().Before(end) {
				mu.Lock()
				key, wait := fmt.Sprint("k", random.IntN(keys)), patience/2+time.Duration(random.Int64N(int64(patience)))
				mu.Unlock()
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				lease, err := all[i%clients].Acquire(ctx, key)
				cancel()
				if err == nil {
					mu.Lock()
					grants++
					mu.Unlock()
					time.Sleep(hold)
					_ = lease.Release()
				}
			}
		})
	}
	callers.Wait()
	return grants
}

// A call that was slow once does not make the Locker take later waits for hurried.
func TestSlowCallHurriesNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server, slow := sim.NewServer(), new(atomic.Int64)
		dial := func(fate func(sim.Trip) sim.Fate) *dlock.Client {
			conn := sim.Dial(server, fate)
			l := rediscore.New(conn)
			t.Cleanup(func() { _ = l.Close(); conn.Close() })
			return dlock.New(l)
		}
		other := dial(func(sim.Trip) (f sim.Fate) { return f })
		mine := dial(func(sim.Trip) (f sim.Fate) { f.Reply.Delay = time.Millisecond + time.Duration(slow.Load()); return f })
		for _, key := range []string{"x", "k"} {
			l, err := other.Acquire(t.Context(), key)
			require.NoError(t, err)
			defer time.AfterFunc(6*time.Second, func() { _ = l.Release() }).Stop()
		}
		slow.Store(int64(2500 * time.Millisecond))
		var both sync.WaitGroup
		defer both.Wait()
		both.Go(func() {
			_ = mine.With(dlock.WithMaxWait(20*time.Second)).Do(t.Context(), "x", func(context.Context, *dlock.Lease) error { return nil })
		})
		time.Sleep(5100 * time.Millisecond) // an attempt and an enqueue
		slow.Store(0)
		_, err := mine.With(dlock.WithMaxWait(2*time.Second)).Acquire(t.Context(), "k")
		require.NoError(t, err)
	})
}

// A wait may be several requests, so the release that ends one grant is not the last.
func TestWaitWithAnUnknownOutcomeIsReleasedForATTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Hour)
		s.onCall(func(c *call) {
			if c.op == "acquire" {
				<-c.ctx.Done()
				store.Expire("k")
				_, err := store.TryAcquire(context.Background(), "k", c.token, time.Minute)
				require.NoError(t, err)
				c.answers(dlock.Attempt{Holder: "other"}, errStore)
			}
		})
		_, err := dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		synctest.Wait()
		requireFree(t, store, "k")
		time.Sleep(time.Hour)
		require.Greater(t, len(s.made("release")), 3)
	})
}

// An attempt that does not wait leaves no place in a queue.
func TestMarkedAttemptThatTellsTheHolderOwesNothing(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) { c.answers(dlock.Attempt{Holder: "other"}, &dlock.NoEffectError{Err: errStore}) })
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Minute)
		require.Empty(t, s.made("release"))
	})
}

// The calls of one token count together: the first grant is late, so the token tries again.
func TestWhatATokenOwesAfterALateGrant(t *testing.T) {
	for name, test := range map[string]struct {
		second func(c *call)
		once   bool
	}{
		"marked":  {func(c *call) { c.err = &dlock.NoEffectError{Err: errStore} }, true},
		"held":    {func(c *call) { c.attempt = &dlock.Attempt{Holder: "other"} }, true},
		"unknown": {func(c *call) { c.err = errStore }, false},
		"late":    {func(c *call) { c.delay = 29 * time.Second }, true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				s.onCall(func(c *call) {
					switch {
					case c.op != "try":
					case len(s.made("try")) == 1:
						c.delay = 29 * time.Second
					default:
						test.second(c)
					}
				})
				_, err := dlock.New(s).TryAcquire(t.Context(), "k")
				require.Error(t, err)
				require.Len(t, s.made("try"), 2)
				synctest.Wait()
				requireFree(t, store, "k")
				time.Sleep(time.Hour)
				if test.once {
					require.Len(t, s.made("release"), 1)
				} else {
					require.Greater(t, len(s.made("release")), 3)
				}
			})
		})
	}
}

// A token that tries again may be granted the key after a release has ended its first grant.
func TestReleaseOfTheFirstGrantIsNotTheLastWord(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			switch {
			case c.op == "try" && len(s.made("try")) == 1:
				c.delay = 950 * time.Millisecond // granted, and found late
			case c.op == "try":
				c.err = io.ErrUnexpectedEOF // still on its way
			}
		})
		_, err := dlock.New(s, dlock.WithTTL(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		synctest.Wait()
		token := s.made("try")[0].token
		require.True(t, s.released(token))
		requireFree(t, store, "k")
		late, err := store.TryAcquire(t.Context(), "k", token, time.Second)
		require.NoError(t, err)
		require.True(t, late.Acquired)
		time.Sleep(300 * time.Millisecond)
		requireFree(t, store, "k")
		time.Sleep(time.Second)
		synctest.Wait()
		n := len(s.made("release"))
		time.Sleep(time.Minute)
		require.Len(t, s.made("release"), n, "it is released for ever")
	})
}

// A release that is answered after a TTL has passed is not the last: the attempt may have
// arrived in between.
func TestReleaseAnsweredAfterATTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			switch {
			case c.op == "try":
				c.err = io.ErrUnexpectedEOF // still on its way
			case len(s.made("release")) == 1:
				c.delay = 2 * time.Second
			}
		})
		_, err := dlock.New(s, dlock.WithTTL(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		time.Sleep(500 * time.Millisecond)
		late, err := store.TryAcquire(t.Context(), "k", s.made("try")[0].token, time.Hour)
		require.NoError(t, err)
		require.True(t, late.Acquired)
		time.Sleep(5 * time.Second)
		requireFree(t, store, "k")
	})
}

// An attempt that arrives after the first release of its token is released within a quarter
// of the TTL.
func TestLateAttemptIsReleased(t *testing.T) {
	for _, late := range []time.Duration{7 * time.Second, 13 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				s.onCall(func(c *call) {
					if c.op == "try" {
						c.err = errStore
						time.AfterFunc(late, func() { store.TryAcquire(context.Background(), c.key, c.token, c.ttl) })
					}
				})
				start := time.Now()
				_, err := dlock.New(s).TryAcquire(t.Context(), "k")
				require.ErrorIs(t, err, errStore)
				require.NoError(t, acquire(t, dlock.New(store), "k").Release())
				time.Sleep(late + 7600*time.Millisecond)
				requireFree(t, store, "k")
				time.Sleep(time.Minute)
				releases := s.made("release")
				require.Less(t, releases[len(releases)-1].at.Sub(start), late+8*time.Second, `"held, now free" is the end of it`)
			})
		})
	}
}

func TestAttemptThatNeverArrives(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.err = errStore
			}
		})
		start := time.Now()
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Hour)
		releases := s.made("release")
		require.Equal(t, start, releases[0].at)
		require.Equal(t, start.Add(30*time.Second), releases[len(releases)-1].at, "one TTL after the last try")
		require.Less(t, len(releases), 15)
	})
}

// Nothing is owed to a store that is away for longer than the TTL.
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

// While the store is away, a release is owed for one TTL, and is then dropped without a call.
func TestOwedReleasesEndWithTheirTTL(t *testing.T) {
	const n, ttl = 1000, time.Second
	for name, away := range map[string]func(c *call){
		"refuses": func(c *call) { c.err = errStore },
		"hangs":   func(c *call) { c.hang() },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
				var down atomic.Bool
				s.onCall(func(c *call) {
					if down.Load() {
						away(c)
					}
				})
				var unanswered atomic.Int32
				c := dlock.New(s, dlock.WithTTL(ttl), dlock.WithObserver(&dlock.Observer{OwedDone: func(_ context.Context, i dlock.OwedDoneInfo) {
					if i.Err != nil && i.Took <= ttl+time.Second {
						unanswered.Add(1)
					}
				}}))
				leases, _ := acquireAll(t, c, "", n)
				down.Store(true)
				var all sync.WaitGroup
				for i, l := range leases {
					all.Go(func() { l.Release() })
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
						defer cancel()
						c.TryAcquire(ctx, fmt.Sprint("attempt", i))
					})
				}
				all.Wait()
				require.Equal(t, 2*n, c.Stats().ReleasesOwed)
				time.Sleep(ttl + time.Millisecond)
				require.LessOrEqual(t, c.Stats().ReleasesOwed, 128, "of %d, a TTL later: last tries", 2*n)
				time.Sleep(time.Second)
				require.Zero(t, c.Stats().ReleasesOwed, "of %d, a TTL and a second later", 2*n)
				synctest.Wait()
				require.EqualValues(t, 2*n, unanswered.Load(), "events with an error")
				s.forget()
				down.Store(false)
				time.Sleep(time.Second)
				require.Empty(t, s.made(), "calls in the first second of the store's return")
				start := time.Now()
				require.NoError(t, c.Close(), "no key can stay")
				require.Zero(t, time.Since(start), "time that Close took")
			})
		})
	}
}

// While the store answers, more and more releases that are owed are in flight at once: those who give up
// a wait must be out of its queue before they are served. Without an answer, there are few again. (Those for a store that
// does not combine calls are counted in package owed.)
func TestOwedReleasesGoTogether(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		const n, roundTrip = 2000, 10 * time.Millisecond
		var down atomic.Bool
		s.onCall(func(c *call) {
			if c.op == "release" && down.Load() {
				c.err = errStore
			} else if c.op == "release" {
				c.take(roundTrip)
			}
		})
		c := dlock.New(s)
		for _, prefix := range []string{"first", "again"} {
			leases, _ := acquireAll(t, c, prefix, n)
			down.Store(true)
			for _, l := range leases {
				require.ErrorIs(t, l.Release(), errStore)
			}
			time.Sleep(2 * time.Second)
			s.forget()
			down.Store(false)
			time.Sleep(time.Second)
			require.Zero(t, c.Stats().ReleasesOwed, "a second after the store's return")
			together := make(map[time.Time]int)
			for _, c := range s.made("release") {
				together[c.at]++
			}
			var sizes []int
			for _, at := range slices.SortedFunc(maps.Keys(together), time.Time.Compare) {
				sizes = append(sizes, together[at])
			}
			require.Equal(t, []int{1, 129, 258, 512, 512, 512, 76}, sizes, "of a store that combines calls")
		}
	})
}

// Releases that stand in line for a few connections are few: renewals stand there, too.
func TestOwedReleasesLeaveConnectionsToRenewals(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(plain{s}, dlock.WithTTL(5*time.Second))
		held, _ := acquireAll(t, c, "held", 20)
		owed, _ := acquireAll(t, c.With(dlock.WithTTL(time.Hour)), "owed", 2000)
		s.onCall(func(c *call) { c.err = errStore })
		for _, l := range owed {
			require.ErrorIs(t, l.Release(), errStore)
		}
		connections := make(chan struct{}, 2)
		s.onCall(func(c *call) {
			select {
			case connections <- struct{}{}:
				c.take(20 * time.Millisecond)
				<-connections
			case <-c.ctx.Done():
				c.err = c.ctx.Err()
			}
		})
		time.Sleep(time.Minute)
		requireNoneLost(t, held)
		require.Zero(t, c.Stats().RenewalsFailed)
		require.Zero(t, c.Stats().ReleasesOwed)
		require.NoError(t, c.Close())
	})
}

// Close does not wait longer for a release than the store keeps the lease.
func TestCloseWaitsForNothingThatHasEnded(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(3*time.Second))
		leases, _ := acquireAll(t, c, "", 100)
		store.Fail(errStore)
		for _, l := range leases {
			require.ErrorIs(t, l.Release(), errStore)
		}
		time.Sleep(time.Second)
		start := time.Now()
		require.NoError(t, c.Close(), "no key can stay")
		require.Equal(t, 2*time.Second, time.Since(start))
	})
}

// An attempt without an answer is released; later tries, for a call that may be on its way, fail. The
// release was answered, so its end has no error.
func TestOwedReleaseWasAnswered(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var ends []dlock.OwedDoneInfo
		c := dlock.New(s, dlock.WithObserver(&dlock.Observer{OwedDone: func(_ context.Context, i dlock.OwedDoneInfo) { ends = append(ends, i) }}))
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.err = errStore
			}
		})
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Second)
		store.Fail(errStore)
		time.Sleep(time.Minute)
		require.NoError(t, c.Close())
		require.Len(t, ends, 1)
		require.NoError(t, ends[0].Err)
	})
}

// requireReleased says that a release of each token that was counted reached the store. It
// returns how many were sent for each on average.
func requireReleased(t *testing.T, n *wire, what string) (mean float64) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	never, sent, tokens := 0, 0, n.counts[what]
	for token := range tokens {
		sent += n.counts[releasesMade][token]
		if n.counts[releasesArrived][token] == 0 {
			never++
		}
	}
	mean = float64(sent) / float64(len(tokens))
	t.Logf("%d %s: %d never released, %.2f releases sent for each", len(tokens), what, never, mean)
	if never > 0 {
		t.Errorf("%d of %d %s were never released, want 0", never, len(tokens), what)
	}
	return mean
}

// requireReleasedOnce says the same of waits that the store had answered, with at most
// two releases for each on average.
func requireReleasedOnce(t *testing.T, n *wire) {
	t.Helper()
	const most = 2
	if mean := requireReleased(t, n, waitsArrived); mean > most {
		t.Errorf("%.2f releases were sent for each of %d cut waits, want at most %d", mean, n.tokens(waitsArrived), most)
	}
}

// Of any number of waits that are cut at one instant, each is released.
func TestWaitsCutTogether(t *testing.T) {
	const waits = 5000 / israce.Slower
	for _, ttl := range []time.Duration{30 * time.Second, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store, n := overWire(t)
				n.setRTT(time.Millisecond)
				keys := holdAll(t, store, 100)
				c := dlock.New(n, dlock.WithTTL(ttl))
				ctx, cut := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range waits {
					all.Go(func() { _, _ = c.Acquire(ctx, keys[i%len(keys)]) })
				}
				time.Sleep(time.Second)
				require.Equal(t, waits, n.tokens(waitsArrived))
				cut()
				all.Wait()
				time.Sleep(2 * ttl)
				requireReleasedOnce(t, n)
				require.NoError(t, c.Close())
			})
		})
	}
}

// 500 waits a second are cut for a minute, and in its middle the store is out of reach
// for 5 s, in which 50 leases are released.
func TestCutWaitsBesideAnOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	const (
		waits = 30_000 / israce.Slower
		real  = 50
		pace  = israce.Slower * 2 * time.Millisecond
		wait  = 100 * time.Millisecond
	)
	for f, apart := range map[fault]time.Duration{ // between the releases
		refuse: 90 * time.Millisecond,
		hang:   0, // so that all have failed when the store is back
	} {
		t.Run(string(f), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store, n := overWire(t)
				n.setRTT(time.Millisecond)
				keys := holdAll(t, store, 100)
				c := dlock.New(n)
				leases, mine := acquireAll(t, c, "mine", real)
				var all sync.WaitGroup
				all.Go(func() {
					for i := range waits {
						all.Go(func() {
							ctx, cancel := context.WithTimeout(t.Context(), wait)
							defer cancel()
							_, _ = c.Acquire(ctx, keys[i%len(keys)])
						})
						time.Sleep(pace)
					}
				})
				time.Sleep(27 * time.Second)
				for i, l := range leases {
					all.Go(func() {
						time.Sleep(time.Duration(i)*apart + time.Nanosecond)
						_ = l.Release()
					})
				}
				n.fail(f, 5*time.Second)
				time.Sleep(2 * time.Second)
				requireAllFree(t, store, mine)
				all.Wait()
				time.Sleep(time.Minute)
				requireReleasedOnce(t, n)
				requireReleased(t, n, attemptsMade)
				require.NoError(t, c.Close())
			})
		})
	}
}

// Attempts that took effect, and whose replies were lost together, are undone as soon
// as the store is back.
func TestLostRepliesOfManyAttempts(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	const attempts = 5000 / israce.Slower
	for _, then := range []fault{up, refuse, hang, ignore} {
		t.Run(string(then), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store, n := overWire(t)
				n.setRTT(time.Millisecond)
				c := dlock.New(n)
				keys := make([]string, attempts)
				n.set(lose)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				var all sync.WaitGroup
				for i := range keys {
					keys[i] = strconv.Itoa(i)
					all.Go(func() {
						if _, err := c.TryAcquire(ctx, keys[i]); err == nil {
							t.Errorf("TryAcquire(%q): no error", keys[i])
						}
					})
				}
				time.Sleep(50 * time.Millisecond)
				n.fail(then, 5*time.Second)
				time.Sleep(2 * time.Second)
				if then == ignore {
					time.Sleep(ignored)
				}
				all.Wait()
				requireAllFree(t, store, keys)
				require.NoError(t, c.Close())
			})
		})
	}
}

// More releases are owed than a Client keeps: it keeps 100,000, and they are made when
// the store is back.
func TestMoreOwedThanKept(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	const (
		attempts = 101_000
		kept     = 100_000
	)
	if israce.Enabled {
		t.Skip("too slow with the race detector")
	}
	bubble.Test(t, func(t *testing.T) {
		_, n := overWire(t)
		c := dlock.New(n, dlock.WithTTL(time.Hour))
		n.set(refuse)
		before := heap()
		for i := range attempts {
			_, err := c.TryAcquire(t.Context(), strconv.Itoa(i))
			require.ErrorIs(t, err, errStore)
		}
		time.Sleep(time.Minute)
		require.Equal(t, dlock.Stats{ReleasesOwed: kept, ReleasesDropped: attempts - kept}, c.Stats())
		n.forget()
		bytes := heap() - before
		n.setRTT(time.Millisecond)
		n.set(up)
		time.Sleep(time.Minute)
		released := n.tokens(releasesMade)
		t.Logf("%d owed: %d released after the return; %d bytes each", attempts, released, bytes/kept)
		if released < kept || released > kept+parallel {
			t.Errorf("%d of %d tokens were released in the minute after the return, want %d", released, attempts, kept)
		}
		if bytes > 1000*kept {
			t.Errorf("what is owed takes %d bytes, want at most %d", bytes, 1000*kept)
		}
		require.NoError(t, c.Close())
	})
}

// A retry is made soon, although new releases are owed all the time.
func TestOwedAgainIsNotStarved(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var failed atomic.Int32
		s.onCall(func(c *call) {
			switch {
			case c.op == "release" && c.key == "real" && failed.Add(1) <= 2: // of the holder, and the first of the Client
				c.err = errStore
			case c.op == "release":
				time.Sleep(100 * time.Millisecond) // RTT
			case c.op == "try" && c.key != "real":
				c.err = errStore
			}
		})
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
		taken := holder(t, store, "real").Held
		close(stop)
		c.Close()
		time.Sleep(time.Minute)
		require.False(t, taken, "the release that failed once, 10 s ago")
	})
}

// The release of an attempt on a live shard is sent soon, although many of leases to a dead one hang.
func TestDeadShardAndLiveAttempts(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			switch {
			case c.key[0] == 'd' && c.op == "release":
				c.hang()
			case c.key == "live" && c.op == "try":
				c.reply = errStore
			}
		})
		c := dlock.New(s, dlock.WithTTL(time.Minute))
		leases, _ := acquireAll(t, c, "dead", 20)
		for _, l := range leases {
			go l.Release()
		}
		time.Sleep(10 * time.Second)
		_, err := c.TryAcquire(t.Context(), "live")
		require.ErrorIs(t, err, errStore)
		time.Sleep(10 * time.Second)
		taken := holder(t, store, "live").Held
		c.Close()
		time.Sleep(time.Minute)
		require.False(t, taken, "10 s after the attempt")
	})
}

// A release to a live shard is retried soon, although many to a dead shard hang.
func TestDeadShardAndLiveReleases(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var failed atomic.Int32
		s.onCall(func(c *call) {
			dead := c.key[0] == 'd'
			switch {
			case c.op == "release" && c.key == "real" && failed.Add(1) == 1:
				c.err = errStore
			case dead && c.op == "release":
				c.hang()
			case dead && c.op == "try":
				c.err = errStore
			}
		})
		c := dlock.New(s, dlock.WithTTL(time.Minute))
		l := acquire(t, c, "real")
		for i := range 200 {
			c.TryAcquire(t.Context(), fmt.Sprint("dead", i))
		}
		time.Sleep(5 * time.Second)
		require.Error(t, l.Release())
		time.Sleep(10 * time.Second)
		taken := holder(t, store, "real").Held
		c.Close()
		time.Sleep(time.Minute)
		require.False(t, taken, "the release to the live shard that failed once, 10 s ago")
	})
}

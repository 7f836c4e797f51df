package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// ours are the errors of a call itself. They must not come from the cause of its context,
// which is about another lease or Client.
var ours = []error{dlock.ErrHeld, dlock.ErrUnavailable, dlock.ErrNested, dlock.ErrLost, dlock.ErrReleased, dlock.ErrInvalid, dlock.ErrClosed}

// lostContext returns a context that ends with the loss of another lease at once, or at
// the next call to the store.
func lostContext(t *testing.T, s *spy, early bool) context.Context {
	t.Helper()
	store := memory.New()
	l := acquire(t, dlock.New(store), "other")
	ctx := l.Context(t.Context())
	lose := func() {
		store.Expire("other")
		require.ErrorIs(t, l.Renew(context.Background()), dlock.ErrLost)
	}
	if early {
		lose()
	} else {
		s.onCall(func(c *call) {
			s.onCall(nil)
			lose()
			c.hang()
		})
	}
	return ctx
}

func TestLossOfAnotherLeaseIsNotOfThisCall(t *testing.T) {
	c := func(s *spy) *dlock.Client { return dlock.New(single{s}) }
	calls := map[string]func(t *testing.T, s *spy, ctx func() context.Context) error{
		"Acquire": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			_, err := c(s).Acquire(ctx(), "k")
			return err
		},
		"TryAcquire": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			_, err := c(s).TryAcquire(ctx(), "k")
			return err
		},
		"Inspect": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			_, err := c(s).Inspect(ctx(), "k")
			return err
		},
		"Do": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			return c(s).Do(ctx(), "k", func(context.Context, *dlock.Lease) error { return nil })
		},
		"Renew": func(t *testing.T, s *spy, ctx func() context.Context) error {
			l := acquire(t, c(s), "k")
			err := l.Renew(ctx())
			require.NoError(t, l.Err(), "it is held")
			require.NoError(t, l.Release())
			return err
		},
		"Adopt": func(t *testing.T, s *spy, ctx func() context.Context) error {
			d := detach(t, acquire(t, c(s), "k"))
			_, err := c(s).Adopt(ctx(), d)
			l, again := c(s).Adopt(t.Context(), d)
			require.NoError(t, again, "it is good")
			require.NoError(t, l.Release())
			return err
		},
	}
	for name, f := range calls {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/early=%v", name, early), func(t *testing.T) {
				in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
					err := f(t, s, func() context.Context { return lostContext(t, s, early) })
					require.ErrorIs(t, err, context.Canceled)
					for _, our := range ours {
						require.NotErrorIs(t, err, our)
					}
					if early {
						require.ErrorContains(t, err, `"other": lease lost`, "the cause is shown as text")
					}
					time.Sleep(time.Hour)
				})
			})
		}
	}
}

// The error of a wait that such a context ends still matches ErrHeld, and shows the cause.
func TestWaitCutByTheLossOfAnotherLease(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		defer acquire(t, dlock.New(store), "k").Release()
		for _, ours := range ours {
			for _, cause := range []error{ours, fmt.Errorf("of another: %w", ours)} {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(cause) })
				_, err := dlock.New(l).Acquire(ctx, "k")
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, dlock.ErrHeld)
				if ours != dlock.ErrHeld {
					require.NotErrorIs(t, err, ours)
				}
				require.ErrorContains(t, err, cause.Error())
			}
		}
	})
}

// Some client libraries return the cause of a context.
func TestAdoptWhereTheLockerReturnsTheCause(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s)
		d := detach(t, acquire(t, c, "k"))
		s.onCall(func(c *call) { c.err = fmt.Errorf("client: %w", dlock.ErrLost) })
		_, err := c.Adopt(t.Context(), d)
		require.NotErrorIs(t, err, dlock.ErrLost)
		require.EqualError(t, err, `dlock: adopt "k": store unavailable: no answer: client: lease lost`)
		s.onCall(nil)
		l := adopt(t, c, d)
		require.NoError(t, l.Release())
	})
}

// Renew with a Locker that returns the cause of its ctx, which another lease ended.
func TestRenewWhereTheLockerReturnsTheCause(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(single{s}, dlock.WithTTL(30*time.Second))
		var n atomic.Int32
		other := acquire(t, c, "other")
		l := acquire(t, c, "k")
		s.onCall(func(c *call) {
			if c.op == "renew" && c.key == "k" && c.ctx.Done() != nil && n.Add(1) == 1 {
				<-c.ctx.Done()
				c.err = context.Cause(c.ctx)
			}
		})
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

func TestCancelledCallsMatchTheContextError(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		h := detach(t, acquire(t, c, "h"))
		s.onCall(func(c *call) {
			if c.op == "renew" {
				<-c.ctx.Done()
				c.err = errors.New("read tcp: i/o timeout") // what a client library may say
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Renew(ctx)
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

type storeError struct{ error }

func (e storeError) Unwrap() []error { return []error{e.error, errStore} }

func TestHiddenContextErrorShowsTheRest(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		store.Fail(storeError{context.DeadlineExceeded})
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		requireNoContextError(t, err)
		require.ErrorIs(t, err, errStore)
		var e storeError
		require.ErrorAs(t, err, &e)
		store.Fail(nil)
		time.Sleep(time.Minute)
	})
}

// What the error of a call says: whether it had an effect, and whether the store has refused it.
func TestErrorsOfCalls(t *testing.T) {
	reset, wrongPass := errors.New("connection reset"), errors.New("WRONGPASS")
	dial, read := &net.OpError{Op: "dial", Err: reset}, &net.OpError{Op: "read", Err: reset}
	marked := func(err error) error { return &dlock.NoEffectError{Err: err} }
	for _, test := range []struct {
		err               error
		noEffect, refused bool
	}{
		{nil, false, false},
		{reset, false, false},
		{read, false, false},
		{context.Canceled, false, false},
		{dlock.ErrClosed, false, false},
		{dlock.ErrUnavailable, false, false},
		{dial, true, false},
		{fmt.Errorf("pool: %w", dial), true, false},
		{errors.ErrUnsupported, true, false},
		{fmt.Errorf("%w key: empty", dlock.ErrInvalid), true, false},
		{marked(wrongPass), true, true},
		{fmt.Errorf("call: %w", marked(wrongPass)), true, true},
		{marked(dial), true, false},
		{marked(context.DeadlineExceeded), true, false},
		{marked(fmt.Errorf("%w: open", dlock.ErrUnavailable)), true, false},
		{&dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true}, true, false},
		{&dlock.NoEffectError{Err: errors.New("OOM"), State: true}, true, true},
		// Each part of a joined error may be about another request.
		{fmt.Errorf("%w: %w", reset, marked(wrongPass)), false, false},
		{errors.Join(marked(wrongPass)), false, false},
		{errors.Join(dial, dial), false, false},
		{errors.Join(dlock.ErrInvalid), false, false},
		{marked(errors.Join(reset, wrongPass)), true, true},
		// A wait that its ctx has ended, and why the store was silent.
		{marked(fmt.Errorf("%w: %w", context.DeadlineExceeded, reset)), true, false},
		{marked(fmt.Errorf("%w: %w", context.Canceled, dial)), true, false},
		{marked(fmt.Errorf("%w: %w", context.Canceled, marked(wrongPass))), true, true},
		{fmt.Errorf("%w: %w", context.Canceled, marked(wrongPass)), false, false},
		// The error of several stores.
		{majority{answered: true}, false, false},
		{marked(majority{answered: true}), true, true},
		{marked(majority{answered: false}), true, false},
		{fmt.Errorf("call: %w", marked(majority{answered: false})), true, false},
	} {
		assert.Equal(t, test.noEffect, dlock.NoEffect(test.err), "NoEffect(%v)", test.err)
		assert.Equal(t, test.refused, dlock.Refused(test.err), "Refused(%v)", test.err)
	}
}

// A majority is an error about several stores.
type majority struct{ answered bool }

func (m majority) Error() string  { return "no majority" }
func (m majority) Answered() bool { return m.answered }

// waitEnds are the ways in which a wait can end.
var waitEnds = map[string]func(ctx context.Context, l dlock.Locker, d time.Duration) error{
	"ctx": func(ctx context.Context, l dlock.Locker, d time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		_, err := dlock.New(l).Acquire(ctx, "k")
		return err
	},
	"MaxWait": func(ctx context.Context, l dlock.Locker, d time.Duration) error {
		_, err := dlock.New(l, dlock.WithMaxWait(d)).Acquire(ctx, "k")
		return err
	},
}

// The store goes away during a wait. When the wait ends, the error depends on whether the
// last known lease can still be held.
func TestOutageDuringAWait(t *testing.T) {
	refuse := func(c *call) { c.err = errStore }
	hang := func(c *call) { <-c.ctx.Done(); c.err = c.ctx.Err() }
	for _, test := range []struct {
		name        string
		fail        func(c *call)
		after, wait time.Duration // when the store goes away, and for how long to wait
		holder      time.Duration // TTL; 0 if the store does not tell, negative if it never ends
		unavailable bool
		texts       []string
	}{
		{"refuses", refuse, time.Second, 15 * time.Second, 3 * time.Second, true, []string{"store unavailable: no answer for 1", "held by another", "connection refused"}},
		{"hangs", hang, time.Second, 15 * time.Second, 3 * time.Second, true, []string{"store unavailable: no answer for 1", "no answer within"}},
		{"refuses before the lease ends", refuse, time.Second, 2900 * time.Millisecond, 3 * time.Second, false, []string{"held by another", "the store last answered ", "connection refused"}},
		{"refuses, unknown rest", refuse, time.Second, 29 * time.Second, 0, false, []string{"the store last answered 28", "connection refused"}},
		{"refuses, unknown rest has passed", refuse, time.Second, 32 * time.Second, 0, true, []string{"no answer for 31"}},
		{"refuses, never ends", refuse, time.Second, time.Hour, -1, false, []string{"held by another; the store last answered 59m5", "connection refused"}},
		{"answers", nil, 0, 15 * time.Second, 3 * time.Second, false, []string{"held by another"}},
	} {
		for name, end := range waitEnds {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
					start := time.Now()
					s.onCall(func(c *call) {
						c.attempt = &dlock.Attempt{Holder: "other", Remaining: test.holder}
						if test.fail != nil && time.Since(start) >= test.after {
							test.fail(c)
						}
					})
					err := end(t.Context(), plain{s}, test.wait)
					requireOutage(t, err, test.unavailable)
					require.Equal(t, name == "ctx", errors.Is(err, context.DeadlineExceeded))
					for _, text := range test.texts {
						require.ErrorContains(t, err, text)
					}
					if test.fail == nil {
						require.NotContains(t, err.Error(), "last answered")
					}
					time.Sleep(time.Hour)
				})
			})
		}
	}
}

// A breaker calls the store unavailable at once. While the holder's lease may last, the key is held all
// the same.
func TestBreakerOpensDuringAWait(t *testing.T) {
	for rest, unavailable := range map[time.Duration]bool{time.Hour: false, 3 * time.Second: true} {
		waiting(t, func(t *testing.T, _ *memory.Locker, s *spy, l dlock.Locker) {
			for name, end := range waitEnds {
				start := time.Now()
				s.onCall(func(c *call) {
					c.attempt = &dlock.Attempt{Holder: "other", Remaining: rest}
					if time.Since(start) >= time.Second {
						c.err = &dlock.NoEffectError{Err: fmt.Errorf("%w: the breaker is open", dlock.ErrUnavailable)}
					} else if c.op == "acquire" {
						c.answers(*c.attempt, errStore)
					}
				})
				err := end(t.Context(), l, 15*time.Second)
				t.Log(name, err)
				requireOutage(t, err, unavailable)
				require.ErrorContains(t, err, "the breaker is open")
			}
		})
	}
}

func requireOutage(t *testing.T, err error, unavailable bool) {
	t.Helper()
	var held *dlock.HeldError
	require.Equal(t, unavailable, errors.Is(err, dlock.ErrUnavailable), "%v", err)
	require.Equal(t, !unavailable, errors.Is(err, dlock.ErrHeld), "%v", err)
	require.Equal(t, !unavailable, errors.As(err, &held), "%v", err)
}

// When a wait ends, a queue reports when the store last answered, and why the last call
// failed.
func TestOutageDuringAWaitInTheQueue(t *testing.T) {
	held := dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
	for _, test := range []struct {
		name        string
		answered    time.Duration // before the end of the wait, -1 if unknown
		attempt     dlock.Attempt
		err         func(end error) error
		unavailable bool
		text        string // without the time that has passed
	}{
		{"answers", time.Second, held, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"answers rarely", time.Minute, held, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"no time of the answer", -1, held, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"no answer", -1, dlock.Attempt{}, nil, false, "deadline exceeded: held by another, for 30s unless renewed"},
		{"has failed", 5 * time.Second, held, failed, true, "deadline exceeded: store unavailable: no answer for 5s (the last: held by another, for 3s unless renewed): store: connection refused"},
		{"has just failed", 2 * time.Second, held, failed, false, "deadline exceeded: held by another, for 3s unless renewed; the store last answered 2s ago: store: connection refused"},
		{"has failed, and is marked", 5 * time.Second, held, marked(failed), true, "store unavailable: no answer for 5s"},
		{"is marked", 5 * time.Second, held, marked(nil), false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"failed from the start", -1, dlock.Attempt{}, failed, true, "deadline exceeded: store unavailable: no answer for 1m0s (the last: held by another, for 30s unless renewed): store: connection refused"},
		{"answer in the future", -5 * time.Second, held, failed, false, "the store last answered 0s ago"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
				s.onCall(func(c *call) {
					switch c.op {
					case "try":
						c.answers(dlock.Attempt{Holder: "other", Remaining: 30 * time.Second}, nil)
					case "acquire":
						c.hang()
						if test.answered != -1 {
							test.attempt.Since = time.Now().Add(-test.answered)
						}
						if test.err != nil {
							c.err = test.err(c.err)
						}
						c.answers(test.attempt, c.err)
					}
				})
				err := waitEnds["ctx"](t.Context(), s, time.Minute)
				requireOutage(t, err, test.unavailable)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, test.text)
				time.Sleep(time.Hour)
			})
		})
	}
}

func failed(end error) error { return fmt.Errorf("%w: %w", end, errStore) }

func marked(f func(error) error) func(error) error {
	return func(end error) error {
		if f != nil {
			end = f(end)
		}
		return &dlock.NoEffectError{Err: end}
	}
}

// So does memory, if its calls are delayed: a service can test what it answers in an outage.
func TestOutageOfMemory(t *testing.T) {
	for _, test := range []struct {
		name        string
		holder      time.Duration
		unavailable bool
	}{{"while the holder's lease lasts", time.Minute, false}, {"for longer than the holder's lease", 3 * time.Second, true}} {
		for name, end := range waitEnds {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					hold(t, store, test.holder)
					s.onCall(func(c *call) {
						if c.op == "acquire" {
							store.Delay(time.Hour) // the attempt was the last call that was answered
						}
					})
					requireOutage(t, end(t.Context(), s, 15*time.Second), test.unavailable)
					store.Delay(0)
				})
			})
		}
	}
}

// A store that has answered again has not failed, and neither has one whose last call
// was cut short by the end of the wait.
func TestOutageThatIsOver(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		start := time.Now()
		s.onCall(func(c *call) {
			c.attempt = &dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
			if d := time.Since(start); d > time.Second && d < 9*time.Second {
				c.err = errStore
			}
		})
		err := waitEnds["ctx"](t.Context(), plain{s}, 15*time.Second)
		require.EqualError(t, err, `dlock: acquire "k": context deadline exceeded: held by another, for 3s unless renewed`)
		time.Sleep(time.Minute)
	})
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		start := time.Now()
		s.onCall(func(c *call) {
			c.attempt = &dlock.Attempt{Holder: "other", Remaining: time.Millisecond}
			if time.Since(start) >= 14*time.Second {
				c.hang()
			}
		})
		c := dlock.New(plain{s}, dlock.WithBackoff(func(int) time.Duration { return 700 * time.Millisecond }))
		ctx, cancel := context.WithTimeout(t.Context(), 14*time.Second+30*time.Millisecond)
		defer cancel()
		_, err := c.Acquire(ctx, "k")
		require.EqualError(t, err, `dlock: acquire "k": context deadline exceeded: held by another, for 1ms unless renewed`)
		time.Sleep(time.Minute)
	})
}

// A time limit of this package or a client is not taken for the end of the caller's ctx.
func TestFailureOfAWaitIsNotTheEndOfTheCaller(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		start := time.Now()
		s.onCall(func(c *call) {
			c.attempt = &dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
			if time.Since(start) > 0 {
				c.err = context.DeadlineExceeded
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		_, err := dlock.New(plain{s}).Acquire(ctx, "k")
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		time.Sleep(time.Minute)
	})
}

// The store is silent from the start, for a shorter time than the TTL.
func TestStoreThatIsSilentFromTheStart(t *testing.T) {
	for name, end := range waitEnds {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			store.Delay(time.Hour)
			err := end(t.Context(), s, 2*time.Second)
			require.ErrorContains(t, err, "no answer within 2s", name)
			require.NotErrorIs(t, err, dlock.ErrHeld, name)
			store.Delay(0)
		})
	}
}

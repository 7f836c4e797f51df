package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A waitEnd is how a wait can end: by ctx, or by MaxWait.
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

// What is known of the key when a wait ends, after the store has gone away in it. The
// holder's lease lasts for 3 s, or for ever.
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
					s.hook = func(c *call) {
						c.attempt = &dlock.Attempt{Holder: "other", Remaining: test.holder}
						if test.fail != nil && time.Since(start) >= test.after {
							test.fail(c)
						}
					}
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

func requireOutage(t *testing.T, err error, unavailable bool) {
	t.Helper()
	var held *dlock.HeldError
	require.Equal(t, unavailable, errors.Is(err, dlock.ErrUnavailable), "%v", err)
	require.Equal(t, !unavailable, errors.Is(err, dlock.ErrHeld), "%v", err)
	require.Equal(t, !unavailable, errors.As(err, &held), "%v", err)
}

// A queue whose wait ends tells when the store last answered, and why the last call
// failed, if it has.
func TestOutageDuringAWaitInTheQueue(t *testing.T) {
	told := dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
	for _, test := range []struct {
		name        string
		answered    time.Duration // before the end of the wait, negative if it is not told
		attempt     dlock.Attempt
		err         func(end error) error
		unavailable bool
		text        string // without the time that has passed
	}{
		{"answers", time.Second, told, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"answers seldom", time.Minute, told, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"does not tell when", -1, told, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"tells nothing", -1, dlock.Attempt{}, nil, false, "deadline exceeded: held by another, for 30s unless renewed"},
		{"has failed", 5 * time.Second, told, failed, true, "deadline exceeded: store unavailable: no answer for 5s (the last: held by another, for 3s unless renewed): store: connection refused"},
		{"has just failed", 2 * time.Second, told, failed, false, "deadline exceeded: held by another, for 3s unless renewed; the store last answered 2s ago: store: connection refused"},
		{"has failed, and is marked", 5 * time.Second, told, marked(failed), true, "store unavailable: no answer for 5s"},
		{"is marked", 5 * time.Second, told, marked(nil), false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"failed from the start", -1, dlock.Attempt{}, failed, true, "deadline exceeded: store unavailable: no answer for 1m0s (the last: held by another, for 30s unless renewed): store: connection refused"},
		{"tells the future", -5 * time.Second, told, failed, false, "the store last answered 0s ago"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
				s.hook = func(c *call) { c.attempt = &dlock.Attempt{Holder: "other", Remaining: 30 * time.Second} }
				q := queue{plain{s}, func(ctx context.Context) (dlock.Attempt, error) {
					<-ctx.Done()
					a, err := test.attempt, ctx.Err()
					if test.answered != -1 {
						a.Since = time.Now().Add(-test.answered)
					}
					if test.err != nil {
						err = test.err(err)
					}
					return a, err
				}}
				err := waitEnds["ctx"](t.Context(), q, time.Minute)
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

// queue is a Locker whose queue does what the test wants.
type queue struct {
	dlock.Locker
	acquire func(ctx context.Context) (dlock.Attempt, error)
}

func (q queue) Acquire(ctx context.Context, _, _ string, _ time.Duration) (dlock.Attempt, error) {
	return q.acquire(ctx)
}

// A store that has answered again has not failed, and neither has one whose last call
// was cut short by the end of the wait.
func TestOutageThatIsOver(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		start := time.Now()
		s.hook = func(c *call) {
			c.attempt = &dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
			if d := time.Since(start); d > time.Second && d < 9*time.Second {
				c.err = errStore
			}
		}
		err := waitEnds["ctx"](t.Context(), plain{s}, 15*time.Second)
		require.EqualError(t, err, `dlock: acquire "k": context deadline exceeded: held by another, for 3s unless renewed`)
		time.Sleep(time.Minute)
	})
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		start := time.Now()
		s.hook = func(c *call) {
			c.attempt = &dlock.Attempt{Holder: "other", Remaining: time.Millisecond}
			if time.Since(start) >= 14*time.Second {
				<-c.ctx.Done()
				c.err = c.ctx.Err()
			}
		}
		c := dlock.New(plain{s}, dlock.WithBackoff(func(int) time.Duration { return 700 * time.Millisecond }))
		ctx, cancel := context.WithTimeout(t.Context(), 14*time.Second+30*time.Millisecond)
		defer cancel()
		_, err := c.Acquire(ctx, "k")
		require.EqualError(t, err, `dlock: acquire "k": context deadline exceeded: held by another, for 1ms unless renewed`)
		time.Sleep(time.Minute)
	})
}

// The limit of a call that this package or a client has set itself is not that of the
// caller.
func TestFailureOfAWaitIsNotTheEndOfTheCaller(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		start := time.Now()
		s.hook = func(c *call) {
			c.attempt = &dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
			if time.Since(start) > 0 {
				c.err = context.DeadlineExceeded
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		_, err := dlock.New(plain{s}).Acquire(ctx, "k")
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		time.Sleep(time.Minute)
	})
}

// A MaxWait that is shorter than one round trip.
func TestMaxWaitShorterThanARoundTrip(t *testing.T) {
	for _, wait := range []time.Duration{1, time.Millisecond, 600 * time.Millisecond} {
		for _, crowded := range []bool{false, true} {
			t.Run(fmt.Sprint(wait, crowded), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					c := dlock.New(s)
					if crowded {
						hold(t, store, 100*time.Millisecond)
						require.NoError(t, acquire(t, c, "k").Release())
					}
					s.hook = func(c *call) {
						select {
						case <-time.After(700 * time.Millisecond):
						case <-c.ctx.Done():
							c.err = c.ctx.Err()
						}
					}
					short := c.With(dlock.WithMaxWait(wait))
					l, err := short.Acquire(t.Context(), "k")
					require.NoError(t, err, "the key is free")
					start := time.Now()
					_, err = short.Acquire(t.Context(), "k")
					require.ErrorIs(t, err, dlock.ErrHeld)
					requireNoContextError(t, err)
					require.Equal(t, 700*time.Millisecond, time.Since(start), "it does not wait")
					require.NoError(t, l.Release())
				})
			})
		}
	}
}

// The attempt that always fits ends after a second, or with ctx.
func TestMaxWaitShorterThanAnAttempt(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				<-c.ctx.Done()
				c.err = c.ctx.Err()
			}
		}
		c := dlock.New(s, dlock.WithMaxWait(time.Millisecond))
		start := time.Now()
		_, err := c.Acquire(t.Context(), "k")
		requireNoContextError(t, err)
		require.NotErrorIs(t, err, dlock.ErrHeld)
		require.Equal(t, time.Second, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1100*time.Millisecond, time.Since(start))
		time.Sleep(time.Minute)
	})
}

// errLoading is the answer of a store that will soon be ready.
var errLoading = fmt.Errorf("client: %w", &dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true})

// The first attempt is repeated while the store says that it will soon be ready.
func TestStoreThatIsSoonReady(t *testing.T) {
	for _, test := range []struct {
		name    string
		options []dlock.Option
		ready   time.Duration
		least   time.Duration // of the acquisition
		most    time.Duration
		want    error
	}{
		{"ready soon", nil, 3 * time.Second, 3 * time.Second, 4 * time.Second, nil},
		{"ready in time", []dlock.Option{dlock.WithMaxWait(5 * time.Second)}, 3 * time.Second, 3 * time.Second, 4 * time.Second, nil},
		{"never ready", nil, time.Hour, 9 * time.Second, 10 * time.Second, errLoading},
		{"not in MaxWait", []dlock.Option{dlock.WithMaxWait(2 * time.Second)}, time.Hour, 2 * time.Second, 2 * time.Second, errLoading},
		{"no wait", []dlock.Option{dlock.WithMaxWait(0)}, 3 * time.Second, 0, 0, errLoading},
		{"backoff", []dlock.Option{dlock.WithBackoff(func(int) time.Duration { return 4 * time.Second })}, 3 * time.Second, 4 * time.Second, 4 * time.Second, nil},
		{"bad backoff", []dlock.Option{dlock.WithBackoff(func(int) time.Duration { return 0 })}, 3 * time.Second, 0, 0, dlock.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
				start := time.Now()
				s.hook = func(c *call) {
					if time.Since(start) < test.ready {
						c.err = errLoading
					}
				}
				c := dlock.New(l, test.options...)
				lease, err := c.Acquire(t.Context(), "k")
				took := time.Since(start)
				require.ErrorIs(t, err, test.want)
				require.GreaterOrEqual(t, took, test.least)
				require.LessOrEqual(t, took, test.most)
				if err == nil {
					require.NoError(t, lease.Release())
					require.Len(t, s.made("release"), 1)
				} else {
					requireNoContextError(t, err)
					require.NoError(t, c.Close())
					require.Empty(t, s.made("release"), "nothing is owed")
				}
				tokens := make(map[string]bool)
				for _, c := range s.made("try") {
					tokens[c.token] = true
				}
				require.Len(t, tokens, 1, "nothing has happened to the token")
			})
		})
	}
}

func TestEndsOfAWaitForAStoreThatIsSoonReady(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		store.Fail(errLoading)
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errLoading)
		require.Len(t, s.made("try"), 1, "TryAcquire does not wait")

		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		_, err = dlock.New(s).Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errLoading)
		require.Equal(t, 2*time.Second, time.Since(start))

		c := dlock.New(s)
		time.AfterFunc(time.Second, func() { c.Close() })
		_, err = c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrClosed)

		time.Sleep(time.Minute)
	})
}

// Any other error ends it, and so does one of several stores.
func TestErrorWhileTheStoreIsNotReady(t *testing.T) {
	for _, other := range []error{errStore, errors.Join(errLoading, errStore), &dlock.NoEffectError{Err: errStore}} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			s.hook = func(c *call) {
				if c.err = errLoading; len(s.made("try")) > 3 {
					c.err = other
				}
			}
			_, err := dlock.New(s).Acquire(t.Context(), "k")
			require.ErrorIs(t, err, other)
			require.Len(t, s.made("try"), 4)
			time.Sleep(time.Minute)
		})
	}
}

// Once the store is ready, the wait is like any other.
func TestWaitAfterTheStoreIsReady(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, 10*time.Second)
		start := time.Now()
		s.hook = func(c *call) {
			if time.Since(start) < 3*time.Second {
				c.err = errLoading
			}
		}
		lease := acquire(t, dlock.New(l), "k")
		require.InDelta(t, 10, time.Since(start).Seconds(), 0.01)
		require.NoError(t, lease.Release())
	})
}

// What is owed after an acquisition that failed.
func TestWhatAnAcquisitionOwes(t *testing.T) {
	mark := func(err error) error { return &dlock.NoEffectError{Err: err} }
	told := &dlock.Attempt{Holder: "other", Remaining: time.Minute}
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: errStore}
	const once, forATTL = 1, 2
	for _, test := range []struct {
		name  string
		queue error          // nil: TryAcquire
		told  *dlock.Attempt // beside queue
		try   error          // of TryAcquire
		want  int
	}{
		{"try, unknown", nil, nil, errStore, forATTL},
		{"try, marked", nil, nil, mark(errStore), 0},
		{"try, marked within", nil, nil, fmt.Errorf("client: %w", mark(errStore)), 0},
		{"try, not dialled", nil, nil, dial, 0},
		{"try, marked among others", nil, nil, errors.Join(mark(errStore), io.EOF), forATTL},
		{"queue, unknown", errStore, nil, nil, forATTL},
		{"queue, unknown, told", errStore, told, nil, forATTL},
		{"queue, marked", mark(errStore), nil, nil, 0},
		{"queue, marked, told", mark(errStore), told, nil, once},
		{"queue, marked, only when", mark(errStore), &dlock.Attempt{Since: time.Now()}, nil, once},
	} {
		t.Run(test.name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				s.hook = func(c *call) {
					if c.op == "try" {
						c.err = test.try
					}
				}
				c, err := dlock.New(plain{s}), test.try
				if test.queue != nil {
					hold(t, store, time.Hour)
					c, err = dlock.New(queue{plain{s}, func(context.Context) (a dlock.Attempt, err error) {
						time.Sleep(time.Second)
						if test.told != nil {
							a = *test.told
						}
						return a, test.queue
					}}, dlock.WithMaxWait(time.Second)), dlock.ErrHeld
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

// A wait may be several requests: the release that ends what one has been granted is not
// the last.
func TestWaitWithAnUnknownOutcomeIsReleasedForATTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Hour)
		q := queue{plain{s}, func(ctx context.Context) (dlock.Attempt, error) {
			<-ctx.Done()
			store.Expire("k")
			_, err := store.TryAcquire(context.Background(), "k", s.made("try")[0].token, time.Minute)
			require.NoError(t, err)
			return dlock.Attempt{Holder: "other"}, errStore
		}}
		_, err := dlock.New(q, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
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
		_, err := dlock.New(toldTry{plain{s}}).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Minute)
		require.Empty(t, s.made("release"))
	})
}

type toldTry struct{ dlock.Locker }

func (toldTry) TryAcquire(context.Context, string, string, time.Duration) (dlock.Attempt, error) {
	return dlock.Attempt{Holder: "other"}, &dlock.NoEffectError{Err: errStore}
}

// The calls of one token count together: the first is granted, and found late, so that
// it tries again.
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
				s.hook = func(c *call) {
					switch {
					case c.op != "try":
					case len(s.made("try")) == 1:
						c.delay = 29 * time.Second
					default:
						test.second(c)
					}
				}
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

// A wait in the queue of a store that knows what it has left needs one release.
func TestCutWaitIsReleasedOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Hour)
		_, err := dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), 1)
	})
}

// A store that is silent from the start, for a shorter time than the TTL.
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

package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

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

// A breaker calls the store unavailable at once. While the holder's lease may last, the key is held all
// the same.
func TestBreakerOpensDuringAWait(t *testing.T) {
	for rest, unavailable := range map[time.Duration]bool{time.Hour: false, 3 * time.Second: true} {
		waiting(t, func(t *testing.T, _ *memory.Locker, s *spy, l dlock.Locker) {
			for name, end := range waitEnds {
				start := time.Now()
				s.hook = func(c *call) {
					c.attempt = &dlock.Attempt{Holder: "other", Remaining: rest}
					if time.Since(start) >= time.Second {
						c.err = &dlock.NoEffectError{Err: fmt.Errorf("%w: the breaker is open", dlock.ErrUnavailable)}
					} else if c.op == "acquire" {
						c.answers(*c.attempt, errStore)
					}
				}
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
				s.hook = func(c *call) {
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
				}
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
					s.hook = func(c *call) {
						if c.op == "acquire" {
							store.Delay(time.Hour) // the attempt was the last call that was answered
						}
					}
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
				c.hang()
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

// A time limit of this package or a client is not taken for the end of the caller's ctx.
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

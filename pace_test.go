package dlock_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestPollingPace(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 30 * time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				defer acquire(t, dlock.New(store, dlock.WithTTL(ttl)), "k").Release()
				_, err := dlock.New(plain{s}, dlock.WithMaxWait(20*time.Second)).Acquire(t.Context(), "k")
				require.ErrorIs(t, err, dlock.ErrHeld)
				tries := s.made("try")
				for i := range tries {
					n := 0
					for _, c := range tries[i:] {
						if c.at.Sub(tries[i].at) < time.Second {
							n++
						}
					}
					require.LessOrEqual(t, n, 21, "attempts in one second")
				}
				require.Greater(t, len(tries), 5*20, "it hardly polls")
				require.Less(t, len(tries), 14*20, "it polls too frequently")
			})
		})
	}
}

// While the store does not answer, pauses become longer; once it answers, they are as usual.
func TestPollingPaceOfFailures(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		start := time.Now()
		s.hook = func(c *call) {
			if at := time.Since(start); at > time.Second && at < time.Minute {
				c.err = errStore
			}
		}
		_, err := dlock.New(plain{s}, dlock.WithMaxWait(2*time.Minute)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		polls := func(from, to time.Duration) (n int) {
			for _, c := range s.made("try") {
				if at := c.at.Sub(start); at >= from && at < to {
					n++
				}
			}
			return n
		}
		require.InDelta(t, 60, polls(10*time.Second, time.Minute), 15, "attempts in 50 s, while it fails")
		require.InDelta(t, 6.7*50, polls(65*time.Second, 115*time.Second), 70, "attempts in 50 s, when it answers again")
	})
}

func TestPollersDoNotStayTogether(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store, dlock.WithRenewal(false), dlock.WithTTL(time.Hour)), "k").Release()
		for range 10 {
			go dlock.New(plain{s}, dlock.WithMaxWait(5*time.Second)).Acquire(t.Context(), "k")
		}
		time.Sleep(time.Minute)
		instants := make(map[time.Time]bool)
		for _, c := range s.made("try") {
			instants[c.at] = true
		}
		require.Greater(t, len(instants), len(s.made("try"))/2)
	})
}

func TestPollAtTheEndOfTheLease(t *testing.T) {
	for _, rest := range []time.Duration{3 * time.Millisecond, 30 * time.Millisecond, 1234 * time.Millisecond, 30 * time.Second} {
		t.Run(rest.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				hold(t, store, rest)
				start := time.Now()
				l := acquire(t, dlock.New(plain{s}), "k")
				require.InDelta(t, rest.Seconds(), time.Since(start).Seconds(), 0.004)
				require.NoError(t, l.Release())
			})
		})
	}
}

func TestBackoff(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		var attempts []int
		c := dlock.New(plain{s}, dlock.WithMaxWait(time.Minute), dlock.WithBackoff(func(attempt int) time.Duration {
			attempts = append(attempts, attempt)
			return time.Duration(4-attempt) * time.Second
		}))
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.Contains(t, err.Error(), "0s for attempt 4")
		require.Equal(t, []int{1, 2, 3, 4}, attempts)
		require.Len(t, s.made("try"), 4)

		_, err = c.With(dlock.WithBackoff(nil)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
	})
}

// A lease may last for as long as a Duration can be.
func TestPaceOverflow(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.hook = func(c *call) { c.answers(dlock.Attempt{Holder: "x", Remaining: math.MaxInt64}, nil) }
		_, err := dlock.New(plain{s}, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		tries := s.made("try")
		for i := 1; i < len(tries); i++ {
			require.GreaterOrEqual(t, tries[i].at.Sub(tries[i-1].at), 50*time.Millisecond, "pause %d", i)
		}
	})
}

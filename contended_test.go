package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// contended runs a test with a Client that has just waited for the key k in the queue of
// the store, and released it.
func contended(t *testing.T, f func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client)) {
	t.Helper()
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		hold(t, store, 100*time.Millisecond)
		require.NoError(t, acquire(t, c, "k").Release())
		require.Equal(t, []string{"try", "acquire", "release"}, s.ops())
		s.forget()
		f(t, store, s, c)
		require.NoError(t, c.Close())
	})
}

// For a second after a wait, the next acquisition of the key joins the queue at once,
// held or free, and others do not.
func TestContendedKey(t *testing.T) {
	for _, free := range []bool{true, false} {
		t.Run(fmt.Sprint("free ", free), func(t *testing.T) {
			contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
				time.Sleep(time.Second - 2*time.Millisecond)
				if !free {
					hold(t, store, 500*time.Microsecond) // too short to be a new wait
				}
				require.NoError(t, acquire(t, c.With(dlock.WithMaxWait(time.Minute)), "k").Release())
				require.Equal(t, []string{"acquire", "release"}, s.ops())
				s.forget()
				time.Sleep(2 * time.Millisecond)
				require.NoError(t, acquire(t, c, "k").Release())
				require.Equal(t, []string{"try", "release"}, s.ops())
			})
		})
	}
	contended(t, func(t *testing.T, _ *memory.Locker, s *spy, c *dlock.Client) {
		require.NoError(t, acquire(t, c, "other").Release())
		require.Equal(t, []string{"try", "release"}, s.ops())
	})
	contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		_, err = c.With(dlock.WithMaxWait(0)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.Equal(t, []string{"try", "try"}, s.ops())
	})
}

// While many first attempts are in flight, others join the queue at once.
func TestManyAttempts(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		s.hook = func(*call) { time.Sleep(time.Second) }
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				lease, err := c.Acquire(t.Context(), fmt.Sprint("k", i))
				if err == nil {
					err = lease.Release()
				}
				require.NoError(t, err)
			})
		}
		all.Wait()
		ops := make(map[string]int)
		for _, op := range s.ops() {
			ops[op]++
		}
		require.Equal(t, 200, ops["try"]+ops["acquire"])
		require.InDelta(t, 128, ops["try"], 8) // those that begin at the same instant do not see each other
		require.Equal(t, 200, ops["release"])
		s.forget()
		require.NoError(t, acquire(t, c, "k").Release())
		require.Equal(t, []string{"try", "release"}, s.ops())
		require.NoError(t, c.Close())
	})
}

// A key stays contended for as long as calls wait for it. A grant at once does not
// prolong that.
func TestKeyStaysContended(t *testing.T) {
	contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		s.hook = func(c *call) { time.Sleep(10 * time.Microsecond) }
		for range 5 {
			time.Sleep(600 * time.Millisecond)
			hold(t, store, 5*time.Millisecond)
			require.NoError(t, acquire(t, c, "k").Release())
		}
		require.Empty(t, s.made("try"))
		for range 2 {
			time.Sleep(600 * time.Millisecond)
			require.NoError(t, acquire(t, c, "k").Release())
		}
		require.Len(t, s.made("try"), 1)
	})
}

// Without a queue each acquisition begins with an attempt.
func TestNoContendedKeysWithoutQueue(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "acquire" {
				c.err = errors.ErrUnsupported
			}
		}
		c := dlock.New(s)
		for range 2 {
			hold(t, store, 10*time.Millisecond)
			require.NoError(t, acquire(t, c, "k").Release())
		}
		require.Len(t, s.made("acquire"), 2)
		require.Equal(t, "try", s.ops()[len(s.made())/2])
	})
}

// If the queue fails, an attempt decides the acquisition: an error of
// the store is returned at once, and a key that is held is waited for.
func TestContendedKeyFails(t *testing.T) {
	t.Run("store down", func(t *testing.T) {
		contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.hook = func(c *call) {
				if c.op != "release" {
					c.err = errStore
				}
			}
			begin := time.Now()
			_, err := c.Acquire(t.Context(), "k")
			require.ErrorIs(t, err, errStore)
			require.NotErrorIs(t, err, dlock.ErrHeld)
			require.Equal(t, begin, time.Now())
			tries := s.made("try", "acquire")
			require.Len(t, tries, 2)
			require.NotEqual(t, tries[0].token, tries[1].token, "the first may have been granted")
			time.Sleep(time.Minute)
			require.True(t, s.released(tries[0].token))
			require.True(t, s.released(tries[1].token))
			requireFree(t, store, "k")
		})
	})
	for name, failure := range map[string]error{"queue lost": errStore, "queue gone": errors.ErrUnsupported} {
		t.Run(name, func(t *testing.T) {
			contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
				failed := false
				s.hook = func(c *call) {
					if c.op == "acquire" && !failed {
						failed, c.err = true, failure
					}
				}
				hold(t, store, time.Second)
				require.NoError(t, acquire(t, c, "k").Release())
				require.Equal(t, "acquire", s.ops()[0])
				require.Len(t, s.made("try"), 1)
			})
		})
	}
	t.Run("the queue says held, then fails", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			hold(t, store, time.Second)
			c := dlock.New(s)
			require.NoError(t, acquire(t, c, "k").Release())
			s.forget()
			s.hook = func(c *call) {
				if c.op == "acquire" && len(s.made("acquire")) <= 3 {
					c.answers(dlock.Attempt{Holder: "other", Remaining: time.Second}, errStore)
				}
			}
			hold(t, store, time.Second)
			require.NoError(t, acquire(t, c, "k").Release())
			require.Empty(t, s.made("try"), "it was known to be held")
			require.Len(t, s.made("acquire"), 4)
		})
	})
}

// A wait that joined the queue at once ends like any other.
func TestContendedKeyEnds(t *testing.T) {
	contended(t, func(t *testing.T, store *memory.Locker, _ *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, dlock.ErrHeld)
	})
	contended(t, func(t *testing.T, store *memory.Locker, _ *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		_, err := c.With(dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
	contended(t, func(t *testing.T, store *memory.Locker, _ *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		time.AfterFunc(time.Second, func() { c.Close() })
		begin := time.Now()
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrClosed)
		require.Equal(t, time.Second, time.Since(begin))
	})
	contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		s.hook = func(c *call) { c.attempt = &dlock.Attempt{Acquired: true} } // without a fence
		_, err := c.With(dlock.WithFence(true)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Equal(t, []string{"acquire", "release"}, s.ops())
	})
}

package dlock_test

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestDetachAndAdopt(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		giver := acquire(t, dlock.New(s), "k\x00é")
		work := giver.Context(t.Context())
		time.Sleep(5 * time.Second)
		deadline := giver.Deadline()
		h := detach(t, giver)
		require.Error(t, work.Err())
		require.Equal(t, dlock.ErrReleased, giver.Err())
		_, err := giver.Detach()
		require.ErrorIs(t, err, dlock.ErrReleased)

		text, err := h.MarshalText()
		require.NoError(t, err)
		require.Regexp(t, "^[ -~]+$", string(text))
		var sent dlock.Detached
		require.NoError(t, sent.UnmarshalText(text))
		require.Equal(t, h, sent)
		require.Equal(t, "k\x00é", sent.Key())
		require.Equal(t, giver.Fence()+1, sent.Fence())
		require.Equal(t, deadline.UnixMilli(), sent.Deadline().UnixMilli())
		var none dlock.Detached
		require.True(t, none.Key() == "" && none.Fence() == 0 && none.Deadline().IsZero())

		c := dlock.New(s, dlock.WithTTL(time.Minute))
		taker := adopt(t, c, sent)
		require.Equal(t, giver.Key(), taker.Key())
		require.Equal(t, giver.Token(), taker.Token())
		require.Equal(t, giver.Fence()+1, taker.Fence())
		require.Equal(t, time.Now().Add(time.Minute-602*time.Millisecond), taker.Deadline())
		time.Sleep(time.Hour)
		require.NoError(t, taker.Err())

		require.NoError(t, giver.Release())
		require.Empty(t, s.made("release"), "Release of a detached lease sends nothing")
		_, err = c.Adopt(t.Context(), sent)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "adopted already")
		require.NoError(t, taker.Release())
		requireFree(t, store, "k\x00é")
		_, err = c.Adopt(t.Context(), sent)
		require.ErrorIs(t, err, dlock.ErrLost, "the lease is gone")
	})
}

// MaxHold and MinHold count from the grant, through all holders, whose clocks differ.
func TestHoldCountsFromTheGrant(t *testing.T) {
	pass := func(t *testing.T, c *dlock.Client, l *dlock.Lease) *dlock.Lease {
		d := detach(t, l)
		text, err := d.MarshalText()
		require.NoError(t, err)
		var sent dlock.Detached
		require.NoError(t, sent.UnmarshalText(text))
		next := adopt(t, c, sent)
		return next
	}
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMaxHold(time.Minute))
		start, l := time.Now(), acquire(t, c, "k")
		for range 3 {
			time.Sleep(15 * time.Second)
			l = pass(t, c, l)
		}
		<-l.Done()
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		held := time.Since(start)
		require.LessOrEqual(t, held, 90*time.Second, "at most a TTL after MaxHold")
		require.GreaterOrEqual(t, held, time.Minute)
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMaxHold(time.Minute))
		first := acquire(t, dlock.New(s), "k")
		time.Sleep(2 * time.Minute)
		start, l := time.Now(), pass(t, c, first)
		require.Error(t, l.Renew(t.Context()))
		<-l.Done()
		require.InDelta(t, 29.698, time.Since(start).Seconds(), 0.001, "one TTL, not renewed")
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Minute))
		start, l := time.Now(), acquire(t, c, "k")
		time.Sleep(20 * time.Second)
		require.NoError(t, pass(t, c, l).Release())
		next := acquire(t, dlock.New(store), "k")
		require.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, next.Release())
	})
}

func TestEighthDetachInARowIsRefused(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		first := l.Fence()
		for i := int64(1); i <= 7; i++ {
			h := detach(t, l)
			l = adopt(t, c, h)
			require.Equal(t, first+i, l.Fence())
		}
		_, err := l.Detach()
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "passed on 7 times")
		require.NoError(t, l.Err(), "it is still held")
		require.NoError(t, l.Release())
		next := acquire(t, c, "k")
		require.Greater(t, next.Fence(), l.Fence())
		require.NoError(t, next.Release())
	})
}

// After a wait a lease is granted for 5 s at first. Its taker still has the full TTL, or the
// remaining time if the store does not answer.
func TestDetachRightAfterAWait(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		first := acquire(t, dlock.New(store), "k")
		time.AfterFunc(time.Second, func() { first.Release() })
		l := acquire(t, dlock.New(s), "k")
		require.Less(t, time.Until(l.Deadline()), 5*time.Second)
		d := detach(t, l)
		require.Greater(t, time.Until(d.Deadline()), 29*time.Second)
		time.Sleep(29 * time.Second)
		heir := adopt(t, dlock.New(s), d)

		time.AfterFunc(time.Second, func() { heir.Release() })
		l = acquire(t, dlock.New(s), "k")
		store.Delay(time.Hour)
		start := time.Now()
		d = detach(t, l)
		require.Equal(t, time.Second, time.Since(start))
		require.Greater(t, time.Until(d.Deadline()), 3*time.Second)
		store.Delay(0)
		time.Sleep(time.Hour)
	})
}

func TestDetachOfLostLease(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		time.Sleep(30 * time.Second)
		_, err := l.Detach()
		require.ErrorIs(t, err, dlock.ErrLost)
		synctest.Wait()
	})
}

func TestNobodyAdopts(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		h := detach(t, l)
		time.Sleep(30 * time.Second)
		requireFree(t, store, "k")
		_, err := dlock.New(s).Adopt(t.Context(), h)
		require.ErrorIs(t, err, dlock.ErrLost)
		require.NoError(t, acquire(t, dlock.New(s), "k").Release())
	})
}

// The taker was not reached: the giver takes the lease back, and releases it.
func TestDetachedThatCouldNotBeSent(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		d := detach(t, acquire(t, c, "k"))
		requireHeld(t, store, "k", s.made("try")[0].token)
		back := adopt(t, c, d)
		require.NoError(t, back.Release())
		requireFree(t, store, "k")
	})
}

func TestAdoptMayBeRepeatedAfterAnError(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h := detach(t, acquire(t, c, "k"))
		store.FailReplies(errStore)
		_, err := c.Adopt(t.Context(), h)
		require.ErrorIs(t, err, errStore)
		require.ErrorContains(t, err, `dlock: adopt "k"`)
		store.FailReplies(nil)
		time.Sleep(time.Second)
		l := adopt(t, c, h)
		require.Empty(t, s.made("release"))
		require.NoError(t, l.Release())
	})
}

func TestAdoptThatAnswersLate(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h := detach(t, acquire(t, c, "k"))
		s.onCall(func(c *call) {
			if c.op == "renew" && len(s.made("renew")) == 1 {
				c.delay = 30 * time.Second
			}
		})
		_, err := c.Adopt(t.Context(), h)
		require.ErrorContains(t, err, "took too much of the TTL")
		require.NotErrorIs(t, err, dlock.ErrLost)
	})
}

func TestAdoptDeadlineCountsFromSending(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h := detach(t, acquire(t, c, "k"))
		s.onCall(func(c *call) { c.delay = time.Second })
		start := time.Now()
		l := adopt(t, c, h)
		require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
		require.NoError(t, l.Release())
	})
}

func TestAdoptWithFence(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(noFences{s.Forward})
		h := detach(t, acquire(t, c, "k"))
		_, err := c.With(dlock.WithFence(true)).Adopt(t.Context(), h)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		l := adopt(t, c, h)
		require.Zero(t, l.Fence(), "a store without fences has none after a Detach either")
		require.NoError(t, l.Release())
	})
}

func TestBadDetached(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		_, err := c.Adopt(t.Context(), dlock.Detached{})
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "Detached: empty")
		_, err = dlock.Detached{}.MarshalText()
		require.ErrorIs(t, err, dlock.ErrInvalid)

		h := detach(t, acquire(t, c, "k"))
		text, err := h.MarshalText()
		require.NoError(t, err)
		for i := range text {
			require.ErrorIs(t, new(dlock.Detached).UnmarshalText(text[:i]), dlock.ErrInvalid)
			changed := bytes.Clone(text)
			changed[i] ^= 1
			require.ErrorIs(t, new(dlock.Detached).UnmarshalText(changed), dlock.ErrInvalid, "byte %d", i)
		}
		for _, around := range []string{"\n", "\r\n", " ", "\t\n "} {
			var got dlock.Detached
			require.NoError(t, got.UnmarshalText([]byte(around+string(text)+around)))
			require.Equal(t, h, got)
			require.ErrorIs(t, got.UnmarshalText([]byte(around)), dlock.ErrInvalid)
		}
		err = new(dlock.Detached).UnmarshalText([]byte("my-secret"))
		require.ErrorContains(t, err, "invalid Detached of 9 bytes: does not begin with dlock1-")
		require.NotContains(t, err.Error(), "my-secret")
		_, err = c.With(dlock.WithTTL(0)).Adopt(t.Context(), h)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.Empty(t, s.made("renew"))
	})
}

func FuzzDetached(f *testing.F) {
	f.Add([]byte("dlock1-AYCAgA"))
	f.Add([]byte("dlock1-AYCAgA"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		var h dlock.Detached
		if err := h.UnmarshalText(text); err != nil {
			require.ErrorIs(t, err, dlock.ErrInvalid)
			return
		}
		again, err := h.MarshalText()
		require.NoError(t, err)
		require.Equal(t, string(bytes.TrimSpace(text)), string(again))
	})
}

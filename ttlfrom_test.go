package dlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestTTLFrom(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		ttls := map[string]time.Duration{
			"short":  2500*time.Millisecond + 1,
			"long":   time.Hour,
			"tiny":   time.Nanosecond,
			"bad":    -time.Second,
			"direct": 5 * time.Second,
		}
		asked := 0
		c := dlock.New(s, dlock.WithRenewal(false), dlock.WithTTL(time.Minute), dlock.WithTTLFrom(func(key string) time.Duration {
			asked++
			return ttls[key]
		}))
		for key, want := range map[string]time.Duration{
			"short":   2500 * time.Millisecond,
			"long":    time.Minute,
			"tiny":    10 * time.Millisecond,
			"bad":     time.Minute,
			"unknown": time.Minute,
		} {
			s.forget()
			l := acquire(t, c, key)
			require.Equal(t, time.Now().Add(want-want/100-2*time.Millisecond), l.Deadline(), key)
			time.Sleep(want / 2)
			require.NoError(t, l.Renew(t.Context()))
			require.Equal(t, time.Now().Add(want-want/100-2*time.Millisecond), l.Deadline(), key)
			for _, call := range s.made("try", "renew") {
				require.Equal(t, want, call.ttl, key)
			}
			require.NoError(t, l.Release())
		}

		asked = 0
		holdKey(t, store, "short", time.Minute)
		l := acquire(t, c, "short")
		require.Equal(t, 1, asked, "once for an acquisition")
		require.Equal(t, 2500*time.Millisecond, s.made("acquire")[0].ttl, "after a wait")
		d := detach(t, l)
		ttls["short"] = 4 * time.Second
		s.forget()
		require.NoError(t, adopt(t, c, d).Release())
		require.Equal(t, 4*time.Second, s.made("renew")[0].ttl)
	})
}

func TestTTLFromIsForLeasesWithoutRenewal(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTLFrom(func(string) time.Duration { return time.Second }))
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "WithTTLFrom: needs WithRenewal(false)")
		require.NoError(t, acquire(t, c.With(dlock.WithTTLFrom(nil)), "k").Release())
		require.NoError(t, acquire(t, c.With(dlock.WithRenewal(false)), "k").Release())
		require.Empty(t, s.made("renew"))
	})
}

package dlock_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestBadInput(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		good := dlock.New(s)
		for _, bad := range []struct {
			client *dlock.Client
			key    string
			want   string
		}{
			{good, "", "key: empty"},
			{good, strings.Repeat("k", 1025), "key: 1025 bytes, more than 1024"},
			{dlock.New(nil), "k", "Locker: nil"},
			{new(dlock.Client), "k", "Locker: nil"},
			{dlock.New(s, nil), "k", "Option 1 of 1: nil"},
			{good.With(dlock.WithTTL(0)), "k", "WithTTL(0s): less than 10ms"},
			{good.With(dlock.WithTTL(-time.Second)), "k", "WithTTL(-1s)"},
			{good.With(dlock.WithTTL(9999 * time.Microsecond)), "k", "WithTTL(9.999ms)"},
			{good.With(dlock.WithMaxWait(-1)), "k", "WithMaxWait(-1ns): negative"},
			{good.With(dlock.WithMaxWait(math.MinInt64)), "k", "negative"},
			{good.With(dlock.WithMaxHold(-1)), "k", "WithMaxHold(-1ns): negative"},
			{good.With(dlock.WithMinHold(-1)), "k", "WithMinHold(-1ns): negative"},
			{good.With(dlock.WithTTL(365*24*time.Hour + 1)), "k", "WithTTL(8760h0m0.000000001s): more than 8760h0m0s"},
			{good.With(dlock.WithMinHold(math.MaxInt64)), "k", "more than 8760h0m0s"},
			{good.With(dlock.WithOwner(strings.Repeat("o", 257))), "k", "257 bytes, more than 256"},
			{good.With(dlock.WithTTL(0)).With(dlock.WithTTL(time.Second)), "k", "WithTTL(0s)"},
			{good.With(dlock.WithLocalTurns(0)), "k", "WithLocalTurns(0): not between 1 and 8"},
			{good.With(dlock.WithLocalTurns(-1)), "k", "WithLocalTurns(-1): not between 1 and 8"},
			{good.With(dlock.WithLocalTurns(9)), "k", "WithLocalTurns(9): not between 1 and 8"},
		} {
			for name, f := range map[string]func() error{
				"Acquire":    func() error { _, err := bad.client.Acquire(t.Context(), bad.key); return err },
				"TryAcquire": func() error { _, err := bad.client.TryAcquire(t.Context(), bad.key); return err },
				"Inspect":    func() error { _, err := bad.client.Inspect(t.Context(), bad.key); return err },
				"Do": func() error {
					return bad.client.Do(t.Context(), bad.key, func(context.Context, *dlock.Lease) error { return nil })
				},
			} {
				err := f()
				require.ErrorIs(t, err, dlock.ErrInvalid, name)
				require.ErrorContains(t, err, bad.want, name)
			}
			if bad.client != good {
				require.NoError(t, bad.client.With().Close())
			}
		}
		require.ErrorIs(t, dlock.New(s).Do(t.Context(), "k", nil), dlock.ErrInvalid)
		require.Empty(t, s.made(), "something was sent to the store")
	})
}

func TestMaxHoldShorterThanMinHoldIsRefused(t *testing.T) {
	c := dlock.New(memory.New(), dlock.WithMaxHold(time.Second), dlock.WithMinHold(time.Minute))
	_, err := c.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, dlock.ErrInvalid)
	require.ErrorContains(t, err, "WithMaxHold(1s): less than WithMinHold(1m0s)")
	l, err := c.With(dlock.WithMinHold(0)).TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

func TestLimitsAreAccepted(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(10*time.Millisecond), dlock.WithOwner(strings.Repeat("o", 256)),
			dlock.WithMaxHold(0), dlock.WithMinHold(0))
		l := acquire(t, c, strings.Repeat("k", 1024))
		time.Sleep(time.Minute)
		require.NoError(t, l.Release())

		year := c.With(dlock.WithTTL(365*24*time.Hour), dlock.WithMinHold(0))
		require.NoError(t, acquire(t, year, "k").Release())
	})
}

func TestWholeMilliseconds(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op != "release" {
				require.Zero(t, c.ttl%time.Millisecond, "%s sends a TTL of %v", c.op, c.ttl)
			}
		})
		start := time.Now()
		c := dlock.New(s, dlock.WithTTL(1500*time.Microsecond+time.Second), dlock.WithMinHold(time.Minute+time.Nanosecond))
		l := acquire(t, c, "k")
		require.Equal(t, start.Add(1001*time.Millisecond-10010*time.Microsecond-2*time.Millisecond), l.Deadline())
		time.Sleep(1234567 * time.Microsecond)
		require.NoError(t, l.Release())
		time.Sleep(2 * time.Minute)
		require.Len(t, s.made("renew"), 1+3, "a background renewal each third of the TTL, and one for MinHold")
	})
}

func TestWithSharesTheRest(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithOwner("a"), dlock.WithMaxHold(time.Minute), dlock.WithMinHold(time.Minute))
		d := c.With(dlock.WithOwner(""), dlock.WithMaxHold(0), dlock.WithMinHold(0))
		l := acquire(t, d, "k")
		defer l.Release()
		time.Sleep(2 * time.Minute)
		require.NoError(t, l.Err())
		var held *dlock.HeldError
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorAs(t, err, &held)
		require.Empty(t, held.Owner)
		require.NoError(t, d.Close())
		_, err = c.TryAcquire(t.Context(), "other")
		require.ErrorIs(t, err, dlock.ErrClosed)
	})
}

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

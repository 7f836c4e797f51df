package dlock_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestDoneAndErr(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		select {
		case <-l.Done():
			t.Fatal("done while it is held")
		default:
		}
		require.NoError(t, l.Err())
		require.NoError(t, l.Release())
		<-l.Done()
		require.Equal(t, dlock.ErrReleased, l.Err())

		l = acquire(t, c, "k")
		store.Steal("k", time.Hour)
		<-l.Done()
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.NotErrorIs(t, l.Err(), dlock.ErrReleased)
		<-l.Done()
	})
}

// However a lease has ended, and whenever its deadline is asked for, that is the end: a loop until the
// deadline ends, and a write after the end was not made in time.
func TestDeadlineAfterTheEnd(t *testing.T) {
	const ttl = 30 * time.Second
	await := func(t *testing.T, l *dlock.Lease) { <-l.Done() }
	for name, c := range map[string]struct {
		options []dlock.Option
		end     func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease)
	}{
		"Release": {nil, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			require.NoError(t, l.Release())
		}},
		"Release that fails": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
		}},
		"Release with MinHold": {[]dlock.Option{dlock.WithMinHold(time.Minute)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			require.NoError(t, l.Release())
		}},
		"Detach": {nil, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			_ = detach(t, l)
		}},
		"taken by another": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Steal("k", time.Hour)
			await(t, l)
		}},
		"Renew finds it taken": {[]dlock.Option{dlock.WithRenewal(false)}, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Steal("k", time.Hour)
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		}},
		"store out of reach": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			await(t, l)
		}},
		"MaxHold": {[]dlock.Option{dlock.WithMaxHold(time.Minute)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			await(t, l)
		}},
		"no renewal": {[]dlock.Option{dlock.WithRenewal(false)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			await(t, l)
		}},
		"Close": {nil, func(t *testing.T, _ *memory.Locker, c *dlock.Client, l *dlock.Lease) {
			require.NoError(t, c.Close())
			await(t, l)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				client := dlock.New(s, append(c.options, dlock.WithTTL(ttl))...)
				l := acquire(t, client, "k")
				require.True(t, l.Deadline().After(time.Now()), "Deadline of a lease that is held: not in the future")
				time.Sleep(time.Second)
				c.end(t, store, client, l)
				end := time.Now()
				time.Sleep(time.Second)
				require.Equal(t, end, l.Deadline(), "Deadline a second after the end, which was: %v", l.Err())
				_ = client.Close()
			})
		})
	}
}

// A loss has its reason as a value, and the last renewal's error.
func TestLossReasons(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []dlock.Option
		happen func(store *memory.Locker)
		reason dlock.LossReason
		err    error
	}{
		"expired":           {[]dlock.Option{dlock.WithRenewal(false)}, nil, dlock.LossExpired, nil},
		"renewals failed":   {nil, func(s *memory.Locker) { s.Fail(errStore) }, dlock.LossExpired, errStore},
		"removed":           {nil, func(s *memory.Locker) { s.Steal("k", time.Hour) }, dlock.LossRemoved, nil},
		"held for too long": {[]dlock.Option{dlock.WithMaxHold(time.Minute)}, nil, dlock.LossMaxHold, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				l := acquire(t, dlock.New(s, c.opts...), "k")
				if c.happen != nil {
					c.happen(store)
				}
				<-l.Done()
				store.Fail(nil)
				var lost *dlock.LostError
				require.ErrorAs(t, l.Err(), &lost)
				require.Equal(t, "k", lost.Key)
				require.Equal(t, c.reason, lost.Reason)
				require.ErrorContains(t, l.Err(), c.reason.String())
				require.ErrorIs(t, l.Err(), dlock.ErrLost)
				if c.err == nil {
					require.NoError(t, lost.Err)
				} else {
					require.ErrorIs(t, l.Err(), c.err)
					require.ErrorContains(t, l.Err(), c.err.Error())
				}
			})
		})
	}
}

// The error of a lease that is lost to a store that hangs says for how long there was no answer.
func TestLossToAStoreThatHangs(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		l := acquire(t, dlock.New(locker, dlock.WithTTL(3*time.Second)), "k")
		store.Delay(time.Hour)
		<-l.Done()
		store.Delay(0)
		require.EqualError(t, l.Err(), `dlock: "k": lease lost: not renewed before its deadline (last renewal: no answer for 1.968s)`)
	})
}

func TestPrintsAndLogsWithoutToken(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		check := func(what string, v any, token string) {
			var out bytes.Buffer
			for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%t"} {
				fmt.Fprintf(&out, format+"\n", v)
			}
			slog.New(slog.NewTextHandler(&out, nil)).Info("x", what, v)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("x", what, v)
			require.NotContains(t, out.String(), token)
			require.NotContains(t, out.String(), token[8:20])
			require.Contains(t, out.String(), fmt.Sprint(l.Fence()/10), "the fence is shown")
		}
		check("lease", l, l.Token())
		h := detach(t, l)
		text, err := h.MarshalText()
		require.NoError(t, err)
		check("detached", h, l.Token())
		check("detached", h, string(text[7:]))
		check("detached", &h, l.Token())
		type job struct{ h dlock.Detached } // fmt does not call the methods of an unexported field
		require.NotContains(t, fmt.Sprintf("%+v", job{h}), l.Token())
	})
}

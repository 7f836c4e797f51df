package dlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestDo(t *testing.T) {
	inCases{
		"do": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			wrong := errors.New("went wrong")
			for _, want := range []error{nil, wrong} {
				require.Equal(t, want, c.Do(t.Context(), "k", func(ctx context.Context, l *dlock.Lease) error {
					requireHeld(t, store, "k", l.Token())
					require.NoError(t, ctx.Err())
					return want
				}))
				requireFree(t, store, "k")
			}
		},
		"do context bounds the work": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			ctx := within(t, time.Second)
			err := c.Do(ctx, "k", func(ctx context.Context, _ *dlock.Lease) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			requireErr(t, err, context.DeadlineExceeded, not{dlock.ErrLost})
			requireFree(t, store, "k")
		},
		"do releases on panic": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			require.PanicsWithValue(t, "boom", func() {
				c.Do(t.Context(), "k", func(context.Context, *dlock.Lease) error { panic("boom") })
			})
			requireFree(t, store, "k")
		},
		"owed release is no error of the work": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.on("release", says(errStore))
			require.NoError(t, c.Do(t.Context(), "k", noWork))
			synctest.Wait()
			require.Len(t, s.made("release"), 2, "that of Do, and the first of the Client")
		},
		"if the work detaches its lease, its context ends, and Do returns its error": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			var d dlock.Detached
			for _, want := range []error{nil, errors.New("not delivered")} {
				s.forget()
				require.Equal(t, want, c.Do(t.Context(), "k", func(ctx context.Context, l *dlock.Lease) (err error) {
					d = detach(t, l)
					require.Equal(t, dlock.ErrReleased, context.Cause(ctx))
					return want
				}))
				require.Empty(t, s.made("release"))
				require.NoError(t, adopt(t, c, d).Release())
			}
		},
		"do with lost lease and ended context": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			ctx, cancel := context.WithCancel(t.Context())
			err := c.Do(ctx, "k", func(ctx context.Context, _ *dlock.Lease) error {
				cancel()
				store.Steal("k", time.Hour)
				return ctx.Err()
			})
			require.ErrorIs(t, err, dlock.ErrLost, "found by the release")
			require.ErrorIs(t, err, context.Canceled)
		},
	}.run(t)
}

// A loss is printed once, whether fn's error is the loss, wraps it, follows from it, or is another one.
func TestDoWithLostLease(t *testing.T) {
	other := errors.New("row 7")
	for name, test := range map[string]struct {
		fn   func(ctx context.Context, l *dlock.Lease) error
		says []any
	}{
		"nothing": {noWork, []any{noContext}},
		"Err":     {func(_ context.Context, l *dlock.Lease) error { return l.Err() }, []any{noContext}},
		"cause":   {func(ctx context.Context, _ *dlock.Lease) error { return fmt.Errorf("row 7: %w", context.Cause(ctx)) }, []any{noContext}},
		"text":    {func(ctx context.Context, _ *dlock.Lease) error { return fmt.Errorf("row 7: %v", context.Cause(ctx)) }, []any{noContext}},
		"call": {func(ctx context.Context, _ *dlock.Lease) error {
			return errOf(dlock.New(memory.New()).Acquire(ctx, "second"))
		}, []any{noContext}},
		"other": {func(context.Context, *dlock.Lease) error { return other }, []any{other, noContext}},
		"what would be taken for the end of the caller's ctx": {func(ctx context.Context, _ *dlock.Lease) error {
			return fmt.Errorf("row 7: %w", ctx.Err())
		}, []any{noContext, "row 7: context canceled"}},
		"a time limit of the work": {func(context.Context, *dlock.Lease) error { return context.DeadlineExceeded }, []any{context.DeadlineExceeded}},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			var loss error
			err := dlock.New(s).Do(t.Context(), "k", func(ctx context.Context, l *dlock.Lease) error {
				store.Steal("k", time.Hour)
				<-ctx.Done()
				loss = context.Cause(ctx)
				return test.fn(ctx, l)
			})
			require.ErrorIs(t, loss, dlock.ErrLost)
			requireErr(t, err, append(test.says, dlock.ErrLost, loss)...)
			require.Equal(t, 1, strings.Count(err.Error(), "lease lost"), err)
		})
	}
}

func TestOperators(t *testing.T) {
	inCases{
		"inspect": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithOwner("web-7"))
			require.Zero(t, inspect(t, c))
			defer acquire(t, c, "k").Release()
			holder := inspect(t, c)
			require.True(t, holder.Held)
			require.Equal(t, "web-7", holder.Owner)
			require.Equal(t, time.Now().Local(), holder.Started)
			require.Equal(t, 30*time.Second, holder.Remaining)
			requireErr(t, errOf(dlock.New(plain{s}).Inspect(t.Context(), "k")), errors.ErrUnsupported, `dlock: inspect "k"`)
			store.Fail(errStore)
			require.ErrorIs(t, errOf(c.Inspect(t.Context(), "k")), errStore)
		},
		"status tells how many wait": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			defer acquire(t, c, "k").Release()
			for range 7 {
				go c.With(dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
			}
			synctest.Wait()
			status := inspect(t, c)
			require.Equal(t, 7, status.Waiting)
		},
		"Break releases only the holder that was seen, and hands the lock over": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			stuck, operator := dlock.New(s, dlock.WithOwner("stuck")), dlock.New(store)
			l := acquire(t, stuck, "k")
			next := make(chan *dlock.Lease)
			go func() {
				l, err := dlock.New(store).Acquire(t.Context(), "k")
				require.NoError(t, err)
				next <- l
			}()
			synctest.Wait()
			status, err := operator.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.True(t, status.Held)
			require.Equal(t, "stuck", status.Owner)
			require.Equal(t, 1, status.Waiting)
			text, err := json.Marshal(status)
			require.NoError(t, err)
			for _, shown := range []string{fmt.Sprintf("%v %+v %#v", status, status, status), string(text)} {
				require.NotContains(t, shown, l.Token())
			}
			require.NoError(t, operator.Break(t.Context(), status))
			heir := <-next
			require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrReleased)
			require.NoError(t, heir.Renew(t.Context()))
			<-l.Done()
			require.ErrorIs(t, l.Err(), dlock.ErrLost)
			require.NoError(t, heir.Release())
			require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrReleased)
			require.NoError(t, operator.Close())
			require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrClosed)
		},
		"Break refuses a key that no Client holds": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			store.Steal("foreign", time.Hour)
			foreign, err := c.Inspect(t.Context(), "foreign")
			require.NoError(t, err)
			require.True(t, foreign.Held)
			free, err := c.Inspect(t.Context(), "free")
			require.NoError(t, err)
			n := len(s.made())
			for _, status := range []dlock.Status{{}, {Held: true, Owner: "x"}, free, foreign} {
				require.ErrorIs(t, c.Break(t.Context(), status), dlock.ErrInvalid)
			}
			require.Len(t, s.made(), n, "nothing was sent")
			ctx := ended(t)
			l := acquire(t, c, "k")
			status := inspect(t, c)
			require.ErrorIs(t, c.Break(ctx, status), context.Canceled)
			require.NoError(t, l.Err())
		},
		"Break also frees a key that only a MinHold keeps": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithMinHold(time.Hour))
			require.NoError(t, acquire(t, c, "k").Release())
			synctest.Wait()
			status := inspect(t, c)
			require.True(t, status.Held)
			require.NoError(t, c.Break(t.Context(), status))
			requireFree(t, store, "k")
			time.Sleep(2 * time.Hour)
			requireFree(t, store, "k")
			require.Zero(t, c.Stats().ReleasesOwed)
		},
		"stats": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			require.Zero(t, c.Stats())
			l, m := acquire(t, c, "k"), acquire(t, c, "m")
			ctx, cancel := context.WithCancel(t.Context())
			go c.With(dlock.WithOwner("x")).Acquire(ctx, "k")
			synctest.Wait()
			require.Equal(t, dlock.Stats{Leases: 2, Waiters: 1}, c.Stats())
			cancel()
			time.Sleep(time.Minute) // for what the wait owes
			require.NoError(t, m.Release())
			require.Equal(t, dlock.Stats{Leases: 1}, c.Stats())
			store.Fail(errStore)
			<-l.Done()
			synctest.Wait()
			got := c.Stats()
			require.NotZero(t, got.RenewalsFailed)
			got.RenewalsFailed = 0
			require.Equal(t, dlock.Stats{ReleasesOwed: 1, Lost: 1}, got)
			store.Fail(nil)
			time.Sleep(time.Minute)
			require.Zero(t, c.Stats().ReleasesOwed)
			n := acquire(t, c, "n")
			store.Steal("n", time.Hour)
			require.ErrorIs(t, n.Release(), dlock.ErrLost)
			require.EqualValues(t, 2, c.Stats().Lost)
			require.Zero(t, new(dlock.Client).Stats())
		},
	}.run(t)
}

func TestForeignValueIsNotShown(t *testing.T) {
	for _, foreign := range []string{"s3cret", "dlock1.s3cret.s3cret", "dlock1.", "dlock1.abcdefghijklmnopqrstuvwxyz.s3cret", "dlock1.ABCDEFGHIJKLMNOPQRSTUVWXYZ.s3cret"} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			require.NoError(t, errOf(store.TryAcquire(t.Context(), "k", foreign, time.Minute)))
			c := dlock.New(s)
			requireErr(t, errOf(c.TryAcquire(t.Context(), "k")), dlock.ErrHeld, without("s3cret"))
			require.Equal(t, dlock.Status{Held: true, Remaining: time.Minute}, inspect(t, c))
		})
	}
}

// A panic in a Locker reaches the caller, and the Client remains usable.
func TestPanicInTheLocker(t *testing.T) {
	for op, f := range map[string]func(t *testing.T, c *dlock.Client){
		"try": func(t *testing.T, c *dlock.Client) { require.Panics(t, func() { c.TryAcquire(t.Context(), "k") }) },
		"renew": func(t *testing.T, c *dlock.Client) {
			l := acquire(t, c, "k")
			require.Panics(t, func() { l.Renew(t.Context()) })
			require.NoError(t, l.Release())
		},
		"release": func(t *testing.T, c *dlock.Client) {
			l := acquire(t, c, "k")
			require.Panics(t, func() { l.Release() })
			require.NoError(t, l.Release())
		},
	} {
		run(t, op, func(t *testing.T, store *memory.Locker, s *spy) {
			s.on(op, func(c *call) {
				s.onCall(nil)
				if op == "try" {
					require.NoError(t, errOf(store.TryAcquire(c.ctx, c.key, c.token, c.ttl)))
				}
				panic(op)
			})
			f(t, dlock.New(s, dlock.WithRenewal(false)))
			synctest.Wait()
			requireFree(t, store, "k")
		})
	}
}

func TestBadInput(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		good := dlock.New(s)
		for _, bad := range []struct {
			client    *dlock.Client
			key, want string
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
			for name, err := range map[string]error{
				"Acquire": errOf(bad.client.Acquire(t.Context(), bad.key)), "TryAcquire": errOf(bad.client.TryAcquire(t.Context(), bad.key)),
				"Inspect": errOf(bad.client.Inspect(t.Context(), bad.key)), "Do": bad.client.Do(t.Context(), bad.key, noWork),
			} {
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
	requireErr(t, errOf(c.TryAcquire(t.Context(), "k")), dlock.ErrInvalid, "WithMaxHold(1s): less than WithMinHold(1m0s)")
	l, err := c.With(dlock.WithMinHold(0)).TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

func TestOptions(t *testing.T) {
	inCases{
		"limits are accepted": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTL(10*time.Millisecond), dlock.WithOwner(strings.Repeat("o", 256)),
				dlock.WithMaxHold(0), dlock.WithMinHold(0))
			l := acquire(t, c, strings.Repeat("k", 1024))
			time.Sleep(time.Minute)
			require.NoError(t, l.Release())
			year := c.With(dlock.WithTTL(365*24*time.Hour), dlock.WithMinHold(0))
			require.NoError(t, acquire(t, year, "k").Release())
		},
		"whole milliseconds": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"with shares the rest": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithOwner("a"), dlock.WithMaxHold(time.Minute), dlock.WithMinHold(time.Minute))
			d := c.With(dlock.WithOwner(""), dlock.WithMaxHold(0), dlock.WithMinHold(0))
			l := acquire(t, d, "k")
			defer l.Release()
			time.Sleep(2 * time.Minute)
			require.NoError(t, l.Err())
			var held *dlock.HeldError
			require.ErrorAs(t, errOf(c.TryAcquire(t.Context(), "k")), &held)
			require.Empty(t, held.Owner)
			require.NoError(t, d.Close())
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "other")), dlock.ErrClosed)
		},
		"TTL from": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"TTL from is for leases without renewal": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTLFrom(func(string) time.Duration { return time.Second }))
			requireErr(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrInvalid, "WithTTLFrom: needs WithRenewal(false)")
			require.NoError(t, acquire(t, c.With(dlock.WithTTLFrom(nil)), "k").Release())
			require.NoError(t, acquire(t, c.With(dlock.WithRenewal(false)), "k").Release())
			require.Empty(t, s.made("renew"))
		},
	}.run(t)
}

func TestForward(t *testing.T) {
	inCases{
		"forward": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			f := dlock.Forward{Locker: plain{s}}
			require.ErrorIs(t, errOf(f.Acquire(t.Context(), "k", "t", time.Second)), errors.ErrUnsupported)
			require.ErrorIs(t, errOf(f.RenewBatch(t.Context(), nil)), errors.ErrUnsupported)
			require.ErrorIs(t, errOf(f.Inspect(t.Context(), "k")), errors.ErrUnsupported)
			require.Empty(t, s.made())
		},
		"around a store that does not take every TTL, a decorator lets the Client refuse a longer MinHold": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			l := dlock.Forward{Locker: dlock.Forward{Locker: limited{s}}}
			_, err := dlock.New(l, dlock.WithMinHold(time.Minute+1)).TryAcquire(t.Context(), "k")
			requireErr(t, err, dlock.ErrInvalid, "longer than 1m0s, the longest TTL of the Locker")
			require.NoError(t, acquire(t, dlock.New(l, dlock.WithMinHold(time.Minute)), "k").Release())
			require.NoError(t, acquire(t, dlock.New(dlock.Forward{Locker: s}, dlock.WithMinHold(365*24*time.Hour)), "long").Release())
		},
	}.run(t)
}

// A decorator of TryAcquire sees each attempt at a key of a set, since Forward does not pass sets on.
func TestForwardHasAllButSets(t *testing.T) {
	optional := map[string]bool{"TryAcquireSet": false, "Acquire": true, "RenewBatch": true, "Inspect": true, "LongestTTL": true}
	f := reflect.TypeFor[dlock.Forward]()
	for name, has := range optional {
		_, found := f.MethodByName(name)
		require.Equal(t, has, found, name)
	}
	in(t, func(t *testing.T, m *memory.Locker, s *spy) {
		require.Implements(t, (*dlock.SetAcquirer)(nil), m)
		_, ok := dlock.Locker(s).(dlock.SetAcquirer)
		require.False(t, ok, "a Forward around it is embedded")
		set, err := dlock.New(s).AcquireAll(t.Context(), "a", "b")
		require.NoError(t, err)
		require.Len(t, s.made(), 2)
		require.NoError(t, set.Release())
	})
}

func TestCoreImportsTheStandardLibraryOnly(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.Module.Path}}{{end}}", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	modules := slices.Compact(strings.Fields(string(out)))
	require.Equal(t, []string{"github.com/dlock-go/dlock"}, modules)
}

// A limited Locker takes no TTL above a minute.
type limited struct{ dlock.Locker }

func (limited) LongestTTL() time.Duration { return time.Minute }

func TestClose(t *testing.T) {
	waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c := dlock.New(l)
		held, lost := acquire(t, c, "k"), acquire(t, c, "lost")
		wait := async(func() error { return errOf(c.Acquire(t.Context(), "k")) })
		time.Sleep(time.Second)
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-wait, dlock.ErrClosed)
		require.NoError(t, c.Close())
		require.ErrorIs(t, errOf(c.Acquire(t.Context(), "other")), dlock.ErrClosed)
		require.ErrorIs(t, errOf(c.With(dlock.WithTTL(time.Second)).TryAcquire(t.Context(), "other")), dlock.ErrClosed)
		require.ErrorIs(t, errOf(c.Inspect(t.Context(), "other")), dlock.ErrClosed)
		require.ErrorIs(t, held.Renew(t.Context()), dlock.ErrClosed)
		require.NoError(t, held.Err(), "it may be used until its deadline")
		require.NoError(t, held.Release())
		requireFree(t, store, "k")
		<-lost.Done()
		require.Equal(t, lost.Deadline(), time.Now())
		require.ErrorIs(t, lost.Err(), dlock.ErrLost)
	})
}

func TestCloseOfAClient(t *testing.T) {
	inCases{
		"close while acquiring": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			store.Delay(time.Second)
			result := async(func() error { return errOf(c.TryAcquire(t.Context(), "k")) })
			synctest.Wait()
			go c.Close()
			require.ErrorIs(t, <-result, dlock.ErrClosed)
			requireFree(t, store, "k")
		},
		"close while adopting": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			h := detach(t, acquire(t, c, "k"))
			s.onCall(func(c *call) { c.delay = time.Second })
			result := async(func() error { return errOf(c.Adopt(t.Context(), h)) })
			synctest.Wait()
			go c.Close()
			require.ErrorIs(t, <-result, dlock.ErrClosed)
			l, err := dlock.New(s).Adopt(t.Context(), h)
			require.NoError(t, err, "it may be adopted again")
			require.NoError(t, l.Release())
		},
		"close waits for what is owed": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			store.FailReplies(errStore)
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
			store.FailReplies(nil)
			store.Fail(errStore)
			time.AfterFunc(3*time.Second, func() { store.Fail(nil) })
			start := time.Now()
			require.NoError(t, c.Close())
			requireFree(t, store, "k")
			require.Less(t, time.Since(start), 5*time.Second)
		},
		"close hurries": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
			time.Sleep(14 * time.Second)
			store.Fail(nil)
			start := time.Now()
			require.NoError(t, c.Close())
			require.Zero(t, time.Since(start))
			requireFree(t, store, "k")
		},
		"close lets releases finish": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) {
				switch c.op {
				case "try":
					c.reply = errStore
				case "release":
					c.take(2 * time.Second)
				}
			})
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
			time.Sleep(time.Second)
			require.NoError(t, c.Close())
			requireFree(t, store, "k")
		},
		"close gives up": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
			start := time.Now()
			require.ErrorContains(t, c.Close(), "1 releases not answered, and 0 calls not ended, within 5s")
			require.Equal(t, 5*time.Second, time.Since(start))
			n := len(s.made())
			time.Sleep(time.Hour)
			require.Len(t, s.made(), n, "calls after Close")
		},
		"nothing is owed after close": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			require.NoError(t, c.Close())
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
			n := len(s.made())
			time.Sleep(time.Hour)
			require.Len(t, s.made(), n)
		},
	}.run(t)
}

// The attempt is granted while Close waits, and its reply is lost.
func TestCloseWaitsForCallsInFlight(t *testing.T) {
	for _, delay := range []time.Duration{2 * time.Second, 10 * time.Second} {
		run(t, delay.String(), func(t *testing.T, store *memory.Locker, s *spy) {
			s.on("try", func(c *call) { c.delay, c.reply = delay, errStore })
			c := dlock.New(s)
			result := async(func() error { return errOf(c.TryAcquire(t.Context(), "k")) })
			synctest.Wait()
			err := c.Close()
			require.Equal(t, delay > 5*time.Second, err != nil, "%v", err)
			if err == nil {
				requireFree(t, store, "k")
			}
			require.ErrorIs(t, <-result, errStore)
		})
	}
}

// A set that is not complete is a call in flight, also between its calls to the store: what it holds is free
// when Close or Shutdown returns.
func TestCloseWaitsForASet(t *testing.T) {
	slow := dlock.WithObserver(&dlock.Observer{AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context {
		time.Sleep(20 * time.Millisecond)
		return ctx
	}})
	for name, end := range map[string]func(t *testing.T, c *dlock.Client){
		"Close":    func(t *testing.T, c *dlock.Client) { require.NoError(t, c.Close()) },
		"Shutdown": func(t *testing.T, c *dlock.Client) { require.Error(t, c.Shutdown(ended(t))) },
	} {
		t.Run(name, func(t *testing.T) {
			waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
				s.on("release", func(c *call) { c.take(10 * time.Millisecond) })
				for _, turns := range []int{1, 8} {
					holdKey(t, store, "a", time.Second)
					holdKey(t, store, "c", time.Minute)
					c := dlock.New(l, slow, dlock.WithLocalTurns(turns))
					result := async(func() error { return errOf(c.AcquireAll(t.Context(), "a", "c")) })
					time.Sleep(2 * time.Second)
					end(t, c)
					requireHolders(t, store, "", "c")
					require.ErrorIs(t, <-result, dlock.ErrClosed)
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

// A release that no try can make any more was given up. Close and Shutdown say so while its key may stay.
func TestCloseAfterAReleaseWasGivenUp(t *testing.T) {
	closed := &dlock.NoEffectError{Err: dlock.ErrClosed}
	causes := map[string]error{"closed": closed, "no right": &dlock.NoEffectError{Err: errStore}}
	ways := map[string]func(t *testing.T, c *dlock.Client, fail func()){
		"Do": func(t *testing.T, c *dlock.Client, fail func()) {
			require.NoError(t, c.Do(t.Context(), "k", func(context.Context, *dlock.Lease) error { fail(); return nil }))
		},
		"Release": func(t *testing.T, c *dlock.Client, fail func()) {
			l := acquire(t, c, "k")
			fail()
			require.Error(t, l.Release())
		},
		"a set": func(t *testing.T, c *dlock.Client, fail func()) {
			leases := take(t, c, "j", "k")
			fail()
			require.Error(t, leases.Release())
		},
		"MinHold": func(t *testing.T, c *dlock.Client, fail func()) {
			l := acquire(t, c.With(dlock.WithMinHold(time.Minute)), "k")
			fail()
			require.NoError(t, l.Release())
		},
		"an unknown outcome": func(t *testing.T, c *dlock.Client, fail func()) {
			fail()
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
		},
	}
	for why, cause := range causes {
		for way, happens := range ways {
			for name, end := range map[string]func(*dlock.Client) error{
				"close":    (*dlock.Client).Close,
				"shutdown": func(c *dlock.Client) error { return c.Shutdown(t.Context()) },
			} {
				run(t, why+", "+way+", "+name, func(t *testing.T, store *memory.Locker, s *spy) {
					for _, later := range []time.Duration{0, 2 * time.Second, dlock.DefaultTTL + time.Second} {
						c := dlock.New(s)
						happens(t, c, func() {
							s.onCall(func(c *call) {
								if c.err = cause; c.op == "try" {
									c.err, c.reply = nil, errStore
								}
							})
						})
						time.Sleep(later)
						begun, err := time.Now(), end(c)
						require.Zero(t, time.Since(begun))
						if later < dlock.DefaultTTL {
							require.ErrorContains(t, err, "dlock: "+name+": a release was given up, and its key may stay")
							require.ErrorIs(t, err, cause)
							requireTaken(t, store, "k")
						} else if way != "MinHold" || cause == closed { // else it still owes the release
							require.NoError(t, err)
						}
						s.onCall(nil)
						time.Sleep(time.Minute)
						requireFree(t, store, "k")
					}
				})
			}
		}
	}
	run(t, "a place in the queue", func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		s.onCall(func(c *call) {
			c.answers(dlock.Attempt{Holder: "other", Remaining: time.Hour}, nil)
			if c.op != "try" {
				c.err = closed
			}
		})
		require.ErrorIs(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrClosed)
		synctest.Wait()
		require.Len(t, s.made("release"), 1)
		require.NoError(t, c.Close(), "no key stays")
	})
}

func TestCloseEndsRenewalsInFlight(t *testing.T) {
	renewing.run(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		s.onCall(func(c *call) {
			switch c.op {
			case "renew", "batch":
				c.hang()
			case "try":
				if c.key == "owed" {
					c.err = errStore
				}
			case "release":
				c.err = errStore // so that Close takes its time
			}
		})
		c := dlock.New(locker)
		acquire(t, c, "k")
		time.Sleep(12 * time.Second)
		calls := s.made("renew", "batch")
		require.NotEmpty(t, calls)
		require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "owed")), errStore)
		go c.Close()
		synctest.Wait()
		for _, r := range calls {
			require.Error(t, r.ctx.Err())
		}
		time.Sleep(time.Hour)
		require.Len(t, s.made("renew", "batch"), len(calls), "renewed after Close")
	})
}

func TestShutdown(t *testing.T) {
	inCases{
		// Shutdown waits for the holders, whose leases are renewed meanwhile. Waits end, and new calls are refused.
		"shutdown waits for holders": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			waiter := async(func() error { return errOf(c.Acquire(t.Context(), "k")) })
			synctest.Wait()
			done := async(func() error { return c.Shutdown(t.Context()) })
			require.ErrorIs(t, <-waiter, dlock.ErrClosed)
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "other")), dlock.ErrClosed)
			time.Sleep(5 * time.Minute)
			require.NoError(t, l.Err(), "renewed while Shutdown waits")
			select {
			case err := <-done:
				t.Fatalf("Shutdown returned %v while a lease was held", err)
			default:
			}
			require.NoError(t, l.Release())
			require.NoError(t, <-done)
			require.NoError(t, c.Shutdown(t.Context()), "once more")
			require.NoError(t, c.Close())
			requireFree(t, store, "k")
		},
		// When ctx ends, leases end with ErrClosed and stay in the store until their TTL has passed,
		// unless their holders release them.
		"shutdown gives up": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			stuck, late := acquire(t, c, "stuck"), acquire(t, c, "late")
			work := stuck.Context(t.Context())
			ctx := within(t, 3*time.Second)
			start := time.Now()
			requireErr(t, c.Shutdown(ctx), context.DeadlineExceeded, "2 leases still held")
			require.Equal(t, 3*time.Second, time.Since(start))
			<-work.Done()
			<-stuck.Done()
			require.ErrorIs(t, context.Cause(work), dlock.ErrClosed)
			requireErr(t, stuck.Err(), dlock.ErrClosed, not{dlock.ErrLost})
			require.False(t, time.Now().Before(stuck.Deadline()))
			require.ErrorIs(t, stuck.Renew(t.Context()), dlock.ErrClosed)
			require.Empty(t, s.made("release"), "the work may still run")
			require.Zero(t, c.Stats().Leases)
			require.NoError(t, late.Release(), "its work has ended")
			requireFree(t, store, "late")
			time.Sleep(20 * time.Second)
			require.ErrorIs(t, errOf(dlock.New(store).TryAcquire(t.Context(), "stuck")), dlock.ErrHeld)
			time.Sleep(10 * time.Second)
			requireFree(t, store, "stuck")
		},
		// The holder releases while Shutdown, which has given up on it, makes the store keep the key for its MinHold.
		"release during shutdown": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			const minHold = 2 * time.Minute
			c := dlock.New(s, dlock.WithMinHold(minHold))
			l := acquire(t, c, "k")
			s.onCall(func(c *call) { c.take(time.Second) })
			begun := time.Now()
			time.AfterFunc(500*time.Millisecond, func() { assert.NoError(t, l.Release()) })
			require.ErrorIs(t, c.Shutdown(ended(t)), context.Canceled)
			require.Equal(t, time.Second, time.Since(begun))
			require.Len(t, s.made("renew"), 1)
			time.Sleep(time.Until(begun.Add(minHold - time.Millisecond)))
			requireTaken(t, store, "k")
			time.Sleep(time.Second + 2*time.Millisecond)
			requireFree(t, store, "k")
		},
		"if Shutdown ended the work, the error of Do says so": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			done := make(chan error)
			go func() {
				done <- c.Do(t.Context(), "k", func(ctx context.Context, _ *dlock.Lease) error {
					<-ctx.Done()
					return ctx.Err()
				})
			}()
			synctest.Wait()
			require.Error(t, c.Shutdown(within(t, time.Second)))
			err := <-done
			requireErr(t, err, dlock.ErrClosed, noContext)
		},
		"a lease is released long after Shutdown has given up on it": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTL(3*time.Second))
			require.ErrorIs(t, c.Do(t.Context(), "k", func(_ context.Context, l *dlock.Lease) error {
				require.Error(t, c.Shutdown(ended(t)))
				time.Sleep(time.Minute)
				other := acquire(t, dlock.New(store), "k") // works at the same time
				require.ErrorIs(t, l.Release(), dlock.ErrLost)
				return other.Release()
			}), dlock.ErrLost)
		},
	}.run(t)
}

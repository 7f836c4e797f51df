package dlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

// A lineOfLog is a line of a log.
type lineOfLog struct {
	Level, Msg, Key, Error string
	Left, TTL, After, For  time.Duration
	Count, Waiting         int
}

// A logbook is what a log observer writes.
type logbook struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

func (b *logbook) observer(options *slog.HandlerOptions) dlock.Option {
	return dlock.WithObserver(dlock.NewLogObserver(slog.New(slog.NewJSONHandler(b, options))))
}

// text returns all that was written since the last call.
func (b *logbook) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.out.String()
	b.out.Reset()
	return text
}

// lines returns the lines since the last call, by level, and without the prefix of their messages.
func (b *logbook) lines(t *testing.T) map[string][]lineOfLog {
	t.Helper()
	return parsed(t, b.text())
}

func parsed(t *testing.T, text string) map[string][]lineOfLog {
	t.Helper()
	byLevel := make(map[string][]lineOfLog)
	for line := range strings.Lines(text) {
		var entry lineOfLog
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		entry.Msg = strings.TrimPrefix(entry.Msg, "dlock: ")
		byLevel[entry.Level] = append(byLevel[entry.Level], entry)
	}
	return byLevel
}

func messages(lines []lineOfLog) (all []string) {
	for _, l := range lines {
		all = append(all, l.Msg)
	}
	return all
}

// logged makes every event happen to a Client that logs, and returns the messages by level, and all
// that was written.
func logged(t *testing.T, options *slog.HandlerOptions) (byLevel map[string][]string, all string) {
	t.Helper()
	var out logbook
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithOwner("me"), out.observer(options))
		everything(t, c, store, s)
		require.NoError(t, c.Close())
		all = out.text()
		for _, call := range s.made() {
			require.NotContains(t, all, call.token, "a token")
			require.NotContains(t, all, call.token[len("dlock1."):][:26], "the secret of a token")
		}
	})
	byLevel = make(map[string][]string)
	for level, lines := range parsed(t, all) {
		byLevel[level] = messages(lines)
	}
	return byLevel, all
}

func everything(t *testing.T, c *dlock.Client, store *memory.Locker, s *spy) {
	const key = "secret-key"
	away := awayWhen(s)
	holdKey(t, store, key, time.Second)
	_, err := c.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, dlock.ErrHeld)
	l := acquire(t, c, key)
	time.Sleep(11 * time.Second)
	status, err := c.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, l.Release())
	require.Error(t, c.Break(t.Context(), status))
	l = acquire(t, c.With(dlock.WithMinHold(time.Second)), key)
	require.NoError(t, l.Release())
	time.Sleep(2 * time.Second)
	l = acquire(t, c, key)
	status, err = c.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, c.Break(t.Context(), status))
	require.ErrorIs(t, l.Release(), dlock.ErrLost)

	l = acquire(t, c, key)
	away.Store(true)
	require.Error(t, l.Release())
	time.Sleep(time.Second)
	away.Store(false)
	time.Sleep(time.Second)

	l = acquire(t, c, key)
	away.Store(true)
	time.Sleep(12 * time.Second)
	away.Store(false)
	time.Sleep(2 * time.Second)
	require.NoError(t, l.Release())

	l = acquire(t, c, key)
	away.Store(true)
	require.Error(t, l.Release())
	time.Sleep(2 * time.Minute)
	away.Store(false)

	l = acquire(t, c, key)
	away.Store(true)
	time.Sleep(time.Minute)
	away.Store(false)
	require.ErrorIs(t, l.Release(), dlock.ErrLost)
	synctest.Wait()
}

// Each message is what happened.
func TestLogObserver(t *testing.T) {
	byLevel, all := logged(t, &slog.HandlerOptions{Level: slog.LevelDebug})
	warnings := []string{"Break failed", "lock broken by an operator", "lease lost", "renewal failed",
		"renewal failed", "lease lost", "work went on after its lease was lost"}
	require.Equal(t, warnings, byLevel["WARN"])
	require.Equal(t, []string{"renewals succeed again"}, byLevel["INFO"])
	for _, message := range []string{"waiting for a lock", "lock acquired", "lock not acquired", "lease renewed", "renewal failed", "lease ended",
		"lock released", "lock released, and kept for its MinHold", "release failed", "owed release done", "owed release given up"} {
		require.Contains(t, byLevel["DEBUG"], message)
	}
	require.Len(t, byLevel, 3)
	require.Equal(t, strings.Count(all, "\n"), strings.Count(all, "secret-key"), "as an attribute, and nowhere else")
	require.Contains(t, all, `"overrun":`)
	for _, line := range slices.Concat(slices.Collect(maps.Values(parsed(t, all)))...) {
		fails := slices.Contains([]string{"lock not acquired", "renewal failed", "Break failed", "release failed", "owed release given up",
			"lease lost", "work went on after its lease was lost"}, line.Msg)
		require.Equal(t, fails, line.Error != "" && line.Error != dlock.ErrReleased.Error(), "%+v", line)
	}

	byLevel, _ = logged(t, nil)
	require.Equal(t, map[string][]string{"WARN": warnings, "INFO": {"renewals succeed again"}}, byLevel)
}

// An outage has one warning, with what is left of the lease, and one line when it is over.
func TestLogObserverOfAnOutage(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		var out logbook
		away := awayWhen(s)
		c := dlock.New(locker, out.observer(nil))
		leases, _ := acquireAll(t, c, "k", 20)
		for range 2 {
			time.Sleep(20 * time.Second)
			require.Empty(t, out.lines(t))
			away.Store(true)
			begun := time.Now()
			time.Sleep(13 * time.Second)
			synctest.Wait()
			lines := out.lines(t)
			require.Len(t, lines["WARN"], 1)
			require.Len(t, lines, 1)
			warning := lines["WARN"][0]
			require.Equal(t, "renewal failed", warning.Msg)
			require.Equal(t, "store unavailable: no answer: "+errStore.Error(), warning.Error)
			require.Equal(t, dlock.DefaultTTL, warning.TTL)
			require.InDelta(t, 19*time.Second, warning.Left, float64(2*time.Second))
			require.Error(t, leases[0].Release())
			leases = leases[1:]
			away.Store(false)
			time.Sleep(5 * time.Second)
			lines = out.lines(t)
			require.Len(t, lines["INFO"], 1)
			require.Len(t, lines, 1)
			require.Equal(t, "renewals succeed again", lines["INFO"][0].Msg)
			require.Greater(t, lines["INFO"][0].After, time.Second)
			require.Less(t, lines["INFO"][0].After, time.Since(begun))
		}
		requireNoneLost(t, leases)
	})
}

// While some renewals fail and others succeed, there is one warning. It is over when the leases
// that could not be renewed have ended, and another renewal succeeds.
func TestLogObserverOfAPartialOutage(t *testing.T) {
	each(t, map[string]func(*spy) dlock.Locker{
		"single": func(s *spy) dlock.Locker {
			return plain{&spoiled{Forward: dlock.Forward{Locker: s}, alone: failIf("bad")}}
		},
		"element": func(s *spy) dlock.Locker { return &spoiled{Forward: dlock.Forward{Locker: s}, alone: failIf("bad")} },
		"batch": func(s *spy) dlock.Locker {
			return &spoiled{Forward: dlock.Forward{Locker: s}, alone: failIf("bad"), batch: failIf("bad")}
		},
	}, func(t *testing.T, _ *memory.Locker, _ *spy, locker dlock.Locker) {
		var out logbook
		c := dlock.New(locker, out.observer(nil))
		others, _ := acquireAll(t, c, "k", 20)
		acquireAll(t, c, "bad", 3)
		released := acquire(t, c, "bad, but not for ever")
		time.Sleep(25 * time.Second)
		lines := out.lines(t)
		require.Equal(t, []string{"renewal failed"}, messages(lines["WARN"]))
		require.Len(t, lines, 1)
		require.NoError(t, released.Release())
		time.Sleep(20 * time.Second)
		lines = out.lines(t)
		require.Equal(t, []string{"lease lost", "lease lost", "lease lost"}, messages(lines["WARN"]))
		require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
		requireNoneLost(t, others)
	})
}

// An outage has one warning, also if all leases that have failed are lost before the next one fails.
func TestLogObserverOfAnOutageWithGaps(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var out logbook
		away := awayWhen(s)
		c := dlock.New(s, out.observer(nil))
		acquire(t, c.With(dlock.WithTTL(3*time.Second)), "short")
		acquire(t, c, "long")
		away.Store(true)
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"renewal failed", "lease lost"}, messages(out.lines(t)["WARN"]))
		away.Store(false)
		time.Sleep(20 * time.Second)
		lines := out.lines(t)
		require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
		require.Greater(t, lines["INFO"][0].After, 18*time.Second)
		require.Len(t, lines, 1)
	})
}

// An Observer sees two stores with the same key. The outage of one has one warning, while the renewals
// of the other succeed.
func TestLogObserverOfTwoStores(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var out logbook
		away, o := awayWhen(s), out.observer(nil)
		acquire(t, dlock.New(s, o), "k")
		time.Sleep(time.Second)
		acquire(t, dlock.New(memory.New(), o), "k")
		time.Sleep(8 * time.Second)
		away.Store(true)
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"renewal failed"}, messages(out.lines(t)["WARN"]))
	})
}

// A caller's renewal of a long lease fails, and is never tried again. The outage ends all the same.
func TestLogObserverOfALongLease(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var out logbook
		away := awayWhen(s)
		o := out.observer(nil)
		a, b := dlock.New(s, o, dlock.WithTTL(24*time.Hour), dlock.WithRenewal(false)), dlock.New(s, o)
		lease := acquire(t, a, "a")
		acquire(t, b, "b")
		for range 2 {
			away.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.Error(t, lease.Renew(ctx))
			cancel()
			time.Sleep(15 * time.Second)
			away.Store(false)
			time.Sleep(2 * time.Minute)
			lines := out.lines(t)
			require.Equal(t, []string{"renewal failed"}, messages(lines["WARN"]))
			require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
		}
	})
}

// Close cuts renewals off. That is no outage.
func TestLogObserverOfRenewalsThatCloseEnds(t *testing.T) {
	renewing(t, func(t *testing.T, _ *memory.Locker, s *spy, locker dlock.Locker) {
		var out logbook
		sent := make(chan struct{}, 3)
		s.onCall(func(c *call) {
			if c.renews() {
				sent <- struct{}{}
				c.hang()
			}
		})
		c := dlock.New(locker, out.observer(nil))
		acquireAll(t, c, "k", 3)
		<-sent
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, c.Close())
		synctest.Wait()
		require.Empty(t, out.lines(t))
	})
}

// The next outage is seen although the last one has ended with the leases, not with a renewal.
func TestLogObserverOfTwoOutagesThatLoseAll(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var out logbook
		away := awayWhen(s)
		c := dlock.New(s, out.observer(nil))
		for range 2 {
			acquireAll(t, c, "k", 3)
			away.Store(true)
			time.Sleep(time.Minute)
			require.Equal(t, []string{"renewal failed", "lease lost", "lease lost", "lease lost"}, messages(out.lines(t)["WARN"]))
			away.Store(false)
			time.Sleep(time.Minute)
		}
		acquireAll(t, c, "k", 3)
		time.Sleep(time.Minute)
		require.Equal(t, map[string][]string{"INFO": {"renewals succeed again"}}, func() map[string][]string {
			all := make(map[string][]string)
			for level, lines := range out.lines(t) {
				all[level] = messages(lines)
			}
			return all
		}())
	})
}

// A renewal that its caller has given up, and one that finds a loss, are no outage.
func TestLogObserverOfRenewalsThatAreNoOutage(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var out logbook
		c := dlock.New(s, out.observer(nil), dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		s.onCall(func(c *call) { c.hang() })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, l.Renew(ctx), context.Canceled)
		s.onCall(nil)
		require.Empty(t, out.lines(t))
		require.True(t, store.Expire("k"))
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		synctest.Wait()
		require.Equal(t, []string{"lease lost"}, messages(out.lines(t)["WARN"]))
	})
}

// After FLUSHALL, ten losses are logged one by one, and the others as one line. Each is there for
// those who debug.
func TestLogObserverOfAFlood(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		const flood = 150
		var out, warnings logbook
		c := dlock.New(s, out.observer(&slog.HandlerOptions{Level: slog.LevelDebug}), warnings.observer(nil))
		for range 2 {
			leases, keys := acquireAll(t, c, "k", flood)
			out.text()
			store.Wipe()
			for _, l := range leases {
				require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
			}
			synctest.Wait()
			require.Equal(t, 10, len(warnings.lines(t)["WARN"]), "singly, and at once")
			require.Zero(t, goroutines(), "a timer, and no goroutine")
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "lease lost", Count: flood - 10}}, warnings.lines(t)["WARN"])

			lines := out.lines(t)
			require.Equal(t, 11, len(lines["WARN"]))
			seen := make(map[string]bool)
			for _, line := range append(lines["WARN"], lines["DEBUG"]...) {
				if line.Msg == "lease lost" && line.Key != "" {
					require.False(t, seen[line.Key], line.Key)
					seen[line.Key] = true
				}
			}
			require.Equal(t, len(keys), len(seen))
			for _, l := range leases {
				require.ErrorIs(t, l.Release(), dlock.ErrLost)
			}
			time.Sleep(time.Minute)
			out.text()
			require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "work went on after its lease was lost", Count: flood - 10}}, warnings.lines(t)["WARN"][10:])
		}
	})
}

// Ten a second are not a flood, and neither are more of different kinds.
func TestLogObserverOfNoFlood(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out logbook
		o := dlock.NewLogObserver(slog.New(slog.NewJSONHandler(&out, nil)))
		for range 3 {
			for range 10 {
				o.BreakDone(t.Context(), dlock.BreakDoneInfo{})
				o.BreakDone(t.Context(), dlock.BreakDoneInfo{Err: errStore})
				o.LeaseDone(t.Context(), dlock.LeaseDoneInfo{Err: dlock.ErrLost})
			}
			time.Sleep(time.Second)
		}
		lines := out.lines(t)["WARN"]
		require.Equal(t, 90, len(lines))
		for _, l := range lines {
			require.Zero(t, l.Count)
		}
	})
}

// The eleventh warning within a second begins a second in which all are gathered.
func TestLogObserverOfASlowFlood(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out logbook
		o := dlock.NewLogObserver(slog.New(slog.NewJSONHandler(&out, nil)))
		for range 20 {
			o.BreakDone(t.Context(), dlock.BreakDoneInfo{})
			time.Sleep(90 * time.Millisecond) // the eleventh comes after 900 ms, the last one after 1.71 s
		}
		require.Equal(t, 10, len(out.lines(t)["WARN"]))
		time.Sleep(time.Minute)
		require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "lock broken by an operator", Count: 10}}, out.lines(t)["WARN"])
	})
}

// A handler that panics does no harm where nobody recovers for it.
func TestLogObserverWithAHandlerThatPanics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		floods := 0
		o := dlock.NewLogObserver(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == "count" {
				floods++
				panic("no counts, please")
			}
			return a
		}})))
		for range 11 {
			o.BreakDone(t.Context(), dlock.BreakDoneInfo{})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, floods)
	})
}

func TestLogObserverWithoutKeys(t *testing.T) {
	_, all := logged(t, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == "key" {
			a.Value = slog.StringValue("a key")
		}
		return a
	}})
	require.NotContains(t, all, "secret-key")
	require.Contains(t, all, "a key")
}

func TestLogObserverWithoutLogger(t *testing.T) {
	o := dlock.NewLogObserver(nil)
	require.NotPanics(t, func() { o.OwedDone(t.Context(), dlock.OwedDoneInfo{Key: "order:7"}) })
}

// While the store fails, each kind of call that waits for it has a warning at once and one each minute, counts in Stats, and
// has a line at the end with the time.
func TestLogObserverOfWaitsForTheStore(t *testing.T) {
	const away = 5 * time.Minute
	acquires := func(key string, opts ...dlock.Option) func(context.Context, *dlock.Client) {
		return func(ctx context.Context, c *dlock.Client) { _, _ = c.With(opts...).Acquire(ctx, key) }
	}
	for name, c := range map[string]struct {
		polls bool // the store has no queue
		calls int
		call  func(context.Context, *dlock.Client)
	}{
		"outage":  {calls: 1, call: acquires("free", dlock.WithOutage(time.Hour))},
		"many":    {calls: 100, call: acquires("free", dlock.WithOutage(time.Hour))},
		"polling": {calls: 1, polls: true, call: acquires("held")},
		"lines":   {calls: 20, call: acquires("held", dlock.WithLocalTurns(8), dlock.WithOutage(time.Hour))},
		"set": {calls: 1, call: func(ctx context.Context, c *dlock.Client) {
			_, _ = c.With(dlock.WithOutage(time.Hour)).AcquireAll(ctx, "free")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				var out logbook
				var locker dlock.Locker = s
				if c.polls {
					locker = plain{s}
				}
				failing := awayWhen(s)
				client := dlock.New(locker, out.observer(nil))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if name == "lines" || c.polls {
					holdKey(t, store, "held", time.Minute)
				}
				failing.Store(!c.polls)
				for range c.calls {
					go c.call(ctx, client)
				}
				time.Sleep(time.Second)
				failing.Store(true)
				time.Sleep(time.Second)
				warnings := out.lines(t)["WARN"]
				require.Len(t, warnings, min(c.calls, 10))
				require.Equal(t, "waiting for the store", warnings[0].Msg)
				require.Contains(t, warnings[0].Error, errStore.Error())
				require.NotEmpty(t, warnings[0].Key)
				time.Sleep(away)
				require.Equal(t, c.calls, client.Stats().StoreWaiters)
				lines := out.lines(t)
				require.Len(t, lines, 1)
				single := slices.DeleteFunc(lines["WARN"], func(l lineOfLog) bool { return l.Count > 0 })
				require.Len(t, single, 5)
				for i, l := range single {
					require.Equal(t, "waiting for the store", l.Msg)
					require.Equal(t, c.calls, l.Waiting)
					require.InDelta(t, time.Duration(i+1)*time.Minute, l.For, float64(time.Second))
				}
				failing.Store(false)
				time.Sleep(2 * time.Second)
				require.Zero(t, client.Stats().StoreWaiters)
				lines = out.lines(t)
				require.Len(t, lines, 1)
				require.Len(t, lines["INFO"], min(c.calls, 10))
				require.Equal(t, "the store answers again", lines["INFO"][0].Msg)
				require.InDelta(t, away+2*time.Second, lines["INFO"][0].After, float64(3*time.Second))
				cancel()
				time.Sleep(time.Hour)
				require.Empty(t, out.lines(t)["WARN"])
			})
		})
	}
}

// A wait for the store that ends without an answer has a line with its time, too.
func TestLogObserverOfAWaitInVain(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var out logbook
		awayWhen(s).Store(true)
		c := dlock.New(s, out.observer(nil), dlock.WithOutage(90*time.Second))
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		synctest.Wait()
		lines := out.lines(t)
		require.Equal(t, []string{"waiting for the store", "waiting for the store", "lock not acquired"}, messages(lines["WARN"]))
		require.Equal(t, []string{"stopped waiting for the store"}, messages(lines["INFO"]))
		require.Equal(t, 90*time.Second, lines["INFO"][0].After)
		require.Zero(t, c.Stats().StoreWaiters)
	})
}

// A store that does not answer an attempt of a poller is waited for, although no call has failed.
func TestLogObserverOfAStoreThatHangs(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var out logbook
		c := dlock.New(plain{s}, out.observer(nil))
		holdKey(t, store, "k", time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		time.AfterFunc(10*time.Second, func() { s.onCall((*call).hang) })
		_, err := c.Acquire(ctx, "k")
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		synctest.Wait()
		require.InDelta(t, 60, len(out.lines(t)["WARN"]), 2)
	})
}

// Failed acquisitions are logged: ten in a minute, and then how many there were, with the last error.
func TestLogObserverOfFailedAcquisitions(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var out logbook
		c := dlock.New(s, out.observer(nil))
		holdKey(t, store, "k", time.Second)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, out.lines(t), "neither held nor cancelled is a failure")
		s.onCall(func(c *call) { c.err = &dlock.NoEffectError{Err: errors.New("OOM")} })
		for i := range 150 {
			if i == 149 {
				s.onCall(func(c *call) { c.err = &dlock.NoEffectError{Err: errors.New("NOPERM")} })
			}
			require.Error(t, c.Do(t.Context(), "k", func(context.Context, *dlock.Lease) error { return nil }))
		}
		lines := out.lines(t)["WARN"]
		require.Len(t, lines, 10)
		require.Equal(t, lineOfLog{Level: "WARN", Msg: "lock not acquired", Key: "k", Error: "the store refused: OOM"}, lines[0])
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "lock not acquired", Count: 140, Error: "the store refused: NOPERM"}}, out.lines(t)["WARN"])
	})
}

// An outage of renewals is over with the first answer of any kind, and is as long as it was.
func TestLogObserverOfAnOutageThatAnAcquisitionEnds(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var out logbook
		away := awayWhen(s)
		c := dlock.New(s, out.observer(nil), dlock.WithTTL(10*time.Second))
		acquire(t, c, "k")
		away.Store(true)
		time.Sleep(20 * time.Second)
		away.Store(false)
		for range 3600 {
			l := acquire(t, c, "other")
			time.Sleep(time.Second)
			require.NoError(t, l.Release())
		}
		lines := out.lines(t)
		require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
		require.InDelta(t, 17*time.Second, lines["INFO"][0].After, float64(2*time.Second))
	})
}

package dlock_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// logged makes every event happen to a Client that logs, and returns the messages by level, and all
// that was written.
func logged(t *testing.T, options *slog.HandlerOptions) (byLevel map[string][]string, all string) {
	t.Helper()
	var out bytes.Buffer
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithOwner("me"), dlock.WithObserver(dlock.NewLogObserver(slog.New(slog.NewJSONHandler(&out, options)))))
		everything(t, c, store, s)
		require.NoError(t, c.Close())
		for _, call := range s.made() {
			require.NotContains(t, out.String(), call.token, "a token")
			require.NotContains(t, out.String(), call.token[len("dlock1."):][:26], "the secret of a token")
		}
	})
	byLevel = make(map[string][]string)
	for line := range strings.Lines(out.String()) {
		var entry struct{ Level, Msg string }
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		byLevel[entry.Level] = append(byLevel[entry.Level], strings.TrimPrefix(entry.Msg, "dlock: "))
	}
	return byLevel, out.String()
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

	l = acquire(t, c, key)
	away.Store(true)
	require.Error(t, l.Release())
	time.Sleep(time.Second)
	away.Store(false)
	time.Sleep(time.Second)

	l = acquire(t, c, key)
	away.Store(true)
	time.Sleep(time.Minute)
	away.Store(false)
	require.ErrorIs(t, l.Release(), dlock.ErrLost)
	synctest.Wait()
}

func TestLogObserver(t *testing.T) {
	byLevel, all := logged(t, &slog.HandlerOptions{Level: slog.LevelDebug})
	require.Equal(t, []string{"lease lost", "work went on after its lease was lost"}, byLevel["WARN"])
	for _, message := range []string{"waiting for a lock", "lock acquired", "lock not acquired", "lease renewed", "lease ended",
		"lock released", "lock not released", "owed release ended", "lock broken by an operator"} {
		require.Contains(t, byLevel["DEBUG"], message)
	}
	require.Len(t, byLevel, 2)
	require.Equal(t, strings.Count(all, "\n"), strings.Count(all, "secret-key"), "as an attribute, and nowhere else")
	require.Contains(t, all, `"overrun":`)

	byLevel, _ = logged(t, nil)
	require.Equal(t, map[string][]string{"WARN": {"lease lost", "work went on after its lease was lost"}}, byLevel)
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

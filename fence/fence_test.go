package fence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	holder1 = "0123456789abcdef01234567"
	holder2 = "0123456789abcdef01234568"
)

func TestOf(t *testing.T) {
	store := memory.New()
	locks, unfenced := dlock.New(store), dlock.New(noFences{store})
	defer locks.Close()
	defer unfenced.Close()
	acquire := func(key string) *dlock.Lease {
		lease, err := locks.Acquire(t.Context(), key)
		require.NoError(t, err)
		return lease
	}
	of := func(l *dlock.Lease) fence.Stamp {
		s, err := fence.Of(l)
		require.NoError(t, err)
		require.Equal(t, l.Fence(), s.Fence)
		require.Regexp(t, "^[0-9a-f]{24}$", s.Holder)
		return s
	}
	lease := acquire("key")
	s := of(lease)
	require.Equal(t, "key", s.Key)
	require.Equal(t, s, of(lease))

	set, err := locks.AcquireAll(t.Context(), "b", "a")
	require.NoError(t, err)
	all, err := fence.OfAll(set)
	require.NoError(t, err)
	require.Equal(t, []fence.Stamp{of(set.All()[0]), of(set.All()[1])}, all)
	require.NoError(t, set.Release())
	_, err = fence.OfAll(set)
	require.ErrorIs(t, err, dlock.ErrReleased)

	require.NoError(t, lease.Release())
	_, err = fence.Of(lease)
	require.ErrorIs(t, err, dlock.ErrReleased)
	next := acquire("key")
	require.NotEqual(t, s.Holder, of(next).Holder)
	store.Expire("key")
	require.Error(t, next.Renew(t.Context()))
	_, err = fence.Of(next)
	require.ErrorIs(t, err, dlock.ErrLost)

	lease, err = unfenced.TryAcquire(t.Context(), "other")
	require.NoError(t, err)
	_, err = fence.Of(lease)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// noFences is a store without fences.
type noFences struct{ dlock.Locker }

func (s noFences) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := s.Locker.TryAcquire(ctx, key, token, ttl)
	a.Fence = 0
	return a, err
}

func TestAdmits(t *testing.T) {
	last := fence.Stamp{Key: "key", Fence: 8, Holder: holder1}
	for _, c := range []struct {
		next fence.Stamp
		want bool
		why  string
	}{
		{last, true, "the same lease"},
		{fence.Stamp{Key: "key", Fence: 9, Holder: holder2}, true, "a larger fence"},
		{fence.Stamp{Key: "key", Fence: 8, Holder: holder2}, false, "an equal fence of another lease"},
		{fence.Stamp{Key: "key", Fence: 7, Holder: holder1}, false, "a smaller fence"},
		{fence.Stamp{Key: "other", Fence: 9, Holder: holder2}, false, "another key"},
		{fence.Stamp{}, false, "the zero Stamp"},
	} {
		require.Equal(t, c.want, last.Admits(c.next), c.why)
		require.Equal(t, c.next != fence.Stamp{}, fence.Stamp{}.Admits(c.next), "as the first: %s", c.why)
	}
}

func TestText(t *testing.T) {
	for _, key := range []string{"key", "order:1234", "a;b", "a\nb", "\xff\x00", "ключ", "100%", "a+b c"} {
		s := fence.Stamp{Key: key, Fence: 1795346058595325, Holder: holder1}
		require.Regexp(t, `^[0-9]+;[0-9a-f]{24};[!-~]+$`, s.String())
		text, err := json.Marshal(s)
		require.NoError(t, err)
		var back fence.Stamp
		require.NoError(t, json.Unmarshal(text, &back), "%s", text)
		require.Equal(t, s, back)
	}
	for _, text := range []string{
		"", ";;", "8", "8;" + holder1, "8;" + holder1 + ";", "0;" + holder1 + ";key", "-8;" + holder1 + ";key", "+8;" + holder1 + ";key",
		"8;" + holder1[1:] + ";key", "8;" + holder1[1:] + "x;key", "8;" + strings.ToUpper(holder1) + ";key", " 8;" + holder1 + ";key",
		"8;" + holder1 + ";%zz", "8;" + holder1 + ";key;", "8;" + holder1 + ";%6bey", "99999999999999999999;" + holder1 + ";key",
	} {
		var s fence.Stamp
		require.ErrorIs(t, s.UnmarshalText([]byte(text)), dlock.ErrInvalid, "%q", text)
		require.Zero(t, s)
	}
	_, err := fence.Stamp{}.MarshalText()
	require.ErrorIs(t, err, dlock.ErrInvalid)
}

func TestHeader(t *testing.T) {
	a, b := fence.Stamp{Key: "a b", Fence: 8, Holder: holder1}, fence.Stamp{Key: "b", Fence: 9, Holder: holder2}
	h := http.Header{}
	fence.SetHeader(h, b, b)
	fence.SetHeader(h, a, b)
	for _, s := range []fence.Stamp{a, b} {
		got, err := fence.FromHeader(h, s.Key)
		require.NoError(t, err)
		require.Equal(t, s, got)
	}
	h.Add(fence.Header, fence.Stamp{Key: "b", Fence: 100, Holder: holder1}.String())
	_, err := fence.FromHeader(h, "b")
	require.ErrorIs(t, err, dlock.ErrInvalid, "two of one key")
	_, err = fence.FromHeader(h, "c")
	require.ErrorIs(t, err, dlock.ErrInvalid, "none of this key")
	h.Set(fence.Header, "1")
	_, err = fence.FromHeader(h, "a b")
	require.ErrorIs(t, err, dlock.ErrInvalid)
}

// Wrong arguments are refused before anything is sent.
func TestInvalid(t *testing.T) {
	table, s := fence.Postgres("dlock_fence"), fence.Stamp{Key: "key", Fence: 8, Holder: holder1}
	for name, err := range map[string]error{
		"no stamps":         table.Check(t.Context(), nil),
		"the zero Stamp":    table.Check(t.Context(), nil, fence.Stamp{}),
		"a key twice":       table.Check(t.Context(), nil, s, fence.Stamp{Key: "a", Fence: 1, Holder: holder1}, s),
		"no fence":          table.Check(t.Context(), nil, fence.Stamp{Key: "key", Holder: holder1}),
		"the zero Table":    fence.Table{}.Check(t.Context(), nil, s),
		"a table, unnamed":  fence.SQLite("").Check(t.Context(), nil, s),
		"query of no stamp": func() error { _, _, err := table.Query(fence.Stamp{}); return err }(),
	} {
		require.ErrorIs(t, err, dlock.ErrInvalid, name)
	}
}

// The prologue in the documentation is run on a real Redis.
func TestRedisPrologue(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	prologue := regexp.MustCompile(`(?s)//\t(local last.*?)//\n`).FindSubmatch(doc)
	require.NotNil(t, prologue)
	script := strings.ReplaceAll(string(prologue[1]), "//\t", "") + "redis.call('RPUSH', KEYS[2], ARGV[3])"
	server := redistest.Start(t)
	for _, c := range []struct {
		fence   int64
		holder  string
		refused bool
	}{
		{8, holder1, false},
		{8, holder2, true},
		{8, holder1, false},
		{10, holder2, false}, // more digits
		{9, holder1, true},
		{9007199254740993, holder1, false},
		{9007199254740992, holder1, true}, // equal as floating-point numbers
	} {
		_, err := server.Do("EVAL", script, "2", "{account:7}:fence", "{account:7}", fmt.Sprint(c.fence), c.holder, "written")
		require.Equal(t, c.refused, err != nil && strings.Contains(err.Error(), "STALE"), "%v: %v", c, err)
	}
	written, err := server.Do("LLEN", "{account:7}")
	require.NoError(t, err)
	require.EqualValues(t, 4, written)
}

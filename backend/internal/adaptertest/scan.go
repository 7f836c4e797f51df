package adaptertest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// scan finds what is locked, among keys of all kinds, without KEYS.
func scan(t *testing.T, a Adapter) {
	server, plain := a.start(t)
	l := rediscore.New(a.dial(t, server.Addr()), rediscore.WithPrefix("p*:"))
	var want []string
	for i := range 2500 {
		want = append(want, fmt.Sprint("job:", i))
		take(t, l, want[i], "t")
	}
	take(t, l, "other", "t")
	take(t, plain, "job:unprefixed", "t")
	take(t, plain, "pp:job:0", "t")
	do(t, server, "SET", "p*:job:foreign", "theirs")
	do(t, server, "SADD", "p*:job:set", "x")
	require.Equal(t, []string{"job:foreign"}, find(t, l, "job:f"))
	assert.Equal(t, []string(nil), find(t, l, "job:*"))
	want = append(want, "job:foreign")
	slices.Sort(want)
	assert.Equal(t, want, find(t, l, "job:"))
	assert.Zero(t, server.CommandCount(t)["keys"])
	for e, err := range l.Scan(t.Context(), "job:") {
		require.NoError(t, err)
		if e.Key != "job:foreign" {
			assert.Equal(t, "t", e.Token)
			assert.True(t, e.Held && e.Remaining > 0 && e.Remaining <= ttl, "%+v", e)
		}
		break // and nothing follows
	}
	require.NoError(t, l.Close())
	for _, err := range l.Scan(t.Context(), "") {
		require.Error(t, err)
	}
}

func find(t *testing.T, l *rediscore.Locker, beginning string) (keys []string) {
	t.Helper()
	for e, err := range l.Scan(t.Context(), beginning) {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

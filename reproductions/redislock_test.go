package reproductions

import (
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/stretchr/testify/require"
)

// TestRedislockComparesPrefix: with tokens of one's own, user-1 takes the lock that
// user-10 holds, and user-10 has lost it. The other way round it is refused.
func TestRedislockComparesPrefix(t *testing.T) {
	_, client := start(t)
	locker := redislock.New(client)
	as := func(token string) *redislock.Options { return &redislock.Options{Token: token} }

	long, err := locker.Obtain(t.Context(), key, ttl, as("user-10"))
	require.NoError(t, err)
	_, err = locker.Obtain(t.Context(), key, ttl, as("user-2"))
	require.ErrorIs(t, err, redislock.ErrNotObtained, "the lock is held")
	short, err := locker.Obtain(t.Context(), key, ttl, as("user-1"))
	require.NoError(t, err, "user-1 has the lock, though user-10 held it")
	require.ErrorIs(t, long.Refresh(t.Context(), ttl, nil), redislock.ErrNotObtained, "user-10 has lost it")

	_, err = locker.Obtain(t.Context(), key, ttl, as("user-10"))
	require.ErrorIs(t, err, redislock.ErrNotObtained, "user-10 is no prefix of user-1")
	require.NoError(t, short.Release(t.Context()))
}

// TestRedislockPrefixAndMetadata: metadata makes the same happen without any custom
// token being a prefix of the other: the value is token and metadata, joined.
func TestRedislockPrefixAndMetadata(t *testing.T) {
	_, client := start(t)
	locker := redislock.New(client)
	_, err := locker.Obtain(t.Context(), key, ttl, &redislock.Options{Token: "user-1", Metadata: "0 of shop 5"})
	require.NoError(t, err)
	_, err = locker.Obtain(t.Context(), key, ttl, &redislock.Options{Token: "user-10"})
	require.NoError(t, err, "user-10 has the lock, though user-1 held it")
}

// TestRedislockRefreshBelowAMillisecond: the TTL is cut to 0 ms, PEXPIRE 0 deletes the
// key, and the answer is success.
func TestRedislockRefreshBelowAMillisecond(t *testing.T) {
	_, client := start(t)
	lock, err := redislock.New(client).Obtain(t.Context(), key, ttl, nil)
	require.NoError(t, err)
	require.NoError(t, lock.Refresh(t.Context(), 999*time.Microsecond, nil), "Refresh says that it worked")
	require.Empty(t, value(t, client, key), "the key is gone")
	require.ErrorIs(t, lock.Refresh(t.Context(), ttl, nil), redislock.ErrNotObtained)
}

// TestRedislockObtainBelowAMillisecond: PEXPIRE 0 deletes the key that MSETNX has just set, and the
// answer is success. (v0.9.4 made it with SET PX 0, which the server refused.)
func TestRedislockObtainBelowAMillisecond(t *testing.T) {
	_, client := start(t)
	require.Eventually(t, func() bool { // the TTL is also the call's time limit, and a busy machine may miss it
		_, err := redislock.New(client).Obtain(t.Context(), key, 999*time.Microsecond, nil)
		return err == nil
	}, time.Minute, time.Millisecond, "Obtain says that it worked")
	require.Empty(t, value(t, client, key), "the key is gone")
}

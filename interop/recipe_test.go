package interop

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestFenceBySeparateIncr: SET NX, and then INCR for the fence. The first holder pauses
// between the two, its lease expires, the second takes both lock and fence: now the stale
// holder gets the higher number, and the resource refuses the true one.
func TestFenceBySeparateIncr(t *testing.T) {
	_, client := start(t)
	fence := func() int64 {
		n, err := client.Incr(t.Context(), key+":fence").Result()
		require.NoError(t, err)
		return n
	}
	take := func(token string, ttl time.Duration) {
		ok, err := client.SetNX(t.Context(), key, token, ttl).Result()
		require.NoError(t, err)
		require.True(t, ok, "%s takes the lock", token)
	}

	take("first", 20*time.Millisecond)
	lapse(t, client, key) // first pauses
	take("second", ttl)
	second := fence()
	first := fence() // first goes on

	require.Equal(t, "second", value(t, client, key), "second holds the lock")
	require.Greater(t, first, second, "and first, whose lease is over, has the higher fence")
}

// timestampLock is a recipe of old: the value of the key is the instant at which the
// lock ends. Who finds that instant past sets a new one with GETSET, and has won if what
// it got back is still past.
type timestampLock struct {
	client *redis.Client
	now    func() time.Time // the clock of this process
	ttl    time.Duration
}

func (l timestampLock) past(value string) bool {
	ms, _ := strconv.ParseInt(value, 10, 64)
	return ms < l.now().UnixMilli()
}

func (l timestampLock) until() string { return strconv.FormatInt(l.now().Add(l.ttl).UnixMilli(), 10) }

func (l timestampLock) try(ctx context.Context) (bool, error) {
	ok, err := l.client.SetNX(ctx, key, l.until(), 0).Result()
	if ok || err != nil {
		return ok, err
	}
	seen, err := l.client.Get(ctx, key).Result()
	if err != nil || !l.past(seen) {
		return false, err
	}
	return l.replace(ctx)
}

// replace is what is left to do for one who has found the lock expired.
func (l timestampLock) replace(ctx context.Context) (bool, error) {
	//lint:ignore SA1019 the recipe is about this command
	old, err := l.client.GetSet(ctx, key, l.until()).Result()
	return err == nil && l.past(old), err
}

func (l timestampLock) release(ctx context.Context) error { return l.client.Del(ctx, key).Err() }

// at is a clock that stands still.
func at(t time.Time) func() time.Time { return func() time.Time { return t } }

// TestGetsetLoserMovesExpiry: two find the lock expired. One wins; the GETSET of the
// other, who loses, has replaced the winner's expiry with its own.
func TestGetsetLoserMovesExpiry(t *testing.T) {
	_, client := start(t)
	now := time.Now()
	winner := timestampLock{client, at(now), time.Minute}
	loser := timestampLock{client, at(now), time.Hour}
	dead := timestampLock{client, at(now.Add(-time.Hour)), time.Minute}
	requireTry(t, dead, true)

	gets(t, winner.replace, true)
	require.Equal(t, winner.until(), value(t, client, key))
	gets(t, loser.replace, false)
	require.Equal(t, loser.until(), value(t, client, key), "the winner's lock lasts as long as the loser wanted its own to")
}

// TestGetsetNeedsOneClock: a client whose clock runs ahead takes a lock that is held.
func TestGetsetNeedsOneClock(t *testing.T) {
	_, client := start(t)
	now := time.Now()
	requireTry(t, timestampLock{client, at(now), time.Minute}, true)
	requireTry(t, timestampLock{client, at(now), time.Minute}, false)
	requireTry(t, timestampLock{client, at(now.Add(2 * time.Minute)), time.Minute}, true)
}

// TestGetsetReleasesSuccessor: the key says until when, and not who. A holder whose
// lock is over releases that of its successor.
func TestGetsetReleasesSuccessor(t *testing.T) {
	_, client := start(t)
	now := time.Now()
	first := timestampLock{client, at(now.Add(-time.Hour)), time.Minute}
	second := timestampLock{client, at(now), time.Minute}
	requireTry(t, first, true)
	requireTry(t, second, true)
	require.NoError(t, first.release(t.Context()))
	requireTry(t, timestampLock{client, at(now), time.Minute}, true) // a third, while second holds
}

func requireTry(t *testing.T, l timestampLock, want bool) { t.Helper(); gets(t, l.try, want) }

func gets(t *testing.T, f func(context.Context) (bool, error), want bool) {
	t.Helper()
	ok, err := f(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, ok)
}

// TestRenewBySetXX: SET XX does not revive what has expired, but it does not compare
// either: the renewal of a stale holder takes the lock of its successor.
func TestRenewBySetXX(t *testing.T) {
	_, client := start(t)
	renew := func(token string) bool {
		ok, err := client.SetXX(t.Context(), key, token, ttl).Result()
		require.NoError(t, err)
		return ok
	}
	require.NoError(t, client.SetNX(t.Context(), key, "first", 20*time.Millisecond).Err())
	lapse(t, client, key)
	require.False(t, renew("first"), "what has expired is not revived")
	require.NoError(t, client.SetNX(t.Context(), key, "second", ttl).Err())
	require.True(t, renew("first"), "the renewal says that it worked")
	require.Equal(t, "first", value(t, client, key), "first has the lock of second")
}

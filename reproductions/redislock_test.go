package reproductions

import (
	"context"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
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

// TestRedislockObtainMulti has 32 workers hold random sets of 8 of 64 keys for a millisecond, with ObtainMulti in its
// retry loop, which starts over while any key is held, and with dlock's DoAll, which waits in queues. Each worker
// goes on until everybody's time is over, and until it is served.
func TestRedislockObtainMulti(t *testing.T) {
	const workers, of, size, lasts = 32, 64, 8, time.Second
	_, client := start(t)
	locker := redislock.New(client)
	store := goredis.New(client)
	ours := dlock.New(store)
	t.Cleanup(func() {
		ours.Close()
		store.Close()
	})
	again := func(pause time.Duration) func(keys []string, do func()) error {
		opt := &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)}
		return func(keys []string, do func()) error {
			lock, err := locker.ObtainMulti(t.Context(), keys, ttl, opt)
			if err != nil {
				return err
			}
			do()
			return lock.Release(t.Context())
		}
	}
	for name, under := range map[string]func(keys []string, do func()) error{
		"redislock, tried again after 1 ms": again(time.Millisecond),
		"redislock, after 10 ms":            again(10 * time.Millisecond),
		"dlock": func(keys []string, do func()) error {
			return ours.DoAll(t.Context(), keys, func(context.Context, *dlock.Leases) error {
				do()
				return nil
			})
		},
	} {
		require.NoError(t, client.ConfigResetStat(t.Context()).Err())
		var held [of]atomic.Int32
		var mu sync.Mutex
		var sets int
		var longest time.Duration
		var all sync.WaitGroup
		begun := time.Now()
		for range workers {
			all.Go(func() {
				for time.Since(begun) < lasts {
					set, asked := rand.Perm(of)[:size], time.Now()
					var keys []string
					for _, k := range set {
						keys = append(keys, strconv.Itoa(k))
					}
					assert.NoError(t, under(keys, func() {
						mu.Lock()
						sets, longest = sets+1, max(longest, time.Since(asked))
						mu.Unlock()
						for _, k := range set {
							assert.EqualValues(t, 1, held[k].Add(1), "%s: key %d is held twice", name, k)
						}
						time.Sleep(time.Millisecond)
						for _, k := range set {
							held[k].Add(-1)
						}
					}))
				}
			})
		}
		all.Wait()
		t.Logf("%s: %.0f sets a second, longest wait %v, %s", name, float64(sets)/time.Since(begun).Seconds(),
			longest.Round(time.Millisecond), commands(t, client))
	}
}

// commands is how many commands the server has executed.
func commands(t *testing.T, client *redis.Client) string {
	t.Helper()
	info, err := client.Info(t.Context(), "stats").Result()
	require.NoError(t, err)
	return regexp.MustCompile(`total_commands_processed:\d+`).FindString(info)
}

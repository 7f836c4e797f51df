package rediscore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// theirs does what redsync, redislock and StackExchange.Redis (LockTake, LockExtend, LockRelease) do with a lock.
func (b *bench) theirs(command, value string, ttl time.Duration) bool {
	b.Helper()
	source := map[string]string{
		"take":    `return redis.call('EXISTS', KEYS[1]) == 0 and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) and 1 or 0`,
		"extend":  `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`,
		"release": `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`,
	}[command]
	reply, err := b.server.Eval(source, source, []string{b.keys.lock}, []string{value, fmt.Sprint(ttl.Milliseconds())})
	require.NoError(b, err)
	return reply == int64(1)
}

// is is the answer to a call that does not fail.
func (b *bench) is(held bool, err error) bool {
	b.Helper()
	require.NoError(b, err)
	return held
}

// Plain locks and dlock's exclude each other. One that has passed to the other kind can be neither renewed
// nor released by its former holder.
func TestPlainLocks(t *testing.T) {
	for name, pass := range map[string]func(b *bench, release func() bool){
		"released": func(b *bench, release func() bool) { require.True(b, release()) },
		"expired":  func(*bench, func() bool) { time.Sleep(2*ttl + time.Millisecond) },
		"removed":  func(b *bench, _ func() bool) { b.expire() },
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(b *bench) {
				renew := func() bool { return b.is(b.locker.Renew(b.Context(), "k", "ours", 2*ttl)) }
				release := func() bool { return b.is(b.locker.Release(b.Context(), "k", "ours")) }
				requireTheirs := func() {
					a, err := b.locker.TryAcquire(b.Context(), "k", "ours", ttl)
					require.NoError(b, err)
					require.Equal(b, "theirs", a.Holder)
					require.False(b, renew())
					require.False(b, release())
				}
				require.True(b, b.theirs("take", "theirs", ttl))
				requireTheirs()
				require.True(b, b.theirs("extend", "theirs", 2*ttl))
				pass(b, func() bool { return b.theirs("release", "theirs", 0) })
				b.hold("ours")
				for _, command := range []string{"take", "extend", "release"} {
					require.False(b, b.theirs(command, "theirs", 3*ttl), command)
				}
				require.True(b, renew())
				require.Equal(b, (2 * ttl).Milliseconds(), b.number("PTTL", "k"))
				pass(b, release)
				require.True(b, b.theirs("take", "theirs", ttl))
				requireTheirs()
				require.True(b, b.theirs("release", "theirs", 0))
			})
		})
	}
}

// A Client waits for a plain lock, and reveals nothing of its value. The lock stays as it is.
func TestClientWaitsForPlainLock(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ours := dlock.New(b.locker)
		require.True(b, b.theirs("take", "s3cret", ttl))
		_, err := ours.TryAcquire(b.Context(), "k")
		var held *dlock.HeldError
		require.ErrorAs(b, err, &held)
		require.Equal(b, ttl, held.Remaining)
		require.NotContains(b, err.Error(), "s3cret")
		require.False(b, b.is(b.locker.Release(b.Context(), "k", "s3cre")))
		require.False(b, b.is(b.locker.Renew(b.Context(), "k", "s3cre", time.Hour)))
		require.Equal(b, []string{"k"}, b.server.Keys(), "something was left behind")
		start := time.Now()
		lease, err := ours.Acquire(b.Context(), "k")
		require.NoError(b, err)
		require.InDelta(b, ttl, time.Since(start), float64(time.Second))
		require.False(b, b.theirs("release", "s3cret", 0))
		require.NoError(b, lease.Release())
	})
}

// A key without a TTL is held for ever, and its holder's lease is not shortened.
func TestKeyWithoutTTL(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.do("SET", "k", "mine")
		a, err := b.locker.TryAcquire(b.Context(), "k", "t", ttl)
		require.NoError(b, err)
		require.False(b, a.Acquired)
		require.Negative(b, a.Remaining, "it never ends")
		hold, err := b.locker.Inspect(b.Context(), "k")
		require.NoError(b, err)
		require.Negative(b, hold.Remaining)
		require.True(b, b.is(b.locker.Renew(b.Context(), "k", "mine", ttl)))
		b.hold("mine")
		require.EqualValues(b, -1, b.number("PTTL", "k"), "a lease was shortened")
	})
}

// A key of another type is left alone. An attempt owes nothing, a release that failed is owed, and Close does
// not wait for it: the store has answered.
func TestKeyOfAnotherType(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.do("HSET", "k", "theirs", "1")
		c := dlock.New(b.locker)
		_, err := c.Acquire(b.Context(), "k")
		require.ErrorContains(b, err, `dlock: acquire "k"`)
		require.ErrorContains(b, err, "WRONGTYPE")
		require.NotErrorIs(b, err, dlock.ErrHeld)
		require.Zero(b, c.Stats().ReleasesOwed)
		require.Equal(b, []string{"k"}, b.server.Keys(), "something was left behind")
		require.Equal(b, []any{"1"}, b.do("HMGET", "k", "theirs"))

		lease, err := c.TryAcquire(b.Context(), "held")
		require.NoError(b, err)
		b.do("DEL", "held")
		b.do("HSET", "held", "theirs", "1")
		require.ErrorContains(b, lease.Release(), "WRONGTYPE")
		require.Equal(b, 1, c.Stats().ReleasesOwed)
		start := time.Now()
		require.ErrorContains(b, c.Close(), "WRONGTYPE")
		require.Less(b, time.Since(start), time.Second)
	})
}

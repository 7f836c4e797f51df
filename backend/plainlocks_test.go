package backend_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A plain lock is stored as by redsync, redislock and StackExchange.Redis (LockTake,
// LockExtend, LockRelease).
type plain struct {
	t      *testing.T
	server *redistest.Server
}

func (p plain) take(key, value string) bool {
	p.t.Helper()
	return do(p.t, p.server, "SET", key, value, "NX", "PX", milliseconds(ttl)) == "OK"
}

func (p plain) extend(key, value string, ttl time.Duration) bool {
	p.t.Helper()
	const script = `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`
	return do(p.t, p.server, "EVAL", script, "1", key, value, milliseconds(ttl)) == int64(1)
}

func (p plain) release(key, value string) bool {
	p.t.Helper()
	const script = `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`
	return do(p.t, p.server, "EVAL", script, "1", key, value) == int64(1)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// TestPlainLocks checks that plain locks and dlock's exclude each other.
func TestPlainLocks(t *testing.T) {
	server := redistest.Start(t)
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			theirs, ours := plain{t, server}, a.dial(t, server.Addr())
			plainFirst(t, theirs, ours)
			oursFirst(t, theirs, ours)
			plainTakesOver(t, theirs, ours)
			oursTakesOver(t, theirs, ours)
		})
	}
}

func plainFirst(t *testing.T, theirs plain, ours dlock.Locker) {
	require.True(t, theirs.take("order:7", "theirs"))
	requireHeldBy(t, ours, "order:7", "theirs")
	require.False(t, renew(t, ours, "order:7", "ours"))
	require.False(t, release(t, ours, "order:7", "ours"))
	require.True(t, theirs.extend("order:7", "theirs", ttl))
	require.True(t, theirs.release("order:7", "theirs"))
	acquire(t, ours, "order:7", "ours")
	require.True(t, release(t, ours, "order:7", "ours"))
}

func oursFirst(t *testing.T, theirs plain, ours dlock.Locker) {
	acquire(t, ours, "order:7", "ours")
	require.False(t, theirs.take("order:7", "theirs"))
	require.False(t, theirs.extend("order:7", "theirs", 2*ttl))
	require.False(t, theirs.release("order:7", "theirs"))
	require.LessOrEqual(t, do(t, theirs.server, "PTTL", "order:7"), ttl.Milliseconds())
	require.True(t, renew(t, ours, "order:7", "ours"))
	require.True(t, release(t, ours, "order:7", "ours"))
	require.True(t, theirs.take("order:7", "theirs"))
	require.True(t, theirs.release("order:7", "theirs"))
}

// A lock that was ours and is now theirs can be neither renewed nor released.
func plainTakesOver(t *testing.T, theirs plain, ours dlock.Locker) {
	acquire(t, ours, "order:7", "ours")
	do(t, theirs.server, "DEL", "order:7") // in place of its expiry
	require.True(t, theirs.take("order:7", "theirs"))
	require.False(t, renew(t, ours, "order:7", "ours"))
	require.False(t, release(t, ours, "order:7", "ours"))
	require.True(t, theirs.release("order:7", "theirs"))
}

func oursTakesOver(t *testing.T, theirs plain, ours dlock.Locker) {
	require.True(t, theirs.take("order:7", "theirs"))
	do(t, theirs.server, "DEL", "order:7")
	acquire(t, ours, "order:7", "ours")
	require.False(t, theirs.extend("order:7", "theirs", 2*ttl))
	require.False(t, theirs.release("order:7", "theirs"))
	require.True(t, release(t, ours, "order:7", "ours"))
}

// A Client waits for a plain lock, and reveals nothing of its value.
func TestClientWaitsForPlainLock(t *testing.T) {
	server := redistest.Start(t)
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			theirs, ours := plain{t, server}, dlock.New(a.dial(t, server.Addr()))
			require.True(t, theirs.take("order:7", "s3cret"))
			_, err := ours.TryAcquire(t.Context(), "order:7")
			require.ErrorIs(t, err, dlock.ErrHeld)
			require.NotContains(t, err.Error(), "s3cret")
			require.True(t, theirs.extend("order:7", "s3cret", 200*time.Millisecond))
			lease, err := ours.Acquire(t.Context(), "order:7")
			require.NoError(t, err)
			require.False(t, theirs.release("order:7", "s3cret"))
			require.NoError(t, lease.Release())
		})
	}
}

package interop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/faultproxy"
)

// stored is the name of the only key that a lock of one key has in Redis.
const stored = "rueidislock:0:" + key

func newProxy(t *testing.T, server string) *faultproxy.Proxy {
	p, err := faultproxy.New(server)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func newRueidislock(t *testing.T, addr string, change func(*rueidislock.LockerOption)) rueidislock.Locker {
	option := rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}}
	if change != nil {
		option.KeyMajority = 1
		change(&option)
	}
	locker, err := rueidislock.NewLocker(option)
	require.NoError(t, err)
	return locker
}

// TestRueidislockGhost: the lock is taken, the reply is lost, and the client sends the
// script again within TryNextAfter. SET NX finds its own value, which is taken for that of
// another: the caller is told "not locked", nothing is deleted, and nobody can have the lock
// until it expires.
func TestRueidislockGhost(t *testing.T) {
	server, client := start(t)
	w := newProxy(t, server.Addr())
	locker := newRueidislock(t, w.Addr(), func(o *rueidislock.LockerOption) {
		o.KeyValidity = ttl
		o.TryNextAfter = 10 * time.Second // time for a reconnection, on any machine
	})
	defer locker.Close()
	loadScript(t, locker)

	w.DropReply(faultproxy.Contains(stored), faultproxy.Cut)
	_, _, err := locker.TryWithContext(t.Context(), key)
	require.ErrorIs(t, err, rueidislock.ErrNotLocked)
	require.NotEmpty(t, value(t, client, stored), "a ghost holds the lock")
	require.Greater(t, rest(t, client, stored), ttl/2)
	_, _, err = locker.TryWithContext(t.Context(), key)
	require.ErrorIs(t, err, rueidislock.ErrNotLocked, "nobody can have it")
}

// TestRueidislockWithoutRetries: it is the retry that makes the ghost. Without, the lost
// reply is an error, and the key is deleted.
func TestRueidislockWithoutRetries(t *testing.T) {
	server, client := start(t)
	w := newProxy(t, server.Addr())
	locker := newRueidislock(t, w.Addr(), func(o *rueidislock.LockerOption) {
		o.KeyValidity, o.TryNextAfter = ttl, 10*time.Second
		o.ClientOption.DisableRetry = true
	})
	defer locker.Close()
	loadScript(t, locker)

	w.DropReply(faultproxy.Contains(stored), faultproxy.Cut)
	_, _, err := locker.TryWithContext(t.Context(), key)
	require.Error(t, err)
	require.NotErrorIs(t, err, rueidislock.ErrNotLocked)
	require.Empty(t, value(t, client, stored))
}

// loadScript makes the server know the script that takes a lock, so that the next one is
// taken with one request.
func loadScript(t *testing.T, locker rueidislock.Locker) {
	t.Helper()
	_, release, err := locker.TryWithContext(t.Context(), "another")
	require.NoError(t, err)
	release()
}

// TestRueidislockHearsLate: an extension that hangs is bounded by the deadline that it
// would have brought about, which is half a validity later than the one that counts. In
// between another holds the lock, and the context of the first is alive.
func TestRueidislockHearsLate(t *testing.T) {
	for _, validity := range []time.Duration{3 * time.Second, 8 * time.Second, 20 * time.Second} {
		late := hearsLate(t, validity)
		t.Logf("the first heard of its loss %v after the second had the lock; half a validity is %v", late, validity/2)
		if late > 0 {
			return
		}
	}
	t.Fatal("the first heard of its loss before the second had the lock, even with a long validity")
}

// hearsLate returns how long after another had the lock its holder heard that it is lost.
func hearsLate(t *testing.T, validity time.Duration) time.Duration {
	server, client := start(t)
	w := newProxy(t, server.Addr())
	change := func(o *rueidislock.LockerOption) { o.KeyValidity, o.TryNextAfter = validity, validity }
	first := newRueidislock(t, w.Addr(), change)
	defer first.Close()
	second := newRueidislock(t, server.Addr(), change)
	defer second.Close()

	ctx, release, err := first.TryWithContext(t.Context(), key)
	require.NoError(t, err)
	defer release()
	told := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { told <- time.Now() })
	w.Block(faultproxy.Both)

	lapse(t, client, stored)
	_, release, err = second.TryWithContext(t.Context(), key)
	require.NoError(t, err, "the lease of the first has expired")
	defer release()
	taken := time.Now()
	return (<-told).Sub(taken)
}

// TestRueidislockHearsOfDeletion: client side caching tells the holder that its key was
// deleted, long before the next extension.
func TestRueidislockHearsOfDeletion(t *testing.T) {
	server, client := start(t)
	locker := newRueidislock(t, server.Addr(), func(o *rueidislock.LockerOption) { o.KeyValidity = ttl })
	defer locker.Close()
	ctx, release, err := locker.TryWithContext(t.Context(), key)
	require.NoError(t, err)
	defer release()
	require.NoError(t, client.Del(t.Context(), stored).Err())
	select {
	case <-ctx.Done():
	case <-time.After(ttl / 6):
		t.Fatal("the context of the holder has not ended")
	}
}

// TestRueidislockLaggingClock: leases are sent as instants of the client's wall clock
// (PXAT). In a bubble that clock shows the year 2000, and stands still while the network is
// being waited for: two clients "acquire" a lock, and there is no key.
func TestRueidislockLaggingClock(t *testing.T) {
	server, client := start(t)
	synctest.Test(t, func(t *testing.T) {
		for range 2 {
			locker := newRueidislock(t, server.Addr(), func(*rueidislock.LockerOption) {})
			defer locker.Close()
			_, release, err := locker.TryWithContext(t.Context(), key)
			require.NoError(t, err)
			defer release()
		}
	})
	require.Empty(t, value(t, client, stored))
}

// TestRueidislockLaggingUntracked: without client side caching nobody is told, either,
// before the first extension: two contexts of holders are alive.
func TestRueidislockLaggingUntracked(t *testing.T) {
	server, _ := start(t)
	synctest.Test(t, func(t *testing.T) {
		for range 2 {
			locker := newRueidislock(t, server.Addr(), func(o *rueidislock.LockerOption) {
				o.ClientOption.DisableCache = true
			})
			defer locker.Close()
			ctx, release, err := locker.TryWithContext(t.Context(), key)
			require.NoError(t, err)
			defer release()
			defer func() { require.NoError(t, ctx.Err(), "the holder has been told") }()
		}
	})
}

// TestRueidislockRelativeTTL: with FallbackSETPX the lease is sent as a duration, and
// the second client is refused.
func TestRueidislockRelativeTTL(t *testing.T) {
	server, _ := start(t)
	synctest.Test(t, func(t *testing.T) {
		for _, want := range []error{nil, rueidislock.ErrNotLocked} {
			locker := newRueidislock(t, server.Addr(), func(o *rueidislock.LockerOption) {
				o.KeyValidity, o.FallbackSETPX = ttl, true
				o.ClientOption.DisableCache = true
			})
			defer locker.Close()
			_, release, err := locker.TryWithContext(t.Context(), key)
			require.ErrorIs(t, err, want)
			defer release()
		}
	})
}

package interop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// What other libraries do: the claims of README.md.

const (
	key    = "order:7"
	stored = "rueidislock:0:" + key // the only key in Redis that a lock of one key of rueidislock has
)

// start starts a server and returns a client of it.
func start(t *testing.T) (*redistest.Server, *redis.Client) {
	server := redistest.Start(t)
	return server, dial(t, server)
}

func requireStored(t *testing.T, want bool, client *redis.Client, key string) {
	t.Helper()
	n, err := client.Exists(t.Context(), key).Result()
	require.NoError(t, err)
	require.Equal(t, want, n == 1, "%s is there", key)
}

// TestRedislockComparesPrefix: with tokens of one's own, user-1 takes the lock that user-10 holds, and user-10 has
// lost it. The other way round it is refused. With metadata, which is stored behind the token, user-10 takes that of user-1.
func TestRedislockComparesPrefix(t *testing.T) {
	_, client := start(t)
	locker := redislock.New(client)
	obtain := func(key, token, metadata string) (*redislock.Lock, error) {
		return locker.Obtain(t.Context(), key, ttl, &redislock.Options{Token: token, Metadata: metadata})
	}
	long, err := obtain(key, "user-10", "")
	require.NoError(t, err)
	_, err = obtain(key, "user-2", "")
	require.ErrorIs(t, err, redislock.ErrNotObtained, "the lock is held")
	short, err := obtain(key, "user-1", "")
	require.NoError(t, err, "user-1 has the lock, though user-10 held it")
	require.ErrorIs(t, long.Refresh(t.Context(), ttl, nil), redislock.ErrNotObtained, "user-10 has lost it")
	_, err = obtain(key, "user-10", "")
	require.ErrorIs(t, err, redislock.ErrNotObtained, "user-10 is no prefix of user-1")
	require.NoError(t, short.Release(t.Context()))

	_, err = obtain("another", "user-1", "0 of shop 5")
	require.NoError(t, err)
	_, err = obtain("another", "user-10", "")
	require.NoError(t, err, "user-10 has the lock, though user-1 held it")
}

// TestBelowAMillisecond: the TTL is cut to 0 ms, PEXPIRE 0 deletes the key, and the answer is success: that of redsync if
// the server answers within the expiry. The TTL is also the time limit of the call, which a busy machine may miss.
func TestBelowAMillisecond(t *testing.T) {
	const tiny = 999 * time.Microsecond
	for name, shorten := range map[string]func(ctx context.Context, client *redis.Client) error{
		"redislock, Obtain": func(ctx context.Context, client *redis.Client) error {
			_, err := redislock.New(client).Obtain(ctx, key, tiny, nil)
			return err
		},
		"redislock, Refresh": func(ctx context.Context, client *redis.Client) error {
			lock, err := redislock.New(client).Obtain(ctx, key, ttl, nil)
			if err != nil {
				return err
			}
			return lock.Refresh(ctx, tiny, nil)
		},
		"redsync, Extend": func(ctx context.Context, client *redis.Client) error {
			held := newRedsync(client).NewMutex(key, redsync.WithExpiry(ttl))
			if err := held.TryLockContext(ctx); err != nil {
				return err
			}
			_, err := newRedsync(client).NewMutex(key, redsync.WithExpiry(tiny), redsync.WithValue(held.Value())).ExtendContext(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, client := start(t)
			require.Eventually(t, func() bool {
				err := shorten(t.Context(), client)
				if err != nil { // the key may be held
					err = errors.Join(err, client.Del(t.Context(), key).Err())
				}
				return err == nil
			}, time.Minute, time.Millisecond, "success")
			requireStored(t, false, client, key)
		})
	}
}

// TestRedsyncTakenOnUnlock: the error of an unlock by one who does not hold the lock any more says that the lock could not be taken.
func TestRedsyncTakenOnUnlock(t *testing.T) {
	_, client := start(t)
	stale := newRedsync(client).NewMutex(key, redsync.WithExpiry(ttl))
	require.NoError(t, stale.TryLockContext(t.Context()))
	require.NoError(t, client.Set(t.Context(), key, "another's", ttl).Err())
	ok, err := stale.UnlockContext(t.Context())
	require.False(t, ok)
	require.ErrorAs(t, err, new(*redsync.ErrTaken))
}

func newRueidislock(t *testing.T, addr string, change func(*rueidislock.LockerOption)) rueidislock.Locker {
	option := rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1}
	change(&option)
	locker, err := rueidislock.NewLocker(option)
	require.NoError(t, err)
	t.Cleanup(locker.Close)
	return locker
}

func newProxy(t *testing.T, server *redistest.Server) *faultproxy.Proxy {
	p, err := faultproxy.New(server.Addr())
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// TestRueidislockGhost: the lock is taken, the reply is lost, and the client sends the script again within TryNextAfter.
// SET NX finds its own value, which is taken for that of another: the caller is told "not locked", nothing is deleted, and
// nobody can have the lock until it expires. Without retries, the lost reply is an error, and the key is deleted.
func TestRueidislockGhost(t *testing.T) {
	for _, retries := range []bool{true, false} {
		server, client := start(t)
		w := newProxy(t, server)
		locker := newRueidislock(t, w.Addr(), func(o *rueidislock.LockerOption) {
			o.KeyValidity, o.TryNextAfter = ttl, 10*time.Second // time for a reconnection, on any machine
			o.ClientOption.DisableRetry = !retries
		})
		_, release, err := locker.TryWithContext(t.Context(), "another") // now the server knows the script
		require.NoError(t, err)
		release()

		w.DropReply(faultproxy.Contains(stored), faultproxy.Cut)
		_, _, err = locker.TryWithContext(t.Context(), key)
		requireStored(t, retries, client, stored)
		if !retries {
			require.Error(t, err)
			require.NotErrorIs(t, err, rueidislock.ErrNotLocked)
			continue
		}
		require.ErrorIs(t, err, rueidislock.ErrNotLocked)
		require.Greater(t, client.PTTL(t.Context(), stored).Val(), ttl/2)
		_, _, err = locker.TryWithContext(t.Context(), key)
		require.ErrorIs(t, err, rueidislock.ErrNotLocked, "nobody can have it")
	}
}

// TestRueidislockHearsLate: an extension that hangs is bounded by the deadline that it would have brought about, which is
// half a validity later than the one that counts. In between another holds the lock, and the context of the first is alive.
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
	w := newProxy(t, server)
	change := func(o *rueidislock.LockerOption) { o.KeyValidity, o.TryNextAfter = validity, validity }
	first, second := newRueidislock(t, w.Addr(), change), newRueidislock(t, server.Addr(), change)
	ctx, release, err := first.TryWithContext(t.Context(), key)
	require.NoError(t, err)
	defer release()
	told := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { told <- time.Now() })
	w.Block(faultproxy.Both)
	for client.Exists(t.Context(), stored).Val() > 0 {
		time.Sleep(time.Millisecond)
	}
	_, release, err = second.TryWithContext(t.Context(), key)
	require.NoError(t, err, "the lease of the first has expired")
	defer release()
	taken := time.Now()
	return (<-told).Sub(taken)
}

// TestRueidislockHearsOfDeletion: client side caching tells the holder that its key was deleted, long before the next extension.
func TestRueidislockHearsOfDeletion(t *testing.T) {
	server, client := start(t)
	locker := newRueidislock(t, server.Addr(), func(o *rueidislock.LockerOption) { o.KeyValidity = ttl })
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

// TestRueidislockLaggingClock: leases are sent as instants of the client's wall clock (PXAT). In a bubble that clock shows
// the year 2000, and stands still while the network is being waited for: two clients "acquire" a lock, and there is no key.
// Without client side caching nobody is told before the first extension. With FallbackSETPX the lease is sent as a duration,
// and the second client is refused.
func TestRueidislockLaggingClock(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*rueidislock.LockerOption)
		second error
		alive  bool // the contexts of the holders
	}{
		"as it is":        {func(*rueidislock.LockerOption) {}, nil, false},
		"without caching": {func(o *rueidislock.LockerOption) { o.ClientOption.DisableCache = true }, nil, true},
		"FallbackSETPX": {func(o *rueidislock.LockerOption) {
			o.KeyValidity, o.FallbackSETPX, o.ClientOption.DisableCache = ttl, true, true
		}, rueidislock.ErrNotLocked, false},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := start(t)
			bubble.Test(t, func(t *testing.T) {
				for _, want := range []error{nil, test.second} {
					ctx, release, err := newRueidislock(t, server.Addr(), test.change).TryWithContext(t.Context(), key)
					require.ErrorIs(t, err, want)
					defer release()
					if test.alive {
						defer func() { require.NoError(t, ctx.Err(), "the holder has been told") }()
					}
				}
			})
			requireStored(t, false, client, stored)
		})
	}
}

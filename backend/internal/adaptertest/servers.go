package adaptertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// requireFailure requires that an acquisition of "order:7" has failed, and says why.
func requireFailure(t *testing.T, err error, why string) {
	t.Helper()
	require.ErrorContains(t, err, why)
	require.ErrorContains(t, err, `dlock: acquire "order:7"`)
	require.NotErrorIs(t, err, dlock.ErrHeld)
}

func badArguments(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	conn := a.dial(t, server.Addr())
	for _, bad := range []struct {
		locker     *rediscore.Locker
		key, token string
		ttl        time.Duration
		want       string
	}{
		{a.Nil(), "k", "t", ttl, "client: nil"},
		{rediscore.New(conn, nil), "k", "t", ttl, "Option 1 of 1: nil"},
		{rediscore.New(conn, rediscore.WithPrefix(strings.Repeat("p", 1025))), "k", "t", ttl, "1025 bytes"},
		{rediscore.New(conn), "", "t", ttl, "key: empty"},
		{rediscore.New(conn), "dlock1:fence", "t", ttl, `key: contains "dlock1:"`},
		{rediscore.New(conn), "k", "", ttl, "token: empty"},
		{rediscore.New(conn), "k", "t", 0, "TTL 0s"},
		{rediscore.New(conn), "k", "t", time.Millisecond - 1, "TTL 999.999µs"},
		{rediscore.New(conn), "k", "t", -ttl, "TTL -1m0s"},
	} {
		_, err := bad.locker.TryAcquire(t.Context(), bad.key, bad.token, bad.ttl)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, bad.want)
		_, err = bad.locker.Renew(t.Context(), bad.key, bad.token, bad.ttl)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		results, err := bad.locker.RenewBatch(t.Context(), []dlock.Renewal{{Key: bad.key, Token: bad.token, TTL: bad.ttl}})
		if err == nil {
			err = results[0].Err
		}
		require.ErrorIs(t, err, dlock.ErrInvalid)
	}
	require.Empty(t, server.Keys(t))
}

func closed(t *testing.T, a Adapter) {
	conn := a.dial(t, redistest.Start(t).Addr())
	l := rediscore.New(conn)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err := l.TryAcquire(t.Context(), "k", "t", ttl)
	require.ErrorIs(t, err, dlock.ErrClosed)
	_, err = l.Release(t.Context(), "k", "t")
	require.ErrorIs(t, err, dlock.ErrClosed)
	_, err = l.RenewBatch(t.Context(), nil)
	require.ErrorIs(t, err, dlock.ErrClosed)
	take(t, rediscore.New(conn), "k", "t") // the client is open
}

func unreachable(t *testing.T, a Adapter) {
	server, l := a.start(t)
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	start := time.Now()
	_, err := dlock.New(l).Acquire(ctx, "order:7")
	requireFailure(t, err, "")
	require.NoError(t, ctx.Err(), "it waited for a server that cannot be reached")
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	t.Logf("after %v: %v", time.Since(start).Round(time.Millisecond), err)
}

func wrongPassword(t *testing.T, a Adapter) {
	server := redistest.Start(t, "--requirepass", "right")
	for _, password := range []string{"", "wrong"} {
		why := map[string]string{"": "NOAUTH", "wrong": "WRONGPASS"}[password]
		conn, err := a.Dial(t, Settings{Addrs: []string{server.Addr()}, Password: password, Timeout: timeout})
		if err == nil {
			_, err = dlock.New(rediscore.New(conn)).Acquire(t.Context(), "order:7")
			requireFailure(t, err, why)
		}
		require.ErrorContains(t, err, why)
	}
}

func wrongType(t *testing.T, a Adapter) {
	server, l := a.start(t)
	do(t, server, "LPUSH", "order:7", "x")
	_, err := dlock.New(l).Acquire(t.Context(), "order:7")
	requireFailure(t, err, "WRONGTYPE")
	require.Equal(t, []string{"order:7"}, server.Keys(t), "something was left behind")
	require.EqualValues(t, 1, do(t, server, "LLEN", "order:7"))
}

func foreignValue(t *testing.T, a Adapter) {
	server, l := a.start(t)
	do(t, server, "SET", "order:7", "s3cret", "PX", "60000")
	_, err := dlock.New(l).TryAcquire(t.Context(), "order:7")
	var held *dlock.HeldError
	require.ErrorAs(t, err, &held)
	require.InDelta(t, 60, held.Remaining.Seconds(), 5)
	require.NotContains(t, err.Error(), "s3cret")
	for _, op := range []func(context.Context, string, string) (bool, error){
		l.Release,
		func(ctx context.Context, key, token string) (bool, error) { return l.Renew(ctx, key, token, time.Hour) },
	} {
		did, err := op(t.Context(), "order:7", "s3cre")
		require.NoError(t, err)
		require.False(t, did)
	}
	require.Equal(t, "s3cret", do(t, server, "GET", "order:7"))
	require.LessOrEqual(t, do(t, server, "PTTL", "order:7"), int64(60000))
	require.Equal(t, []string{"order:7"}, server.Keys(t), "something was left behind")
}

func keyWithoutTTL(t *testing.T, a Adapter) {
	server, l := a.start(t)
	do(t, server, "SET", "order:7", "mine")
	attempt, err := l.TryAcquire(t.Context(), "order:7", "t", ttl)
	require.NoError(t, err)
	require.False(t, attempt.Acquired)
	require.Negative(t, attempt.Remaining, "it never ends")
	hold, err := l.Inspect(t.Context(), "order:7")
	require.NoError(t, err)
	require.Negative(t, hold.Remaining)
	held, err := l.Renew(t.Context(), "order:7", "mine", ttl)
	require.NoError(t, err)
	require.True(t, held)
	take(t, l, "order:7", "mine")
	require.EqualValues(t, -1, do(t, server, "PTTL", "order:7"), "a lease was shortened")
}

// deadWaiters has more dead waiters in a queue than one call of a script removes. They have no records.
func deadWaiters(t *testing.T, a Adapter) {
	server, l := a.start(t)
	do(t, server, "EVAL", "for i = 1, 12000 do redis.call('ZADD', KEYS[1], i, i) end redis.call('PEXPIRE', KEYS[1], 60000)",
		"1", "{46q}dlock1:queue:order:7")
	take(t, l, "order:7", "t")
	require.ElementsMatch(t, []string{"order:7", "{46q}dlock1:fence"}, server.Keys(t), "the queue was not removed")
}

func outOfMemory(t *testing.T, a Adapter) {
	server, l := a.start(t)
	take(t, l, "old", "t")
	do(t, server, "SCRIPT", "FLUSH")
	before := server.Keys(t)
	do(t, server, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	do(t, server, "CONFIG", "SET", "maxmemory", "1")
	_, err := dlock.New(l).Acquire(t.Context(), "order:7")
	requireFailure(t, err, "OOM")
	require.ElementsMatch(t, before, server.Keys(t), "a lock is half taken")
	held, err := l.Renew(t.Context(), "old", "t", 2*ttl)
	require.NoError(t, err, "a lease can be renewed")
	require.True(t, held)
	held, err = l.Release(t.Context(), "old", "t")
	require.NoError(t, err, "a lock can be freed")
	require.True(t, held)
}

func replica(t *testing.T, a Adapter) {
	master, l := a.start(t)
	follower := redistest.StartReplica(t, master)
	take(t, l, "held", "t")
	require.Eventually(t, func() bool { return len(follower.Keys(t)) == len(master.Keys(t)) }, 10*time.Second, time.Millisecond)
	l = rediscore.New(a.dial(t, follower.Addr()))
	_, err := dlock.New(l, dlock.WithMaxWait(2*time.Second)).Acquire(t.Context(), "order:7")
	require.ErrorContains(t, err, "READONLY")
	for _, c := range []struct{ key, token string }{{"held", "stranger"}, {"free", "stranger"}, {"held", "t"}} {
		_, err = l.Release(t.Context(), c.key, c.token)
		require.ErrorContains(t, err, "READONLY", "a replica may be behind, and cannot say what is not held")
		_, err = l.Renew(t.Context(), c.key, c.token, 2*ttl)
		require.ErrorContains(t, err, "READONLY")
	}
}

// An attempt that a server takes in and answers too late: the outcome is unknown
// when it returns, and known to the Client in the end.
func pausedServer(t *testing.T, a Adapter) {
	server, l := a.start(t)
	client := dlock.New(l)
	defer client.Close()
	warm, err := client.TryAcquire(t.Context(), "warm")
	require.NoError(t, err)
	require.NoError(t, warm.Release())
	do(t, server, "CLIENT", "PAUSE", "5000")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = client.TryAcquire(ctx, "order:7")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, dlock.ErrHeld)
	requireFree(t, server, "order:7")
}

func suspendedServer(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	conn := a.Dial.must(t, Settings{Addrs: []string{server.Addr()}, Timeout: patient})
	client := dlock.New(rediscore.New(conn), dlock.WithTTL(3*time.Second))
	defer client.Close()
	lease, err := client.TryAcquire(t.Context(), "held")
	require.NoError(t, err)
	server.Suspend()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = client.TryAcquire(ctx, "order:7")
	require.Error(t, err)
	require.NotErrorIs(t, err, dlock.ErrHeld)
	require.Less(t, time.Since(start), 20*time.Second)
	<-lease.Done()
	late := time.Since(lease.Deadline())
	require.ErrorIs(t, lease.Err(), dlock.ErrLost)
	require.Less(t, late, 20*time.Second, "the loss was announced late")
	server.Resume()
	requireFree(t, server, "order:7")
	requireFree(t, server, "held")
}

// requireFree waits until nobody holds key.
func requireFree(t *testing.T, server *redistest.Server, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		reply, err := server.Do("EXISTS", key)
		return err == nil && reply == int64(0)
	}, 20*time.Second, 10*time.Millisecond, "%q is still held", key)
}

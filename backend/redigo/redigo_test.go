package redigo

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestMain(m *testing.M) { adaptertest.Main(m) }

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Dial: dial,
		Nil:  func(opts ...rediscore.Option) *rediscore.Locker { return New(nil, opts...) },
	})
}

func dial(t testing.TB, s adaptertest.Settings) (rediscore.Conn, error) {
	pool := &redis.Pool{
		MaxIdle: 10,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", s.Addrs[0],
				redis.DialConnectTimeout(max(5*time.Second, s.Timeout)),
				redis.DialReadTimeout(s.Timeout),
				redis.DialWriteTimeout(s.Timeout))
		},
	}
	t.Cleanup(func() { pool.Close() })
	return newConn(pool), nil
}

// TestPoolClosedUnderACall has the context of a call end while its pool, which has a limit, is
// closed. redigo panics in about half of these calls.
func TestPoolClosedUnderACall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	closed := 0
	for range 100 {
		pool := &redis.Pool{MaxActive: 1, Wait: true}
		require.NoError(t, pool.Close())
		_, err := newConn(pool).get(ctx)
		require.True(t, dlock.NoEffect(err), "%v", err)
		if errors.Is(err, dlock.ErrClosed) {
			closed++
		} else {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	require.NotZero(t, closed, "calls that found out that the pool is closed")
}

// A panic of the user's own functions is not hidden.
func TestPanicOfDial(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for _, dial := range []func(context.CancelFunc){
		func(context.CancelFunc) { closed <- struct{}{} },
		func(end context.CancelFunc) { end(); panic("dial") },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pool := &redis.Pool{MaxActive: 1, Wait: true, Dial: func() (redis.Conn, error) { dial(cancel); return nil, nil }}
		require.Panics(t, func() { _, _ = newConn(pool).get(ctx) })
	}
}

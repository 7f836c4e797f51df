package redigo

import (
	"context"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

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
				redis.DialPassword(s.Password),
				redis.DialConnectTimeout(max(5*time.Second, s.Timeout)),
				redis.DialReadTimeout(s.Timeout),
				redis.DialWriteTimeout(s.Timeout))
		},
	}
	t.Cleanup(func() { pool.Close() })
	return newConn(pool), nil
}

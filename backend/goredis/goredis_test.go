package goredis

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Dial: func(t testing.TB, addr, password string) (adaptertest.Client, error) {
			client := redis.NewClient(&redis.Options{
				Addr:                  addr,
				Password:              password,
				ContextTimeoutEnabled: true,
				ReadTimeout:           time.Second,
				MaxRetries:            3,
			})
			t.Cleanup(func() { client.Close() })
			return adaptertest.Client{
				Conn: conn{client},
				New:  func(opts ...rediscore.Option) *rediscore.Locker { return New(client, opts...) },
			}, nil
		},
		Nil: func(opts ...rediscore.Option) *rediscore.Locker { return New((*redis.Client)(nil), opts...) },
	})
}

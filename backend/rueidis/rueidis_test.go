package rueidis

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Dial: func(t testing.TB, addr, password string) (adaptertest.Client, error) {
			option := rueidis.ClientOption{
				InitAddress:      []string{addr},
				Password:         password,
				ConnWriteTimeout: time.Second,
			}
			client, err := rueidis.NewClient(option)
			if errors.Is(err, rueidis.ErrNoCache) { // miniredis
				option.DisableCache = true
				client, err = rueidis.NewClient(option)
			}
			if err != nil {
				return adaptertest.Client{}, err
			}
			t.Cleanup(client.Close)
			return adaptertest.Client{
				Conn: conn{client},
				New:  func(opts ...rediscore.Option) *rediscore.Locker { return New(client, opts...) },
			}, nil
		},
		Nil: func(opts ...rediscore.Option) *rediscore.Locker { return New(nil, opts...) },
	})
}

package rueidis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Dial: func(t testing.TB, s adaptertest.Settings) (adaptertest.Client, error) {
			option := rueidis.ClientOption{
				InitAddress:      []string{s.Addr},
				Password:         s.Password,
				ConnWriteTimeout: s.Timeout,
			}
			option.Dialer.Timeout = max(5*time.Second, s.Timeout)
			client, err := rueidis.NewClient(option)
			if errors.Is(err, rueidis.ErrNoCache) { // miniredis
				option.DisableCache = true
				option.ForceSingleClient = true // it says that it is a cluster, and has no SSUBSCRIBE
				client, err = rueidis.NewClient(option)
			}
			if err != nil {
				return adaptertest.Client{}, err
			}
			t.Cleanup(client.Close)
			return adaptertest.Client{
				Conn: newConn(client),
				New:  func(opts ...rediscore.Option) *rediscore.Locker { return New(client, opts...) },
			}, nil
		},
		Nil: func(opts ...rediscore.Option) *rediscore.Locker { return New(nil, opts...) },
	})
}

// A Listen that finds no connection, since all are in use, ends with its context.
func TestListenWithoutConnection(t *testing.T) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redistest.Start(t).Addr()}, BlockingPoolSize: 1})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	_, release := client.Dedicate()
	t.Cleanup(release)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- newConn(client).Listen(ctx, "inbox", false, func(rediscore.Event) {}) }()
	time.Sleep(50 * time.Millisecond)
	cancel()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(20 * time.Second):
		require.FailNow(t, "Listen does not end")
	}
}

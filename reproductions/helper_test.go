package reproductions

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key = "order:7"
	ttl = time.Minute // outlives every test
)

// start starts a server and returns a client of it.
func start(t *testing.T) (*redistest.Server, *redis.Client) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { client.Close() })
	return server, client
}

// value is what is stored under key, or "" if nothing is.
func value(t *testing.T, client *redis.Client, key string) string {
	t.Helper()
	v, err := client.Get(context.Background(), key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	return v
}

// rest is how long key still lives.
func rest(t *testing.T, client *redis.Client, key string) time.Duration {
	t.Helper()
	d, err := client.PTTL(context.Background(), key).Result()
	require.NoError(t, err)
	return d
}

// lapse waits until key has expired.
func lapse(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	for value(t, client, key) != "" {
		time.Sleep(time.Millisecond)
	}
}

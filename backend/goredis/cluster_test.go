package goredis

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestCluster(t *testing.T) {
	adaptertest.RunCluster(t, func(t testing.TB, addrs []string) rediscore.Conn {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		t.Cleanup(func() { client.Close() })
		return conn{client}
	})
}

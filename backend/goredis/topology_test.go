package goredis

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestTopology(t *testing.T) {
	t.Parallel()
	adaptertest.RunTopologies(t, func(t testing.TB, sentinels []string) rediscore.Conn {
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: adaptertest.MasterName, SentinelAddrs: sentinels, ContextTimeoutEnabled: true,
		})
		t.Cleanup(func() { client.Close() })
		return newConn(client)
	}, func(t testing.TB, nodes []string) rediscore.Conn {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes, ContextTimeoutEnabled: true})
		t.Cleanup(func() { client.Close() })
		return newConn(client)
	})
}

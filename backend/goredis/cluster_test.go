package goredis

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestCluster(t *testing.T) {
	dials := make(map[string]adaptertest.DialCluster)
	for name, o := range map[string]redis.ClusterOptions{
		"Default":        {},
		"ReadOnly":       {ReadOnly: true},
		"RouteByLatency": {RouteByLatency: true},
	} {
		dials[name] = func(t testing.TB, addrs []string) rediscore.Conn {
			o := o
			o.Addrs, o.ContextTimeoutEnabled = addrs, true
			client := redis.NewClusterClient(&o)
			t.Cleanup(func() { client.Close() })
			return newConn(client)
		}
	}
	adaptertest.RunCluster(t, dials)
}

package goredis

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestInboxOnAReplica makes go-redis believe that a replica has all slots, as a former master says of
// itself. The replica confirms the subscription, but the scripts on the master do not see it.
func TestInboxOnAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	var addr atomic.Value
	addr.Store(master.Addr())
	client := clusterClient(t, redis.ClusterOptions{}, func() string { return addr.Load().(string) })
	l := New(client)
	defer l.Close()
	var until []func() bool
	for _, s := range []*redistest.Server{master, replica, master} {
		move := sync.OnceFunc(func() { addr.Store(s.Addr()); client.ReloadState(t.Context()) })
		until = append(until, func() bool {
			move()
			channels, err := s.Do("PUBSUB", "CHANNELS")
			return err == nil && slices.ContainsFunc(channels.([]any), func(c any) bool { return strings.Contains(c.(string), "inbox") })
		})
	}
	adaptertest.HandOver(t, l, until...)
}

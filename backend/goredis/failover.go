package goredis

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// oneMaster finds out whether a cluster client is for a single master with all slots, which need not
// be a Redis Cluster: that of [redis.NewFailoverClusterClient] is not. There, PUBLISH and SUBSCRIBE
// serve all locks, and they are older than their shard variants.
type oneMaster struct{ known atomic.Pointer[bool] }

func (o *oneMaster) is(client *redis.ClusterClient) bool {
	slots := client.Options().ClusterSlots
	if slots == nil { // the servers say themselves who has which slots
		return false
	}
	if known := o.known.Load(); known != nil {
		return *known
	}
	ctx, cancel := context.WithTimeout(context.Background(), refreshLimit)
	defer cancel()
	all, err := slots(ctx)
	if err != nil {
		return false
	}
	one := len(all) == 1 && all[0].Start == 0 && all[0].End == 16383
	o.known.Store(&one)
	return one
}

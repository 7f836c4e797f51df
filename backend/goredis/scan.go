package goredis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// Scan implements [rediscore.Scanner].
func (c conn) Scan(ctx context.Context, pattern string, found func(names []string) error) error {
	cluster, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return scan(ctx, c.client, pattern, found)
	}
	var mu sync.Mutex
	return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		return scan(ctx, master, pattern, func(names []string) error {
			mu.Lock()
			defer mu.Unlock()
			return found(names)
		})
	})
}

func scan(ctx context.Context, client redis.Cmdable, pattern string, found func(names []string) error) error {
	for cursor := uint64(0); ; {
		names, next, err := client.ScanType(ctx, cursor, pattern, rediscore.ScanCount, "string").Result()
		if err != nil {
			return err
		}
		if err := found(names); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

package goredis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// Scan implements [rediscore.Scanner].
func (c conn) Scan(ctx context.Context, pattern string, found func(names []string) error) error {
	if err := c.hidden.refusal(ctx); err != nil {
		return err
	}
	if c.cluster == nil {
		return scan(ctx, c.client, pattern, found)
	}
	var mu sync.Mutex
	return eachMaster(ctx, c.cluster, func(ctx context.Context, master *redis.Client) error {
		return scan(ctx, master, pattern, func(names []string) error {
			mu.Lock()
			defer mu.Unlock()
			return found(names)
		})
	})
}

func scan(ctx context.Context, client redis.Cmdable, pattern string, found func(names []string) error) error {
	for cursor := uint64(0); ; {
		var names []string
		var next uint64
		err := rediserr.Call(func() (err error) { // go-redis may have called scan, in a goroutine of its own
			names, next, err = client.ScanType(ctx, cursor, pattern, rediscore.ScanCount, "string").Result()
			return err
		})
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

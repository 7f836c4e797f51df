package redigo

import (
	"context"

	"github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// Scan implements [rediscore.Scanner].
func (c conn) Scan(ctx context.Context, pattern string, found func(names []string) error) error {
	for cursor := "0"; ; {
		conn, err := c.get(ctx)
		if err != nil {
			return err
		}
		reply, err := redis.Values(conn.do(ctx, "SCAN", cursor, "MATCH", pattern, "COUNT", rediscore.ScanCount, "TYPE", "string"))
		conn.Close()
		var names []string
		if err == nil {
			_, err = redis.Scan(reply, &cursor, &names)
		}
		if err == nil {
			err = found(names)
		}
		if err != nil || cursor == "0" {
			return err
		}
	}
}

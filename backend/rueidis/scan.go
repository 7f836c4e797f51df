package rueidis

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// Scan implements [rediscore.Scanner].
func (c conn) Scan(ctx context.Context, pattern string, found func(names []string) error) error {
	if !c.Cluster() {
		return scan(ctx, c.client, pattern, found)
	}
	nodes := c.client.Nodes()
	scanned := make(map[string]bool)
	for _, r := range slotRanges(ctx, c.client) {
		node := nodes[r.addr]
		switch {
		case scanned[r.addr]:
			continue
		case node == nil:
			return rediscore.ErrNoMaster
		}
		scanned[r.addr] = true
		if err := scan(ctx, node, pattern, found); err != nil {
			return err
		}
	}
	if len(scanned) == 0 {
		return rediscore.ErrNoMaster
	}
	return nil
}

func scan(ctx context.Context, node rueidis.Client, pattern string, found func(names []string) error) error {
	for cursor := uint64(0); ; {
		reply, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(pattern).Count(rediscore.ScanCount).Type("string").Build()).AsScanEntry()
		if err == nil {
			err = found(reply.Elements)
		}
		if cursor = reply.Cursor; err != nil || cursor == 0 {
			return err
		}
	}
}

package goredis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A cluster is the client of a cluster: a [redis.ClusterClient], or a decorator that has its methods because one is
// embedded in it.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
}

// A single is the client of one server, or of Sentinel.
type single interface{ Options() *redis.Options }

type clusterOptions interface{ Options() *redis.ClusterOptions }

type (
	onClient  = func(context.Context, *redis.Client) error
	eachShard interface {
		ForEachShard(context.Context, onClient) error
	}
)

// eachMaster calls f for all masters of a cluster, or for all nodes, at the same time. It fetches the table of slots before,
// within ctx.
func eachMaster(ctx context.Context, c cluster, f onClient) error {
	switch c := c.(type) {
	case interface {
		ForEachMaster(context.Context, onClient) error
	}:
		return c.ForEachMaster(ctx, f)
	case eachShard:
		return c.ForEachShard(ctx, f)
	}
	return fmt.Errorf("%w: %T has no ForEachMaster", errors.ErrUnsupported, c)
}

// of returns a conn that makes its calls through client. The methods of inside, which is the same or is in it, show what it
// is for.
func of(client, inside redis.UniversalClient) conn {
	c := conn{
		client:    client,
		sender:    func() redis.UniversalClient { return withoutRetries(client) },
		inside:    inside,
		listeners: &listeners{all: make(map[*redis.Client]*listener)},
		repeats:   new(repeats),
	}
	switch inside := inside.(type) {
	case cluster:
		c.cluster, c.slots = inside, &slotTable{cluster: inside}
	case single:
	default:
		c.hidden = &hidden{client: inside}
	}
	return c
}

// A hidden is a client whose methods do not show what it is for: a ring, or a decorator of a [redis.UniversalClient].
type hidden struct {
	client redis.UniversalClient
	single atomic.Bool
}

// refusal returns why the client is refused, or nil. A client of one server begins a transaction without a key, for
// which it sends UNWATCH at most; those of a cluster and of a ring do not.
func (h *hidden) refusal(ctx context.Context) error {
	if h == nil || h.single.Load() {
		return nil
	}
	if _, ring := h.client.(eachShard); ring {
		return errRing
	}
	err := h.client.Watch(ctx, func(*redis.Tx) error {
		h.single.Store(true)
		return nil
	})
	if h.single.Load() {
		return nil
	}
	return refused("a %T, which hides whether it is for one server, a cluster or a ring: name the client inside by WithInside (Watch: %v)", h.client, err)
}

func refused(format string, args ...any) error {
	return &dlock.NoEffectError{Err: fmt.Errorf("%w client: %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))}
}

// errRing says why a ring is refused. Each client of a ring decides by itself when a server is down and which server has its
// keys then. Two clients that decide differently could hold the same lock.
var errRing = refused("a ring, whose clients need not agree on which server has a key")

// WithInside names the client of go-redis inside a decorator that hides its methods, such as a struct that embeds a
// [redis.UniversalClient]. Scripts still go through the decorator, except batches in a cluster. Both must reach the same
// servers.
func WithInside(client redis.UniversalClient) Option {
	return rediscore.WithConn(func(c rediscore.Conn) (rediscore.Conn, error) {
		outer, ok := c.(conn)
		if !ok || isNil(client) {
			return nil, fmt.Errorf("WithInside(%T): nil, or not for a client of go-redis", client)
		}
		return of(outer.client, client), nil
	})
}

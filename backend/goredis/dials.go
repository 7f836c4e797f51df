package goredis

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// dials is a hook that records why a client cannot connect.
type dials struct{ failed atomic.Pointer[error] }

// watch adds the hook to a client or, in a cluster, to each node that the client learns of from
// now on.
func watch(client redis.UniversalClient) *dials {
	d := new(dials)
	switch client := client.(type) {
	case *redis.Client:
		client.AddHook(d)
	case *redis.ClusterClient:
		client.OnNewNode(func(node *redis.Client) { node.AddHook(d) })
	}
	return d
}

// failure returns the error of the last dial, or nil if it succeeded.
func (d *dials) failure() error {
	if d == nil {
		return nil
	}
	if err := d.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// DialHook implements [redis.Hook].
func (d *dials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		switch {
		case err == nil:
			d.failed.Store(nil)
		case !errors.Is(err, context.Canceled):
			d.failed.Store(&err)
		}
		return conn, err
	}
}

// ProcessHook implements [redis.Hook].
func (d *dials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (d *dials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

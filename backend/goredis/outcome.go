package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A script is an argument of a command that notes when go-redis writes the command.
type script struct {
	text    string
	written atomic.Bool
}

func (s *script) MarshalBinary() ([]byte, error) {
	s.written.Store(true)
	return []byte(s.text), nil
}

// String is for hooks that show commands.
func (s *script) String() string { return s.text }

// outcome returns the result of a command that go-redis has processed. If it has not been
// written, the error is marked.
func (c conn) outcome(cmd *command, err error) (any, error) {
	switch {
	case err == nil:
		return cmd.Val(), nil
	case errors.Is(err, redis.Nil):
		return nil, nil
	case cmd.script.written.Load() || !c.writesAtOnce():
		return nil, err
	}
	return nil, c.unsent(err)
}

// writesAtOnce says that a command is written before Process returns or never, as far as
// is known: an automatic pipeline may write it later.
func (c conn) writesAtOnce() bool {
	switch c.client.(type) {
	case *redis.Client, *redis.ClusterClient:
		return true
	}
	return false
}

// unsent marks an error of a command that was not written. go-redis tries several times to
// connect, and says nothing of why that fails if the context ends meanwhile: the dials do.
func (c conn) unsent(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		if failure := c.dials.failure(); failure != nil {
			err = fmt.Errorf("%w (%w)", failure, err)
		}
	}
	return &dlock.NoEffectError{Err: err}
}

// unlessClosed returns err, or that the client is closed if err says so. In a cluster it
// may say so of one node's client, of a node that has left.
func (c conn) unlessClosed(ctx context.Context, err error) error {
	if !saysClosed(err) || !rediscore.IsClosed(ctx, saysClosed, c.ping) {
		return err
	}
	return clientClosed(err)
}

// clientClosed is the error of a call of a client that is closed. It is marked if err is.
func clientClosed(err error) error {
	var unsent *dlock.NoEffectError
	if errors.As(err, &unsent) {
		return &dlock.NoEffectError{Err: rediscore.ClientClosed(unsent.Err)}
	}
	return rediscore.ClientClosed(err)
}

func saysClosed(err error) bool { return errors.Is(err, redis.ErrClosed) }

func (c conn) ping(ctx context.Context) error {
	return c.client.Process(ctx, redis.NewCmd(ctx, "ping"))
}

// dials is a hook that notes why a client cannot connect.
type dials struct{ failed atomic.Pointer[error] }

// watch returns the dials of a client from now on. In a cluster it hears of nodes that the
// client comes to know from now on.
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

// failure returns the error of the last dial, or nil if it has succeeded.
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

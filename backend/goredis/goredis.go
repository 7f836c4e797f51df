package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// New returns a Locker on the server that client talks to. It never closes the
// client. A nil client makes its methods fail with [dlock.ErrInvalid].
func New(client redis.UniversalClient, opts ...rediscore.Option) *rediscore.Locker {
	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return rediscore.New(nil, opts...)
	}
	return rediscore.New(conn{client}, opts...)
}

type conn struct{ client redis.UniversalClient }

// A command is one that go-redis does not send again.
type command struct{ redis.Cmd }

func (*command) NoRetry() bool { return true }

func newCommand(ctx context.Context, name, script string, call rediscore.Call) *command {
	args := make([]any, 3, 3+len(call.Args))
	args[0], args[1], args[2] = name, script, call.Script.Keys
	for _, arg := range call.Args {
		args = append(args, arg)
	}
	return &command{*redis.NewCmd(ctx, args...)}
}

func (c conn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	cmd := newCommand(ctx, "evalsha", call.Script.SHA, call)
	err := c.client.Process(ctx, cmd)
	if noScript(err) {
		cmd = newCommand(ctx, "eval", call.Script.Source, call)
		err = c.client.Process(ctx, cmd)
	}
	return result(cmd, err)
}

func (c conn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	cmds := c.pipeline(ctx, calls, "evalsha", func(s *rediscore.Script) string { return s.SHA })
	var unknown []int
	var again []rediscore.Call
	for i, cmd := range cmds {
		if noScript(cmd.Err()) {
			unknown, again = append(unknown, i), append(again, calls[i])
		}
	}
	if len(again) > 0 {
		retried := c.pipeline(ctx, again, "eval", func(s *rediscore.Script) string { return s.Source })
		for i, cmd := range retried {
			cmds[unknown[i]] = cmd
		}
	}
	for i, cmd := range cmds {
		results[i].Reply, results[i].Err = result(cmd, cmd.Err())
	}
}

func (c conn) pipeline(ctx context.Context, calls []rediscore.Call, name string, script func(*rediscore.Script) string) []*command {
	pipe := c.client.Pipeline()
	cmds := make([]*command, len(calls))
	for i, call := range calls {
		cmds[i] = newCommand(ctx, name, script(call.Script), call)
		_ = pipe.Process(ctx, cmds[i]) // queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	return cmds
}

func noScript(err error) bool { return err != nil && rediscore.IsNoScript(err.Error()) }

func result(cmd *command, err error) (any, error) {
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

func (c conn) Cluster() bool {
	_, ok := c.client.(*redis.ClusterClient)
	return ok
}

func (c conn) Listen(ctx context.Context, channel string, sharded bool, on func(rediscore.Event)) error {
	subscribe := c.client.Subscribe
	if sharded {
		subscribe = c.client.SSubscribe
	}
	pubsub := subscribe(ctx, channel)
	defer pubsub.Close()
	defer context.AfterFunc(ctx, func() { pubsub.Close() })()
	for silent := false; ; {
		msg, err := pubsub.ReceiveTimeout(ctx, rediscore.ListenPeriod)
		var timeout net.Error
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			silent = false
		case errors.As(err, &timeout) && timeout.Timeout() && !silent:
			silent = true
			err = pubsub.Ping(ctx)
		}
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *redis.Message:
			on(rediscore.Event{Kind: rediscore.Message, Payload: m.Payload})
		case *redis.Subscription:
			if m.Kind != "subscribe" && m.Kind != "ssubscribe" {
				return fmt.Errorf("%s by the server", m.Kind)
			}
			on(rediscore.Event{Kind: rediscore.Subscribed})
		}
	}
}

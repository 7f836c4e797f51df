package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// New returns a Locker that keeps its leases on client's server. It never closes the client, and leaves no hooks on it. If
// client is nil or a [redis.Ring], or hides that it is for several servers (see [WithInside]), all methods of the Locker
// fail with [dlock.ErrInvalid].
func New(client redis.UniversalClient, opts ...Option) *rediscore.Locker {
	if isNil(client) {
		return rediscore.New(nil, opts...)
	}
	return rediscore.New(newConn(client), opts...)
}

func isNil(client redis.UniversalClient) bool {
	v := reflect.ValueOf(client)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

type conn struct {
	client    redis.UniversalClient
	sender    func() redis.UniversalClient // client, or what it is without retries
	inside    redis.UniversalClient        // client, or the one in it
	cluster   cluster                      // nil if client is not for a cluster
	slots     *slotTable                   // likewise
	hidden    *hidden                      // nil if the methods of inside show what it is for
	listeners *listeners
	repeats   *repeats
}

func newConn(client redis.UniversalClient) conn { return of(client, client) }

// A command is a script call that go-redis does not retry.
type command struct {
	redis.Cmd
	script scriptArg
}

func newCommand(ctx context.Context, name, text string, call rediscore.Call) *command {
	cmd := &command{script: scriptArg{text: text}}
	cmd.script.cmd = &cmd.Cmd
	args := make([]any, 2, 2+call.Len())
	args[0], args[1] = name, &cmd.script
	cmd.Cmd = *redis.NewCmd(ctx, call.Append(args)...)
	return cmd
}

func (c conn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	if err := c.hidden.refusal(ctx); err != nil {
		return nil, err
	}
	client := c.sender()
	if c.slots == nil && mayRepeat(client) {
		var results [1]rediscore.Result
		c.evalAll(ctx, []rediscore.Call{call}, results[:], nil)
		return results[0].Reply, results[0].Err
	}
	defer c.slots.watch()()
	cmd := newCommand(ctx, "evalsha", call.Script.SHA, call)
	err := client.Process(ctx, cmd)
	if noScript(err) {
		cmd = newCommand(ctx, "eval", call.Script.Source, call)
		err = client.Process(ctx, cmd)
	}
	c.slots.failed(err)
	reply, err := c.outcome(cmd, err)
	return reply, c.unlessClosed(ctx, err)
}

func (c conn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	c.evalAll(ctx, calls, results, nil)
}

// EvalReplicated implements [rediscore.Replicator]. A pipeline has a connection for itself, unless it is that of a client
// that hides what it is.
func (c conn) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	if c.hidden == nil {
		c.evalAll(ctx, calls, results, &wait)
		return
	}
	rediscore.Fail(results, refused("a %T, which hides whether WithReplicas can use it: name the client inside by WithInside", c.client))
}

func (c conn) evalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) {
	if err := c.hidden.refusal(ctx); err != nil {
		rediscore.Fail(results, err)
		return
	}
	if c.cluster != nil {
		c.evalByMaster(ctx, calls, results, wait)
	} else {
		numbers := make([]int, len(calls))
		for i := range calls {
			numbers[i] = i
		}
		c.evalSome(ctx, envelope{wait: wait}, numbers, calls, results)
	}
	closed := sync.OnceValue(func() bool { return rediscore.IsClosed(ctx, saysClosed, c.ping) })
	for i, r := range results {
		if saysClosed(r.Err) && closed() {
			results[i].Err = clientClosed(r.Err)
		}
	}
}

// evalByMaster uses a pipeline for each master, so that a dead master fails only its own calls.
// In a pipeline of the cluster client it would fail them all.
func (c conn) evalByMaster(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) {
	defer c.slots.watch()()
	master := func(call rediscore.Call, address string) (*redis.Client, error) {
		if address != "" {
			return c.slots.node(ctx, address)
		}
		master, err := c.cluster.MasterForKey(ctx, call.Keys()[0])
		if err != nil {
			c.slots.failed(err)
			err = &dlock.NoEffectError{Err: c.explained(err)}
		}
		return master, err
	}
	rediscore.EvalByMaster(calls, results, master, func(node *redis.Client, asking bool, numbers []int) {
		sender := func() redis.UniversalClient { return withoutRetries(node) }
		conn{client: node, sender: sender, cluster: c.cluster}.evalSome(ctx, envelope{asking, wait}, numbers, calls, results)
		for _, i := range numbers {
			c.slots.failed(results[i].Err)
			if wait == nil && rediscore.IsRedirection(results[i].Err) { // go-redis follows to any node
				results[i].Reply, results[i].Err = c.Eval(ctx, calls[i])
			}
		}
	})
}

// An envelope is what a pipeline has beside the calls.
type envelope struct {
	asking bool                   // ASKING before each
	wait   *rediscore.Replication // for a WAIT at the end; or nil
}

// evalSome makes the calls with the given indices in one pipeline. Calls whose script the server
// does not know go into a second one.
func (c conn) evalSome(ctx context.Context, e envelope, numbers []int, calls []rediscore.Call, results []rediscore.Result) {
	c.pipeline(ctx, e, numbers, results, func(i int) *command {
		return newCommand(ctx, "evalsha", calls[i].Script.SHA, calls[i])
	})
	var unknown []int
	for _, i := range numbers {
		if noScript(results[i].Err) {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		c.pipeline(ctx, e, unknown, results, func(i int) *command {
			return newCommand(ctx, "eval", calls[i].Script.Source, calls[i])
		})
	}
}

func (c conn) pipeline(ctx context.Context, e envelope, numbers []int, results []rediscore.Result, newCmd func(i int) *command) {
	pipe := c.sender().Pipeline()
	cmds := make([]*command, len(numbers))
	for n, i := range numbers {
		if e.asking {
			_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, "asking"))
		}
		cmds[n] = newCmd(i)
		_ = pipe.Process(ctx, cmds[n]) // queues it
	}
	var replicas *redis.IntCmd
	if e.wait != nil {
		replicas = redis.NewIntCmd(ctx, "wait", e.wait.Replicas, e.wait.Milliseconds(ctx))
		_ = pipe.Process(ctx, replicas)
	}
	_, failure := pipe.Exec(ctx)
	for n, i := range numbers {
		if cmds[n].Err() == nil && !cmds[n].script.written.Load() { // go-redis sets no error
			cmds[n].SetErr(failure)
		}
		results[i].Reply, results[i].Err = c.outcome(cmds[n], cmds[n].Err())
		if replicas != nil {
			results[i].Replicas, results[i].NoWait = int(replicas.Val()), replicas.Err()
		}
	}
}

func noScript(err error) bool { return err != nil && rediscore.IsNoScript(err.Error()) }

// IsReply implements [rediscore.Replier].
func (conn) IsReply(err error) bool {
	_, is := err.(redis.Error)
	return is && err != redis.Nil
}

// Cluster implements [rediscore.Conn].
func (c conn) Cluster() bool { return c.slots != nil && !c.slots.hasOneMaster() }

// Master implements [rediscore.Router].
func (c conn) Master(ctx context.Context, call rediscore.Call) any {
	return c.Locate(ctx, call.Keys()[0])
}

// Locate implements [rediscore.Locator], with what go-redis has learnt so far.
func (c conn) Locate(ctx context.Context, key string) any {
	if c.cluster != nil {
		if master, err := c.cluster.MasterForKey(ctx, key); err == nil {
			return master
		}
	}
	return nil
}

// PoolSize implements [rediscore.Pooled].
func (c conn) PoolSize() int {
	switch client := c.inside.(type) {
	case single:
		return poolSize(client.Options().PoolSize, client.Options().MaxActiveConns)
	case clusterOptions:
		return poolSize(client.Options().PoolSize, client.Options().MaxActiveConns)
	}
	return 0 // not known
}

// Addr implements [rediscore.Addressed]. For Sentinel, go-redis has a word in the place of an address.
func (c conn) Addr() string {
	if client, ok := c.inside.(single); ok && client.Options().Addr != "FailoverClient" {
		return client.Options().Addr
	}
	return ""
}

func poolSize(size, limit int) int {
	if limit > 0 {
		return min(size, limit)
	}
	return size
}

// unlessClosed returns err or, if the client was closed, an error that says so. In a cluster an
// err that says "closed" may be about the client of a single node that has left.
func (c conn) unlessClosed(ctx context.Context, err error) error {
	if !saysClosed(err) || !rediscore.IsClosed(ctx, saysClosed, c.ping) {
		return err
	}
	return clientClosed(err)
}

// clientClosed returns the error of a call of a closed client. It is a [dlock.NoEffectError] if
// err is.
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

// outcome returns the result of a command that go-redis has processed. If the command was not
// written, and will not be, the error is a [dlock.NoEffectError].
func (c conn) outcome(cmd *command, err error) (any, error) {
	switch {
	case err == nil:
		return cmd.Val(), nil
	case cmd.script.first != nil:
		return nil, cmd.script.first
	case c.hidden == nil && cmd.script.revoke():
		return nil, &dlock.NoEffectError{Err: c.explained(c.unconnected(err))}
	case err == redis.Nil:
		return nil, nil
	}
	return nil, err
}

// unconnected returns the error of a command that was not written. go-redis does not say that it waited for a
// connection.
func (c conn) unconnected(err error) error {
	pool, ok := c.client.(interface{ PoolStats() *redis.PoolStats })
	if size := c.PoolSize(); ok && size > 0 && !c.Cluster() {
		if s := pool.PoolStats(); s.IdleConns == 0 && int(s.TotalConns) >= size {
			return rediserr.AllInUse(err, size)
		}
	}
	return err
}

// explained adds the cause to the error of a command that was not written. In such an error, "redis: nil" is the answer of a
// Sentinel, or stands for the address of a node, as "?" does.
func (c conn) explained(err error) error {
	lookup, ok := errors.AsType[*net.DNSError](err)
	switch {
	case c.cluster != nil && (errors.Is(err, redis.Nil) || ok && lookup.Name == "?"):
		return fmt.Errorf("%w (the cluster names no address of a node: see its cluster-preferred-endpoint-type)", err)
	case c.cluster == nil && (errors.Is(err, redis.Nil) || strings.Contains(err.Error(), "all sentinels")):
		return fmt.Errorf("%w (no Sentinel names a master: they are away, or do not know the name that the client asks for)", err)
	}
	return err
}

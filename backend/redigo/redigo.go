package redigo

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// New returns a Locker that keeps its leases on the server that pool connects to. It never closes
// the pool. If pool is nil, all methods of the Locker fail with [dlock.ErrInvalid].
func New(pool *redis.Pool, opts ...Option) *rediscore.Locker {
	if pool == nil {
		return rediscore.New(nil, opts...)
	}
	return rediscore.New(newConn(pool), opts...)
}

type conn struct {
	pool   *redis.Pool
	hashes *sync.Map // from *rediscore.Script to its SHA, boxed once
	stale  *stale
}

func newConn(pool *redis.Pool) conn { return conn{pool, new(sync.Map), new(stale)} }

// hash returns the SHA of a script, and allocates only the first time.
func (c conn) hash(s *rediscore.Script) any {
	hash, ok := c.hashes.Load(s)
	if !ok {
		hash, _ = c.hashes.LoadOrStore(s, s.SHA)
	}
	return hash
}

func args(script any, call rediscore.Call) []any {
	args := make([]any, 1, 1+call.Len())
	args[0] = script
	return call.Append(args)
}

func (c conn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := conn.do(ctx, "EVALSHA", args(c.hash(call.Script), call)...)
	if noScript(err) {
		reply, err = conn.do(ctx, "EVAL", args(call.Script.Source, call)...)
	}
	c.stale.put(&conn, rediscore.Result{Err: err})
	return text(reply), err
}

// get takes a connection from the pool. Its error is a [dlock.NoEffectError].
func (c conn) get(ctx context.Context) (pooled, error) {
	conn, err := getContext(ctx, c.pool)
	if err == nil {
		return pooled{Conn: conn}, nil
	}
	if err.Error() == closedPool {
		err = rediscore.ClientClosed(err)
	}
	if s := c.pool.Stats(); c.pool.MaxActive > 0 && s.IdleCount == 0 && s.ActiveCount >= c.pool.MaxActive {
		err = rediserr.AllInUse(err, c.pool.MaxActive)
	}
	return pooled{}, &dlock.NoEffectError{Err: err}
}

// closedPool is the text of the error of a closed pool. redigo has no variable for it.
const closedPool = "redigo: get on closed pool"

// getContext is pool.GetContext without its panic: if ctx ends while the call waits, redigo (as of 1.9.3) sends
// to a channel that Close of the pool closes. It holds no lock then. With a redigo that does not, getContext may go.
func getContext(ctx context.Context, pool *redis.Pool) (conn redis.Conn, err error) {
	defer func() {
		if ctx.Err() == nil {
			return
		}
		p := recover()
		if e, ok := p.(runtime.Error); ok && e.Error() == "send on closed channel" {
			err = errors.New(closedPool)
		} else if p != nil {
			panic(p)
		}
	}()
	return pool.GetContext(ctx)
}

func (c conn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	c.evalAll(ctx, calls, results, nil)
}

// EvalReplicated implements [rediscore.Replicator].
func (c conn) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	c.evalAll(ctx, calls, results, &wait)
}

func (c conn) evalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) {
	conn, err := c.get(ctx)
	if err != nil {
		rediscore.Fail(results, err)
		return
	}
	c.evalOn(ctx, &conn, calls, results, wait)
	c.stale.put(&conn, results...)
}

func (c conn) evalOn(ctx context.Context, conn *pooled, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) {
	numbers := make([]int, len(calls))
	for i := range calls {
		numbers[i] = i
	}
	pipeline(ctx, conn, numbers, results, wait, func(i int) error {
		return conn.Send("EVALSHA", args(c.hash(calls[i].Script), calls[i])...)
	})
	unknown := slices.DeleteFunc(numbers, func(i int) bool { return !noScript(results[i].Err) })
	if len(unknown) > 0 {
		pipeline(ctx, conn, unknown, results, wait, func(i int) error {
			return conn.Send("EVAL", args(calls[i].Script.Source, calls[i])...)
		})
	}
}

// pipeline sends the calls with the given indices, and WAIT if wait is not nil, and then receives
// all replies.
func pipeline(ctx context.Context, conn *pooled, numbers []int, results []rediscore.Result, wait *rediscore.Replication, send func(i int) error) {
	var err error
	for _, i := range numbers {
		if err = send(i); err != nil {
			break
		}
	}
	sent := len(numbers)
	if err == nil && wait != nil {
		err = conn.Send("WAIT", wait.Replicas, wait.Milliseconds(ctx))
		sent++
	}
	var replies []any
	if err == nil {
		replies, err = redis.Values(conn.do(ctx, "")) // all that are pending
	}
	if err == nil && len(replies) != sent {
		err = fmt.Errorf("redigo: %d replies to %d commands", len(replies), sent)
	}
	for n, i := range numbers {
		if err != nil {
			results[i] = rediscore.Result{Err: err}
			continue
		}
		if e, ok := replies[n].(redis.Error); ok {
			results[i] = rediscore.Result{Err: e}
		} else {
			results[i] = rediscore.Result{Reply: text(replies[n])}
		}
		if wait != nil {
			results[i].Replicas, results[i].NoWait = redis.Int(replies[len(numbers)], nil)
		}
	}
}

func noScript(err error) bool {
	e, ok := err.(redis.Error)
	return ok && rediscore.IsNoScript(string(e))
}

// IsReply implements [rediscore.Replier].
func (conn) IsReply(err error) bool {
	_, is := err.(redis.Error)
	return is
}

// text converts the []byte of a reply to strings.
func text(reply any) any {
	switch r := reply.(type) {
	case []byte:
		return string(r)
	case []any:
		for i := range r {
			r[i] = text(r[i])
		}
	}
	return reply
}

// Cluster implements [rediscore.Conn].
func (conn) Cluster() bool { return false }

// PoolSize implements [rediscore.Pooled].
func (c conn) PoolSize() int { return c.pool.MaxActive }

// Listen implements [rediscore.Conn]. It dials a connection of its own, because it must not take
// the last one of the pool.
func (c conn) Listen(ctx context.Context, channel string, sharded bool, on func(rediscore.Event)) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = rediserr.Call(conn.Close) })()
	subscribe := "SUBSCRIBE"
	if sharded {
		subscribe = "SSUBSCRIBE"
	}
	if err = conn.Send(subscribe, channel); err == nil {
		err = conn.Flush()
	}
	var pings sync.WaitGroup
	ended := make(chan struct{})
	pings.Go(func() { _ = rediserr.Try(func() { ping(conn, ended) }) })
	for err == nil {
		err = rediserr.Call(func() error { return receive(conn, on) })
	}
	close(ended)
	pings.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (c conn) dial(ctx context.Context) (redis.Conn, error) {
	switch {
	case c.pool.DialContext != nil:
		return c.pool.DialContext(ctx)
	case c.pool.Dial != nil:
		return c.pool.Dial()
	}
	return nil, errors.New("redigo: the pool has no Dial")
}

// shortPeriod is the time between two pings if the connection's read time-out cannot be changed.
const shortPeriod = time.Second

// ping pings the server, so that the connection receives something now and then. redigo allows
// one goroutine to send while another receives.
func ping(conn redis.Conn, ended <-chan struct{}) {
	period := rediscore.ListenPeriod
	if _, ok := conn.(redis.ConnWithTimeout); !ok {
		period = shortPeriod
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			if conn.Send("PING") != nil || conn.Flush() != nil {
				return
			}
		}
	}
}

// receive waits for one message. After an error the subscription is lost.
func receive(conn redis.Conn, on func(rediscore.Event)) error {
	reply, err := redis.Values(redis.ReceiveWithTimeout(conn, 2*rediscore.ListenPeriod))
	if unsupported(err) {
		reply, err = redis.Values(conn.Receive())
	}
	if err != nil {
		return err
	}
	kind, err := redis.String(reply[0], nil)
	switch kind {
	case "pong":
	case "subscribe", "ssubscribe":
		on(rediscore.Event{Kind: rediscore.Subscribed})
	case "message", "smessage":
		var payload string
		payload, err = redis.String(reply[len(reply)-1], err)
		on(rediscore.Event{Kind: rediscore.Message, Payload: payload})
	default:
		err = fmt.Errorf("redigo: %s by the server", kind)
	}
	return err
}

package goredis

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// Repeats are when calls were last repeated, in nanoseconds since 1970.
type repeats struct{ inVain, helped atomic.Int64 }

func within(d time.Duration, t *atomic.Int64) bool { return time.Since(time.Unix(0, t.Load())) < d }

// tries returns how often calls are repeated, at most: over each idle connection, and over one that is made then. If that
// has failed recently, the idle ones are left alone. If it has helped of late, those in use may be stale, too.
func (r *repeats) tries(pool *redis.PoolStats) int {
	switch {
	case within(10*time.Second, &r.helped):
		return 1 + int(pool.TotalConns)
	case within(time.Second, &r.inVain):
		return 1
	}
	return 1 + int(pool.IdleConns)
}

// EvalAnew implements [rediscore.Leaver]. The client of a cluster finds other servers by itself.
func (c conn) EvalAnew(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) (closed int) {
	client, ok := c.sender().(interface{ Conn() *redis.Conn })
	if !ok || c.slots != nil {
		rediscore.Fail(results, rediscore.ErrNoMaster)
		return 0
	}
	numbers := make([]int, len(calls))
	for i := range calls {
		numbers[i] = i
	}
	tries := c.repeats.tries(c.client.PoolStats())
	for closed = 1; closed <= tries; closed++ { // and go-redis has closed one
		on := lone{c.client, client.Conn()}
		conn{client: on, sender: func() redis.UniversalClient { return on }}.evalSome(ctx, envelope{wait: wait}, numbers, calls, results)
		if rediscore.Unserving(results...) {
			on.drop(ctx)
			continue
		}
		on.conn.Close()
		if rediscore.Serves(results) {
			c.repeats.helped.Store(time.Now().UnixNano())
		}
		return closed
	}
	c.repeats.inVain.Store(time.Now().UnixNano())
	return closed
}

// A lone is one connection of a client.
type lone struct {
	redis.UniversalClient
	conn *redis.Conn
}

func (l lone) Process(ctx context.Context, cmd redis.Cmder) error { return l.conn.Process(ctx, cmd) }

func (l lone) Pipeline() redis.Pipeliner { return l.conn.Pipeline() }

// drop closes the connection. By itself, go-redis does so after READONLY, and if it cannot write a command. As of 9.23, a user
// has no other way to have one connection closed.
func (l lone) drop(ctx context.Context) {
	cmd := new(command)
	cmd.Cmd = *redis.NewCmd(ctx, "ping", unwritable{})
	_ = l.Process(ctx, cmd)
	l.conn.Close()
}

// An unwritable is an argument that cannot be written.
type unwritable struct{}

func (unwritable) MarshalBinary() ([]byte, error) { return nil, errDropped }

var errDropped = errors.New("the connection leads to a server that does not serve")

package redigo

import (
	"context"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

// A pooled is a connection of a pool, for one user. If the connection is wrapped in a type that
// hides the methods for contexts and time-outs, each call has a goroutine, which keeps the
// connection until the server has answered.
type pooled struct {
	redis.Conn
	busy chan struct{} // closed when the last call has ended; nil if no call was given up
}

// Close returns the connection to the pool, as soon as its last call has ended.
func (p *pooled) Close() error {
	busy, conn := p.busy, p.Conn // so that p need not be on the heap
	if busy == nil {
		return conn.Close()
	}
	go func() {
		<-busy
		_ = rediserr.Call(conn.Close)
	}()
	return nil
}

// do makes a call. If ctx has a deadline within near, do sets the read time-out of the call
// to it. If ctx can end otherwise, do uses redigo's DoContext, which starts a goroutine.
func (p *pooled) do(ctx context.Context, name string, args ...any) (reply any, err error) {
	deadline, ok := ctx.Deadline()
	rest := time.Until(deadline)
	switch {
	case ok && rest > 0 && rest <= near:
		reply, err = redis.DoWithTimeout(p.Conn, rest, name, args...)
	case ctx.Done() == nil:
		return p.Conn.Do(name, args...)
	default:
		reply, err = redis.DoContext(p.Conn, ctx, name, args...)
	}
	if unsupported(err) {
		return p.doPlain(ctx, name, args...)
	}
	return reply, err
}

const near = 5 * time.Second

// doPlain makes a call with the methods of redis.Conn only.
func (p *pooled) doPlain(ctx context.Context, name string, args ...any) (any, error) {
	var reply any
	var err error
	done, conn := make(chan struct{}), p.Conn
	go func() {
		defer close(done)
		err = rediserr.Call(func() (err error) {
			reply, err = conn.Do(name, args...)
			return err
		})
	}()
	select {
	case <-done:
		return reply, err
	case <-ctx.Done():
		p.busy = done
		return nil, ctx.Err()
	}
}

// unsupported reports whether redigo has sent nothing because the connection lacks the methods for
// contexts and time-outs. redigo has no variables for these errors.
func unsupported(err error) bool {
	if err == nil {
		return false
	}
	switch err.Error() {
	case "redis: connection does not support ConnWithTimeout",
		"redis: connection does not support ConnWithContext":
		return true
	}
	return false
}

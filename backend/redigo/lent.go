package redigo

import (
	"context"
	"time"

	"github.com/gomodule/redigo/redis"
)

// A lent is a connection of a pool. If that is wrapped in a type that hides what redigo
// needs for contexts and time-outs, each call has a goroutine, which keeps the connection
// until the server has answered.
type lent struct {
	redis.Conn
	busy chan struct{} // closed when the last call has ended; nil if none was given up
}

// Close gives the connection back to the pool, when it is free.
func (l *lent) Close() error {
	if l.busy == nil {
		return l.Conn.Close()
	}
	go func() {
		<-l.busy
		l.Conn.Close()
	}()
	return nil
}

// do starts a goroutine, as redigo's DoContext does, only where nothing else would
// end the call in time: where ctx can end, and has no deadline that is near. A
// deadline that is far away takes the place of the connection's own read time-out,
// and does not heed that ctx is cancelled.
func (l *lent) do(ctx context.Context, name string, args ...any) (reply any, err error) {
	deadline, ok := ctx.Deadline()
	rest := time.Until(deadline)
	switch {
	case ok && rest > 0 && rest <= near:
		reply, err = redis.DoWithTimeout(l.Conn, rest, name, args...)
	case ctx.Done() == nil:
		return l.Conn.Do(name, args...)
	default:
		reply, err = redis.DoContext(l.Conn, ctx, name, args...)
	}
	if unsupported(err) {
		return l.doPlain(ctx, name, args...)
	}
	return reply, err
}

const near = 5 * time.Second

func (l *lent) doPlain(ctx context.Context, name string, args ...any) (any, error) {
	var reply any
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		reply, err = l.Conn.Do(name, args...)
	}()
	select {
	case <-done:
		return reply, err
	case <-ctx.Done():
		l.busy = done
		return nil, ctx.Err()
	}
}

// unsupported reports whether redigo has sent nothing, since the connection is wrapped in
// a type without the methods for contexts and time-outs. Its errors have no names.
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

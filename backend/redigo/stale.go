package redigo

import (
	"context"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// staleFor is for how long connections that do not serve are closed after the address was found to lead to another
// server. Until then, and for a client of a replica at all times, closing them would not help.
const staleFor = 10 * time.Second

// closeLimit is how long EvalAnew goes on closing idle connections.
const closeLimit = 50 * time.Millisecond

// Stale is whether connections of the pool may lead to another server than its address.
type stale struct {
	mu    sync.Mutex
	until time.Time
}

// moved notes that the address was found to lead to another server, and reports whether that is new.
func (s *stale) moved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := time.Now().Before(s.until)
	s.until = time.Now().Add(staleFor)
	return !known
}

func (s *stale) possible() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.until)
}

// put returns a connection to the pool after a call, or closes it if it is stale.
func (s *stale) put(conn *pooled, results ...rediscore.Result) {
	if rediscore.Unserving(results...) && s.possible() {
		conn.drop()
		return
	}
	conn.Close()
}

// EvalAnew implements [rediscore.Leaver]. It dials a connection of its own: the idle ones may be stale, too. If it
// is the first one that leads to another server, all that are idle are closed.
func (c conn) EvalAnew(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) (closed int) {
	fresh, err := c.dial(ctx)
	if err != nil {
		rediscore.Fail(results, &dlock.NoEffectError{Err: err})
		return 0
	}
	conn := pooled{Conn: fresh}
	defer conn.Close()
	c.evalOn(ctx, &conn, calls, results, wait)
	if !rediscore.Serves(results) || !c.stale.moved() {
		return 1
	}
	ctx, cancel := context.WithTimeout(ctx, closeLimit) // others may take them, and keep them
	defer cancel()
	for range c.pool.IdleCount() {
		if idle, err := c.get(ctx); err == nil {
			idle.drop()
		}
	}
	return 1
}

// drop closes a connection. The pool does so when its user returns it after an error, such as that of a call whose
// time is over, for which nothing is sent; or after the server has closed it.
func (p *pooled) drop() {
	over, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	if _, err := redis.DoContext(p.Conn, over, "PING"); unsupported(err) {
		_, _ = p.Conn.Do("QUIT")
		_, _ = p.Conn.Do("PING")
	}
	p.Close()
}

package dlock

import (
	"sync"
	"sync/atomic"
	"time"
)

// A key is contended for a second after a wait for it. Acquisitions with WithOutage make an attempt
// nevertheless, also beside many others.
const (
	contendedFor = time.Second
	maxContended = 1024
	shortestWait = time.Millisecond // a grant is dated a little later than its call even if the key was free
)

// contendedKeys are the keys for which an acquisition has just waited: the next one joins the
// queue at once. The zero value is ready for use.
type contendedKeys struct {
	some  atomic.Bool // there may be any
	mu    sync.Mutex
	until map[string]time.Time
}

// maxAttempts is how many first attempts of a Client may be in flight at once. With more, the calls
// would stand before renewals and releases for the connections of the store's client. So further
// acquisitions join the queue of the store at once, free or not, and the backend sends them
// together.
const maxAttempts = 128

func (k *keeper) crowded() bool {
	if k.attempts.Load() < maxAttempts || k.turns.unqueued.Load() {
		return false
	}
	_, ok := k.locker.(Acquirer)
	return ok
}

func (c *contendedKeys) note(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until == nil || len(c.until) >= maxContended {
		c.until = make(map[string]time.Time)
	}
	c.until[key] = time.Now().Add(contendedFor)
	c.some.Store(true)
}

func (c *contendedKeys) has(key string) bool {
	if !c.some.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	until, ok := c.until[key]
	if ok && !time.Now().Before(until) {
		delete(c.until, key)
		c.some.Store(len(c.until) > 0)
		return false
	}
	return ok
}

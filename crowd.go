package dlock

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	crowdedFor = time.Second
	maxCrowded = 1024
	leastWait  = time.Millisecond // of one who found the key held: a grant at once is dated a little later than its call, too
)

// A crowd knows keys that had to be waited for a moment ago. The zero crowd is ready
// for use.
type crowd struct {
	some  atomic.Bool // there may be any
	mu    sync.Mutex
	until map[string]time.Time
}

func (c *crowd) note(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until == nil || len(c.until) >= maxCrowded {
		c.until = make(map[string]time.Time)
	}
	c.until[key] = time.Now().Add(crowdedFor)
	c.some.Store(true)
}

func (c *crowd) has(key string) bool {
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

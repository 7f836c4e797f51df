package pace

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	recently = time.Second
	maxKeys  = 1024 // then it begins with none again
)

// Keys are those that were added within the last second. The zero value has none, and costs nothing to ask. Methods are safe
// for concurrent use.
type Keys struct {
	some  atomic.Bool // some key was added once
	mu    sync.Mutex
	until map[string]time.Time
}

// Add adds a key.
func (k *Keys) Add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.until == nil || len(k.until) >= maxKeys {
		k.until = make(map[string]time.Time)
	}
	k.until[key] = time.Now().Add(recently)
	k.some.Store(true)
}

// Has reports whether a key was added within the last second.
func (k *Keys) Has(key string) bool {
	if !k.some.Load() {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Now().Before(k.until[key])
}

package contexts

import (
	"context"
	"sync"
	"time"
)

// A Mutex is a lock for which a context can end the wait. It costs nothing while nobody waits. The zero value
// is unlocked.
type Mutex struct {
	mu     sync.Mutex
	locked bool
	free   chan struct{} // closed by Unlock; nil if nobody waits for that
}

// Lock locks m. It reports false, and does not lock it, if ctx has ended while it waited.
func (m *Mutex) Lock(ctx context.Context) bool {
	for free := m.try(); free != nil; free = m.try() {
		select {
		case <-free:
		case <-ctx.Done():
		}
		if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(deadline) {
			return false
		}
	}
	return true
}

// try locks m, or returns what the next Unlock closes.
func (m *Mutex) try() (free chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.locked {
		m.locked = true
		return nil
	}
	if m.free == nil {
		m.free = make(chan struct{})
	}
	return m.free
}

// Unlock unlocks m.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locked = false
	if m.free != nil {
		close(m.free)
		m.free = nil
	}
}

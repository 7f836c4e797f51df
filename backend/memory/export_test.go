package memory

// Len returns how many locks are kept.
func (m *Locker) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.locks)
}

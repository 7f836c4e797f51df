package breaker

// Remembered returns how many keys the breaker remembers.
func (b *Locker) Remembered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.holds)
}

package memory

import (
	"context"
	"time"
)

// faults is what the store was told to do to the calls made of it.
type faults struct {
	delay    time.Duration
	requests error
	replies  error
}

// begin is send, after a look at the arguments.
func (m *Locker) begin(ctx context.Context, key, token string, ttl time.Duration) (reply, err error) {
	if err := check(key, token, ttl); err != nil {
		return nil, err
	}
	return m.send(ctx)
}

// send is the way of a call to the store: err is why it does not arrive, reply
// why its answer does not.
func (m *Locker) send(ctx context.Context) (reply, err error) {
	if err := ctx.Err(); err != nil {
		return nil, noEffect(err)
	}
	m.mu.Lock()
	f := m.faults
	m.mu.Unlock()
	if f.delay > 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err() // unmarked: of a store that is slow, nobody knows whether it took effect
		case <-time.After(f.delay):
		}
	}
	return f.replies, f.requests
}

// Fail makes every call from now on return err without effect, as if the store
// could not be reached. Fail(nil) ends that. Waits that have begun go on.
func (m *Locker) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.requests = err
}

// FailReplies makes every call from now on take effect and return err all the
// same, as if its reply had been lost. An Acquire takes a free key, but does not
// wait for one that is held. FailReplies(nil) ends that.
func (m *Locker) FailReplies(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.replies = err
}

// Delay makes every call from now on wait for d before it takes effect. A call
// whose ctx ends earlier has no effect. Delay(0) ends that.
func (m *Locker) Delay(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.delay = d
}

// Expire ends the lease on key as if its TTL had passed, and reports whether
// there was one. The next in the queue is granted it.
func (m *Locker) Expire(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.drive(key)
	if l == nil {
		return false
	}
	m.free(key, l, now)
	return true
}

// Steal ends the lease on key, if there is one, and grants the key to a
// stranger for ttl, ahead of all who wait: what a holder finds whose lease
// expired while it was stopped.
func (m *Locker) Steal(key string, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.drive(key)
	if l == nil {
		l = m.add(key, now)
	}
	l.token, l.until = "", time.Time{}
	m.grant(l, stranger(), ttl, now)
}

// Wipe ends every lease, as if the store had lost its data. Those who wait find
// out at once, and fences go on rising, as both do on Redis.
func (m *Locker) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for key, l := range m.locks {
		m.free(key, l, now)
	}
}

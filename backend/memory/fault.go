package memory

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
)

// faults are what Delay, Fail, FailReplies and SetClock have set.
type faults struct {
	delay    time.Duration
	requests error
	replies  error
	clock    time.Duration
}

// begin checks the arguments of a call, and sends it.
func (m *Locker) begin(ctx context.Context, key, token string, ttl time.Duration) (reply, err error) {
	if err := check(key, token, ttl); err != nil {
		return nil, err
	}
	return m.send(ctx)
}

const replyLimit = time.Second // after which the error of a wait says that there is no reply

// send applies the faults to a call. If err is not nil, the call must have no effect and return
// err. If reply is not nil, the call must take effect and return reply.
func (m *Locker) send(ctx context.Context) (reply, err error) {
	if err := ctx.Err(); err != nil {
		return nil, mark(err)
	}
	m.mu.Lock()
	f := m.faults
	m.mu.Unlock()
	if f.delay > 0 {
		arrives := time.Now().Add(f.delay)
		select {
		case <-ctx.Done(): // with a slow store, the caller cannot know yet that there was no effect
			return nil, &dlock.UnansweredError{Err: ctx.Err(), Late: func(tell func(dlock.Attempt, error)) {
				time.AfterFunc(time.Until(arrives), func() { tell(dlock.Attempt{}, mark(ctx.Err())) })
			}}
		case <-time.After(f.delay):
		}
	}
	return f.replies, f.requests
}

// Fail makes all later calls return err and have no effect, as if the store could not be reached.
// Waits in progress go on. Fail(nil) ends the fault.
func (m *Locker) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.requests = err
}

// FailReplies makes all later calls take effect and return err nevertheless, as if their replies
// were lost. An Acquire of a free key takes it; an Acquire of a held key returns at once and does
// not wait. FailReplies(nil) ends the fault.
func (m *Locker) FailReplies(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.replies = err
}

// Delay makes all later calls wait for d before they take effect. A call whose ctx ends before that has no effect. When d is
// over, its error, a [dlock.UnansweredError], says so. If it is a wait, and was delayed for a second or longer, the error
// also says that there was no reply, as [dlock.Acquirer] demands. Waits in progress go on. Delay(0) ends the fault.
func (m *Locker) Delay(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.delay = d
}

// Expire ends the lease on key as if its TTL had passed, and grants the key to the first waiter.
// It reports whether there was a lease.
func (m *Locker) Expire(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.advanceLocked(key)
	if l == nil {
		return false
	}
	m.freeLocked(key, l, 0, now)
	return true
}

// Steal ends the lease on key, if there is one, and grants the key to a stranger for ttl, ahead of all waiters.
// A holder that was suspended until its lease had expired finds the same. Steal reports whether there was a
// lease: false may mean that the name of the key is wrong.
func (m *Locker) Steal(key string, ttl time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.advanceLocked(key)
	held := l != nil
	l = m.addLocked(key, now)
	l.token, l.until = "", time.Time{}
	m.grantLocked(l, stranger(), ttl, 0, now)
	return held
}

// Wipe ends every lease, as if the store had lost its data. As on Redis, waiters are then granted
// the free keys, and fences go on rising. The Age in a [quorum.Ballot] begins at 0 again.
func (m *Locker) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.rememberLocked(now)
	m.since = now
	for key, l := range m.locks {
		m.freeLocked(key, l, 0, now)
	}
}

// SetAge sets the Age in a [quorum.Ballot], as if the store had forgotten nothing for d. It goes on
// growing. Without SetAge or Wipe the Age is the time since New; that of the zero value is the time
// since the first call that needed it.
func (m *Locker) SetAge(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.rememberLocked(now)
	m.since = now.Add(-d)
}

// SetClock makes the store's clock wrong by offset in later fences, and in the Clock and Place of a
// [quorum.Ballot]. Leases end at the right time. SetClock(0) ends the fault.
func (m *Locker) SetClock(offset time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.clock = offset
}

package dlock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A fault is what a line does to the messages that pass it.
type fault string

const (
	up     fault = "up"
	refuse fault = "refuse" // the call fails at once
	hang   fault = "hang"   // the request never arrives: the call returns when its ctx ends
	ignore fault = "ignore" // the same, but the call ignores its ctx and fails after 3 s
	lose   fault = "lose"   // the request arrives, the reply does not: the call returns when its ctx ends
)

const deaf = 3 * time.Second // how long a call ignores its ctx

// A line is the way to a Locker. A request arrives after half of the round trip
// time, and its reply after the other half. A fault hits calls that are on the
// line when it begins, and what it has hit stays lost when it ends. Errors of the
// Locker come back at once and as they are, with what comes beside them.
type line struct {
	dlock.Forward

	mu       sync.Mutex
	rtt      time.Duration
	fault    fault
	calls    map[string]int // by operation
	current  int            // calls on their way now
	cut      map[string]int // calls that got no reply because their ctx ended, by operation
	waited   map[string]int // calls of Acquire that arrived, by token
	attempts map[string]int // calls of TryAcquire, by token
	released map[string]int // calls of Release, by token
	arrived  map[string]int // of them, those that reached the Locker
	onCall   func()         // if set, runs at the start of each call
}

func newLine(l dlock.Locker) *line {
	n := &line{Forward: dlock.Forward{Locker: l}, fault: up}
	n.forget()
	return n
}

// overLine returns a store behind a line, both new. The test ends when no call is on
// its way any more.
func overLine(t *testing.T) (*memory.Locker, *line) {
	t.Helper()
	store := memory.New()
	n := newLine(store)
	t.Cleanup(func() {
		for synctest.Wait(); n.busy() > 0; synctest.Wait() {
			time.Sleep(deaf)
		}
	})
	return store, n
}

// busy returns how many calls are on their way.
func (n *line) busy() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current
}

func (n *line) setRTT(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rtt = d
}

func (n *line) set(f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = f
}

// fail has the line fail for a time, and returns the instant at which it is up again.
func (n *line) fail(f fault, d time.Duration) time.Time {
	n.set(f)
	time.Sleep(d)
	n.set(up)
	return time.Now()
}

// forget makes the calls so far as if they had not been made.
func (n *line) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls, n.waited = make(map[string]int), make(map[string]int)
	n.attempts, n.released, n.arrived = make(map[string]int), make(map[string]int), make(map[string]int)
	n.cut = make(map[string]int)
}

// tokens returns how many tokens have been counted in m, a map of n.
func (n *line) tokens(m *map[string]int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(*m)
}

// made returns how many calls of an operation were made.
func (n *line) made(op string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls[op]
}

// ended returns how many calls of an operation got no reply because their ctx ended.
func (n *line) ended(op string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[op]
}

// note counts a call with token, which is not made if ctx has ended.
func (n *line) note(ctx context.Context, m *map[string]int, token string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() == nil {
		(*m)[token]++
	}
}

func (n *line) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	n.note(ctx, &n.attempts, token)
	return trip(ctx, n, "try", func() (dlock.Attempt, error) { return n.Forward.TryAcquire(ctx, key, token, ttl) })
}

func (n *line) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return trip(ctx, n, "acquire", func() (dlock.Attempt, error) {
		n.note(ctx, &n.waited, token)
		return n.Forward.Acquire(ctx, key, token, ttl)
	})
}

func (n *line) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return trip(ctx, n, "renew", func() (bool, error) { return n.Forward.Renew(ctx, key, token, ttl) })
}

func (n *line) Release(ctx context.Context, key, token string) (bool, error) {
	n.note(ctx, &n.released, token)
	return trip(ctx, n, "release", func() (bool, error) {
		n.note(ctx, &n.arrived, token)
		return n.Forward.Release(ctx, key, token)
	})
}

func (n *line) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return trip(ctx, n, "batch", func() ([]dlock.RenewResult, error) { return n.Forward.RenewBatch(ctx, batch) })
}

// trip makes a call over the line.
func trip[R any](ctx context.Context, n *line, op string, f func() (R, error)) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	n.enter(op)
	defer n.leave()
	if err := n.pass(ctx, op, true); err != nil {
		return none, err
	}
	if err := n.travel(ctx, op, true); err != nil {
		return none, err
	}
	r, err := f()
	if err != nil {
		return r, err
	}
	if err := n.travel(ctx, op, false); err != nil {
		return none, err
	}
	return r, nil
}

func (n *line) enter(op string) {
	n.mu.Lock()
	n.calls[op]++
	n.current++
	hook := n.onCall
	n.mu.Unlock()
	if hook != nil {
		hook()
	}
}

func (n *line) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.current--
}

// travel takes half of a round trip, to the Locker or back.
func (n *line) travel(ctx context.Context, op string, there bool) error {
	n.mu.Lock()
	d := n.rtt / 2
	n.mu.Unlock()
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return n.wait(ctx, op)
		}
	}
	return n.pass(ctx, op, there)
}

// pass lets a message pass, or returns what became of its call.
func (n *line) pass(ctx context.Context, op string, there bool) error {
	n.mu.Lock()
	f := n.fault
	n.mu.Unlock()
	switch {
	case f == up, f == lose && there:
		return nil
	case f == refuse:
		return errStore
	case f == ignore:
		time.Sleep(deaf)
		return errStore
	}
	return n.wait(ctx, op)
}

func (n *line) wait(ctx context.Context, op string) error {
	<-ctx.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[op]++
	return ctx.Err()
}

package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// A Recorder records a history while it happens. It is safe for concurrent use.
type Recorder struct {
	start time.Time

	mu      sync.Mutex
	events  int
	history History
}

// NewRecorder begins a history whose instants count from start. Without a monotonic clock in start,
// they are instants of the wall clock, which all processes of a machine share.
func NewRecorder(start time.Time) *Recorder { return &Recorder{start: start} }

// Now is the time since the beginning of the history.
func (r *Recorder) Now() time.Duration { return r.At(time.Now()) }

// At is the time from the beginning of the history to t.
func (r *Recorder) At(t time.Time) time.Duration { return t.Sub(r.start) }

// History returns what has happened until now. Certain holds end where data was lost. What happens later does not change it.
func (r *Recorder) History() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &History{}
	for _, o := range r.history.Operations {
		o := *o
		h.Operations = append(h.Operations, &o)
	}
	for _, hold := range r.history.Holds {
		hold := *hold
		hold.cutAtWipes(h.Operations)
		h.Holds = append(h.Holds, &hold)
	}
	return h
}

// Hold records that a client holds a lease from now on. It is certain of that when [Recorder.End] says until when.
func (r *Recorder) Hold(client string, l *dlock.Lease, asked time.Duration) *Hold {
	h := &Hold{Client: client, Key: l.Key(), Token: l.Token(), Asked: asked, Start: r.Now(), Fence: l.Fence()}
	r.Held(h)
	return h
}

// End records that a client was certain of its lease until now, or until its deadline.
func (r *Recorder) End(h *Hold, l *dlock.Lease) { h.End = min(r.Now(), r.At(l.Deadline())) }

// Held records a hold. Its fields may change until History is called.
func (r *Recorder) Held(h *Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Holds = append(r.history.Holds, h)
}

// Wipe calls wipe, which loses all data of the store, and records that.
func (r *Recorder) Wipe(wipe func()) { r.happen(Wipe, "store", wipe) }

// Outage calls fail, during which the connection of a client fails, and records that.
func (r *Recorder) Outage(client string, fail func()) { r.happen(Outage, client, fail) }

func (r *Recorder) happen(m Method, client string, f func()) {
	o := r.begin(Operation{Method: m, Client: client})
	f()
	r.end(o, nil, func() { o.Outcome = Happened })
}

func (r *Recorder) begin(o Operation) *Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events++
	o.Begin, o.End, o.Called = r.events, Never, r.Now()
	r.history.Operations = append(r.history.Operations, &o)
	return &o
}

// end records that a call has returned. A call whose error says that the store does not have the method was not made.
func (r *Recorder) end(o *Operation, err error, answer func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events++
	o.End, o.Returned, o.Err = r.events, r.Now(), err
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		r.history.Operations = slices.DeleteFunc(r.history.Operations, func(other *Operation) bool { return other == o })
	case err == nil:
		answer()
	}
}

// A Locker records the calls of one client.
type Locker struct {
	dlock.Forward
	recorder *Recorder
	client   string
	stall    atomic.Int64
}

// Locker returns l for one client, whose calls it records.
func (r *Recorder) Locker(client string, l dlock.Locker) *Locker {
	return &Locker{Forward: dlock.Forward{Locker: l}, recorder: r, client: client}
}

// Stall delays the next answer to TryAcquire or Acquire by d, as if the process had been stopped just then.
func (l *Locker) Stall(d time.Duration) { l.stall.Store(int64(d)) }

func (l *Locker) begin(m Method, key, token string, ttl time.Duration) *Operation {
	return l.recorder.begin(Operation{Method: m, Client: l.client, Key: key, Token: token, TTL: ttl})
}

// TryAcquire implements [dlock.Locker].
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	o := l.begin(TryAcquire, key, token, ttl)
	a, err := l.Forward.TryAcquire(ctx, key, token, ttl)
	return l.attempted(o, a, err)
}

// Acquire implements [dlock.Acquirer].
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	o := l.begin(Acquire, key, token, ttl)
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	return l.attempted(o, a, err)
}

func (l *Locker) attempted(o *Operation, a dlock.Attempt, err error) (dlock.Attempt, error) {
	l.recorder.end(o, err, func() {
		o.Outcome, o.Fence, o.Holder = Refused, a.Fence, a.Holder
		if a.Acquired {
			o.Outcome, o.Since = Granted, o.Called
		}
		if a.Acquired && !a.Since.IsZero() {
			o.Since = min(l.recorder.At(a.Since), o.Returned)
		}
	})
	time.Sleep(time.Duration(l.stall.Swap(0)))
	return a, err
}

// TryAcquireSet implements [dlock.SetAcquirer]. A key that was free, and not taken, is recorded as if by Inspect.
func (l *Locker) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) (attempts []dlock.Attempt, err error) {
	s, ok := l.Forward.Locker.(dlock.SetAcquirer)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	operations := make([]*Operation, len(set))
	for i, a := range set {
		operations[i] = l.begin(TryAcquire, a.Key, a.Token, a.TTL)
	}
	if attempts, err = s.TryAcquireSet(ctx, set); err == nil && len(attempts) != len(set) {
		err = fmt.Errorf("%d attempts for a set of %d", len(attempts), len(set))
	}
	for i, o := range operations {
		switch {
		case err != nil:
			_, _ = l.attempted(o, dlock.Attempt{}, err)
		case attempts[i].Free:
			l.recorder.end(o, nil, func() { o.Method, o.Outcome = Inspect, NotHeld })
		default:
			_, _ = l.attempted(o, attempts[i], nil)
		}
	}
	return attempts, err
}

// Renew implements [dlock.Locker].
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	o := l.begin(Renew, key, token, ttl)
	held, err := l.Forward.Renew(ctx, key, token, ttl)
	l.answered(o, dlock.Hold{Held: held}, err)
	return held, err
}

// Release implements [dlock.Locker].
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	o := l.begin(Release, key, token, 0)
	held, err := l.Forward.Release(ctx, key, token)
	l.answered(o, dlock.Hold{Held: held}, err)
	return held, err
}

// RenewBatch implements [dlock.BatchRenewer].
func (l *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	operations := make([]*Operation, len(batch))
	for i, n := range batch {
		operations[i] = l.begin(Renew, n.Key, n.Token, n.TTL)
	}
	results, err := l.Forward.RenewBatch(ctx, batch)
	if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
	for i, o := range operations {
		if err != nil {
			l.answered(o, dlock.Hold{}, err)
		} else {
			l.answered(o, dlock.Hold{Held: results[i].Held}, results[i].Err)
		}
	}
	return results, err
}

// Inspect implements [dlock.Inspector].
func (l *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	o := l.begin(Inspect, key, "", 0)
	h, err := l.Forward.Inspect(ctx, key)
	l.answered(o, h, err)
	return h, err
}

func (l *Locker) answered(o *Operation, h dlock.Hold, err error) {
	l.recorder.end(o, err, func() {
		o.Outcome = NotHeld
		if h.Held {
			o.Outcome, o.Holder = Held, h.Token
		}
	})
}

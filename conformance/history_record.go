package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// An action is a method of a Locker, or the loss of all data.
type action int

const (
	doTry action = iota
	doWait
	doRenew
	doRelease
	doInspect
	doWipe
)

var actionNames = [...]string{"TryAcquire", "Acquire", "Renew", "Release", "Inspect", "Wipe"}

func (a action) String() string { return actionNames[a] }

// takes reports whether the action may make its token the holder.
func (a action) takes() bool { return a == doTry || a == doWait }

// An outcome is what an op was answered.
type outcome int

const (
	unknown  outcome = iota // an error, or no answer yet: it may take effect at any time, or never
	granted                 // the token holds the key now
	refused                 // another holds it
	wasHeld                 // the token held the key; of doInspect: somebody did
	wasFree                 // it did not; of doInspect: nobody did
	finished                // of wipes
)

// An op is one call of a Locker for one key. Its instants count from the
// beginning of the history; its order among all calls and returns is known even
// if the clock stands still.
type op struct {
	action     action
	client     int
	key, token string
	ttl        time.Duration

	call, back       int // place in the order of calls and returns
	called, returned time.Duration

	outcome outcome
	holder  string        // of refused and of doInspect: who holds the key; "" if the store did not tell
	fence   int64         // of granted
	since   time.Duration // of granted: the store keeps the grant at least until since+ttl
	err     error
}

// never is the place of a return that did not come.
const never = int(^uint(0) >> 1)

func (o *op) String() string {
	call := fmt.Sprintf("%v(%s)", o.action, short(o.token))
	switch o.action {
	case doWipe:
		return "everything is lost"
	case doInspect:
		call = "Inspect()"
	case doTry, doWait, doRenew:
		call = fmt.Sprintf("%v(%s, %v)", o.action, short(o.token), o.ttl)
	}
	return call + " = " + o.answer()
}

func (o *op) answer() string {
	switch o.outcome {
	case granted:
		return fmt.Sprintf("acquired, fence %d", o.fence)
	case refused:
		return "held by " + short(o.holder)
	case wasHeld:
		if o.action == doInspect {
			return "held by " + short(o.holder)
		}
		return "true"
	case wasFree:
		if o.action == doInspect {
			return "not held"
		}
		return "false"
	}
	if o.back == never {
		return "…has not returned"
	}
	return fmt.Sprint(o.err)
}

// short is a token that can be told from the others of a history, and no more.
func short(token string) string {
	if token == "" {
		return "?"
	}
	token = strings.TrimSuffix(token, ".") // without an owner's label
	if len(token) > 8 {
		token = token[:4] + "…" + token[len(token)-4:]
	}
	return fmt.Sprintf("%q", token)
}

// A book is what is known of a history: all calls, in order.
type book struct {
	start time.Time

	mu     sync.Mutex
	events int
	ops    []*op
}

func newBook() *book { return &book{start: time.Now()} }

func (b *book) now() time.Duration { return time.Since(b.start) }

// begin notes a call, before it is made.
func (b *book) begin(o op) *op {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events++
	o.call, o.back, o.called = b.events, never, b.now()
	b.ops = append(b.ops, &o)
	return &o
}

// end notes that a call has returned. Calls whose error says that nothing was
// sent have not been made.
func (b *book) end(o *op, err error, answer func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events++
	o.back, o.returned, o.err = b.events, b.now(), err
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		b.ops = slices.DeleteFunc(b.ops, func(other *op) bool { return other == o })
	case err == nil:
		answer()
	}
}

// all returns the ops of one key and those of every key, in the order of their
// calls. Calls that return later are seen as they were.
func (b *book) all(key string) []*op {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ops []*op
	for _, o := range b.ops {
		if o.key == key || o.action == doWipe {
			copied := *o
			ops = append(ops, &copied)
		}
	}
	return ops
}

// A recorder is a Locker that notes all its calls in a book.
type recorder struct {
	dlock.Forward
	book *book
	id   int

	// stall holds the next answer back for so long, as if the process had been
	// stopped just then.
	stall atomic.Int64
}

func (r *recorder) begin(a action, key, token string, ttl time.Duration) *op {
	return r.book.begin(op{action: a, client: r.id, key: key, token: token, ttl: ttl})
}

func (r *recorder) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	o := r.begin(doTry, key, token, ttl)
	a, err := r.Forward.TryAcquire(ctx, key, token, ttl)
	r.answered(o, a, err)
	return a, err
}

func (r *recorder) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	o := r.begin(doWait, key, token, ttl)
	a, err := r.Forward.Acquire(ctx, key, token, ttl)
	r.answered(o, a, err)
	return a, err
}

func (r *recorder) answered(o *op, a dlock.Attempt, err error) {
	r.book.end(o, err, func() {
		o.outcome, o.fence, o.holder = refused, a.Fence, a.Holder
		if a.Acquired {
			o.outcome, o.since = granted, o.called
		}
		if a.Acquired && !a.Since.IsZero() {
			o.since = min(a.Since.Sub(r.book.start), o.returned)
		}
	})
	time.Sleep(time.Duration(r.stall.Swap(0)))
}

func (r *recorder) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	o := r.begin(doRenew, key, token, ttl)
	held, err := r.Forward.Renew(ctx, key, token, ttl)
	r.told(o, held, err)
	return held, err
}

func (r *recorder) Release(ctx context.Context, key, token string) (bool, error) {
	o := r.begin(doRelease, key, token, 0)
	held, err := r.Forward.Release(ctx, key, token)
	r.told(o, held, err)
	return held, err
}

func (r *recorder) told(o *op, held bool, err error) {
	r.book.end(o, err, func() {
		o.outcome = wasFree
		if held {
			o.outcome = wasHeld
		}
	})
}

func (r *recorder) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	ops := make([]*op, len(batch))
	for i, n := range batch {
		ops[i] = r.begin(doRenew, n.Key, n.Token, n.TTL)
	}
	results, err := r.Forward.RenewBatch(ctx, batch)
	if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
	for i, o := range ops {
		if err != nil {
			r.told(o, false, err)
		} else {
			r.told(o, results[i].Held, results[i].Err)
		}
	}
	return results, err
}

func (r *recorder) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	o := r.begin(doInspect, key, "", 0)
	h, err := r.Forward.Inspect(ctx, key)
	r.book.end(o, err, func() {
		o.outcome = wasFree
		if h.Held {
			o.outcome, o.holder = wasHeld, h.Token
		}
	})
	return h, err
}

// wipe notes that wipe loses all data.
func (b *book) wipe(wipe func()) {
	o := b.begin(op{action: doWipe, client: -1})
	wipe()
	b.end(o, nil, func() { o.outcome = finished })
}

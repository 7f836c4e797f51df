package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/history"
)

// A property is what must hold.
type property string

const (
	overlap    property = "P1"          // two clients are never certain at once that they hold the key
	order      property = "P2"          // fences rise in the order in which clients become certain
	loses      property = "P3"          // while a client is certain, the server holds its token, at least until its deadline
	left       property = "P4"          // at last every waiter is served, and nothing stays behind
	mixed      property = "P5"          // a resource takes no write of a lease after one of another lease that came between
	answers    property = "answers"     // a correct lock could have given all answers
	unwant     property = "unwanted"    // no key is held for long by a token that nobody relies on
	deadHolder property = "dead holder" // no key is granted to a process that has ended
	slow       property = "slow"        // everybody gets each key soon when there are no faults
	owes       property = "owed"        // no release is owed in the end
	unkept     property = "MinHold"     // no key is granted to another before the MinHold of a lease has passed
	overheld   property = "MaxHold"     // nobody holds a key for longer than MaxHold and a TTL
	events     property = "events"      // each acquisition has one start and one end, and each lease then one end
	stuck      property = "stuck"       // something goes on
)

// A failure is something that is wrong with a world.
type failure struct {
	property  property
	text      string
	violation *history.Violation
}

// fail notes that something is wrong.
func (w *world) fail(p property, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(p, nil, format, args...)
}

func (w *world) failLocked(p property, v *history.Violation, format string, args ...any) {
	if w.only == "" || w.only == p {
		f := failure{p, fmt.Sprintf(format, args...), v}
		w.failures = append(w.failures, f)
		w.noteLocked("%s: %s", f.property, f.text)
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.failures) > 0
}

// A hold is a lease of which a process is certain.
type hold struct {
	*process
	key, token string
	asked      time.Duration
	deadline   func() time.Time
}

// holds notes that a process is certain of a lease, and relies on its token, until end is called.
func (p *process) holds(lease *dlock.Lease, asked time.Duration, deadline func() time.Time) (end func()) {
	over := p.rely(lease.Token())
	h := &hold{p, lease.Key(), lease.Token(), asked, deadline}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, h)
	return func() {
		over()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = slices.DeleteFunc(p.held, func(other *hold) bool { return other == h })
	}
}

// check looks at the leases of which somebody is certain now.
func (w *world) check() {
	w.mu.Lock()
	held := slices.Clone(w.held)
	w.mu.Unlock()
	certain := make(map[string]bool)
	for _, h := range held {
		still := time.Until(h.deadline())
		if still > 0 && !h.isDead() {
			w.checkVotes(h)
		}
		if still <= 0 || h.isDead() || h.mayBeLost(h.asked) {
			continue
		}
		token, rest := w.holder(h.key)
		if certain[h.key] {
			w.fail(overlap, "two are certain to hold %s", h.key)
		}
		certain[h.key] = true
		if token != h.token {
			w.fail(loses, "the server does not hold the token of %s, which is certain", h.name)
		} else if still > rest && w.kind != majority {
			w.fail(loses, "the server lets the lease of %s end %v before its deadline", h.name, still-rest)
		}
	}
}

// mayBeLost reports whether a server has lost leases since one was asked for. The votes of a majority, and the grant of a line, may be older.
func (w *world) mayBeLost(asked time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kind == majority || slices.Max(w.turns) > 0 {
		asked -= w.ttl
	}
	return w.lost > 0 && w.lost >= asked
}

// judge looks at the whole history. Several holds of a lease may share its 8 fences. If answered is set, all answers must be right.
func (w *world) judge(shared, answered bool) {
	h, step := w.recorder.History(), int64(8)
	if shared || slices.Max(w.turns) > 0 {
		step = 1
	}
	found := func(p property, all ...*history.Violation) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, v := range all {
			w.failLocked(p, v, "%v", v)
		}
	}
	found(overlap, h.Overlaps()...)
	found(loses, h.Losses()...)
	found(order, h.Disorders(step)...)
	late := func(ttl time.Duration) time.Duration { return history.Drift(ttl) + 2*time.Millisecond }
	if answered && !w.failed() {
		v, err := history.Model{FenceStep: step, Late: late, Contenders: w.kind == majority}.Check(h)
		if v != nil {
			found(answers, v)
		}
		if err != nil && !errors.Is(err, history.ErrTooConcurrent) {
			w.fail(answers, "%v", err)
		}
	}
	for _, p := range w.processes {
		p.checkEvents()
	}
}

// A resource is what a key protects. It takes a write if package fence admits it.
type resource struct {
	last   fence.Stamp
	passed map[fence.Stamp]bool // that others have followed
}

// write writes to the resource of a key, for a lease.
func (p *process) write(lease *dlock.Lease) {
	stamp, err := fence.Of(lease)
	if err != nil { // the lease is over
		return
	}
	p.driver.sent(&leg{conn: p.conns[0], stage: write, token: lease.Token(), arrive: func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		r := p.resources[stamp.Key]
		if r == nil {
			r = &resource{passed: make(map[fence.Stamp]bool)}
			p.resources[stamp.Key] = r
		}
		switch {
		case !r.last.Admits(stamp):
			return
		case r.passed[stamp]:
			p.failLocked(mixed, nil, "the resource takes a write of %v after one of %v", stamp, r.last)
		case stamp != r.last:
			r.passed[r.last] = true
		}
		r.last = stamp
	}})
}

// An acquisition is what an Observer has heard of one.
type heard struct {
	key         string
	done, ended int
	granted     bool
}

type heardKey struct{}

// observer demands that each acquisition has one start and one end, and each lease one end after that.
func (p *process) observer() *dlock.Observer {
	note := func(ctx context.Context, event string, key string, change func(*heard) (wrong bool)) {
		p.mu.Lock()
		defer p.mu.Unlock()
		h, ok := ctx.Value(heardKey{}).(*heard)
		if !ok || change(h) {
			p.failLocked(events, nil, "%s: %s of %s: %+v", p.name, event, key, h)
		}
	}
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, i dlock.AcquireStartInfo) context.Context {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.heard = append(p.heard, &heard{key: i.Key})
			return context.WithValue(ctx, heardKey{}, p.heard[len(p.heard)-1])
		},
		AcquireDone: func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context {
			note(ctx, "AcquireDone", i.Key, func(h *heard) bool {
				h.done, h.granted = h.done+1, i.Err == nil
				return h.done > 1
			})
			return ctx
		},
		LeaseDone: func(ctx context.Context, i dlock.LeaseDoneInfo) {
			note(ctx, "LeaseDone", i.Key, func(h *heard) bool {
				h.ended++
				return !h.granted || h.ended > 1
			})
		},
	}
}

// checkEvents looks whether an event is missing, when all is over.
func (p *process) checkEvents() {
	if p.client.Stats().EventsDropped > 0 {
		return
	}
	for _, h := range p.heard {
		if h.done != 1 || h.granted && h.ended != 1 {
			p.fail(events, "%s has heard of an acquisition of %s: %+v", p.name, h.key, *h)
		}
	}
}

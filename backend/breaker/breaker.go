// Package breaker is a circuit breaker around a [dlock.Locker]: while the store is away,
// acquisitions fail at once instead of hanging.
//
//	store := breaker.New(goredis.New(rdb), breaker.OnChange(func(s breaker.State) {
//		slog.Warn("locks", "open", s.Open, "error", s.Err)
//	}))
//	locks := dlock.New(store, dlock.WithMaxWait(2*time.Second))
//
// A service that answers requests needs it: without a breaker, each acquisition during an outage waits until the
// Redis client gives up, and requests pile up. Work that must not be skipped uses [dlock.WithOutage] instead, which
// keeps trying while a breaker is open. One service can have both, with two Clients on one breaker. There is
// nothing to close.
//
// The breaker opens after five failures in a row (see [WithFailures]). While it is open,
// TryAcquire, TryAcquireSet and Acquire return an error that matches [dlock.ErrUnavailable]. Nothing is sent,
// and nothing has to be released afterwards. Renewals, releases and inspections always go
// through: a lease may be saved, or given back, by a store that answers only some calls.
//
// About once a second (see [WithProbe]), a call makes an open breaker inspect its key in the
// background: a refused attempt, or a renewal or release that the store has answered. If the
// store answers this probe, the breaker closes. Nothing runs while nobody calls. If the store
// cannot be inspected, the probe is a renewal of a lease that nobody has.
//
// A failure is an attempt that could not reach the store, or whose outcome is unknown. An answer
// to an attempt ends the run of failures: a grant, a key that is held, or a refusal, such as a
// missing right. An argument that is out of range, or a store's client that is closed, counts
// neither way. Nor do renewals and releases count: a store may answer only some calls.
//
// TryAcquire and TryAcquireSet are cut off after two seconds (see [WithSlow]), which is a failure. If the deadline of
// ctx comes first, that is a failure only if the call has lasted for a tenth of this time. A call that its caller has
// cancelled counts neither way. A wait in the store's queue is cut off when the breaker opens, if it began after the
// first of the attempts that have failed. No other wait is cut off. A wait that its ctx ends is a failure if it
// reports that the store was silent by then.
//
// One breaker judges one store. A breaker around a cluster opens when all of the cluster is away, not when one
// master is away and the others answer. With package redlock, put the breaker around the whole, not around a
// node.
//
// [WithDegradation] grants certain keys in memory while the store is away for long.
//
// The circuit breaker is a pattern from Michael Nygard, Release It!, 2007. This one has no
// half-open state that lets a call through: a wait in a queue would occupy it for minutes.
package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/errs"
)

// A Locker is a circuit breaker. It passes on all that it does not refuse. It is safe for
// concurrent use.
type Locker struct {
	dlock.Forward
	failures int
	slow     time.Duration
	probe    time.Duration
	onChange func(State)

	mu       sync.Mutex // not locked while the store or a function of the caller is called
	state    State
	changes  int            // of the state: calls that began before the last one do not count
	inARow   int            // failures
	first    int            // number of the earliest of the attempts that have failed in a row
	attempts int            // that have begun
	waits    map[int]func() // ends each wait in the store's queue; by their numbers
	failedAt time.Time      // when the last attempt or probe failed
	probed   time.Time      // when the last probe began
	probing  chan struct{}  // closed when the probe that is under way ends; nil if there is none

	degradation *Degradation // nil if it is off; then so are the next two
	holds       map[string]*hold
	movers      chan struct{} // has an element for each call that takes the key of a degraded lease
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.Acquirer     = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.SetAcquirer  = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
	_ dlock.TTLLimiter   = (*Locker)(nil)
)

// A State is the state of a breaker. The zero State is that of a new breaker.
type State struct {
	Open  bool
	Since time.Time // of the last change
	Err   error     // the failure that opened it; nil if it is closed
}

// An Option changes how a breaker judges. If its value is out of range, every call fails with
// [dlock.ErrInvalid].
type Option func(*Locker)

// WithFailures sets how many failures in a row open the breaker. The default is 5.
func WithFailures(n int) Option {
	return func(b *Locker) {
		if n < 1 {
			b.refuse("WithFailures(%d): less than 1", n)
			return
		}
		b.failures = n
	}
}

// WithSlow sets how long TryAcquire may take before it is cut off. The default is 2 s. If the
// deadline of ctx comes first, the call is a failure if it has lasted for a tenth of this.
func WithSlow(d time.Duration) Option {
	return positive("WithSlow", d, func(b *Locker) { b.slow = d })
}

// WithProbe sets the least time between two probes of an open breaker, and how long a probe
// waits for its answer. The default is 1 s.
func WithProbe(d time.Duration) Option {
	return positive("WithProbe", d, func(b *Locker) { b.probe = d })
}

func positive(name string, d time.Duration, set Option) Option {
	return func(b *Locker) {
		if d <= 0 {
			b.refuse("%s(%v): not positive", name, d)
			return
		}
		set(b)
	}
}

// OnChange sets a function that is called when the breaker opens or closes, for a log or a
// metric. It is called by the goroutine that noticed the change, and must not block. Calls may
// overlap: [State].Since tells their order.
func OnChange(f func(State)) Option {
	return func(b *Locker) { b.onChange = f }
}

// New returns a closed breaker around l.
func New(l dlock.Locker, opts ...Option) *Locker {
	b := &Locker{Forward: dlock.Forward{Locker: l}, failures: 5, slow: 2 * time.Second, probe: time.Second}
	for i, opt := range opts {
		if opt == nil {
			b.refuse("Option %d of %d: nil", i+1, len(opts))
			continue
		}
		opt(b)
	}
	if l == nil {
		b.refuse("Locker: nil")
	}
	return b
}

// refuse makes every call fail.
func (b *Locker) refuse(format string, args ...any) {
	if _, ok := b.Forward.Locker.(invalid); !ok {
		b.Forward.Locker = invalid{fmt.Errorf("%w %s", dlock.ErrInvalid, fmt.Sprintf("breaker: "+format, args...))}
	}
}

// invalid is what a breaker with invalid options is around.
type invalid struct{ err error }

func (i invalid) TryAcquire(context.Context, string, string, time.Duration) (dlock.Attempt, error) {
	return dlock.Attempt{}, i.err
}

func (i invalid) Renew(context.Context, string, string, time.Duration) (bool, error) {
	return false, i.err
}

func (i invalid) Release(context.Context, string, string) (bool, error) { return false, i.err }

// State returns whether the breaker is open, since when, and why.
func (b *Locker) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// TryAcquire implements [dlock.Locker].
func (b *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil { // which the inner Locker says
		return b.Forward.TryAcquire(ctx, key, token, ttl)
	}
	return one(b.attempt(ctx, only(key, token, ttl), single(b.Forward.TryAcquire), false))
}

// TryAcquireSet implements [dlock.SetAcquirer], if the inner Locker does: to the breaker it is one call, like
// TryAcquire. While the breaker is open, a set whose keys may all be degraded is granted in memory, all keys or none.
// While it is closed, a set with a key that is held by a degraded lease is not supported: its other keys are the
// store's.
func (b *Locker) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	inner, ok := b.Forward.Locker.(dlock.SetAcquirer)
	switch {
	case !ok:
		return nil, errors.ErrUnsupported
	case ctx.Err() != nil || len(set) == 0:
		return inner.TryAcquireSet(ctx, set)
	}
	return b.attempt(ctx, set, inner.TryAcquireSet, false)
}

// Acquire implements [dlock.Acquirer].
func (b *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil {
		return b.Forward.Acquire(ctx, key, token, ttl)
	}
	return one(b.attempt(ctx, only(key, token, ttl), single(b.Forward.Acquire), true))
}

// A call makes an attempt at the store.
type call func(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error)

// single is a call for the only element of a set.
func single(try func(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error)) call {
	return func(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
		a, err := try(ctx, set[0].Key, set[0].Token, set[0].TTL)
		return []dlock.Attempt{a}, err
	}
}

func only(key, token string, ttl time.Duration) []dlock.Acquisition {
	return []dlock.Acquisition{{Key: key, Token: token, TTL: ttl}}
}

// one returns the only attempt, or the zero Attempt if there is none.
func one(attempts []dlock.Attempt, err error) (a dlock.Attempt, _ error) {
	if len(attempts) > 0 {
		a = attempts[0]
	}
	return a, err
}

// attempt makes an attempt at all keys of set, which may wait if it is queued.
func (b *Locker) attempt(ctx context.Context, set []dlock.Acquisition, call call, queued bool) ([]dlock.Attempt, error) {
	degrades := b.degrades(set)
	for probed := false; ; {
		p := b.decide(set, degrades, probed)
		switch {
		case p.send:
			attempts, err := b.send(ctx, p.changes, set, call, queued)
			if err == nil && !b.allGranted(set, attempts) { // of no use: the caller releases it
				return nil, fmt.Errorf("%w: another lease of this process holds the key", dlock.ErrUnavailable)
			}
			return attempts, err
		case p.again == nil, p.err == nil && !queued:
			return p.answers, p.err
		}
		if !wait(ctx, p.again, p.within) {
			err := ctx.Err()
			if p.err != nil {
				err = fmt.Errorf("%w: %w", err, p.err)
			}
			return p.answers, &dlock.NoEffectError{Err: err}
		}
		probed = p.err != nil
	}
}

// A plan is what becomes of an attempt: it is sent, or it has these answers or this error. If again is
// not nil, the attempt may wait for it, and have another plan then.
type plan struct {
	send    bool
	changes int
	answers []dlock.Attempt
	err     error
	again   <-chan struct{}
	within  time.Duration // for which it waits at most
}

// decide makes the plan of an attempt. It is the only rule for what is sent, refused, and granted in memory.
func (b *Locker) decide(set []dlock.Acquisition, degrades, probed bool) plan {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	theirs, degraded := b.theirsLocked(set, now)
	b.probeLocked(set[0].Key, now)
	switch {
	case degraded && !b.state.Open && len(set) > 1:
		return plan{err: errors.ErrUnsupported}
	case degraded:
		return b.foundHeldLocked(set, now)
	case !b.state.Open:
		return plan{send: true, changes: b.changes}
	case !degrades || now.Sub(b.state.Since) < b.degradation.After:
		return plan{err: b.refusalLocked(now)}
	case !probed && now.Sub(b.failedAt) > 3*b.probe: // the store may be back
		return plan{err: b.refusalLocked(now), again: b.probing, within: b.probe}
	case theirs:
		return b.foundHeldLocked(set, now)
	}
	return b.grantLocked(set, now)
}

// refusalLocked is the error of an attempt that is not made.
func (b *Locker) refusalLocked(now time.Time) error {
	return &dlock.NoEffectError{Err: fmt.Errorf("%w: the breaker has been open for %v: %v",
		dlock.ErrUnavailable, now.Sub(b.state.Since).Round(time.Millisecond), reason(b.state.Err))}
}

// reason is how a refusal shows the failure that opened the breaker. The error of a ctx was that of
// another call, and would look like the end of the caller's.
func reason(failure error) string {
	if why := beside(failure); why != nil {
		failure = why
	}
	if errors.Is(failure, context.DeadlineExceeded) || errors.Is(failure, context.Canceled) {
		return "no answer in time"
	}
	return failure.Error()
}

// wait waits until the channel is closed, or d has passed. It reports false if ctx has ended.
func wait(ctx context.Context, until <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-until:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// begin returns the number of an attempt. If it is queued, end can cut it off, until it leaves.
func (b *Locker) begin(queued bool, end func()) (n int, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts++
	n = b.attempts
	if !queued {
		return n, func() {}
	}
	if b.waits == nil {
		b.waits = make(map[int]func())
	}
	b.waits[n] = end
	return n, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.waits, n)
	}
}

// cutLocked ends the waits that began after the failures did: the store has most likely answered none of them.
func (b *Locker) cutLocked() {
	for n, end := range b.waits {
		if n > b.first {
			end()
		}
	}
}

// send makes an attempt at the store, and counts its end.
func (b *Locker) send(ctx context.Context, changes int, set []dlock.Acquisition, call call, queued bool) ([]dlock.Attempt, error) {
	begun := time.Now()
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	if !queued {
		var end func()
		limited, end = context.WithTimeout(limited, b.slow)
		defer end()
	}
	n, leave := b.begin(queued, cancel)
	defer leave()
	attempts, err := call(limited, set)
	if err == nil && len(attempts) != len(set) {
		err = fmt.Errorf("%d attempts for a set of %d", len(attempts), len(set))
	}
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		slow := fmt.Errorf("%w: no answer within %v", dlock.ErrUnavailable, time.Since(begun).Round(time.Millisecond))
		if unanswered, ok := errs.Find[*dlock.UnansweredError](err); ok {
			slow = &dlock.UnansweredError{Err: slow, Late: unanswered.Late}
		} else if dlock.NoEffect(err) {
			slow = &dlock.NoEffectError{Err: slow}
		}
		err = slow
	}
	b.count(changes, n, b.judge(ctx, err, time.Since(begun), queued), err)
	for i := range attempts {
		if a := &attempts[i]; a.Acquired && a.Since.IsZero() {
			a.Since = begun
		}
	}
	return attempts, err
}

// probeLocked starts a probe of an open breaker, if one is due.
func (b *Locker) probeLocked(key string, now time.Time) {
	if b.state.Open && b.probing == nil && now.Sub(b.probed) >= b.probe {
		b.probed, b.probing = now, make(chan struct{})
		go b.inspect(key, b.changes)
	}
}

// nobody is a token that no lease has.
const nobody = "probe of a breaker"

// inspect is a probe.
func (b *Locker) inspect(key string, changes int) {
	ctx, cancel := context.WithTimeout(context.Background(), b.probe)
	defer cancel()
	_, err := b.Forward.Inspect(ctx, key)
	if errors.Is(err, errors.ErrUnsupported) {
		_, err = b.Forward.Renew(ctx, key, nobody, time.Millisecond)
	}
	b.count(changes, 0, verdictOf(err), err)
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.probing)
	b.probing = nil
}

// probeIfAnswered starts a probe, if one is due and err says that the store has answered a call.
func (b *Locker) probeIfAnswered(key string, err error) {
	if verdictOf(err) == answered {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.probeLocked(key, time.Now())
	}
}

// A verdict is what the end of a call says of the store.
type verdict int

const (
	nothing verdict = iota
	answered
	failed
)

// verdictOf is the verdict of an error, if the ctx of the call has not ended.
func verdictOf(err error) verdict {
	switch {
	case err == nil:
		return answered
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, dlock.ErrInvalid),
		errors.Is(err, dlock.ErrClosed), errors.Is(err, dlock.ErrReleased):
		return nothing
	case dlock.Refused(err):
		return answered
	}
	for ; err != nil; err = errors.Unwrap(err) {
		switch e := err.(type) {
		case *dlock.NoEffectError:
			if e.Temporary {
				return failed
			}
		case interface{ Answered() bool }: // of a majority that has not decided
			if e.Answered() {
				return answered
			}
		}
	}
	return failed
}

// judge is the verdict of an attempt that took so long.
func (b *Locker) judge(ctx context.Context, err error, took time.Duration, queued bool) verdict {
	end := ctx.Err()
	if deadline, ok := ctx.Deadline(); ok && end == nil && !time.Now().Before(deadline) {
		end = context.DeadlineExceeded // a socket with the same deadline may have noticed it first
	}
	if end != nil && queued {
		if reason := beside(err); reason != nil {
			return verdictOf(reason)
		}
	}
	v := verdictOf(err)
	if v == failed && end != nil && (queued || end != context.DeadlineExceeded || took < b.slow/10) {
		return nothing
	}
	return v
}

// beside returns why the store was silent when ctx ended a wait, or nil: the second of two errors
// that the wait has wrapped.
func beside(err error) error {
	for ; err != nil; err = errors.Unwrap(err) {
		if both, ok := err.(interface{ Unwrap() []error }); ok {
			if all := both.Unwrap(); len(all) == 2 && (all[0] == context.Canceled || all[0] == context.DeadlineExceeded) {
				return all[1]
			}
		}
	}
	return nil
}

// count counts the end of the n-th attempt, or of a probe, which was admitted after the given number of changes.
func (b *Locker) count(changes, n int, v verdict, err error) {
	b.mu.Lock()
	if changes != b.changes || v == nothing {
		b.mu.Unlock()
		return
	}
	if b.inARow++; b.inARow == 1 || n < b.first {
		b.first = n
	}
	if v == answered {
		b.inARow = 0
	} else {
		b.failedAt = time.Now()
	}
	change := b.state.Open && v == answered || !b.state.Open && b.inARow >= b.failures
	var now State
	if change {
		if b.changes++; v == failed {
			b.cutLocked()
		}
		b.inARow = 0
		b.state = State{Open: v == failed, Since: time.Now(), Err: err}
		b.probed = b.state.Since
		now = b.state
	}
	b.mu.Unlock()
	if change && b.onChange != nil {
		b.onChange(now)
	}
}

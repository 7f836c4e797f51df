// Package breaker is a circuit breaker around a [dlock.Locker]: while the store is away,
// acquisitions fail at once instead of hanging.
//
//	locks := dlock.New(breaker.New(goredis.New(client)))
//
// The breaker opens after five failures in a row (see [WithFailures]). While it is open,
// TryAcquire and Acquire return an error that matches [dlock.ErrUnavailable]. Nothing is sent,
// and nothing has to be released afterwards. Renewals, releases and inspections always go
// through: a lease may be saved, or given back, by a store that answers only some calls.
//
// About once a second (see [WithProbe]), a refused call makes the breaker inspect its key in
// the background. If the store answers, the breaker closes. Nothing runs while nobody calls.
//
// A failure is a call that could not reach the store, or whose outcome is unknown. An answer
// of any kind is none: a key that is held, a missing right, an argument that is out of range.
// A call that its caller has cancelled counts neither way. TryAcquire is cut off after two
// seconds (see [WithSlow]), which is a failure; a wait in the store's queue is not cut off.
//
// One breaker judges one store. In a cluster, a breaker around the whole opens when all of it
// is away; a single master that is away does not open it while the others answer.
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
	"net"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A Locker is a circuit breaker. It passes on all that it does not refuse. It is safe for
// concurrent use.
type Locker struct {
	dlock.Forward
	failures int
	slow     time.Duration
	probe    time.Duration
	onChange func(State)

	mu      sync.Mutex
	state   State
	changes int       // of the state: calls that began before the last one do not count
	inARow  int       // failures
	probed  time.Time // when the last probe began
	probing bool
	blind   bool // the store could not be inspected: calls are the probes

	degradation *Degradation // nil if it is off; then the maps are nil
	granted     map[string]hold
	standIns    map[string]*standIn
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.Acquirer     = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
	_ dlock.TTLLimiter   = (*Locker)(nil)
)

// A State is that of a breaker. The zero value is that of a new one.
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

// WithSlow sets how long TryAcquire may take before it is cut off. The default is 2 s.
func WithSlow(d time.Duration) Option {
	return func(b *Locker) {
		if d <= 0 {
			b.refuse("WithSlow(%v): not positive", d)
			return
		}
		b.slow = d
	}
}

// WithProbe sets the least time between two probes of an open breaker, and how long a probe
// waits for its answer. The default is 1 s.
func WithProbe(d time.Duration) Option {
	return func(b *Locker) {
		if d <= 0 {
			b.refuse("WithProbe(%v): not positive", d)
			return
		}
		b.probe = d
	}
}

// OnChange sets a function that is called when the breaker opens or closes, for a log or a
// metric. It is called by the goroutine that noticed, and must not block. Calls may overlap:
// [State].Since tells their order.
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
	changes, err := b.admit(ctx, key, true)
	if attempt, decided := b.decide(ctx, key, token, ttl, err != nil); decided {
		return attempt, nil
	}
	if err != nil {
		return dlock.Attempt{}, err
	}
	return b.try(ctx, changes, key, token, ttl)
}

// try is TryAcquire of the inner Locker.
func (b *Locker) try(ctx context.Context, changes int, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	limited, cancel := context.WithTimeout(ctx, b.slow)
	defer cancel()
	begun := time.Now()
	attempt, err := b.Forward.TryAcquire(limited, key, token, ttl)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: no answer within %v", dlock.ErrUnavailable, b.slow)
	}
	b.note(changes, judge(ctx, err), err)
	return b.use(key, token, ttl, begun, attempt, err)
}

// Acquire implements [dlock.Acquirer].
func (b *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	changes, err := b.admit(ctx, key, false)
	if attempt, decided := b.decide(ctx, key, token, ttl, err != nil); decided {
		if !attempt.Acquired {
			return dlock.Attempt{}, unavailable("%v", errHeldHere)
		}
		return attempt, nil
	}
	if err != nil {
		return dlock.Attempt{}, err
	}
	begun := time.Now()
	attempt, err := b.Forward.Acquire(ctx, key, token, ttl)
	b.note(changes, judge(ctx, err), err)
	return b.use(key, token, ttl, begun, attempt, err)
}

// admit returns how many changes of state there have been. If the breaker is open, it may start
// a probe, and returns an error. A short call is a probe itself if the store could not be
// inspected.
func (b *Locker) admit(ctx context.Context, key string, short bool) (changes int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.state.Open || ctx.Err() != nil { // which the inner Locker says
		return b.changes, nil
	}
	now := time.Now()
	if !b.probing && now.Sub(b.probed) >= b.probe {
		if b.blind && short {
			b.probed = now
			return b.changes, nil
		}
		if !b.blind {
			b.probed, b.probing = now, true
			go b.inspect(key)
		}
	}
	return 0, unavailable("the breaker has been open for %v: %v", now.Sub(b.state.Since).Round(time.Millisecond), b.state.Err)
}

// unavailable is the error of a call that was not made.
func unavailable(format string, args ...any) error {
	return &dlock.NoEffectError{Err: fmt.Errorf("%w: %s", dlock.ErrUnavailable, fmt.Sprintf(format, args...))}
}

// inspect is a probe.
func (b *Locker) inspect(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), b.probe)
	defer cancel()
	_, err := b.Forward.Inspect(ctx, key)
	v := judge(ctx, err)
	b.mu.Lock()
	b.probing = false
	changes := b.changes
	if v == nothing && ctx.Err() == nil {
		b.blind, b.probed = true, time.Time{}
	}
	b.mu.Unlock()
	if v == answered {
		b.note(changes, v, nil)
	}
}

// A verdict is what the end of a call says of the store.
type verdict int

const (
	nothing verdict = iota
	answered
	failed
)

func judge(ctx context.Context, err error) verdict {
	var refusal *dlock.NoEffectError
	var network *net.OpError
	switch {
	case err == nil:
		return answered
	case ctx.Err() != nil:
		var both interface{ Unwrap() []error } // that of ctx, and why the store was silent
		if errors.As(err, &both) {
			return failed
		}
		return nothing
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, dlock.ErrInvalid),
		errors.Is(err, dlock.ErrClosed), errors.Is(err, dlock.ErrReleased):
		return nothing
	case errors.As(err, &network) && network.Op == "dial":
		return failed
	case errors.As(err, &refusal) && !refusal.Temporary:
		return nothing
	}
	return failed
}

// note counts the end of a call that was admitted after the given number of changes.
func (b *Locker) note(changes int, v verdict, err error) {
	b.mu.Lock()
	if changes != b.changes || v == nothing {
		b.mu.Unlock()
		return
	}
	change := false
	switch {
	case v == answered:
		b.inARow = 0
		change = b.state.Open
	case !b.state.Open:
		b.inARow++
		change = b.inARow >= b.failures
	}
	var now State
	if change {
		b.changes++
		b.inARow, b.blind = 0, false
		b.state = State{Open: v == failed, Since: time.Now(), Err: err}
		b.probed = b.state.Since
		now = b.state
	}
	b.mu.Unlock()
	if change && b.onChange != nil {
		b.onChange(now)
	}
}

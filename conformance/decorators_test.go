package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// plain is a Locker and nothing else, and shows no Locker in its fields.
type plain struct{ store any }

func (p plain) locker() dlock.Locker { return p.store.(dlock.Locker) }

func (p plain) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return p.locker().TryAcquire(ctx, key, token, ttl)
}

func (p plain) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return p.locker().Renew(ctx, key, token, ttl)
}

func (p plain) Release(ctx context.Context, key, token string) (bool, error) {
	return p.locker().Release(ctx, key, token)
}

// withoutFences is a store that numbers nothing.
func withoutFences(l dlock.Locker) dlock.Locker { return &unfenced{dlock.Forward{Locker: l}} }

type unfenced struct{ dlock.Forward }

func (u *unfenced) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := u.Forward.TryAcquire(ctx, key, token, ttl)
	a.Fence = 0
	return a, err
}

func (u *unfenced) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := u.Forward.Acquire(ctx, key, token, ttl)
	a.Fence = 0
	return a, err
}

// counting is the decorator of the documentation of dlock.Forward.
type counting struct {
	dlock.Forward
	attempts atomic.Int64
}

func (c *counting) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	c.attempts.Add(1)
	return c.Forward.TryAcquire(ctx, key, token, ttl)
}

// manyStores has stores, but none that it stands for.
type manyStores struct {
	plain
	stores []dlock.Locker
}

// hiding shows the methods of Locker alone.
type hiding struct{ dlock.Locker }

// burying hides what is in an unexported field of a field.
type burying struct {
	plain
	inside struct{ store dlock.Locker }
}

func bury(m dlock.Locker) *burying {
	b := &burying{plain: plain{m}}
	b.inside.store = m
	return b
}

// refusing has all methods, but does not pass one on.
type refusing struct{ dlock.Forward }

func (refusing) Inspect(context.Context, string) (dlock.Hold, error) {
	return dlock.Hold{}, errors.ErrUnsupported
}

// hanging does not return from one of its methods.
type hanging struct{ dlock.Forward }

func (hanging) Renew(context.Context, string, string, time.Duration) (bool, error) { select {} }

// rewording says its errors in other words.
type rewording struct {
	dlock.Forward
	words func(error) error
}

// joined says nothing of the effect of a call, whatever it joins.
func joined(err error) error {
	return errors.Join(err, dlock.ErrInvalid, &dlock.NoEffectError{Err: err})
}

// marked says that a call had no effect.
func marked(err error) error { return &dlock.NoEffectError{Err: err} }

func reword(words func(error) error) func(dlock.Locker) dlock.Locker {
	return func(l dlock.Locker) dlock.Locker { return &rewording{dlock.Forward{Locker: l}, words} }
}

func (r *rewording) say(err error) error {
	if err == nil {
		return nil
	}
	return r.words(err)
}

func (r *rewording) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.Forward.TryAcquire(ctx, key, token, ttl)
	return a, r.say(err)
}

func (r *rewording) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := r.Forward.Renew(ctx, key, token, ttl)
	return held, r.say(err)
}

func (r *rewording) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := r.Forward.Release(ctx, key, token)
	return held, r.say(err)
}

func (r *rewording) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.Forward.Acquire(ctx, key, token, ttl)
	return a, r.say(err)
}

func (r *rewording) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := r.Forward.RenewBatch(ctx, batch)
	return results, r.say(err)
}

// distant is a store that is some way off: what was sent is done, also if its reply comes too late.
type distant struct {
	dlock.Forward
	by time.Duration
}

func (d *distant) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil {
		return dlock.Attempt{}, ctx.Err()
	}
	time.Sleep(d.by)
	a, err := d.Forward.TryAcquire(context.WithoutCancel(ctx), key, token, ttl)
	time.Sleep(d.by)
	if ctx.Err() != nil {
		return dlock.Attempt{}, ctx.Err()
	}
	return a, err
}

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

// quorum has stores, but none that it stands for.
type quorum struct {
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

// joining is right: a joined error says nothing of the effect of its call, whatever it joins.
type joining struct{ dlock.Forward }

func (joining) join(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, dlock.ErrInvalid, &dlock.NoEffectError{Err: err})
}

func (j joining) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := j.Forward.TryAcquire(ctx, key, token, ttl)
	return a, j.join(err)
}

func (j joining) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := j.Forward.Renew(ctx, key, token, ttl)
	return held, j.join(err)
}

func (j joining) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := j.Forward.Release(ctx, key, token)
	return held, j.join(err)
}

func (j joining) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := j.Forward.Acquire(ctx, key, token, ttl)
	return a, j.join(err)
}

func (j joining) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := j.Forward.RenewBatch(ctx, batch)
	return results, j.join(err)
}

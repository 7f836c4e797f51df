package conformance

import (
	"context"
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

// manyStores has stores, but none that it stands for.
type manyStores struct {
	plain
	stores []dlock.Locker
}

// hanging does not return from one of its methods.
type hanging struct{ dlock.Forward }

func (hanging) Renew(context.Context, string, string, time.Duration) (bool, error) { select {} }

// distant is a store that is some way off: what was sent is done, also if its reply comes too late.
// Of every call whose ctx has ended it says that it had no effect.
type distant struct {
	dlock.Forward
	by time.Duration
}

func (d *distant) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (a dlock.Attempt, err error) {
	if ctx.Err() == nil {
		time.Sleep(d.by)
		a, err = d.Forward.TryAcquire(context.WithoutCancel(ctx), key, token, ttl)
		time.Sleep(d.by)
	}
	if ctx.Err() != nil {
		return dlock.Attempt{}, &dlock.NoEffectError{Err: ctx.Err()}
	}
	return a, err
}

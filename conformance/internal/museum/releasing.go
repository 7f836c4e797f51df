package museum

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
)

// A holder whose lease has expired deletes the lock of whoever has it now. Right:
// compare the token, and delete, in one script.
type plainDelete struct{ lock }

func (l *plainDelete) Release(ctx context.Context, key, _ string) (bool, error) {
	return l.del(ctx, key)
}

// The token is compared, but the lease may end, and another begin, between GET and
// DEL. Right: compare and delete in one script.
type getThenDelete struct{ lock }

func (l *getThenDelete) Release(ctx context.Context, key, token string) (bool, error) {
	holder, err := l.get(ctx, key)
	if err != nil || holder != token {
		return false, err
	}
	return l.del(ctx, key)
}

// The store knows sessions, and tells no two acquisitions of one session apart; a
// client keeps in mind which of its callers holds the key. An unlock that is
// retried, since its reply was lost, deletes the lock that another caller has got
// since. Right: a token that is new for each acquisition.
type sessions struct {
	lock
	holder map[string]string // key → token of the caller that holds it, guarded by the server's mutex
}

func (l *sessions) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		if d.get(key) == l.name && l.holder[key] != token {
			return dlock.Attempt{Remaining: d.pTTL(key)}
		}
		a := d.try(key, l.name, ttl)
		if a.Holder = ""; a.Acquired {
			l.holder[key] = token
		}
		return a
	})
}

func (l *sessions) Renew(ctx context.Context, key, _ string, ttl time.Duration) (bool, error) {
	return l.lock.Renew(ctx, key, l.name, ttl)
}

func (l *sessions) Release(ctx context.Context, key, _ string) (bool, error) {
	return l.lock.Release(ctx, key, l.name)
}

// A release ends the session of its token, and with it all that the token holds. Right:
// the lease of the key that is released.
type endsTheSession struct{ lock }

func (l *endsTheSession) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		held := d.get(key) == token
		for other := range d.data {
			if d.get(other) == token {
				d.del(other)
			}
		}
		return held
	})
}

// A release whose ctx ends says that it had no effect, so that nobody repeats it, or looks
// what became of it: the holder goes on with a lease that has ended. Right: mark what is
// known.
type marksItsRelease struct{ lock }

func (l *marksItsRelease) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := l.lock.Release(ctx, key, token)
	if err != nil {
		err = &dlock.NoEffectError{Err: err}
	}
	return held, err
}

package museum

import (
	"context"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

// Without an expiry, the lock of a holder that dies is held for ever. Right: SET
// with NX and PX, which is one command.
type noExpiry struct{ lock }

func (l *noExpiry) TryAcquire(ctx context.Context, key, token string, _ time.Duration) (dlock.Attempt, error) {
	ok, err := l.setNX(ctx, key, token, forever)
	return dlock.Attempt{Acquired: ok}, err
}

// A client that dies, or gives up, between SETNX and EXPIRE leaves a lock that
// never ends. Right: SET with NX and PX, which is one command.
type setThenExpire struct{ lock }

func (l *setThenExpire) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	ok, err := l.setNX(ctx, key, token, forever)
	if err != nil || !ok {
		return dlock.Attempt{}, err
	}
	_, err = l.pExpire(ctx, key, ttl)
	return dlock.Attempt{Acquired: err == nil}, err
}

// SETNX and EXPIRE are sent together, so that nothing comes between, and so EXPIRE is
// sent by those who were refused as well. As long as others keep trying, the lock of
// a dead holder does not end. Right: SET with NX and PX, which is one command.
type expiresAnyway struct{ lock }

func (l *expiresAnyway) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		d.pExpire(key, max(ttl, d.pTTL(key)))
		return a
	})
}

// Two clients that both find the key free both take it. Right: the check is part
// of the command, SET with NX.
type getThenSet struct{ lock }

func (l *getThenSet) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	holder, err := l.get(ctx, key)
	if err != nil || holder != "" {
		return l.lock.TryAcquire(ctx, key, token, ttl)
	}
	err = l.set(ctx, key, token, ttl)
	return dlock.Attempt{Acquired: err == nil}, err
}

// The old recipe of the Redis documentation, from before SET had options. The key
// holds the time at which the lease ends, and whoever finds that in the past takes
// the key over with GETSET. The GETSET of those who come second moves the expiry
// of the one who came first; all clocks must agree; and nothing in the key tells
// whose it is, so a holder that is late deletes the lock of its successor.
// Right: the server expires keys, and the value is the token.
type timestamps struct{ lock }

func (l *timestamps) TryAcquire(ctx context.Context, key, _ string, ttl time.Duration) (dlock.Attempt, error) {
	mine := strconv.FormatInt(time.Now().Add(ttl).UnixMilli(), 10)
	if ok, err := l.setNX(ctx, key, mine, forever); err != nil || ok {
		return dlock.Attempt{Acquired: ok}, err
	}
	if theirs, err := l.get(ctx, key); err != nil || !passed(theirs) {
		return dlock.Attempt{}, err
	}
	theirs, err := l.getSet(ctx, key, mine)
	return dlock.Attempt{Acquired: err == nil && passed(theirs)}, err
}

func (l *timestamps) Release(ctx context.Context, key, _ string) (bool, error) {
	return l.del(ctx, key)
}

func passed(timestamp string) bool {
	at, _ := strconv.ParseInt(timestamp, 10, 64)
	return at <= time.Now().UnixMilli()
}

// The client library repeats a command whose reply was lost. The first SET NX has
// worked, so the second says "held": by the client itself, until the TTL. Here
// the repetition is the caller's; the answer is the same. Right: an attempt by the
// token that holds already is a grant.
type heldByOneself struct{ lock }

func (l *heldByOneself) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		if holder := d.get(key); holder != "" {
			return dlock.Attempt{Holder: holder, Remaining: d.pTTL(key)}
		}
		return d.try(key, token, ttl)
	})
}

// An error of an attempt is marked: it had no effect. That is true of one that was not
// sent. What was sent without an answer may hold the key. Right: mark what is known.
type marksWhatWasSent struct{ lock }

func (l *marksWhatWasSent) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	if err != nil {
		err = &dlock.NoEffectError{Err: err}
	}
	return a, err
}

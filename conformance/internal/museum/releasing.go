package museum

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
)

var releasing = []Exhibit{
	{Name: "plainDelete", Cases: names{"ReleaseByStranger", "ReleaseTwice", "ReleaseAfterExpiry", "TokensCompareWhole", "LateDuplicate"}, Also: names{"LostReply", "NoLeaks"}, Network: says{"LateDuplicateOverNetwork": `must still hold the key|Release.*: held = true; want false`}, build: onLock[plainDelete]},
	{Name: "getThenDelete", Cases: names{"ReleaseAfterExpiry", "ReleaseCrossesTakeover"}, BeyondModel: true, build: onLock[getThenDelete]},
	{Name: "sessions", Cases: names{"ReleaseTwice"}, Also: mixedUp, build: func(c conn) dlock.Locker { return &sessions{lock{c}, make(map[string]string)} }},
	{Name: "endsTheSession", Cases: names{"TokenHoldsManyKeys"}, Also: names{"NotBefore"}, build: onLock[endsTheSession]},
	{Name: "marksItsRelease", Cases: names{"NoEffect"}, BeyondModel: true, build: onLock[marksItsRelease]},
	{Name: "onlyMarks", Cases: names{"ReleaseFrees"}, Also: mixedUp, build: onLock[onlyMarks]},
	{Name: "trueForEver", Cases: names{"ReleaseTwice", "ReleaseAfterExpiry"}, Also: names{"LateDuplicate", "LostReply", "NoLeaks"}, build: onLock[trueForEver]},
}

// DEL without comparing.
// Seen: a well-known recipe.
// Harm: a late holder frees the lock of its successor, and a third client takes it.
// Right: compare the token and delete in one script.
type plainDelete struct{ lock }

func (l *plainDelete) Release(ctx context.Context, key, _ string) (bool, error) {
	return l.del(ctx, key)
}

// GET, compare, then DEL.
// Seen: a well-known recipe.
// Harm: the lease ends between the two, and the successor's lock is deleted.
// Right: compare and delete in one script.
type getThenDelete struct{ lock }

func (l *getThenDelete) Release(ctx context.Context, key, token string) (bool, error) {
	holder, err := l.get(ctx, key)
	if err != nil || holder != token {
		return false, err
	}
	return l.del(ctx, key)
}

// A release names the session, not the acquisition: the store cannot tell two
// acquisitions of one session apart. The client remembers which of its callers holds the
// key.
// Seen: etcd-io/etcd#22082.
// Harm: an unlock that is retried deletes the lock that another caller of the session has
// acquired since.
// Right: a new token for each acquisition.
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

// A release ends everything that its token holds.
// Seen: a trial of the suite.
// Harm: a lease that nobody released has ended.
// Right: end the lease of the key that is released.
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

// A release without an answer is marked as having had no effect.
// Seen: made for its case.
// Harm: nobody looks what became of it, and the holder works on without a lock.
// Right: mark only what was not sent.
type marksItsRelease struct{ lock }

func (l *marksItsRelease) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := l.lock.Release(ctx, key, token)
	if err != nil {
		err = &dlock.NoEffectError{Err: err}
	}
	return held, err
}

// A release marks the row as released, and an attempt does not look at the mark.
// Seen: made for its case.
// Harm: the key is held until its TTL has passed.
// Right: delete the row.
type onlyMarks struct{ lock }

func (l *onlyMarks) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		held := d.get(key) == token && d.get("released "+key) != token
		return held && d.set("released "+key, token, d.pTTL(key))
	})
}

// A release reports whether the token was the last to hold the key.
// Seen: made for its case.
// Harm: a holder whose lease ended while it worked does not hear of it.
// Right: whether it holds the key now.
type trueForEver struct{ lock }

func (l *trueForEver) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set("last holder of "+key, token, forever)
		}
		return a
	})
}

func (l *trueForEver) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		held := d.get(key) == token && d.del(key)
		return held || d.get(key) == "" && d.get("last holder of "+key) == token
	})
}

package museum

import (
	"context"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

var taking = []Exhibit{
	{Name: "noExpiry", Cases: names{"Expiry", "WaitEndsOnExpiry"}, Also: unending, Network: says{"LateDuplicateOverNetwork": `want it to be acquired`}, build: onQueue[noExpiry]},
	{Name: "setThenExpire", Cases: names{"Expiry"}, Also: names{"LateDuplicate", "LostReply", "NotBefore", "SameTokenAgain"}, build: onLock[setThenExpire]},
	{Name: "expiresAnyway", Cases: names{"HeldIsUntouched"}, build: onLock[expiresAnyway]},
	{Name: "getThenSet", Cases: names{"Exclusion", "History", "GuardedCounter"}, Also: names{"FirstComeFirstServed", "NoStarvation"}, build: onQueue[getThenSet]},
	{Name: "timestamps", Cases: names{"ReleaseAfterExpiry"}, Also: mixedUp, build: onLock[timestamps]},
	{Name: "heldByOneself", Cases: names{"SameTokenAgain", "LostReply", "History"}, Also: names{"FirstComeFirstServed", "LateDuplicate", "NotBefore"}, Network: says{"LostReplyOverNetwork": `want it to be acquired`}, build: onQueue[heldByOneself]},
	{Name: "marksWhatWasSent", Cases: names{"NoEffect"}, BeyondModel: true, build: onLock[marksWhatWasSent]},
	{Name: "setsAnyTTL", Cases: names{"HeldIsUntouched"}, Also: names{"LateDuplicate", "SameTokenAgain"}, build: onLock[setsAnyTTL]},
	{Name: "getSetFirst", Cases: names{"HeldIsUntouched", "Exclusion"}, Also: mixedUp, build: onLock[getSetFirst]},
	{Name: "namesTheCaller", Cases: names{"HeldIsUntouched"}, build: onLock[namesTheCaller]},
	{Name: "passesOnMinusOne", Cases: names{"HeldIsUntouched"}, build: onLock[passesOnMinusOne]},
	{Name: "neverExtends", Cases: names{"SameTokenAgain"}, build: onLock[neverExtends]},
}

// SETNX without an expiry.
// Seen: the oldest recipe.
// Harm: the lock of a holder that dies is held for ever.
// Right: SET with NX and PX, which is one command.
type noExpiry struct{ queue }

func (q *noExpiry) TryAcquire(ctx context.Context, key, token string, _ time.Duration) (dlock.Attempt, error) {
	ok, err := q.setNX(ctx, key, token, forever)
	return dlock.Attempt{Acquired: ok}, err
}

// SETNX, then EXPIRE.
// Seen: a well-known recipe.
// Harm: a client that stops between the two leaves a lock that never ends.
// Right: SET with NX and PX, which is one command.
type setThenExpire struct{ lock }

func (l *setThenExpire) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	ok, err := l.setNX(ctx, key, token, forever)
	if err != nil || !ok {
		return dlock.Attempt{}, err
	}
	_, err = l.pExpire(ctx, key, ttl)
	return dlock.Attempt{Acquired: err == nil}, err
}

// SETNX and EXPIRE in one pipeline: EXPIRE is executed whatever SETNX answers.
// Seen: a well-known recipe.
// Harm: every refused attempt prolongs the lock, also that of a dead holder.
// Right: SET with NX and PX, which is one command.
type expiresAnyway struct{ lock }

func (l *expiresAnyway) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		d.pExpire(key, max(ttl, d.pTTL(key)))
		return a
	})
}

// GET, then SET if there was nothing.
// Seen: a well-known recipe.
// Harm: two clients find the key free, and both hold it.
// Right: the check is part of the command: SET with NX.
type getThenSet struct{ queue }

func (q *getThenSet) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	holder, err := q.get(ctx, key)
	if err != nil || holder != "" {
		return q.queue.TryAcquire(ctx, key, token, ttl)
	}
	err = q.set(ctx, key, token, ttl)
	return dlock.Attempt{Acquired: err == nil}, err
}

func (q *getThenSet) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.TryAcquire(ctx, key, token, ttl)
	if err != nil || a.Acquired {
		return a, err
	}
	return q.queue.Acquire(ctx, key, token, ttl)
}

// SETNX with the time of expiry as the value; when that time has passed, the next client
// takes the key over with GETSET.
// Seen: the Redis documentation, before SET had options.
// Harm: the loser's GETSET moves the winner's expiry; all clocks must agree; a late
// release deletes the successor's lock.
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

// An attempt that is repeated because its reply was lost is refused.
// Seen: redis/go-redis#2985.
// Harm: the client waits for a lock that it holds itself, until the TTL has passed.
// Right: an attempt by the token that holds already is a grant.
type heldByOneself struct{ queue }

func (q *heldByOneself) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Attempt {
		if holder := d.get(key); holder != "" {
			return dlock.Attempt{Holder: holder, Remaining: d.pTTL(key)}
		}
		d.serve(key)
		return d.try(key, token, ttl)
	})
}

func (q *heldByOneself) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.TryAcquire(ctx, key, token, ttl)
	if err == nil && a.Holder == token {
		<-ctx.Done()
		return dlock.Attempt{}, ctx.Err()
	}
	if err != nil || a.Acquired {
		return a, err
	}
	return q.queue.Acquire(ctx, key, token, ttl)
}

// An attempt without an answer is marked as having had no effect.
// Seen: made for its case.
// Harm: nobody releases what it may have been granted: a lock without a holder, until its
// TTL has passed.
// Right: mark only what was not sent.
type marksWhatWasSent struct{ lock }

func (l *marksWhatWasSent) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	if err != nil {
		err = &dlock.NoEffectError{Err: err}
	}
	return a, err
}

// An attempt sets the TTL, whoever holds the key.
// Seen: a well-known recipe.
// Harm: a refused attempt cuts the lease in which the holder believes.
// Right: SET with NX and PX, which is one command.
type setsAnyTTL struct{ lock }

func (l *setsAnyTTL) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		d.pExpire(key, ttl)
		return a
	})
}

// GETSET, then a look at the old value: a refused attempt has written its token.
// Seen: a well-known recipe.
// Harm: the holder can neither renew nor release; the lock is that of a client that was
// refused.
// Right: SET with NX, which writes nothing if the key is held.
type getSetFirst struct{ lock }

func (l *getSetFirst) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		d.set(key, token, d.pTTL(key))
		return a
	})
}

// A refusal names the caller as the holder.
// Seen: made for its case.
// Harm: the caller believes that it holds the key, and that its reply was lost.
// Right: the token that is stored, or no holder.
type namesTheCaller struct{ lock }

func (l *namesTheCaller) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	if !a.Acquired {
		a.Holder = token
	}
	return a, err
}

// The answer of PTTL is passed on as it is, also -1 and -2.
// Seen: made for its case.
// Harm: a waiter that sleeps for the remaining time does not sleep at all.
// Right: 0, which stands for unknown.
type passesOnMinusOne struct{ lock }

func (l *passesOnMinusOne) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	if !a.Acquired {
		a.Holder, a.Remaining = "", -1
	}
	return a, err
}

// An attempt by the token that holds already is granted without extending the lease.
// Seen: made for its case.
// Harm: the lease ends before its holder thinks that it does.
// Right: the longer of the remaining TTL and the new one.
type neverExtends struct{ lock }

func (l *neverExtends) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		if d.get(key) == token {
			return dlock.Attempt{Acquired: true, Fence: d.fence()}
		}
		return d.try(key, token, ttl)
	})
}

package museum

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

var renewing = []Exhibit{
	{Name: "setExisting", Cases: names{"RenewByStranger", "TokensCompareWhole", "LateDuplicate"}, Also: names{"NoLeaks", "RenewAfterExpiry", "RenewNeverShortens"}, Network: says{"LateDuplicateOverNetwork": `want it to be acquired|held = true; want false`}, build: onLock[setExisting]},
	{Name: "getThenExpire", Cases: names{"RenewAfterExpiry", "RenewCrossesTakeover"}, BeyondModel: true, build: onLock[getThenExpire]},
	{Name: "revives", Cases: names{"RenewAfterExpiry", "LateDuplicate"}, Also: names{"RenewByStranger"}, Network: says{"LateDuplicateOverNetwork": `want it to be acquired`}, build: onLock[revives]},
	{Name: "renewsWhatIsReleased", Cases: names{"LateDuplicate", "RenewCrossesTakeover"}, Also: names{"RenewAfterExpiry"}, BeyondModel: true, build: onLock[renewsWhatIsReleased]},
	{Name: "versions", Cases: names{"LostReply"}, Also: names{"NotBefore", "SameTokenAgain"}, build: func(c conn) dlock.Locker { return &versions{lock: lock{c}} }},
	{Name: "shortens", Cases: names{"RenewNeverShortens", "LateDuplicate"}, Network: says{"LateDuplicateOverNetwork": `must still hold the key`}, build: onLock[shortens]},
	{Name: "renewsOnTheDot", Cases: names{"ExpiresForAll"}, BeyondModel: true, build: onLock[renewsOnTheDot]},
	{Name: "renewsWaiters", Cases: names{"WaiterIsNoHolder"}, BeyondModel: true, build: onQueue[renewsWaiters]},
	{Name: "renewsTheVersion", Cases: names{"SameTokenAgain"}, Also: names{"NoLeaks", "RenewExtends"}, BeyondModel: true, build: onLock[renewsTheVersion]},
	{Name: "countsRenewals", Cases: names{"RenewExtends"}, BeyondModel: true, build: onLock[countsRenewals]},
	{Name: "keepsAlive", Cases: names{"RenewExtends"}, Also: names{"NoLeaks"}, build: onLock[keepsAlive]},
	{Name: "debounces", Cases: names{"RenewExtends"}, Also: names{"LateDuplicate", "RenewAfterExpiry"}, build: func(c conn) dlock.Locker { return &debounces{lock: lock{c}} }},
	{Name: "marksItsRenewal", Cases: names{"NoEffect"}, BeyondModel: true, build: onLock[marksItsRenewal]},
	{Name: "onlyLooks", Cases: names{"RenewExtends"}, Also: names{"LateDuplicate", "RenewAfterExpiry"}, build: onLock[onlyLooks]},
	{Name: "upserts", Cases: names{"RenewByStranger", "RenewAfterExpiry"}, Also: names{"LateDuplicate"}, build: onLock[upserts]},
}

// A renewal is SET XX, without comparing.
// Seen: a well-known recipe.
// Harm: a client that has lost its lease takes the lock away from its successor.
// Right: compare the token and set the TTL in one script.
type setExisting struct{ lock }

func (l *setExisting) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.setXX(ctx, key, token, ttl)
}

// GET, compare, then PEXPIRE (here with GT, so that it shortens nothing).
// Seen: a well-known recipe.
// Harm: the lease ends between the two, and the TTL of the successor's lease is changed.
// Right: one script.
type getThenExpire struct{ lock }

func (l *getThenExpire) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	holder, err := l.get(ctx, key)
	if err != nil || holder != token {
		return false, err
	}
	return l.pExpireGT(ctx, key, ttl)
}

// A renewal creates the key again when it has expired.
// Seen: samcook/RedLock.net#93, #48.
// Harm: two holders: one whose lease was revived, and one that acquired the lock
// meanwhile.
// Right: a dead lease stays dead; the holder hears of it, and acquires again.
type revives struct{ lock }

func (l *revives) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		if holder := d.get(key); holder != "" && holder != token {
			return false
		}
		return d.set(key, token, max(ttl, d.pTTL(key)))
	})
}

// A renewal compares, and then writes the token with a new TTL. A release in between is
// undone.
// Seen: samcook/RedLock.net#64, redisson/redisson#7272.
// Harm: a lock that nobody holds, until its TTL has passed; or for ever, if the renewals
// go on.
// Right: one script that does not write the token; and a client that orders the renewals
// and the release of a lease.
type renewsWhatIsReleased struct{ lock }

func (l *renewsWhatIsReleased) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	holder, err := l.get(ctx, key)
	if err != nil || holder != token {
		return false, err
	}
	rest, err := eval(ctx, l.conn, func(d *db) time.Duration { return d.pTTL(key) })
	if err != nil {
		return false, err
	}
	err = l.set(ctx, key, token, max(ttl, rest))
	return err == nil, err
}

// Each renewal raises a version, and must know the last one. After a lost reply it does
// not.
// Seen: cirello-io/dynamolock#280.
// Harm: the holder gives up a lock that it has.
// Right: the token is enough, and a renewal can be repeated.
type versions struct {
	lock
	seen sync.Map // token → version
}

func (l *versions) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	seen, known := l.seen.Load(token)
	version, err := eval(ctx, l.conn, func(d *db) int64 {
		if known && d.get("version of "+key) != fmt.Sprint(seen) || !d.renew(key, token, ttl) {
			return 0
		}
		return d.incrBy("version of "+key, 1)
	})
	if version != 0 {
		l.seen.Store(token, version)
	}
	return version != 0, err
}

// A renewal sets the TTL that it was given, even if the lease lasts longer.
// Seen: a well-known recipe.
// Harm: a renewal that arrives late cuts a lease in which its holder believes.
// Right: the longer of the remaining TTL and the new one.
type shortens struct{ lock }

func (l *shortens) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.get(key) == token && d.pExpire(key, ttl) })
}

// At the very end of a lease, a renewal compares with <= and an attempt with <.
// Seen: a trial of the suite.
// Harm: a lease is revived that another client could have taken.
// Right: one function that says whether a lease has ended.
type renewsOnTheDot struct{ lock }

func (l *renewsOnTheDot) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		if e := d.data[key]; e.value == token && !time.Now().After(e.until) {
			return d.set(key, token, max(ttl, time.Until(e.until)))
		}
		return false
	})
}

// A renewal asks whether the store knows the token, which it does if the token waits.
// Seen: a trial of the suite.
// Harm: a waiter believes that it holds the lock.
// Right: ask whether the token holds the key.
type renewsWaiters struct{ queue }

func (q *renewsWaiters) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		waits := func(w waiter) bool { return w.token == token }
		return d.renew(key, token, ttl) || slices.ContainsFunc(d.queues[key], waits)
	})
}

// A renewal reads the version of the row, then updates WHERE version = …; if no row was
// updated, the lease is reported as lost.
// Seen: a trial of the suite.
// Harm: another call of the same holder changes the version in between, and healthy work
// is stopped.
// Right: compare the token alone.
type renewsTheVersion struct{ lock }

func (l *renewsTheVersion) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set("version of "+key, fmt.Sprint(a.Fence), ttl)
		}
		return a
	})
}

func (l *renewsTheVersion) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	read, err := l.get(ctx, "version of "+key)
	if err != nil {
		return false, err
	}
	return eval(ctx, l.conn, func(d *db) bool {
		return d.get("version of "+key) == read && d.renew(key, token, ttl)
	})
}

// The number of renewals is kept in a byte. When it is full, a renewal changes nothing,
// and reports success.
// Seen: a trial of the suite.
// Harm: a holder that renews often enough trusts a lease that has ended.
// Right: do not count what nobody needs; look at how many rows were changed.
type countsRenewals struct{ lock }

func (l *countsRenewals) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		if d.incrBy("renewals by "+token, 1) > 255 {
			return d.get(key) == token
		}
		return d.renew(key, token, ttl)
	})
}

// A renewal lasts as long as the original grant, whatever TTL is asked for.
// Seen: a trial of the suite.
// Harm: the key stays locked for longer than anybody asked.
// Right: a lease with the TTL that was asked for.
type keepsAlive struct{ lock }

func (l *keepsAlive) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	if a.Acquired {
		_, _ = eval(ctx, l.conn, func(d *db) bool { return d.set("granted to "+token, ttl.String(), time.Hour) })
	}
	return a, err
}

func (l *keepsAlive) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		granted, _ := time.ParseDuration(d.get("granted to " + token))
		return d.renew(key, token, max(ttl, granted))
	})
}

// A renewal soon after the last one is answered by the client, and not sent.
// Seen: a trial of the suite.
// Harm: the lease ends earlier than was asked for; a holder that has lost it does not
// hear of it.
// Right: send it.
type debounces struct {
	lock
	renewed sync.Map // token and TTL → when
}

func (l *debounces) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	lease, now := token+" "+ttl.String(), time.Now()
	if last, ok := l.renewed.Load(lease); ok && now.Sub(last.(time.Time)) < ttl/5 {
		return true, nil
	}
	held, err := l.lock.Renew(ctx, key, token, ttl)
	if held {
		l.renewed.Store(lease, now)
	}
	return held, err
}

// A renewal without an answer is marked as having had no effect.
// Seen: made for its case.
// Harm: the lease lasts longer than its holder thinks.
// Right: mark only what was not sent.
type marksItsRenewal struct{ lock }

func (l *marksItsRenewal) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := l.lock.Renew(ctx, key, token, ttl)
	if err != nil {
		err = &dlock.NoEffectError{Err: err}
	}
	return held, err
}

// A renewal compares the token, and sets no TTL.
// Seen: made for its case.
// Harm: the lease ends in which its holder believes.
// Right: compare the token and set the TTL in one script.
type onlyLooks struct{ lock }

func (l *onlyLooks) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.get(key) == token })
}

// A renewal is an upsert: if there is no row it adds one, and reports that it updated
// none.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: UPDATE … WHERE.
type upserts struct{ lock }

func (l *upserts) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.renew(key, token, ttl) || d.get(key) == "" && !d.set(key, token, ttl) })
}

package museum

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A renewal by a client that has lost its lease takes the lock away from the one
// that has it now. Right: compare the token and set the TTL in one script.
type setExisting struct{ lock }

func (l *setExisting) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.setXX(ctx, key, token, ttl)
}

// The token is compared, but the lease may end, and another begin, between GET and
// PEXPIRE (here with GT, so that it shortens nothing): then it is the other's TTL
// that is set. Right: one script.
type getThenExpire struct{ lock }

func (l *getThenExpire) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	holder, err := l.get(ctx, key)
	if err != nil || holder != token {
		return false, err
	}
	return l.pExpireGT(ctx, key, ttl)
}

// A renewal that finds no key makes it anew. Its holder has been without the lock
// for a while, and another may have had it, and may hold it on other servers.
// Right: a dead lease stays dead; the holder is told, and acquires again.
type revives struct{ lock }

func (l *revives) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		if holder := d.get(key); holder != "" && holder != token {
			return false
		}
		return d.set(key, token, max(ttl, d.pTTL(key)))
	})
}

// A renewal compares and then writes the token with a new TTL. A release that comes
// in between is undone: a lock without a holder. Right: one script that does not
// write the token; and a client that orders the renewals and the release of a lease.
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

// Each renewal raises a version, and must know the last one. When the reply of one is
// lost, the next finds a version that it does not know, and the holder gives up a lock
// that it has. Right: the token is enough, and a renewal can be repeated.
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

// A renewal sets the TTL that it was given. One for less, or one that is delivered
// late, after another for more, cuts the lease while its holder believes in all of
// it. Right: the longer of what is left and what is asked for.
type shortens struct{ lock }

func (l *shortens) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.get(key) == token && d.pExpire(key, ttl) })
}

// A renewal at the instant at which the lease ends is let pass, while an attempt at that
// instant takes the key: two comparisons, one with < and one with <=. Right: one
// function that says whether a lease has ended.
type renewsOnTheDot struct{ lock }

func (l *renewsOnTheDot) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		if e := d.data[key]; e.value == token && !time.Now().After(e.until) {
			return d.set(key, token, max(ttl, time.Until(e.until)))
		}
		return false
	})
}

// A renewal asks whether the store knows the token, and so it does if that waits. Right:
// whether it holds the key.
type renewsWaiters struct{ queue }

func (q *renewsWaiters) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		waits := func(w waiter) bool { return w.token == token }
		return d.renew(key, token, ttl) || slices.ContainsFunc(d.queues[key], waits)
	})
}

// Of several renewals of a lease in one batch, all but the first are dropped, as if they
// asked for the same. Right: the longest counts.
type firstOfTheBatch struct{ lock }

func (l *firstOfTheBatch) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return eval(ctx, l.conn, func(d *db) []dlock.RenewResult {
		results := make([]dlock.RenewResult, len(batch))
		done := make(map[dlock.Renewal]bool)
		for i, r := range batch {
			lease := dlock.Renewal{Key: r.Key, Token: r.Token}
			if _, ok := done[lease]; !ok {
				done[lease] = d.renew(r.Key, r.Token, r.TTL)
			}
			results[i].Held = done[lease]
		}
		return results
	})
}

// A renewal reads the version of the row and then updates WHERE version = …; if no row
// was updated, the lease is called lost. Another call of the same holder has changed the
// version in between, and healthy work is stopped. Right: compare the token alone.
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

// The number of renewals is kept in a byte. When that is full, the statement that counts
// and prolongs changes nothing any more, and nobody looks how many rows it has changed.
// Right: what is not needed is not counted; and look.
type countsRenewals struct{ lock }

func (l *countsRenewals) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		if d.incrBy("renewals by "+token, 1) > 255 {
			return d.get(key) == token
		}
		return d.renew(key, token, ttl)
	})
}

// A keep-alive renews a lease for what it was granted for, whatever is asked for: a store
// whose leases are objects has no other. A lease that is to last a little longer lasts as
// long again. Right: another object, with the TTL that was asked for.
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

// A client that has renewed a lease just now does not ask again for a fifth of the TTL: the
// answer is known. But it is not, if another has released the lease since; and the lease
// does not last for as long as was asked for the second time. Right: ask.
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

// A renewal whose ctx ends says that it had no effect. The store may have prolonged the
// lease: who waits for its end by a clock waits in vain. Right: mark what is known.
type marksItsRenewal struct{ lock }

func (l *marksItsRenewal) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := l.lock.Renew(ctx, key, token, ttl)
	if err != nil {
		err = &dlock.NoEffectError{Err: err}
	}
	return held, err
}

package museum

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

var timing = []Exhibit{
	{Name: "wholeSeconds", Cases: names{"NotBefore"}, Also: unending, build: onLock[wholeSeconds]},
	{Name: "expiresAtOnce", Cases: names{"RenewNeverShortens"}, Also: names{"LateDuplicate", "NoLeaks", "NotBefore", "RenewExtends"}, build: onLock[expiresAtOnce]},
	{Name: "wallClock", Cases: names{"NotBefore"}, Also: names{"NoLeaks"}, build: onLock[wallClock]},
	{Name: "sameTokenShortens", Cases: names{"SameTokenAgain", "LateDuplicate"}, Network: says{"LateDuplicateOverNetwork": `must still hold the key`}, build: onLock[sameTokenShortens]},
	{Name: "shortInteger", Cases: names{"AnyTTL"}, BeyondModel: true, build: onLock[shortInteger]},
	{Name: "staleTimer", Cases: names{"NotBefore"}, Also: unending, build: onLock[staleTimer]},
	{Name: "ticks", Cases: names{"AnyTTL"}, BeyondModel: true, build: onLock[ticks]},
	{Name: "cutsItsClock", Cases: names{"AnyTTL"}, BeyondModel: true, build: near(onLock[cutsItsClock])},
	{Name: "sweepsByGrant", Cases: names{"ManyLeases"}, Also: names{"NoLeaks"}, BeyondModel: true, build: onLock[sweepsByGrant]},
	{Name: "tellsTheGrantedTTL", Cases: names{"HolderIsTold"}, Also: names{"NoLeaks"}, build: onLock[tellsTheGrantedTTL]},
	{Name: "retention", Cases: names{"AnyTTL"}, Also: names{"NoLeaks"}, BeyondModel: true, build: onLock[retention]},
	{Name: "sweepsSome", Cases: names{"ManyLeases"}, BeyondModel: true, build: onLock[sweepsSome]},
	{Name: "roundsUp", Cases: names{"Expiry"}, Also: unending, build: onLock[roundsUp]},
	{Name: "endsEarly Renew", Cases: names{"ExpiresForAll"}, BeyondModel: true, build: endingEarly("Renew")},
	{Name: "endsEarly Release", Cases: names{"ExpiresForAll"}, BeyondModel: true, build: endingEarly("Release")},
	{Name: "endsEarly RenewBatch", Cases: names{"ExpiresForAll"}, BeyondModel: true, build: endingEarly("RenewBatch")},
	{Name: "endsEarly Inspect", Cases: names{"ExpiresForAll"}, BeyondModel: true, build: endingEarly("Inspect")},
	{Name: "twiceTheTTL", Cases: names{"Expiry"}, Also: unending, build: onLock[twiceTheTTL]},
	{Name: "halfTheTTL", Cases: names{"NotBefore"}, Also: names{"EndedContext", "HeldIsUntouched", "RenewExtends", "SinceIsConservative"}, Network: says{"SlowNetwork": `before the deadline of a lease`}, build: onQueue[halfTheTTL]},
}

// The TTL is cut to whole seconds.
// Seen: recipes with EXPIRE.
// Harm: the lock is free while its holder works.
// Right: milliseconds.
type wholeSeconds struct{ lock }

func (l *wholeSeconds) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, key, token, max(ttl.Truncate(time.Second), time.Second))
}

// A TTL below the unit of the command becomes 0; EXPIRE with 0 deletes the key, and
// reports success.
// Seen: below 1 ms: in the source of bsm/redislock and go-redsync/redsync.
// Harm: the renewal deletes the lock that it should prolong.
// Right: refuse such a TTL, or round it up.
type expiresAtOnce struct{ lock }

func (l *expiresAtOnce) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	seconds := int(ttl.Seconds())
	return eval(ctx, l.conn, func(d *db) bool {
		return d.get(key) == token && d.pExpire(key, time.Duration(seconds)*time.Second)
	})
}

// The client says when the key expires, by its own clock (PXAT).
// Seen: in the source of rueidislock.
// Harm: a client whose clock is behind acquires a key that is gone at once.
// Right: the client says how long (PX), and the server has the only clock.
type wallClock struct{ lock }

func (l *wallClock) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	at := time.Now().Add(-l.lag).Add(ttl)
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		return d.try(key, token, max(time.Until(at), 1)) // PXAT: gone at once if that has passed
	})
}

// An attempt by the token that holds already sets the TTL that it was given, even if the
// lease lasts longer.
// Seen: in a model of a handover.
// Harm: an earlier attempt that arrives late cuts the lease in which its holder believes.
// Right: the longer of the remaining TTL and the new one.
type sameTokenShortens struct{ lock }

func (l *sameTokenShortens) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.pExpire(key, ttl)
		}
		return a
	})
}

// A TTL is kept in 32 bits of milliseconds, which end after 24 days.
// Seen: a trial of the suite.
// Harm: a lock for a month is free at once.
// Right: 64 bits.
type shortInteger struct{ lock }

func (l *shortInteger) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	ttl = time.Duration(int32(ttl.Milliseconds())) * time.Millisecond
	return l.lock.TryAcquire(ctx, key, token, ttl)
}

// A timer ends each lease, and a release does not stop it.
// Seen: a trial of the suite.
// Harm: it ends the next lease of the same token too early.
// Right: compare the time with the end of the present lease.
type staleTimer struct{ lock }

func (l *staleTimer) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		first := d.get(key) == ""
		a := d.try(key, token, ttl)
		if a.Acquired && first {
			time.AfterFunc(ttl, func() { l.run(func(d *db) any { return d.get(key) == token && d.del(key) }) })
		}
		return a
	})
}

// Leases are in a wheel of timers that turns every 10 ms, and end with the last tick
// before their time.
// Seen: a trial of the suite.
// Harm: the lock is free while its holder works.
// Right: the first tick after it: round up.
type ticks struct{ lock }

func (l *ticks) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const tick = 10 * time.Millisecond
	return l.lock.TryAcquire(ctx, key, token, max(ttl.Truncate(tick), tick))
}

// The store's clock is cut to whole milliseconds, so that a lease seems to begin before its grant.
// Seen: a store on SQLite, while it was written.
// Harm: the lock is free for up to a millisecond while its holder works.
// Right: the full precision of the clock, or an end that is rounded up.
type cutsItsClock struct{ lock }

func (l *cutsItsClock) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, key, token, time.Until(time.Now().Truncate(time.Millisecond).Add(ttl)))
}

// When there are many keys, a sweeper removes those whose original TTL has passed,
// renewed or not.
// Seen: a trial of the suite.
// Harm: under load, a renewed lock is free while its holder works.
// Right: go by the end that counts for everything else.
type sweepsByGrant struct{ lock }

func (l *sweepsByGrant) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		if d.pTTL(key) == 0 {
			d.set("grant of "+key, "lasts", ttl)
		}
		for other := range d.data {
			if len(d.data) > 200 && !strings.HasPrefix(other, "grant of ") && d.get("grant of "+other) == "" {
				d.del(other)
			}
		}
		return d.try(key, token, ttl)
	})
}

// A refusal reports the TTL that the holder was granted, not the remaining time.
// Seen: a trial of the suite.
// Harm: others come too late.
// Right: the remaining time.
type tellsTheGrantedTTL struct{ lock }

func (l *tellsTheGrantedTTL) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set("TTL of "+key, ttl.String(), forever)
		} else {
			a.Remaining, _ = time.ParseDuration(d.get("TTL of " + key)) // which is one
		}
		return a
	})
}

// The store removes the row of a lease a day after its first end, however often it is
// renewed.
// Seen: a trial of the suite.
// Harm: a leader that renews for longer loses its row: two leaders.
// Right: whatever prolongs the lease prolongs its row.
type retention struct{ lock }

func (l *retention) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		d.clean(key)
		holder := d.get(key)
		a := d.try(key, token, ttl)
		if a.Acquired && holder != token {
			d.set(rowOf+key, "kept", ttl+24*time.Hour)
		}
		return a
	})
}

func (l *retention) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		d.clean(key)
		return d.renew(key, token, ttl)
	})
}

// clean removes a lock whose row is not kept any more.
func (d *db) clean(key string) {
	if d.get(rowOf+key) == "" {
		d.del(key)
	}
}

// Each call first removes ended leases, at most a hundred. The others still count as
// held.
// Seen: a trial of the suite.
// Harm: after an outage of many holders, their keys seem to be held.
// Right: what has ended has ended, removed or not.
type sweepsSome struct{ lock }

func (l *sweepsSome) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		d.sweep(100)
		if d.get(key) == "" && d.get(rowOf+key) != "" {
			return dlock.Attempt{} // held, for all that is known
		}
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set(rowOf+key, fmt.Sprintf("ends at %019d", time.Now().Add(ttl).UnixNano()), forever)
		}
		return a
	})
}

func (l *sweepsSome) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		return d.get(key) == token && d.del(key) && d.del(rowOf+key)
	})
}

const rowOf = "row of "

// sweep removes the rows of so many leases that have ended, the oldest first.
func (d *db) sweep(most int) {
	var ended []string
	for name := range d.data {
		if key, ok := strings.CutPrefix(name, rowOf); ok && d.get(key) == "" {
			ended = append(ended, d.get(name)+name)
		}
	}
	slices.Sort(ended)
	for _, row := range ended[:min(most, len(ended))] {
		d.del(row[strings.Index(row, rowOf):])
	}
}

// The TTL is rounded up to whole seconds.
// Seen: recipes with EXPIRE.
// Harm: the lock of a dead holder is held for longer than was asked.
// Right: milliseconds.
type roundsUp struct{ lock }

func (l *roundsUp) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, key, token, (ttl + time.Second - 1).Truncate(time.Second))
}

// One method takes a lease for ended 5 ms before the others do, to be safe.
// Seen: trials of the suite.
// Harm: a holder is told that its lease is lost, or that its release came too late, while nobody
// else could have the key; a key is shown as free that cannot be taken.
// Right: one comparison with the time, for all methods.
type endsEarly struct {
	lock
	method string
}

func endingEarly(method string) func(conn) dlock.Locker {
	return func(c conn) dlock.Locker { return &endsEarly{lock{c}, method} }
}

// ended reports whether method takes the lease on key for ended.
func (l *endsEarly) ended(d *db, method, key string) bool {
	return method == l.method && d.pTTL(key) <= 5*time.Millisecond
}

func (l *endsEarly) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return !l.ended(d, "Renew", key) && d.renew(key, token, ttl) })
}

func (l *endsEarly) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		return d.get(key) == token && !l.ended(d, "Release", key) && d.del(key)
	})
}

func (l *endsEarly) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.each(ctx, batch, func(d *db, key, token string, ttl time.Duration) bool {
		return !l.ended(d, "RenewBatch", key) && d.renew(key, token, ttl)
	})
}

func (l *endsEarly) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		if l.ended(d, "Inspect", key) {
			return dlock.Hold{}
		}
		return d.hold(key)
	})
}

// A lease lasts twice its TTL, to be safe.
// Seen: made for its case.
// Harm: the lock of a dead holder is held for longer than was asked.
// Right: the TTL, and a declared grace.
type twiceTheTTL struct{ lock }

func (l *twiceTheTTL) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, key, token, 2*ttl)
}

// A lease lasts half its TTL.
// Seen: made for its case.
// Harm: the lock is free while its holder works.
// Right: at least the TTL.
type halfTheTTL struct{ queue }

func (q *halfTheTTL) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.queue.TryAcquire(ctx, key, token, ttl/2)
}

func (q *halfTheTTL) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.queue.Acquire(ctx, key, token, ttl/2)
}

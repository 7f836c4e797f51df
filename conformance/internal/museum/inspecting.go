package museum

import (
	"context"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

var inspecting = []Exhibit{
	{Name: "tellsTheLastTTL", Cases: names{"InspectTells"}, build: onLock[tellsTheLastTTL]},
	{Name: "readsTwice", Cases: names{"InspectTells"}, BeyondModel: true, build: onLock[readsTwice]},
	{Name: "likeKeys", Cases: names{"KeysAreIndependent"}, build: onLock[likeKeys]},
	{Name: "getOrCreate", Cases: names{"NoLeaks"}, BeyondModel: true, build: onLock[getOrCreate]},
	{Name: "showsTheNext", Cases: names{"InspectTells"}, BeyondModel: true, build: onQueue[showsTheNext]},
	{Name: "countsTheLeft", Cases: names{"WaitingIsCounted"}, Also: names{"NoLeaks"}, BeyondModel: true, build: onQueue[countsTheLeft]},
	{Name: "countsNobody", Cases: names{"WaitingIsCounted"}, BeyondModel: true, build: onQueue[countsNobody]},
	{Name: "countsTheHolder", Cases: names{"WaitingIsCounted"}, BeyondModel: true, build: onQueue[countsTheHolder]},
	{Name: "showsTheExpired", Cases: names{"InspectTells"}, build: onLock[showsTheExpired]},
	{Name: "showsTheLast", Cases: names{"InspectTells"}, Also: names{"NoLeaks"}, build: onLock[showsTheLast]},
	{Name: "countsInSeconds", Cases: names{"InspectTells"}, build: onLock[countsInSeconds]},
	{Name: "tellsLess", Cases: names{"InspectTells", "HolderIsTold"}, Also: names{"HeldIsUntouched"}, BeyondModel: true, build: near(onLock[tellsLess])},
	{Name: "tellsNegative", Cases: names{"ExpiresForAll"}, BeyondModel: true, build: onLock[tellsNegative]},
	{Name: "remainsOfNothing", Cases: names{"InspectTells"}, BeyondModel: true, build: onLock[remainsOfNothing]},
	{Name: "prolongs", Cases: names{"InspectChangesNothing"}, build: onLock[prolongs]},
	{Name: "cuts", Cases: names{"InspectChangesNothing"}, build: onLock[cuts]},
	{Name: "takesToLook", Cases: names{"InspectChangesNothing"}, Also: names{"NoLeaks"}, build: onLock[takesToLook]},
}

// The remaining time is counted from the last renewal, even if the lease lasts longer.
// Seen: a trial of the suite.
// Harm: others come too early, and a holder seems dead.
// Right: the end of the lease, less the time.
type tellsTheLastTTL struct{ lock }

func (l *tellsTheLastTTL) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		return d.renew(key, token, ttl) && d.set("asked for "+key, token, ttl)
	})
}

func (l *tellsTheLastTTL) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		token, rest := d.get(key), d.pTTL(key)
		if d.get("asked for "+key) == token {
			rest = d.pTTL("asked for " + key)
		}
		return dlock.Hold{Held: token != "", Token: token, Remaining: rest}
	})
}

// The holder and the remaining time are read by two commands.
// Seen: a trial of the suite.
// Harm: a holder is shown with the time of another.
// Right: read both at once.
type readsTwice struct{ lock }

func (l *readsTwice) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	token, err := l.get(ctx, key)
	if err != nil || token == "" {
		return dlock.Hold{}, err
	}
	rest, err := eval(ctx, l.conn, func(d *db) time.Duration { return d.pTTL(key) })
	return dlock.Hold{Held: true, Token: token, Remaining: rest}, err
}

// To see who holds a key, it is looked up as a pattern (KEYS, LIKE).
// Seen: a trial of the suite.
// Harm: a free key is shown as held, by the holder of another: order-* is held as soon as
// any order is.
// Right: GET, or =.
type likeKeys struct{ lock }

func (l *likeKeys) Inspect(ctx context.Context, pattern string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		for _, key := range slices.Sorted(maps.Keys(d.data)) {
			if ok, err := path.Match(pattern, key); ok && err == nil && d.get(key) != "" {
				return dlock.Hold{Held: true, Token: d.get(key), Remaining: d.pTTL(key)}
			}
		}
		return dlock.Hold{}
	})
}

// Looking at a lock creates a record of it, which stays.
// Seen: a trial of the suite.
// Harm: the store fills up.
// Right: what reads does not write.
type getOrCreate struct{ lock }

func (l *getOrCreate) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	l.run(func(d *db) any { return d.set("record of "+key, "free", forever) })
	return l.lock.Inspect(ctx, key)
}

// The first of the queue is shown as the holder, while the key is still on its way.
// Seen: a trial of the suite.
// Harm: people look for the fault in the wrong place.
// Right: the holder is what is stored under the key.
type showsTheNext struct{ queue }

func (q *showsTheNext) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := q.release(ctx, key, token, func(*db, string) {})
	time.Sleep(20 * time.Millisecond)
	q.run(func(d *db) any { d.serve(key); return nil })
	return held, err
}

func (q *showsTheNext) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Hold {
		token := d.get(key)
		if token == "" && len(d.queues[key]) > 0 {
			token = d.queues[key][0].token
		}
		return dlock.Hold{Held: token != "", Token: token, Remaining: d.pTTL(key)}
	})
}

// A counter beside the queue goes up with each waiter that comes, and down with each that
// is served.
// Seen: made for its case.
// Harm: a waiter that was cancelled counts for ever.
// Right: count the queue.
type countsTheLeft struct{ queue }

func (q *countsTheLeft) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q.run(func(d *db) any { return d.incrBy("waiting for "+key, 1) })
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err == nil {
		q.run(func(d *db) any { return d.incrBy("waiting for "+key, -1) })
	}
	return a, err
}

func (q *countsTheLeft) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Hold {
		h := d.hold(key)
		h.Waiting = int(d.incrBy("waiting for "+key, 0))
		return h
	})
}

// Inspecting does not look at the queue.
// Seen: made for its case.
// Harm: a contended lock goes unnoticed.
// Right: count the queue.
type countsNobody struct{ queue }

func (q *countsNobody) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return q.lock.Inspect(ctx, key)
}

// The holder is counted as the first of the waiters.
// Seen: made for its case.
// Harm: one too many, always.
// Right: a waiter that has been served waits no more.
type countsTheHolder struct{ queue }

func (q *countsTheHolder) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	h, err := q.queue.Inspect(ctx, key)
	if h.Held {
		h.Waiting++
	}
	return h, err
}

// Inspecting does not look at the time.
// Seen: made for its case.
// Harm: a holder whose lease has ended is shown until another comes.
// Right: what has ended has ended, removed or not.
type showsTheExpired struct{ lock }

func (l *showsTheExpired) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		token := d.data[key].value
		return dlock.Hold{Held: token != "", Token: token}
	})
}

// The last holder is shown, also after its release.
// Seen: made for its case.
// Harm: a free key seems to be held.
// Right: what is stored under the key.
type showsTheLast struct{ lock }

func (l *showsTheLast) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set("last holder of "+key, token, forever)
		}
		return a
	})
}

func (l *showsTheLast) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		last := d.get("last holder of " + key)
		return dlock.Hold{Held: last != "", Token: last, Remaining: d.pTTL(key)}
	})
}

// The remaining time is a number of seconds, taken for nanoseconds.
// Seen: made for its case.
// Harm: every holder seems to be at its end.
// Right: time.Duration(seconds) * time.Second.
type countsInSeconds struct{ lock }

func (l *countsInSeconds) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	h, err := l.lock.Inspect(ctx, key)
	h.Remaining /= time.Second
	return h, err
}

// The remaining time is 5 ms less than it is, as a margin for clocks.
// Seen: made for its case.
// Harm: others come too early, and are refused.
// Right: the remaining time. Whoever needs a margin has one already.
type tellsLess struct{ lock }

func less(rest time.Duration) time.Duration { return max(0, rest-5*time.Millisecond) }

func (l *tellsLess) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	a.Remaining = less(a.Remaining)
	return a, err
}

func (l *tellsLess) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	h, err := l.lock.Inspect(ctx, key)
	h.Remaining = less(h.Remaining)
	return h, err
}

// The end of the lease is compared with another clock, which may be ahead.
// Seen: made for its case.
// Harm: shortly before its end, a lease seems to have none.
// Right: if nothing remains, the key is free; if that is unknown, 0.
type tellsNegative struct{ lock }

func (l *tellsNegative) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	h, err := l.lock.Inspect(ctx, key)
	if h.Held {
		h.Remaining -= 2500 * time.Microsecond
	}
	return h, err
}

// The remaining time of a free key is that of what is stored for it besides.
// Seen: made for its case.
// Harm: others come later than they could.
// Right: of no lease, nothing remains.
type remainsOfNothing struct{ lock }

func (l *remainsOfNothing) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	h, err := l.lock.Inspect(ctx, key)
	if err == nil && !h.Held {
		h.Remaining = time.Second
	}
	return h, err
}

// Inspecting a lock prolongs it, as reading a session does (GETEX).
// Seen: made for its case.
// Harm: the lock of a dead holder is held as long as somebody looks at it.
// Right: what reads does not write.
type prolongs struct{ lock }

func (l *prolongs) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		d.pExpire(key, d.pTTL(key)+time.Minute)
		return d.hold(key)
	})
}

// Inspecting a lock sets its TTL to a minimum.
// Seen: made for its case.
// Harm: the lock is free while its holder works.
// Right: what reads does not write.
type cuts struct{ lock }

func (l *cuts) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		d.pExpire(key, time.Millisecond)
		return d.hold(key)
	})
}

// To see whether a key is free, Inspect takes it.
// Seen: a well-known recipe.
// Harm: clients that come meanwhile are refused.
// Right: what reads does not write.
type takesToLook struct{ lock }

func (l *takesToLook) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold {
		if h := d.hold(key); h.Held {
			return h
		}
		d.try(key, "inspector", time.Minute)
		return dlock.Hold{}
	})
}

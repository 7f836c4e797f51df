package museum

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
)

var random = []Exhibit{
	{Name: "failsOver", Cases: names{"History", "GuardedCounter"}, Sporadic: true, build: near(onQueue[failsOver])},
	{Name: "readsAReplica", Cases: names{"History"}, Sporadic: true, build: onQueue[readsAReplica]},
	{Name: "servesTwo", Cases: names{"History", "GuardedCounter"}, Sporadic: true, build: onQueue[servesTwo]},
	{Name: "fenceOnArrival", Cases: names{"History", "GuardedRegister"}, Sporadic: true, build: onQueue[fenceOnArrival]},
	{Name: "deniesRenewals", Cases: names{"History"}, Sporadic: true, build: onQueue[deniesRenewals]},
	{Name: "deniesReleases", Cases: names{"History"}, Sporadic: true, build: onQueue[deniesReleases]},
	{Name: "losesReleases", Cases: names{"History"}, Sporadic: true, build: onQueue[losesReleases]},
	{Name: "overlooksHolders", Cases: names{"History"}, Sporadic: true, build: onQueue[overlooksHolders]},
	{Name: "twoBackups", Cases: names{"HistoryAcrossDataLoss"}, Sporadic: true, build: onLock[twoBackups]},
}

// Now and then a lock is forgotten: a replica without it becomes the master.
// Seen: the Redis documentation, on asynchronous replication.
// Harm: two holders.
// Right: wait until the replicas have it, or use fences.
type failsOver struct{ queue }

func (q *failsOver) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q.forget(key, token)
	return q.queue.TryAcquire(ctx, key, token, ttl)
}

func (q *failsOver) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q.forget(key, token)
	return q.queue.Acquire(ctx, key, token, ttl)
}

func (q *failsOver) forget(key, token string) {
	q.run(func(d *db) any {
		holder := d.get(key)
		return holder != "" && holder != token && d.turn(40) && d.del(key)
	})
}

// Now and then an attempt reads a replica, which has not heard of the last release.
// Seen: asynchronous replication.
// Harm: a free key seems to be held.
// Right: check in the script that takes the key.
type readsAReplica struct{ queue }

func (q *readsAReplica) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Attempt {
		last := d.get("last holder of " + key)
		if d.get(key) == "" && last != "" && last != token && d.turn(5) {
			return dlock.Attempt{Holder: last}
		}
		d.serve(key)
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set("last holder of "+key, token, forever)
		}
		return a
	})
}

// Now and then a release serves two waiters.
// Seen: made for its case.
// Harm: two holders.
// Right: hand over in the script that frees the key.
type servesTwo struct{ queue }

func (q *servesTwo) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		if d.serve(key); d.get(key) != "" && d.turn(40) {
			d.del(key)
			d.serve(key)
		}
	})
}

// The fence is drawn when a waiter arrives, not when it is served.
// Seen: ticket locks.
// Harm: a waiter that others have overtaken has a fence below theirs, and the resource
// refuses it.
// Right: number the grant in the script that makes it.
type fenceOnArrival struct{ queue }

func (q *fenceOnArrival) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	fence, err := eval(ctx, q.conn, (*db).fence)
	if err != nil {
		return dlock.Attempt{}, err
	}
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if a.Acquired {
		a.Fence = fence
	}
	return a, err
}

// Now and then a renewal of a lease that is held answers false.
// Seen: made for its case.
// Harm: healthy work is stopped.
// Right: whether the token holds the key.
type deniesRenewals struct{ queue }

func (q *deniesRenewals) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool { return d.renew(key, token, ttl) && !d.turn(25) })
}

// Now and then a release of a lease that is held answers false.
// Seen: made for its case.
// Harm: the caller believes that its lease had ended before its work did.
// Right: whether the token held the key.
type deniesReleases struct{ queue }

func (q *deniesReleases) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := q.queue.Release(ctx, key, token)
	return held && !q.run(func(d *db) any { return d.turn(25) }).(bool), err
}

// Now and then a release answers true, and is lost.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: answer when it is done.
type losesReleases struct{ queue }

func (q *losesReleases) Release(ctx context.Context, key, token string) (bool, error) {
	if q.run(func(d *db) any { return d.get(key) == token && d.turn(25) }).(bool) {
		return true, nil
	}
	return q.queue.Release(ctx, key, token)
}

// Now and then a held key is shown as free.
// Seen: made for its case.
// Harm: people take a lock for free that is held.
// Right: what is stored under the key.
type overlooksHolders struct{ queue }

func (q *overlooksHolders) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Hold {
		if h := d.hold(key); !h.Held || !d.turn(8) {
			return h
		}
		return dlock.Hold{}
	})
}

// When the data is lost for the third time, fences begin at 8.
// Seen: made for its case.
// Harm: the resource refuses every holder.
// Right: at least the server's time, which goes on.
type twoBackups struct{ lock }

func (l *twoBackups) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired && d.losses >= 3 {
			a.Fence = d.incrBy("fence since", numbers)
		}
		return a
	})
}

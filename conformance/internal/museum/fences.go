package museum

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

var fences = []Exhibit{
	{Name: "fenceAfterwards", Cases: names{"FenceRises"}, BeyondModel: true, build: onLock[fenceAfterwards]},
	{Name: "fenceInTheLock", Cases: names{"FenceRises", "History", "GuardedRegister"}, Also: names{"FenceSurvivesDataLoss", "NoLeaks"}, build: onLock[fenceInTheLock]},
	{Name: "fenceInTheData", Cases: names{"FenceSurvivesDataLoss"}, Also: names{"NoLeaks"}, BeyondModel: true, build: onLock[fenceInTheData]},
	{Name: "fenceOfAnHour", Cases: names{"FenceSurvivesIdleness"}, Also: names{"FenceSurvivesDataLoss", "NoLeaks"}, BeyondModel: true, build: onLock[fenceOfAnHour]},
	{Name: "nextFence", Cases: names{"SameTokenAgain"}, Also: names{"NoLeaks"}, build: onLock[nextFence]},
	{Name: "counterOfEachLock", Cases: names{"NoLeaks"}, BeyondModel: true, build: onLock[counterOfEachLock]},
	{Name: "cachesCounters", Cases: names{"ManyLeases"}, Also: names{"FenceSurvivesDataLoss", "NoLeaks"}, BeyondModel: true, build: onLock[cachesCounters]},
	{Name: "fenceInMilliseconds", Cases: names{"FenceSurvivesDataLoss"}, BeyondModel: true, build: onLock[fenceInMilliseconds]},
	{Name: "countsReleases", Cases: names{"FenceRises"}, Also: names{"FenceSurvivesDataLoss", "SameTokenAgain"}, build: onLock[countsReleases]},
	{Name: "oneByOne", Cases: names{"FenceRises"}, Also: names{"FenceSurvivesDataLoss", "SameTokenAgain"}, build: onLock[oneByOne]},
	{Name: "blocksOfNumbers", Cases: names{"FenceRises", "History", "GuardedRegister"}, Also: names{"FenceSurvivesDataLoss"}, build: func(c conn) dlock.Locker { return &blocksOfNumbers{lock: lock{c}} }},
	{Name: "keepsItsFence", Cases: names{"SameTokenAgain"}, Also: names{"NoLeaks"}, build: onLock[keepsItsFence]},
	{Name: "handsOverWithout", Cases: names{"FenceRises", "History", "GuardedRegister"}, BeyondModel: true, build: onQueue[handsOverWithout]},
}

// The fence is drawn after the acquire: SETNX, then INCR.
// Seen: a well-known recipe.
// Harm: a client that is slow between the two has a fence above that of its successor.
// Right: number the grant in the script that makes it.
type fenceAfterwards struct{ lock }

func (l *fenceAfterwards) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	if err != nil || !a.Acquired {
		return a, err
	}
	a.Fence, err = eval(ctx, l.conn, (*db).fence)
	return a, err
}

// The counter is deleted with the lock.
// Seen: a well-known recipe.
// Harm: every holder has the same fence, and the resource cannot tell them apart.
// Right: a counter that outlives the lock.
type fenceInTheLock struct{ lock }

func (l *fenceInTheLock) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		if d.get(key) == "" {
			d.del("fence of " + key)
		}
		a := d.try(key, token, ttl)
		if a.Acquired {
			a.Fence = d.incrBy("fence of "+key, numbers)
		}
		return a
	})
}

// The counter begins at 1 when the data is lost.
// Seen: servers without persistence.
// Harm: the resource refuses every holder, until the counter has caught up.
// Right: at least the server's time, which goes on.
type fenceInTheData struct{ lock }

func (l *fenceInTheData) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			a.Fence = d.incrBy("fence of "+key, numbers)
		}
		return a
	})
}

// The counter is dropped when the key has not been used for an hour.
// Seen: a trial of the suite.
// Harm: the resource refuses every holder.
// Right: a number that does not depend on what was kept, such as the time.
type fenceOfAnHour struct{ lock }

func (l *fenceOfAnHour) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			a.Fence = d.incrBy("fence of "+key, numbers)
			d.pExpire("fence of "+key, time.Hour)
		}
		return a
	})
}

// The second grant to a token has the number right after the first.
// Seen: a trial of the suite.
// Harm: two grants share the numbers of one, which a process may have given to its
// goroutines.
// Right: as far from the last as any other grant.
type nextFence struct{ lock }

func (l *nextFence) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		again := d.get(key) == token
		a := d.try(key, token, ttl)
		if again {
			a.Fence = d.incrBy("fence of "+key, 1)
		} else if a.Acquired {
			d.set("fence of "+key, strconv.FormatInt(a.Fence, 10), forever)
		}
		return a
	})
}

// Each lock has a counter of its own, which stays when the lock is gone.
// Seen: redisson/redisson#6510.
// Harm: the store fills up where locks are named after orders.
// Right: one counter for many locks, or one that expires, beside the time.
type counterOfEachLock struct{ lock }

func (l *counterOfEachLock) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set("fence of "+key, strconv.FormatInt(a.Fence, 10), forever)
		}
		return a
	})
}

// The counters are in a cache of limited size.
// Seen: a trial of the suite.
// Harm: the fences of a key fall when a thousand others have come and gone; the resource
// lets stale holders in.
// Right: one counter for all keys, or for as many as there is room for.
type cachesCounters struct{ lock }

func (l *cachesCounters) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const room = 512
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			if counter := "counter of " + key; d.get(counter) == "" {
				oldest := d.incrBy("counters", 1) - room
				d.set(fmt.Sprint("counter ", oldest+room), counter, forever)
				d.del(d.get(fmt.Sprint("counter ", oldest)))
			}
			a.Fence = d.incrBy("counter of "+key, numbers)
		}
		return a
	})
}

// The fence is the time in milliseconds. A lock that is taken more than 125 times a
// second runs ahead of the clock.
// Seen: a trial of the suite.
// Harm: its fences fall when the data is lost, and the resource lets stale holders in.
// Right: a unit that is finer than the pace of the grants.
type fenceInMilliseconds struct{ lock }

func (l *fenceInMilliseconds) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			last, _ := strconv.ParseInt(d.get("last fence"), 10, 64)
			a.Fence = max(last+numbers, time.Now().UnixMilli())
			d.set("last fence", strconv.FormatInt(a.Fence, 10), forever)
		}
		return a
	})
}

// The counter is raised by releases, not by grants.
// Seen: made for its case.
// Harm: after an expiry, the new holder has the fence of the old one.
// Right: number the grant in the script that makes it.
type countsReleases struct{ lock }

func (l *countsReleases) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			a.Fence = d.incrBy("fences", 0) + numbers
		}
		return a
	})
}

func (l *countsReleases) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.get(key) == token && d.del(key) && d.incrBy("fences", numbers) > 0 })
}

// Fences rise by 1 (INCR).
// Seen: a well-known recipe.
// Harm: a process that numbers the writes of its goroutines uses the numbers of the next
// holder.
// Right: leave at least 8 numbers for each grant.
type oneByOne struct{ lock }

func (l *oneByOne) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			a.Fence = d.incrBy("fences", 1)
		}
		return a
	})
}

// Each client draws its fences in blocks, as from a sequence with CACHE in PostgreSQL.
// Seen: made for its case.
// Harm: a client with an older block has a fence below that of its predecessor, and the
// resource refuses it.
// Right: number the grant in the script that makes it.
type blocksOfNumbers struct {
	lock
	next, end int64 // guarded by the server's mutex
}

func (l *blocksOfNumbers) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const block = 100 * numbers
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if !a.Acquired {
			return a
		}
		if l.next == l.end {
			l.end = d.incrBy("blocks", block)
			l.next = l.end - block
		}
		l.next += numbers
		a.Fence = l.next
		return a
	})
}

// An attempt by the token that holds already is granted with the fence of its lease.
// Seen: made for its case.
// Harm: a process that repeats its call numbers its writes as it did before.
// Right: a new fence for each grant.
type keepsItsFence struct{ lock }

func (l *keepsItsFence) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		again := d.get(key) == token
		a := d.try(key, token, ttl)
		if again {
			a.Fence, _ = strconv.ParseInt(d.get("fence of "+key), 10, 64)
		}
		if a.Acquired {
			d.set("fence of "+key, strconv.FormatInt(a.Fence, 10), d.pTTL(key))
		}
		return a
	})
}

// The message of a handover has no room for the fence: the waiter begins at 8.
// Seen: made for its case.
// Harm: the resource refuses the new holder.
// Right: the fence is a part of the grant.
type handsOverWithout struct{ queue }

func (q *handsOverWithout) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	start := time.Now()
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if a.Acquired && time.Since(start) > 2*q.rtt { // it has waited
		a.Fence = numbers
	}
	return a, err
}

package museum

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

// The fence is drawn after the lock was taken. A client that stops between the two
// for longer than its lease draws a number above that of its successor, and the
// resource refuses the one that holds the lock. Right: number the grant in the
// script that makes it.
type fenceAfterwards struct{ lock }

func (l *fenceAfterwards) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	if err != nil || !a.Acquired {
		return a, err
	}
	a.Fence, err = eval(ctx, l.conn, (*db).fence)
	return a, err
}

// The counter is kept in the lock and is deleted with it, so the next holder has
// the number of the first, and the resource cannot tell them apart. Right: a
// counter that outlives the lock.
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

// The counter outlives the lock, but not the data: after FLUSHALL, or a restart
// without persistence, it begins at 1, and the resource refuses everybody until it
// has caught up. Right: at least the server's time, which goes on.
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

// The counter outlives the lock, but not for long: it expires when the key has not been
// used for an hour, or a sweeper removes it, and the numbers begin anew. Right: a number
// that does not depend on what was kept, such as the time.
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

// An attempt by the holder is the next grant, but its number is that of the last + 1:
// one that a process has given to one of its goroutines already. Right: as far from the
// last as that of any other grant.
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

// Each lock has a counter of its own, which stays when the lock is gone. Where locks are
// named after orders there are soon as many counters as there ever were orders. Right:
// a counter for many locks, or one that expires, and the time beside it.
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

// The counters of keys that are not in use are kept in a cache of limited size. A key that
// rested while a thousand others came and went begins anew. Right: one counter for all
// keys, or for as many as there is room for.
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

// The number is the time, as with all the others, but in milliseconds: a lock that is taken
// more than 125 times in a second runs ahead of the clock, and when everything is lost, its
// numbers fall. Right: a unit that is finer than the pace of the grants.
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

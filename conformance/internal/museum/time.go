package museum

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// A TTL that is cut to whole seconds ends before its holder thinks so. Right:
// milliseconds.
type wholeSeconds struct{ lock }

func (l *wholeSeconds) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, key, token, max(ttl.Truncate(time.Second), time.Second))
}

// A TTL of less than the unit of the command becomes 0, and EXPIRE with 0 deletes
// the key, and reports success. Libraries that send milliseconds do so below one;
// this one sends seconds. Right: refuse such a TTL, or round it up.
type expiresAtOnce struct{ lock }

func (l *expiresAtOnce) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	seconds := int(ttl.Seconds())
	return eval(ctx, l.conn, func(d *db) bool {
		return d.get(key) == token && d.pExpire(key, time.Duration(seconds)*time.Second)
	})
}

// The client says at what time the key is to expire, by its own clock (PXAT). If
// that is behind the server's, the lock is gone early, or at once, and the client
// believes that it has it. Right: the client says how long (PX), and the server
// has the only clock.
type wallClock struct{ lock }

func (l *wallClock) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	at := time.Now().Add(-l.lag).Add(ttl)
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		return d.try(key, token, max(time.Until(at), 1)) // PXAT: gone at once if that has passed
	})
}

// An attempt by the token that holds already sets the TTL that it was given. If it
// is an earlier one that arrives late, it cuts the lease. Right: the longer of what
// is left and what is asked for.
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

// TTLs are kept as 32 bits of milliseconds, which end after 24 days: a lease of a month
// has ended before it began. Right: 64 bits.
type shortInteger struct{ lock }

func (l *shortInteger) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	ttl = time.Duration(int32(ttl.Milliseconds())) * time.Millisecond
	return l.lock.TryAcquire(ctx, key, token, ttl)
}

// A timer ends each lease, and is not stopped by a release. If the token takes the key
// again, it ends that lease, too early. Right: compare the time with the end of the
// lease that there is.
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

// What remains is counted from what was asked for last, even if the lease is longer.
// Whoever reads it comes too early, or takes a holder for dead. Right: the end of the
// lease, less the time.
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

// Leases are in a wheel of timers that turns every 10 ms, and end with the last tick
// before their time, not the first after it. Right: no lease ends early; round up.
type ticks struct{ lock }

func (l *ticks) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const tick = 10 * time.Millisecond
	return l.lock.TryAcquire(ctx, key, token, max(ttl.Truncate(tick), tick))
}

// When there are many keys, those are removed whose lease has ended: the one that was
// granted, whatever renewals have made of it. Right: by the end that counts for
// everything else.
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

// A refusal tells the TTL that the holder was granted, as if no time had passed since.
// Right: what is left.
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

// Who holds the key is asked with one command, and for how long with another. If it
// passes on between the two, the one is told with the time of the other. Right: ask
// for both at once.
type readsTwice struct{ lock }

func (l *readsTwice) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	token, err := l.get(ctx, key)
	if err != nil || token == "" {
		return dlock.Hold{}, err
	}
	rest, err := eval(ctx, l.conn, func(d *db) time.Duration { return d.pTTL(key) })
	return dlock.Hold{Held: true, Token: token, Remaining: rest}, err
}

// Rows that nobody has cleaned away are removed by the store, a day after the lease was to
// end. Renewals do not move that day: a leader that renews for longer loses its row, and
// another takes the lock. Right: whatever prolongs the lease prolongs its row.
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

// Each call first removes leases that have ended, a hundred at most, lest it take long. What
// is left counts as held. When a thousand leases have ended at once, those who come next
// are refused. Right: what has ended has ended, whether it is removed or not.
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

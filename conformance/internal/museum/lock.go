package museum

import (
	"context"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

// A lock is right: the key holds the token of the holder, with the TTL, and each
// operation is one script, which checks and acts in one step.
type lock struct{ conn }

func (l *lock) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt { return d.try(key, token, ttl) })
}

func (l *lock) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.renew(key, token, ttl) })
}

func (l *lock) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.get(key) == token && d.del(key) })
}

func (l *lock) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.each(ctx, batch, (*db).renew)
}

// each renews the elements of a batch, one after the other, in one script.
func (l *lock) each(ctx context.Context, batch []dlock.Renewal, renew func(d *db, key, token string, ttl time.Duration) bool) ([]dlock.RenewResult, error) {
	return eval(ctx, l.conn, func(d *db) []dlock.RenewResult {
		results := make([]dlock.RenewResult, len(batch))
		for i, r := range batch {
			results[i].Held = renew(d, r.Key, r.Token, r.TTL)
		}
		return results
	})
}

func (l *lock) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Hold { return d.hold(key) })
}

func (d *db) hold(key string) dlock.Hold {
	token := d.get(key)
	return dlock.Hold{Held: token != "", Token: token, Remaining: d.pTTL(key)}
}

// try grants a free key, or one that token holds already: then what is left of the
// lease becomes the longer of what it was and ttl.
func (d *db) try(key, token string, ttl time.Duration) dlock.Attempt {
	holder, rest := d.get(key), d.pTTL(key)
	if holder != "" && holder != token {
		return dlock.Attempt{Holder: holder, Remaining: rest}
	}
	d.set(key, token, max(ttl, rest))
	return dlock.Attempt{Acquired: true, Fence: d.fence()}
}

// renew prolongs a lease, and never shortens it.
func (d *db) renew(key, token string, ttl time.Duration) bool {
	return d.get(key) == token && d.pExpire(key, max(ttl, d.pTTL(key)))
}

// numbers is how many numbers a fence leaves for its holder.
const numbers = 8

// fence numbers a grant in the script that makes it. The number is the time,
// unless that stands still, so that it rises even after the data was lost.
func (d *db) fence() int64 {
	last, _ := strconv.ParseInt(d.get("fence"), 10, 64)
	next := max(last+numbers, time.Now().UnixMicro())
	d.set("fence", strconv.FormatInt(next, 10), forever)
	return next
}

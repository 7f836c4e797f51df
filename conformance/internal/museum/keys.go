package museum

import (
	"context"
	"hash/crc32"
	"maps"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

// The store's locks are numbers, so a key is hashed to one of 32 bits: plumless and
// buckeroo are the same lock. Right: the key itself, or a hash that has no collisions.
type hashedKeys struct{ lock }

func number(key string) string { return strconv.Itoa(int(crc32.ChecksumIEEE([]byte(key)))) }

func (l *hashedKeys) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, number(key), token, ttl)
}

func (l *hashedKeys) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.lock.Renew(ctx, number(key), token, ttl)
}

func (l *hashedKeys) Release(ctx context.Context, key, token string) (bool, error) {
	return l.lock.Release(ctx, number(key), token)
}

// Leases are found by the name key:token, and a:b:c is that of a and b:c as well as that of
// a:b and c. Right: a pair, or a name that tells where the key ends.
type joined struct{ lock }

func (l *joined) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if a.Acquired {
			d.set("lease "+key+":"+token, key, d.pTTL(key))
		}
		return a
	})
}

func (l *joined) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		name := "lease " + key + ":" + token
		key := d.get(name)
		return key != "" && d.renew(key, d.get(key), ttl) && d.pExpire(name, d.pTTL(key))
	})
}

// To see who holds a key, it is looked for as a pattern (KEYS, LIKE), and order-* is held
// as soon as any order is. Right: GET, or =.
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

// To look for a lock makes a record of it, which stays: a table fills up with the keys that
// somebody was curious about. Right: what reads does not write.
type getOrCreate struct{ lock }

func (l *getOrCreate) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	l.run(func(d *db) any { return d.set("record of "+key, "free", forever) })
	return l.lock.Inspect(ctx, key)
}

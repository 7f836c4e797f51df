package museum

import (
	"context"
	"encoding/json"
	"errors"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

var keys = []Exhibit{
	{Name: "joined", Cases: names{"KeyAndTokenApart"}, Also: names{"LateDuplicate", "NoLeaks", "RenewByStranger"}, build: onLock[joined]},
	{Name: "constant", Cases: names{"ReleaseByStranger"}, Also: mixedUp, build: onLock[constant]},
	{Name: "processName", Cases: names{"Exclusion"}, Also: mixedUp, build: onLock[processName]},
	{Name: "holderInJSON", Cases: names{"HolderIsTold"}, BeyondModel: true, build: onLock[holderInJSON]},
	{Name: "hashedKeys", Cases: names{"KeysAreIndependent"}, BeyondModel: true, build: stored(hashedKeys)},
	{Name: "validKeys", Cases: names{"KeysAreIndependent"}, build: stored(validKeys)},
	{Name: "foldedKeys", Cases: names{"KeysAreIndependent"}, build: stored(foldedKeys)},
	{Name: "trimmedKeys", Cases: names{"KeysAreIndependent"}, build: stored(trimmedKeys)},
	{Name: "cKeys", Cases: names{"KeysAreIndependent"}, build: stored(cKeys)},
	{Name: "shortKeys", Cases: names{"KeysAreIndependent"}, build: stored(shortKeys)},
	{Name: "hashTags", Cases: names{"KeysAreIndependent"}, build: stored(hashTags)},
	{Name: "prefixes", Cases: names{"TokensCompareWhole"}, build: comparing(prefixes)},
	{Name: "varchar", Cases: names{"TokensCompareWhole"}, BeyondModel: true, build: comparing(varchar)},
	{Name: "foldedTokens", Cases: names{"TokensCompareWhole"}, build: comparing(foldedTokens)},
	{Name: "cTokens", Cases: names{"TokensCompareWhole"}, build: comparing(cTokens)},
}

// Leases are found by the name key:token, where a:b:c is a and b:c as well as a:b and c.
// Seen: a trial of the suite.
// Harm: a stranger renews the lease.
// Right: a pair, or a name that shows where the key ends.
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

// The value is always the same.
// Seen: a well-known recipe.
// Harm: everybody releases and renews everybody's lock.
// Right: a random token for each acquisition.
type constant struct{ lock }

func (l *constant) TryAcquire(ctx context.Context, key, _ string, ttl time.Duration) (dlock.Attempt, error) {
	ok, err := l.setNX(ctx, key, "locked", ttl)
	return dlock.Attempt{Acquired: ok}, err
}

func (l *constant) Renew(ctx context.Context, key, _ string, ttl time.Duration) (bool, error) {
	return l.lock.Renew(ctx, key, "locked", ttl)
}

func (l *constant) Release(ctx context.Context, key, _ string) (bool, error) {
	return l.lock.Release(ctx, key, "locked")
}

// The token is the name of the process.
// Seen: a well-known recipe.
// Harm: two goroutines of one process hold the lock at once.
// Right: a token for each acquisition.
type processName struct{ lock }

func (l *processName) TryAcquire(ctx context.Context, key, _ string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, key, l.name, ttl)
}

func (l *processName) Renew(ctx context.Context, key, _ string, ttl time.Duration) (bool, error) {
	return l.lock.Renew(ctx, key, l.name, ttl)
}

func (l *processName) Release(ctx context.Context, key, _ string) (bool, error) {
	return l.lock.Release(ctx, key, l.name)
}

// A refusal names the holder in JSON, where bytes that are not UTF-8 become U+FFFD.
// Seen: a trial of the suite.
// Harm: the label of an owner is wrong, and no token matches.
// Right: the bytes, or no holder.
type holderInJSON struct{ lock }

func (l *holderInJSON) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	text, _ := json.Marshal(a.Holder) // cannot fail
	return a, errors.Join(err, json.Unmarshal(text, &a.Holder))
}

// A renamed is a queue that stores keys under other names.
type renamed struct {
	dlock.Forward
	name func(key string) string
}

func stored(name func(string) string) func(conn) dlock.Locker {
	return func(c conn) dlock.Locker { return &renamed{forward(c), name} }
}

func (r *renamed) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return r.Forward.TryAcquire(ctx, r.name(key), token, ttl)
}

func (r *renamed) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return r.Forward.Acquire(ctx, r.name(key), token, ttl)
}

func (r *renamed) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return r.Forward.Renew(ctx, r.name(key), token, ttl)
}

func (r *renamed) Release(ctx context.Context, key, token string) (bool, error) {
	return r.Forward.Release(ctx, r.name(key), token)
}

func (r *renamed) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	named := slices.Clone(batch)
	for i, b := range batch {
		named[i].Key = r.name(b.Key)
	}
	return r.Forward.RenewBatch(ctx, named)
}

func (r *renamed) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return r.Forward.Inspect(ctx, r.name(key))
}

// A key is hashed to 32 bits: plumless and buckeroo are the same lock.
// Seen: advisory locks on the CRC-32 of a name.
// Harm: clients that lock one key wait for another, now and then.
// Right: the key itself, or a hash without collisions.
func hashedKeys(key string) string { return strconv.Itoa(int(crc32.ChecksumIEEE([]byte(key)))) }

// Bytes of a key that are not UTF-8 are replaced on the way to the store, as
// encoding/json does.
// Seen: a trial of the suite.
// Harm: two keys become one.
// Right: keys are bytes.
func validKeys(key string) string { return strings.ToValidUTF8(key, "\ufffd") }

// Upper and lower case are the same in a key, as in the default collation of MySQL.
// Seen: made for its case.
// Harm: two keys become one.
// Right: keys are bytes.
func foldedKeys(key string) string { return strings.ToLower(key) }

// Space around a key is removed.
// Seen: made for its case.
// Harm: two keys become one.
// Right: keys are bytes.
func trimmedKeys(key string) string { return strings.TrimSpace(key) }

// A key ends at NUL, as strings do in C.
// Seen: made for its case.
// Harm: two keys become one.
// Right: keys are bytes.
func cKeys(key string) string {
	key, _, _ = strings.Cut(key, "\x00")
	return key
}

// The column for the key has 255 bytes, and the database cuts longer ones silently.
// Seen: made for its case.
// Harm: two keys become one.
// Right: refuse a longer key, or keep all of it.
func shortKeys(key string) string { return key[:min(len(key), 255)] }

// Only the part of a key in braces counts, as for the slot in Redis Cluster.
// Seen: made for its case.
// Harm: all keys of one slot become one.
// Right: the part in braces for the slot, the key for the lock.
func hashTags(key string) string {
	if _, tag, ok := strings.Cut(key, "{"); ok && strings.Contains(tag, "}") && tag[0] != '}' {
		key, _, _ = strings.Cut(tag, "}")
	}
	return key
}

// A comparer is a lock that compares tokens in its own way.
type comparer struct {
	lock
	same func(holder, token string) bool
}

func comparing(same func(holder, token string) bool) func(conn) dlock.Locker {
	return func(c conn) dlock.Locker { return &comparer{lock{c}, same} }
}

// holder is the holder of key, if token is the same, and token otherwise.
func (l *comparer) holder(d *db, key, token string) string {
	if holder := d.get(key); holder != "" && l.same(holder, token) {
		return holder
	}
	return token
}

func (l *comparer) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt { return d.try(key, l.holder(d, key, token), ttl) })
}

func (l *comparer) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.renew(key, l.holder(d, key, token), ttl) })
}

func (l *comparer) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool { return d.get(key) == l.holder(d, key, token) && d.del(key) })
}

// The value is the token and a comment; only as many bytes are compared as the caller's
// token has.
// Seen: in the source of bsm/redislock, with custom tokens.
// Harm: user-1 takes the lock of user-10.
// Right: compare all of it.
func prefixes(holder, token string) bool { return strings.HasPrefix(holder, token) }

// The column for the token has 255 bytes, and the database cuts longer ones silently.
// Seen: a trial of the suite.
// Harm: a stranger releases the lock.
// Right: refuse a longer token, or keep all of it.
func varchar(holder, token string) bool { return shortKeys(holder) == shortKeys(token) }

// Upper and lower case are the same in a token, as in the default collation of MySQL.
// Seen: made for its case.
// Harm: a stranger releases the lock.
// Right: tokens are bytes.
func foldedTokens(holder, token string) bool { return strings.EqualFold(holder, token) }

// A token ends at NUL, as strings do in C.
// Seen: made for its case.
// Harm: a stranger releases the lock.
// Right: tokens are bytes.
func cTokens(holder, token string) bool { return cKeys(holder) == cKeys(token) }

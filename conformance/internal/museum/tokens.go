package museum

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// The value is the token and a comment, and an attempt compares only as many bytes
// as its own token has: that of user-1 takes the lock of user-10. Right: compare
// all of it.
type prefixes struct{ lock }

func (l *prefixes) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, l.conn, func(d *db) dlock.Attempt {
		if holder := d.get(key); strings.HasPrefix(holder, token) {
			d.set(key, token, max(ttl, d.pTTL(key)))
			return dlock.Attempt{Acquired: true, Fence: d.fence()}
		}
		return d.try(key, token, ttl)
	})
}

// The value is always the same, so nobody can tell whose lock it is, and every
// release is one by the holder. Right: a random token for each acquisition.
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

// The token is the name of the process, and the attempt of a token that holds
// already succeeds: so it does for every goroutine of that process. Right: a token
// for each acquisition.
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

// The column for the token has 255 bytes, and the database cuts what is longer, in
// silence. Right: refuse it, or keep all of it.
type varchar struct{ lock }

func column(token string) string { return token[:min(len(token), 255)] }

func (l *varchar) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, key, column(token), ttl)
}

func (l *varchar) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.lock.Renew(ctx, key, column(token), ttl)
}

func (l *varchar) Release(ctx context.Context, key, token string) (bool, error) {
	return l.lock.Release(ctx, key, column(token))
}

// What is not UTF-8 in a key is replaced on the way to the store, as encoding/json does:
// two keys become one. Right: keys are bytes.
type validKeys struct{ lock }

func valid(key string) string { return strings.ToValidUTF8(key, "\ufffd") }

func (l *validKeys) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return l.lock.TryAcquire(ctx, valid(key), token, ttl)
}

func (l *validKeys) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.lock.Renew(ctx, valid(key), token, ttl)
}

func (l *validKeys) Release(ctx context.Context, key, token string) (bool, error) {
	return l.lock.Release(ctx, valid(key), token)
}

// A refusal tells the holder in JSON, where what is not UTF-8 in a token becomes U+FFFD.
// Right: the bytes, or no holder.
type holderInJSON struct{ lock }

func (l *holderInJSON) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.lock.TryAcquire(ctx, key, token, ttl)
	text, _ := json.Marshal(a.Holder) // cannot fail
	return a, errors.Join(err, json.Unmarshal(text, &a.Holder))
}

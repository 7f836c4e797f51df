package museum

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

var batches = []Exhibit{
	{Name: "firstOfTheBatch", Cases: names{"BatchRenewsAsRenew"}, build: onLock[firstOfTheBatch]},
	{Name: "lastOfTheBatch", Cases: names{"BatchRenewsAsRenew"}, build: onLock[lastOfTheBatch]},
	{Name: "oneTTL", Cases: names{"BatchRenewsAsRenew"}, build: onLock[oneTTL]},
	{Name: "dropsTheTail", Cases: names{"BatchOfAnySize"}, BeyondModel: true, build: onLock[dropsTheTail]},
	{Name: "reusesResults", Cases: names{"BatchIsTheCallers"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &reusesResults{lock: lock{c}} }},
	{Name: "rowByRow", Cases: names{"BatchesCross"}, BeyondModel: true, build: onLock[rowByRow]},
	{Name: "unprocessed", Cases: names{"BatchesCross"}, BeyondModel: true, build: onLock[unprocessed]},
	{Name: "shiftsResults", Cases: names{"BatchKeepsOrder"}, BeyondModel: true, build: onLock[shiftsResults]},
	{Name: "refusesNothing", Cases: names{"BatchKeepsOrder"}, build: onLock[refusesNothing]},
	{Name: "stopsAtAStranger", Cases: names{"BatchKeepsOrder"}, Also: names{"BatchRenewsAsRenew"}, build: onLock[stopsAtAStranger]},
	{Name: "answersBackwards", Cases: names{"BatchKeepsOrder"}, Also: names{"BatchRenewsAsRenew"}, build: onLock[answersBackwards]},
	{Name: "resultsByKey", Cases: names{"BatchKeepsOrder"}, Also: names{"BatchRenewsAsRenew"}, build: onLock[resultsByKey]},
	{Name: "batchShortens", Cases: names{"BatchRenewsAsRenew", "LateDuplicate"}, Network: says{"LateDuplicateOverNetwork": `must still hold the key`}, build: onLock[batchShortens]},
	{Name: "batchOnlyLooks", Cases: names{"BatchRenewsAsRenew"}, build: onLock[batchOnlyLooks]},
	{Name: "batchExtendsAny", Cases: names{"BatchRenewsAsRenew"}, Network: says{"LateDuplicateOverNetwork": `want it to be acquired`}, build: onLock[batchExtendsAny]},
	{Name: "batchRevives", Cases: names{"BatchRenewsAsRenew", "LateDuplicate"}, Network: says{"LateDuplicateOverNetwork": `want it to be acquired`}, build: onLock[batchRevives]},
}

// If a lease appears several times in a batch, the first renewal counts.
// Seen: a trial of the suite.
// Harm: the lease ends before its holder thinks that it does.
// Right: the longest counts.
type firstOfTheBatch struct{ lock }

func (l *firstOfTheBatch) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	done := make(map[dlock.Renewal]bool)
	return l.each(ctx, batch, func(d *db, key, token string, ttl time.Duration) bool {
		lease := dlock.Renewal{Key: key, Token: token}
		if _, ok := done[lease]; !ok {
			done[lease] = d.renew(key, token, ttl)
		}
		return done[lease]
	})
}

// A batch is made a map by key and token: if a lease appears several times, the last
// renewal counts.
// Seen: a trial of the suite.
// Harm: the lease ends before its holder thinks that it does.
// Right: the longest counts.
type lastOfTheBatch struct{ lock }

func (l *lastOfTheBatch) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	last := make(map[dlock.Renewal]time.Duration)
	for _, r := range batch {
		last[dlock.Renewal{Key: r.Key, Token: r.Token}] = r.TTL
	}
	return l.each(ctx, batch, func(d *db, key, token string, _ time.Duration) bool {
		return d.renew(key, token, last[dlock.Renewal{Key: key, Token: token}])
	})
}

// One statement renews the whole batch with the TTL of its first element: UPDATE … SET
// until = now() + $1 WHERE key = ANY($2).
// Seen: a trial of the suite.
// Harm: leases end before their holders think that they do, or long after the holders
// have died.
// Right: each with its own TTL.
type oneTTL struct{ lock }

func (l *oneTTL) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.each(ctx, batch, func(d *db, key, token string, _ time.Duration) bool {
		return d.renew(key, token, batch[0].TTL)
	})
}

// A large batch is sent in pieces of 100, and the remainder is forgotten.
// Seen: a trial of the suite.
// Harm: a lease that is held is reported as lost, and ends.
// Right: send the last piece as well, however small (slices.Chunk).
type dropsTheTail struct{ lock }

func (l *dropsTheTail) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	const piece = 100
	n := len(batch)
	if n > piece {
		n -= n % piece
	}
	results, err := l.lock.RenewBatch(ctx, batch[:n])
	return append(results, make([]dlock.RenewResult, len(batch)-n)...), err
}

// The results are in a buffer of the client, which its next batch overwrites.
// Seen: a trial of the suite.
// Harm: a holder whose lease is lost goes on.
// Right: results that nobody else has.
type reusesResults struct {
	lock
	buffer []dlock.RenewResult
}

func (l *reusesResults) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := l.lock.RenewBatch(ctx, batch)
	l.buffer = append(l.buffer[:0], results...)
	return l.buffer, err
}

// A batch locks its rows in the order in which it was given. Two batches that share rows
// deadlock, and the database ends one of them.
// Seen: a trial of the suite.
// Harm: renewals fail under load.
// Right: lock the rows in the order of the keys, or one at a time.
type rowByRow struct{ lock }

var errDeadlock = errors.New("deadlock detected")

func (l *rowByRow) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	transaction := rand.Text()
	defer l.run(func(d *db) any {
		for _, r := range batch {
			if d.get("row of "+r.Key) == transaction {
				d.del("row of " + r.Key)
			}
		}
		return nil
	})
	for _, r := range batch {
		if err := l.lockRow(ctx, "row of "+r.Key, transaction); err != nil {
			return nil, err
		}
	}
	return l.lock.RenewBatch(ctx, batch)
}

func (l *rowByRow) lockRow(ctx context.Context, row, transaction string) error {
	for range 1000 {
		ok, err := eval(ctx, l.conn, func(d *db) bool {
			by := d.get(row)
			return by == transaction || by == "" && d.set(row, transaction, forever)
		})
		if ok || err != nil {
			return err
		}
	}
	return errDeadlock
}

// A busy store does a part of a batch and hands back the remainder, which the client
// reports as renewed.
// Seen: a trial of the suite.
// Harm: leases end in which their holders believe.
// Right: send again what was handed back.
type unprocessed struct{ lock }

func (l *unprocessed) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	const capacity = 20
	busy := l.run(func(d *db) any { return d.incrBy("batches", 1) > 1 }).(bool)
	defer l.run(func(d *db) any { return d.incrBy("batches", -1) })
	if !busy || len(batch) <= capacity {
		return l.lock.RenewBatch(ctx, batch)
	}
	results, err := l.lock.RenewBatch(ctx, batch[:capacity])
	for range batch[capacity:] {
		results = append(results, dlock.RenewResult{Held: true})
	}
	return results, err
}

// Elements that are refused are not sent, and the answers to the others are not put back
// in their places.
// Seen: a trial of the suite.
// Harm: leases that are held are reported as lost.
// Right: remember the place of each element that is sent.
type shiftsResults struct{ lock }

func (l *shiftsResults) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	var sent []dlock.Renewal
	for _, r := range batch {
		if r.Key != "" && r.Token != "" && r.TTL > 0 {
			sent = append(sent, r)
		}
	}
	results := make([]dlock.RenewResult, len(batch))
	answers, err := l.lock.RenewBatch(ctx, sent)
	copy(results, answers)
	return results, err
}

// An empty batch is an error.
// Seen: made for its case.
// Harm: a client that has nothing to renew takes the store for broken.
// Right: no results.
type refusesNothing struct{ lock }

func (l *refusesNothing) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if len(batch) == 0 {
		return nil, errors.New("nothing to do")
	}
	return l.lock.RenewBatch(ctx, batch)
}

// A batch stops at the first element that is not held.
// Seen: made for its case.
// Harm: the leases behind it are reported as lost, and end.
// Right: renew each, whatever became of the others.
type stopsAtAStranger struct{ lock }

func (l *stopsAtAStranger) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	stopped := false
	return l.each(ctx, batch, func(d *db, key, token string, ttl time.Duration) bool {
		stopped = stopped || !d.renew(key, token, ttl)
		return !stopped
	})
}

// The results are in the reverse order of the batch.
// Seen: made for its case.
// Harm: leases that are held are reported as lost, and lost ones as held.
// Right: the order of the batch.
type answersBackwards struct{ lock }

func (l *answersBackwards) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := l.lock.RenewBatch(ctx, batch)
	slices.Reverse(results)
	return results, err
}

// The results are made a map by key: renewals of one key by several tokens have the
// result of the last.
// Seen: made for its case.
// Harm: a lease that is held is reported as lost.
// Right: one result for each element.
type resultsByKey struct{ lock }

func (l *resultsByKey) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := l.lock.RenewBatch(ctx, batch)
	last := make(map[string]dlock.RenewResult)
	for i, result := range results {
		last[batch[i].Key] = result
	}
	for i := range results {
		results[i] = last[batch[i].Key]
	}
	return results, err
}

// A batch sets the TTLs that it was given, even if the leases last longer.
// Seen: a well-known recipe.
// Harm: a batch that arrives late cuts leases in which their holders believe.
// Right: the longer of the remaining TTL and the new one.
type batchShortens struct{ lock }

func (l *batchShortens) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.each(ctx, batch, func(d *db, key, token string, ttl time.Duration) bool {
		return d.get(key) == token && d.pExpire(key, ttl)
	})
}

// A batch compares the tokens, and sets no TTL.
// Seen: made for its case.
// Harm: leases end in which their holders believe.
// Right: compare the token and set the TTL in one script.
type batchOnlyLooks struct{ lock }

func (l *batchOnlyLooks) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.each(ctx, batch, func(d *db, key, token string, _ time.Duration) bool { return d.get(key) == token })
}

// A batch sets the TTLs of its keys, whoever holds them.
// Seen: a well-known recipe.
// Harm: the lease of another holder, which may be dead, is prolonged.
// Right: compare the token and set the TTL in one script.
type batchExtendsAny struct{ lock }

func (l *batchExtendsAny) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.each(ctx, batch, func(d *db, key, token string, ttl time.Duration) bool {
		d.pExpire(key, max(ttl, d.pTTL(key)))
		return d.get(key) == token
	})
}

// A batch is an upsert: if there is no row it adds one, and reports that it updated none.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: UPDATE … WHERE.
type batchRevives struct{ lock }

func (l *batchRevives) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return l.each(ctx, batch, func(d *db, key, token string, ttl time.Duration) bool {
		return d.renew(key, token, ttl) || d.get(key) == "" && !d.set(key, token, ttl)
	})
}

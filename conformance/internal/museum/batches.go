package museum

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
)

// A batch is made a map, by key and token: of several renewals of one lease, the last is
// left. Right: the longest counts.
type lastOfTheBatch struct{ lock }

func (l *lastOfTheBatch) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return eval(ctx, l.conn, func(d *db) []dlock.RenewResult {
		last := make(map[dlock.Renewal]time.Duration)
		for _, r := range batch {
			last[dlock.Renewal{Key: r.Key, Token: r.Token}] = r.TTL
		}
		results := make([]dlock.RenewResult, len(batch))
		for i, r := range batch {
			results[i].Held = d.renew(r.Key, r.Token, last[dlock.Renewal{Key: r.Key, Token: r.Token}])
		}
		return results
	})
}

// One statement renews all of a batch, with one TTL: UPDATE … SET until = now() + $1 WHERE
// key = ANY($2). Right: each with its own.
type oneTTL struct{ lock }

func (l *oneTTL) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	same := make([]dlock.Renewal, len(batch))
	for i, r := range batch {
		same[i] = dlock.Renewal{Key: r.Key, Token: r.Token, TTL: batch[0].TTL}
	}
	return l.lock.RenewBatch(ctx, same)
}

// A large batch is sent in pieces of 100, and what is left for the last is forgotten.
// Right: the last piece is sent as well, however small (slices.Chunk).
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

// The results are in a buffer of the client, which its next batch writes over: renewals
// of others are taken for one's own. Right: results that nobody else has.
type reusesResults struct {
	lock
	buffer []dlock.RenewResult
}

func (l *reusesResults) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	results, err := l.lock.RenewBatch(ctx, batch)
	l.buffer = append(l.buffer[:0], results...)
	return l.buffer, err
}

// A batch locks its rows in its own order. Two that have rows in common, in different
// orders, wait for each other, until the database ends one of them: none of its leases is
// renewed. Right: lock the rows in one order, that of the keys, or one at a time.
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

// A busy store does a part of a batch, and hands back what it has not done. That is
// dropped: the client calls it renewed. Right: send again what was handed back.
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

// Elements that are refused are not sent, and the answers to the others are written down one
// after the other: each at the place of an earlier one. Right: with each that is sent, where
// it stood.
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

package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/lanes"
)

// A call is what dlock_call of schema.sql takes.
type call struct {
	op         string
	key, token string
	ttl        time.Duration
	box        int64 // the inbox of the process; 0 for none
	number     int64 // of the wait there
	ticket     int64 // that the token had; 0 for none
	patience   time.Duration
}

const (
	attempt = "A"
	enqueue = "Q"
	checkIn = "C"
	renew   = "N"
	release = "R"
	inspect = "I"
)

// A result is what it answers. Times of the server are in µs.
type result struct {
	err          error
	sent         time.Time
	verdict      int
	fence        int64
	holder       []byte
	remaining    int64
	since, clock int64 // clock is when it answered
	ticket       int64
	ahead        int // in the queue, at most 3; of inspect, all who wait
}

const (
	no = iota
	yes
	found
	waiting
	missing
)

func (r *result) attempt() dlock.Attempt {
	switch {
	case r.verdict == yes:
		return dlock.Attempt{Acquired: true, Fence: r.fence}
	case len(r.holder) == 0:
		return dlock.Attempt{}
	}
	return dlock.Attempt{Holder: string(r.holder), Remaining: micros(r.remaining), HeldSince: time.UnixMicro(r.since)}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func (c call) rank() lanes.Rank {
	switch c.op {
	case renew:
		return lanes.Urgent
	case release:
		return lanes.Ending
	}
	return lanes.Other
}

// do makes a call, together with others that are made at the same time.
func (l *Locker) do(ctx context.Context, c call) (result, error) {
	if err := ctx.Err(); err != nil {
		return result{}, err
	}
	if err := l.check(c); err != nil {
		return result{}, err
	}
	r := l.lanes.Do(ctx, c)
	return r, r.err
}

const statement = `SELECT r.* FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
	WITH ORDINALITY AS c (op, key, token, ttl, box, num, ticket, patience, n), dlock_call(c.op::"char", c.key, c.token, c.ttl, c.box, c.num, c.ticket, c.patience,
		CASE WHEN c.n = cardinality($1::text[]) THEN 2 * c.n END) AS r`

// send makes calls in one statement, which commits by itself. They are in the order of their keys: so no two statements
// wait for each other.
func (l *Locker) send(ctx context.Context, calls []call, results []result) {
	order := make([]int, len(calls))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(calls[i].key, calls[j].key) })
	n := len(calls)
	ops, keys, tokens := make([]string, n), make([][]byte, n), make([][]byte, n)
	ttls, boxes, numbers, tickets, patience := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]*int64, n)
	for at, i := range order {
		c := &calls[i]
		ops[at], keys[at], tokens[at], ttls[at] = c.op, []byte(c.key), []byte(c.token), c.ttl.Milliseconds()
		boxes[at], numbers[at], tickets[at] = c.box, c.number, c.ticket
		if c.patience > 0 {
			ms := c.patience.Milliseconds()
			patience[at] = &ms
		}
	}
	sent, at := time.Now(), 0
	err := l.query(ctx, l.statement, func(rows pgx.Rows) error {
		r := &results[order[at]]
		at++
		return rows.Scan(&r.verdict, &r.fence, &r.holder, &r.remaining, &r.since, &r.clock, &r.ticket, &r.ahead)
	}, ops, keys, tokens, ttls, boxes, numbers, tickets, patience)
	for i := range results {
		if err != nil { // which takes back what the calls before it answered
			results[i] = result{err: err}
		}
		results[i].sent = sent
	}
}

// query makes a statement that commits by itself, and calls scan for each row. If the database, or a pooler before it, needs
// the statement in another form, that is made, and remembered.
func (l *Locker) query(ctx context.Context, sql string, scan func(pgx.Rows) error, args ...any) error {
	for {
		form := form(l.form.Load())
		err := l.db.with(ctx, func(c *pgx.Conn) error {
			err := form.query(ctx, c, sql, scan, args)
			if code(err) == readOnly { // the pool is to dial again: another server may be the primary by now
				_ = c.Close(ctx)
			}
			return err
		})
		needs := form | needed[code(err)]
		if needs == form {
			return outcome(err)
		}
		l.form.Store(int32(needs))
	}
}

// A form is how a statement is sent.
type form int32

const (
	unprepared  form = 1 << iota // a pooler gives each transaction another session
	transaction                  // as the default isolation is not read committed
)

// needed says which form the server asks for with an error before it has done anything.
var needed = map[string]form{"26000": unprepared, "42P05": unprepared, "DL001": transaction}

// begin has the server end the session if this host is lost before it commits: nobody else would soon unlock the rows.
const begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '3s'"

func (f form) query(ctx context.Context, c *pgx.Conn, sql string, scan func(pgx.Rows) error, args []any) error {
	run := func(query func(context.Context, string, ...any) (pgx.Rows, error)) error {
		if f&unprepared != 0 { // and answers in binary: text depends on bytea_output
			args = append([]any{pgx.QueryExecModeCacheDescribe}, args...)
		}
		rows, err := query(ctx, sql, args...)
		return each(rows, err, scan)
	}
	switch f {
	case transaction:
		var all pgx.Batch // in one round trip
		all.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
		all.Queue(sql, args...).Query(func(rows pgx.Rows) error { return each(rows, nil, scan) })
		all.Queue("COMMIT")
		return c.SendBatch(ctx, &all).Close()
	case transaction | unprepared: // pgx prepares batches
		return pgx.BeginTxFunc(ctx, c, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error { return run(tx.Query) })
	}
	return run(c.Query)
}

func each(rows pgx.Rows, err error, scan func(pgx.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// cut is the result of a call that was not sent, or whose ctx has ended since.
func cut(err error, late func(func(result))) result {
	if late == nil {
		return result{err: &dlock.NoEffectError{Err: err}}
	}
	return result{err: &dlock.UnansweredError{Err: err, Late: func(f func(dlock.Attempt, error)) {
		late(func(r result) { f(r.attempt(), r.err) })
	}}}
}

// outcome marks the errors of calls that did not take effect and never will: those without a connection, those that the
// server refused before it did anything, and those whose transaction it has rolled back. A connection that broke says
// nothing of what was sent on it.
func outcome(err error) error {
	if err == nil {
		return nil
	}
	state := code(err)
	_, without := errors.AsType[*unsent](err)
	if !without && !pgconn.SafeToRetry(err) && !rolledBack(err) {
		return err
	}
	none := &dlock.NoEffectError{Err: err}
	if state != "" {
		none.Temporary = slices.Contains([]string{"40", "55", "57"}, state[:2]) || state == readOnly
		none.State = state[:2] == "53" // no memory, disk space or connection
	}
	return none
}

const readOnly = "25006" // on a standby, for instance

// code returns the SQLSTATE of an error, which is empty if it does not come from the server.
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && len(e.Code) == 5 {
		return e.Code
	}
	return ""
}

// rolledBack reports whether a statement that is a transaction of its own has no effect after this error. After what is FATAL
// or PANIC, it may have been committed: the session or the server was ended, or a pooler has lost it.
func rolledBack(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && cmp.Or(e.SeverityUnlocalized, e.Severity) == "ERROR" && code(err) != "" && e.Code[:2] != "08" && e.Code != "40003"
}

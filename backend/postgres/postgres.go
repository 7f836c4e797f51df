package postgres

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/lanes"
)

// A Locker keeps leases in a table. It implements [dlock.Locker], [dlock.Acquirer], [dlock.BatchRenewer],
// [dlock.SetAcquirer] and [dlock.Inspector]. All methods are safe for concurrent use.
type Locker struct {
	db        source
	table     string
	unqueued  bool
	onInbox   func(error)
	statement string
	form      atomic.Int32
	err       error // of all calls: a bad argument
	lanes     *lanes.Lanes[struct{}, call, result]
	post      post
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.Acquirer     = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.SetAcquirer  = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
)

// An Option changes how a [Locker] works.
type Option func(*Locker)

// WithTable names the table of leases, which may be preceded by a schema and a dot. Other names of schema.sql change
// likewise: its queue is in name_queue. Names are taken as they are written, in upper or lower case. The default is "dlock".
func WithTable(name string) Option { return func(l *Locker) { l.table = name } }

// WithQueue(false) has waiters ask again and again, in no order. Then the Locker opens no connection of its own.
func WithQueue(queue bool) Option { return func(l *Locker) { l.unqueued = !queue } }

// WithInboxError has f called when the Locker cannot be notified, with the reason; and with nil when it can again.
// Waiters poll meanwhile. f must not block, and must not close the Locker.
func WithInboxError(f func(error)) Option { return func(l *Locker) { l.onInbox = f } }

// New returns a Locker on the database of pool. Its calls use up to two connections of the pool at a time, two more while an
// answer is overdue, and one for each set. It opens another one for notifications while something waits. Bad arguments make its
// methods fail with [dlock.ErrInvalid].
func New(pool *pgxpool.Pool, opts ...Option) *Locker {
	return open(pgxSource{pool}, pool == nil, opts)
}

// NewSQL is New for a database that was opened with the driver github.com/jackc/pgx/v5/stdlib. The connection for
// notifications has the configuration of one of db. The hooks of stdlib.OpenDB do not see it: what they set for a session,
// such as search_path or a new password, belongs in the configuration.
func NewSQL(db *sql.DB, opts ...Option) *Locker {
	return open(sqlSource{db}, db == nil, opts)
}

func open(db source, none bool, opts []Option) *Locker {
	l := &Locker{db: db, table: "dlock"}
	if none {
		l.err = invalid("pool or db: nil")
	}
	for i, opt := range opts {
		if opt == nil {
			l.err = invalid("Option %d of %d: nil", i+1, len(opts))
			continue
		}
		opt(l)
	}
	if !validTable(l.table) {
		l.err = invalid("table %q: not one or two names of 1 to 40 bytes, without $$ and control characters", l.table)
	}
	l.statement = l.rename(statement)
	l.lanes = lanes.New(lanes.Settings[struct{}, call, result]{
		Send:   l.send,
		Route:  func(context.Context, call, bool) (r struct{}) { return r },
		Rank:   call.rank,
		Failed: func(r result) bool { return r.err != nil },
		Fail:   cut,
		Limit:  callLimit,
		Lanes:  2, MaxLanes: 2, MaxFlights: 4,
	})
	l.post.init(l)
	return l
}

//go:embed schema.sql
var schema string

var names = regexp.MustCompile(`\bdlock(_[a-z]+)?\b`) // not the prefix of channels

// rename changes the names of schema.sql, and quotes them.
func (l *Locker) rename(sql string) string {
	table := strings.ReplaceAll(strings.ReplaceAll(l.table, `"`, `""`), ".", `"."`)
	return names.ReplaceAllStringFunc(sql, func(name string) string {
		return `"` + table + strings.TrimPrefix(name, "dlock") + `"`
	})
}

// validTable refuses a name that PostgreSQL would cut, or that would end a function or a comment of schema.sql.
func validTable(name string) bool {
	parts := strings.Split(name, ".")
	wrong := func(part string) bool { return part == "" || len(part) > 40 }
	return len(parts) <= 2 && !slices.ContainsFunc(parts, wrong) && !strings.Contains(name, "$$") && !strings.ContainsFunc(name, unicode.IsControl)
}

// Schema returns the statements that the Locker needs to have been executed, for a migration. For the default table they
// are in the file schema.sql.
func (l *Locker) Schema() string { return l.rename(schema) }

// CreateTable executes the statements of Schema, unless the table is there. Several may call it at once.
func (l *Locker) CreateTable(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	return l.db.with(ctx, func(c *pgx.Conn) (failed error) {
		for {
			var exists bool
			err := c.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", pgx.QueryExecModeExec, l.rename("dlock")).Scan(&exists)
			switch {
			case err != nil || exists:
				return err
			case failed != nil:
				return failed
			}
			if _, failed = c.Exec(ctx, createLock+l.Schema(), pgx.QueryExecModeSimpleProtocol); code(failed) != "42P07" {
				return failed
			} // else another may have created it meanwhile
		}
	})
}

// createLock has those who create the same at once take turns. The number is one that others have no reason to lock: "dlock".
const createLock = "SELECT pg_advisory_xact_lock(431315968875);"

// TryAcquire implements [dlock.Locker].
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	r, err := l.do(ctx, call{op: attempt, key: key, token: token, ttl: ttl})
	return r.attempt(), err
}

// Renew implements [dlock.Locker].
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	r, err := l.do(ctx, call{op: renew, key: key, token: token, ttl: ttl})
	return r.verdict == yes, err
}

// Release implements [dlock.Locker]. If others wait, it gives the key to the next of them.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.post.release(ctx, key, token); err != nil {
		return false, err
	}
	r, err := l.do(ctx, call{op: release, key: key, token: token, ttl: time.Second})
	return r.verdict == yes, err
}

// Inspect implements [dlock.Inspector].
func (l *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	r, err := l.do(ctx, call{op: inspect, key: key, token: "-", ttl: time.Second})
	h := dlock.Hold{Held: r.verdict == yes, Token: string(r.holder), Remaining: micros(r.remaining), Waiting: r.ahead}
	if h.Held {
		h.Since = time.UnixMicro(r.since)
	}
	return h, err
}

// RenewBatch implements [dlock.BatchRenewer]. Batches are sent with other calls that are made at the same time.
func (l *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	results, calls, at := make([]dlock.RenewResult, len(batch)), make([]call, 0, len(batch)), make([]int, 0, len(batch))
	for i, r := range batch {
		c := call{op: renew, key: r.Key, token: r.Token, ttl: r.TTL}
		if results[i].Err = l.check(ctx, c); results[i].Err == nil {
			calls, at = append(calls, c), append(at, i)
		}
	}
	answers := make([]result, len(calls))
	l.lanes.DoAll(ctx, calls, answers)
	for n, r := range answers {
		results[at[n]] = dlock.RenewResult{Held: r.verdict == yes, Err: r.err}
	}
	return results, nil
}

// TryAcquireSet implements [dlock.SetAcquirer].
func (l *Locker) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	if len(set) == 0 {
		return nil, invalid("set: empty")
	}
	calls, seen := make([]call, len(set)), make(map[string]bool, len(set))
	for i, s := range set {
		calls[i] = call{op: attempt, key: s.Key, token: s.Token, ttl: s.TTL}
		if err := l.check(ctx, calls[i]); err != nil {
			return nil, err
		}
		if seen[s.Key] {
			return nil, invalid("set: key %q twice", s.Key)
		}
		seen[s.Key] = true
	}
	answers, err := l.query(ctx, l.rename("SELECT * FROM dlock_set($1, $2, $3)"), columns(calls)[1:4]...)
	if err != nil {
		return nil, err
	}
	attempts := make([]dlock.Attempt, len(set))
	for i, r := range answers {
		attempts[i] = r.attempt()
		attempts[i].Free = r.verdict == no && len(r.holder) == 0
	}
	return attempts, nil
}

// Close ends the waits in progress, with [dlock.ErrClosed], and closes the connection for notifications. Later calls fail
// with ErrClosed. Calls that nobody waits for any more are given up after a second. The pool belongs to who opened it.
func (l *Locker) Close() error {
	defer time.AfterFunc(time.Second, l.lanes.Cut).Stop()
	l.post.close()
	l.lanes.Close(dlock.ErrClosed)
	return nil
}

const callLimit = 10 * time.Second // without the ctx of a caller

// check refuses what the table could not hold or the statements would misread.
func (l *Locker) check(ctx context.Context, c call) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case l.err != nil:
		return l.err
	case c.key == "":
		return invalid("key: empty")
	case len(c.key) > 1024:
		return invalid("key of %d bytes: longer than 1024", len(c.key))
	case c.token == "":
		return invalid("token: empty")
	case c.op == enqueue && len(c.token) > 1024: // the index of the queue would refuse it, and all calls of the statement
		return invalid("token of %d bytes: longer than 1024", len(c.token))
	case c.ttl < time.Millisecond:
		return invalid("TTL %v: less than 1ms", c.ttl)
	case l.post.closed():
		return &dlock.NoEffectError{Err: dlock.ErrClosed}
	case c.op == enqueue && l.unqueued:
		return errors.ErrUnsupported
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("dlock/postgres: %w: %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}

// A source lends connections.
type source interface {
	// with calls f with a connection, which is closed afterwards if f was cut short.
	with(ctx context.Context, f func(*pgx.Conn) error) error
	// dial opens a connection that is not one of the pool.
	dial(ctx context.Context) (*pgx.Conn, error)
}

type pgxSource struct{ pool *pgxpool.Pool }

func (s pgxSource) with(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return notSent(err)
	}
	defer c.Release()
	return f(c.Conn())
}

func (s pgxSource) dial(ctx context.Context) (*pgx.Conn, error) {
	config := s.pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	c, err := connect(ctx, config.ConnConfig)
	if err == nil && config.AfterConnect != nil {
		if err = config.AfterConnect(ctx, c); err != nil {
			c.Close(ctx)
		}
	}
	return c, err
}

type sqlSource struct{ db *sql.DB }

func (s sqlSource) with(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return notSent(err)
	}
	defer c.Close()
	return c.Raw(func(driver any) error {
		d, ok := driver.(interface{ Conn() *pgx.Conn })
		if !ok {
			return invalid("db: a driver of type %T, not that of pgx/v5/stdlib", driver)
		}
		return f(d.Conn())
	})
}

func (s sqlSource) dial(ctx context.Context) (*pgx.Conn, error) {
	var config *pgx.ConnConfig
	if err := s.with(ctx, func(c *pgx.Conn) error { config = c.Config(); return nil }); err != nil {
		return nil, err
	}
	return connect(ctx, config)
}

// connect opens a connection whose notifications go to nobody else: neither to a handler of the user, nor to the
// connection whose configuration it is.
func connect(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	config.OnNotification = nil
	return pgx.ConnectConfig(ctx, config)
}

// notSent marks the error of a pool. Package database/sql does not export that of one that was closed.
func notSent(err error) error {
	if errors.Is(err, puddle.ErrClosedPool) || err.Error() == "sql: database is closed" {
		err = fmt.Errorf("%w: %w", dlock.ErrClosed, err)
	}
	return &dlock.NoEffectError{Err: err}
}

package postgres

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
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
func WithInboxError(f func(error)) Option {
	return func(l *Locker) {
		if f != nil {
			l.onInbox = f
		}
	}
}

// New returns a Locker on the database of pool. Its calls use up to two connections of the pool at a time, two more while an
// answer is overdue, and one for each set. It opens another one for notifications while something waits. Bad arguments make its
// methods fail with [dlock.ErrInvalid].
func New(pool *pgxpool.Pool, opts ...Option) *Locker {
	if pool == nil {
		return open(nil, "pool: nil", opts)
	}
	return open(pgxSource{pool}, "", opts)
}

// NewSQL is New for a database that was opened with the driver github.com/jackc/pgx/v5/stdlib. The connection for
// notifications has the configuration of one of db. The hooks of stdlib.OpenDB do not see it: what they set for a session,
// such as search_path or a new password, belongs in the configuration.
func NewSQL(db *sql.DB, opts ...Option) *Locker {
	if db == nil {
		return open(nil, "db: nil", opts)
	}
	return open(sqlSource{db}, "", opts)
}

func open(db source, bad string, opts []Option) *Locker {
	l := &Locker{db: db, table: "dlock", onInbox: func(error) {}}
	if bad != "" {
		l.err = invalid("%s", bad)
	}
	for i, opt := range opts {
		if opt == nil {
			l.err = invalid("Option %d of %d: nil", i+1, len(opts))
			continue
		}
		opt(l)
	}
	if err := l.checkTable(); err != nil {
		l.err = err
	}
	l.statement = l.rename(statement)
	l.lanes = lanes.New(lanes.Settings[struct{}, call, result]{
		Send:       l.send,
		Route:      func(context.Context, call, bool) (r struct{}) { return r },
		Rank:       call.rank,
		Failed:     func(r result) bool { return r.err != nil },
		Fail:       cut,
		Limit:      callLimit,
		Lanes:      2,
		MaxLanes:   2,
		MaxFlights: 4,
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

// checkTable refuses a name that PostgreSQL would cut, or that would end a function or a comment of schema.sql.
func (l *Locker) checkTable() error {
	parts := strings.Split(l.table, ".")
	if len(parts) > 2 {
		return invalid("table %q: more than a schema and a name", l.table)
	}
	for _, part := range parts {
		if n := len(part); n == 0 || n > 40 || strings.Contains(part, "$$") || strings.ContainsFunc(part, unicode.IsControl) {
			return invalid("table %q: a name of %d bytes, not 1 to 40, or with $$ or a control character", l.table, n)
		}
	}
	return nil
}

// Schema returns the statements that the Locker needs to have been executed, for a migration. For the default table they
// are in the file schema.sql.
func (l *Locker) Schema() string { return l.rename(schema) }

// CreateTable executes the statements of Schema, unless the table is there. Several may call it at once.
func (l *Locker) CreateTable(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	return l.db.with(ctx, func(c *pgx.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			var exists bool
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", pgx.QueryExecModeExec, int64(createLock)); err != nil {
				return err // IF NOT EXISTS alone fails if two create the same at once
			}
			if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", pgx.QueryExecModeExec, l.rename("dlock")).Scan(&exists); err != nil || exists {
				return err
			}
			_, err := tx.Exec(ctx, l.Schema(), pgx.QueryExecModeSimpleProtocol)
			return err
		})
	})
}

// createLock is any number that others have no reason to lock: "dlock".
const createLock = 0x64_6c_6f_63_6b

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
	h := dlock.Hold{Waiting: r.ahead}
	if r.verdict == yes {
		h = dlock.Hold{Held: true, Token: string(r.holder), Remaining: micros(r.remaining), Since: time.UnixMicro(r.since), Waiting: r.ahead}
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
		if results[i].Err = l.check(c); results[i].Err == nil {
			calls, at = append(calls, c), append(at, i)
		}
	}
	answers := make([]result, len(calls))
	if l.lanes.DoAll(ctx, calls, answers); len(calls) == 0 {
		return results, nil
	}
	for i, r := range answers {
		results[at[i]] = dlock.RenewResult{Held: r.verdict == yes, Err: r.err}
	}
	return results, nil
}

// TryAcquireSet implements [dlock.SetAcquirer].
func (l *Locker) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	if len(set) == 0 {
		return nil, &dlock.NoEffectError{Err: invalid("set: empty")}
	}
	keys, tokens, ttls := make([][]byte, len(set)), make([][]byte, len(set)), make([]int64, len(set))
	seen := make(map[string]bool, len(set))
	for i, s := range set {
		if err := l.check(call{op: attempt, key: s.Key, token: s.Token, ttl: s.TTL}); err != nil {
			return nil, err
		}
		if seen[s.Key] {
			return nil, &dlock.NoEffectError{Err: invalid("set: key %q twice", s.Key)}
		}
		seen[s.Key] = true
		keys[i], tokens[i], ttls[i] = []byte(s.Key), []byte(s.Token), s.TTL.Milliseconds()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	attempts := make([]dlock.Attempt, 0, len(set))
	err := l.query(ctx, l.rename("SELECT * FROM dlock_set($1, $2, $3)"), func(rows pgx.Rows) error {
		var r result
		err := rows.Scan(&r.verdict, &r.fence, &r.holder, &r.remaining, &r.since)
		a := r.attempt()
		a.Free = !a.Acquired && a.Holder == "" && r.verdict != waiting
		attempts = append(attempts, a)
		return err
	}, keys, tokens, ttls)
	if err != nil {
		return nil, err
	}
	return attempts, nil
}

// Close ends the waits in progress, with [dlock.ErrClosed], and closes the connection for notifications. Later calls fail
// with ErrClosed. Close waits for calls that nobody waits for any more: up to 10 s, if the server is silent. The pool belongs
// to who opened it.
func (l *Locker) Close() error {
	l.post.close()
	l.lanes.Close(dlock.ErrClosed)
	return nil
}

const (
	maxTTL    = 365 * 24 * time.Hour
	callLimit = 10 * time.Second
)

// check refuses what the table could not hold or the statements would misread.
func (l *Locker) check(c call) error {
	var err error
	switch {
	case l.err != nil:
		err = l.err
	case c.key == "":
		err = invalid("key: empty")
	case len(c.key) > 1024:
		err = invalid("key of %d bytes: longer than 1024", len(c.key))
	case c.token == "":
		err = invalid("token: empty")
	case c.op == enqueue && len(c.token) > 1024: // the index of the queue would refuse it, and all calls of the statement
		err = invalid("token of %d bytes: longer than 1024", len(c.token))
	case c.ttl < time.Millisecond || c.ttl > maxTTL:
		err = invalid("TTL %v: not between 1ms and 365 days", c.ttl)
	case l.post.closed():
		err = dlock.ErrClosed
	default:
		return nil
	}
	return &dlock.NoEffectError{Err: err}
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

func (s sqlSource) with(ctx context.Context, f func(*pgx.Conn) error) (err error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return notSent(err)
	}
	defer c.Close()
	var answered error
	err = c.Raw(func(driver any) error {
		d, ok := driver.(interface{ Conn() *pgx.Conn })
		if !ok {
			return invalid("db: a driver of type %T, not that of pgx/v5/stdlib", driver)
		}
		answered = f(d.Conn())
		return nil
	})
	if err != nil {
		return &unsent{err}
	}
	return answered
}

func (s sqlSource) dial(ctx context.Context) (c *pgx.Conn, err error) {
	var config *pgx.ConnConfig
	err = s.with(ctx, func(c *pgx.Conn) error {
		config = c.Config()
		return nil
	})
	if err != nil {
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
	return &unsent{err}
}

// An unsent error is of a call for which there was no connection.
type unsent struct{ error }

func (e *unsent) Unwrap() error { return e.error }

package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// A Locker keeps leases in a table. It is a [dlock.Locker], [dlock.BatchRenewer] and [dlock.Inspector]. All methods may be
// called by any number of goroutines. It has nothing to close: the [sql.DB] belongs to who opened it.
type Locker struct {
	db     *sql.DB
	table  string
	quoted string // the table, as SQL
	err    error  // why no call can succeed: a bad argument of New
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
)

// An Option changes where a [Locker] keeps leases.
type Option func(*Locker)

// WithTable names the table, which may be preceded by a schema and a dot. Names are
// taken as they are written, in upper or lower case. The default is "dlock".
func WithTable(name string) Option {
	return func(l *Locker) { l.table = name }
}

// New returns a Locker on the database that db talks to. Bad arguments make its methods fail with [dlock.ErrInvalid].
func New(db *sql.DB, opts ...Option) *Locker {
	l := &Locker{db: db, table: "dlock"}
	for _, opt := range opts {
		opt(l)
	}
	l.quoted, l.err = quote(l.table)
	if db == nil {
		l.err = invalid("db: nil")
	}
	return l
}

// CreateTable makes the table, unless it is there. It is for the start of a program,
// or for its migrations; several may call it at once.
func (l *Locker) CreateTable(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	// One at a time, until the end of the transaction: IF NOT EXISTS alone fails if two create the same at once.
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(createLock)); err != nil {
		return err
	}
	var exists bool
	if err := tx.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", l.quoted).Scan(&exists); err != nil || exists {
		return err
	}
	for _, stmt := range []string{createTable, createIndex} {
		if _, err := tx.ExecContext(ctx, l.on(stmt)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// createLock is any number that others have no reason to lock: "dlock".
const createLock = 0x64_6c_6f_63_6b

// TryAcquire implements [dlock.Locker].
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := l.check(key, token, ttl); err != nil {
		return dlock.Attempt{}, err
	}
	var fence, remaining sql.NullInt64
	var holder []byte
	err := l.db.QueryRowContext(ctx, l.on(acquire), []byte(key), []byte(token), ttl.Milliseconds()).
		Scan(&fence, &holder, &remaining)
	switch {
	case errors.Is(err, sql.ErrNoRows): // another was granted the key during the statement
		return dlock.Attempt{}, nil
	case err != nil:
		return dlock.Attempt{}, outcome(err)
	case fence.Valid:
		return dlock.Attempt{Acquired: true, Fence: fence.Int64}, nil
	}
	return dlock.Attempt{Holder: string(holder), Remaining: microseconds(remaining.Int64)}, nil
}

// Renew implements [dlock.Locker].
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(key, token, ttl); err != nil {
		return false, err
	}
	return changed(l.db.ExecContext(ctx, l.on(renew), []byte(key), []byte(token), ttl.Milliseconds()))
}

// Release implements [dlock.Locker].
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.check(key, token, time.Second); err != nil {
		return false, err
	}
	return changed(l.db.ExecContext(ctx, l.on(release), []byte(key), []byte(token)))
}

// Inspect implements [dlock.Inspector].
func (l *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	if err := l.check(key, "-", time.Second); err != nil {
		return dlock.Hold{}, err
	}
	var token []byte
	var remaining int64
	err := l.db.QueryRowContext(ctx, l.on(inspect), []byte(key)).Scan(&token, &remaining)
	if errors.Is(err, sql.ErrNoRows) {
		return dlock.Hold{}, nil
	}
	if err != nil {
		return dlock.Hold{}, outcome(err)
	}
	return dlock.Hold{Held: true, Token: string(token), Remaining: microseconds(remaining)}, nil
}

// check refuses what the table could not hold or the statements would misread. A ctx
// that has ended needs no look here: database/sql sends nothing then.
func (l *Locker) check(key, token string, ttl time.Duration) error {
	switch {
	case l.err != nil:
		return l.err
	case key == "":
		return invalid("key: empty")
	case token == "":
		return invalid("token: empty")
	case ttl < time.Millisecond:
		return invalid("TTL %v: less than 1ms", ttl)
	}
	return nil
}

// changed tells whether a statement has changed its row.
func changed(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, outcome(err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// maxName is the longest name in bytes that PostgreSQL does not cut, in silence.
const maxName = 63

// quote makes SQL of the name of a table.
func quote(table string) (string, error) {
	parts := strings.Split(table, ".")
	for i, part := range parts {
		if part == "" || len(part) > maxName || len(parts) > 2 || strings.ContainsRune(part, 0) {
			return "", invalid("WithTable(%q): want a name, or a schema, a dot and a name, each of 1 to %d bytes", table, maxName)
		}
		parts[i] = `"` + strings.ReplaceAll(part, `"`, `""`) + `"`
	}
	return strings.Join(parts, "."), nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}

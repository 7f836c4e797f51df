package fence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dlock-go/dlock"
)

// The errors of a check. Any other error is the database's, or matches [dlock.ErrInvalid] and
// names the argument.
var (
	// ErrStale says that a later holder has been here, or another one with the same fence. The
	// transaction must be rolled back. Another process has the lock.
	ErrStale = errors.New("fence: a later holder has been here")

	// ErrRetry says that the transaction must be committed without any writes, and begun again. The
	// error of that Commit does not matter. Either the transaction would not see everything that
	// the last holder has written, on PostgreSQL at REPEATABLE READ and SERIALIZABLE, or the
	// database has ended it because of a conflict. Only [Table.Check] returns ErrRetry:
	// [Table.Begin] begins again by itself.
	ErrRetry = errors.New("fence: commit the transaction, and begin it again")
)

// A Table is a table with a row for each key: the fence and the holder that were accepted last.
// It is made by [Postgres], [MySQL] or [SQLite]. Its methods are safe for concurrent use.
type Table struct {
	name string
	dialect
}

// A dialect is the SQL of a database. In its texts, {table} stands for the name of the table.
type dialect struct {
	schema string
	check  string // returns a row if the Stamp is accepted: true, or false if the transaction is to begin again; if empty, there are two statements
	query  string // returns a row if the Stamp is accepted
}

// Postgres returns a table in PostgreSQL. The name is put into statements as it is: it may contain a
// schema, is quoted by the caller if it has to be, and must not come from a user.
func Postgres(name string) Table { return Table{name, postgres} }

// MySQL returns a table in MySQL or MariaDB. The name is as for [Postgres].
func MySQL(name string) Table { return Table{name, mysql} }

// SQLite returns a table in SQLite 3.35 or newer. The name is as for [Postgres].
func SQLite(name string) Table { return Table{name, sqlite} }

// In postgres, the plain look comes first. FOR SHARE would keep its lock on a row that another
// transaction has changed meanwhile, and two transactions that both want more then would wait for
// each other. So a statement either shares the row or raises it, as the look says, and never both.
//
// A transaction at REPEATABLE READ or above that raises a row may have waited for the last
// holder's transaction, which only shared the row. Its snapshot is older than that wait. It returns
// false.
var postgres = dialect{
	schema: `CREATE TABLE IF NOT EXISTS {table} (lock_key bytea PRIMARY KEY, fence bigint NOT NULL, holder text NOT NULL)`,
	check:  postgresCheck + "current_setting('transaction_isolation') LIKE 'read%' FROM raised",
	query:  postgresCheck + "true FROM raised WHERE current_setting('transaction_isolation') LIKE 'read%'",
}

const postgresCheck = `WITH seen AS (
	SELECT fence FROM {table} WHERE lock_key = $1::bytea
), shared AS (
	SELECT 1 FROM {table} WHERE lock_key = $1::bytea AND fence = $2::bigint AND holder = $3::text FOR SHARE
), raised AS (
	INSERT INTO {table} AS old SELECT $1::bytea, $2::bigint, $3::text WHERE NOT EXISTS (SELECT FROM seen WHERE fence >= $2::bigint)
	ON CONFLICT (lock_key) DO UPDATE SET fence = excluded.fence, holder = excluded.holder
	WHERE old.fence < excluded.fence OR old.fence = excluded.fence AND old.holder = excluded.holder
	RETURNING 1
) SELECT true FROM shared UNION ALL SELECT `

var sqlite = dialect{
	schema: `CREATE TABLE IF NOT EXISTS {table} (lock_key BLOB PRIMARY KEY, fence INTEGER NOT NULL, holder TEXT NOT NULL)`,
	check:  sqliteCheck,
	query:  sqliteCheck,
}

const sqliteCheck = `INSERT INTO {table} AS old VALUES (?, ?, ?)
	ON CONFLICT (lock_key) DO UPDATE SET fence = excluded.fence, holder = excluded.holder
	WHERE old.fence < excluded.fence OR old.fence = excluded.fence AND old.holder = excluded.holder
	RETURNING true`

// The changes are counted because MySQL does not report a row as affected that stays as it was.
var mysql = dialect{
	schema: `CREATE TABLE IF NOT EXISTS {table} (lock_key varbinary(1024) PRIMARY KEY, fence bigint NOT NULL, holder varbinary(64) NOT NULL, changes bigint NOT NULL) ENGINE=InnoDB`,
}

const (
	mysqlLock  = `INSERT INTO {table} VALUES (?, 0, '', 0) ON DUPLICATE KEY UPDATE changes = changes` // takes the exclusive lock at once
	mysqlRaise = `UPDATE {table} SET fence = ?, holder = ?, changes = changes + 1 WHERE lock_key = ? AND (fence < ? OR fence = ? AND holder = ?)`
)

// Schema returns the statement that creates the table, unless it exists.
func (t Table) Schema() string { return t.sql(t.schema) }

func (t Table) sql(text string) string { return strings.ReplaceAll(text, "{table}", t.name) }

// Begin begins a transaction and checks the Stamps in it: see [Table.Check]. It returns ErrStale if
// one is refused, and the transaction has then been rolled back. The options are those of
// [sql.DB.BeginTx].
//
// Begin waits until transactions of other holders of the same keys have ended. If ctx ends before
// the Commit, the transaction is rolled back.
func (t Table) Begin(ctx context.Context, db *sql.DB, options *sql.TxOptions, stamps ...Stamp) (*sql.Tx, error) {
	for {
		tx, err := db.BeginTx(ctx, options)
		if err != nil {
			return nil, err
		}
		switch err = t.Check(ctx, tx, stamps...); {
		case err == nil:
			return tx, nil
		case errors.Is(err, ErrRetry):
			_ = tx.Commit() // if it fails, the next check says so
		default:
			_ = tx.Rollback() // err is what matters
			return nil, err
		}
	}
}

// Check returns nil if the transaction may go on: each Stamp has a larger fence than its row, or
// the row's fence and holder. The rows then show the Stamps, and are locked until the transaction
// ends, so no later holder can write before. Otherwise it returns [ErrStale], or [ErrRetry].
//
// Check must be the first call of each transaction: what has been read before it may be outdated.
// All Stamps of a transaction belong in one Check, which locks their rows in the order of their
// keys. Two Checks in a transaction can deadlock with those of another. A key that appears twice is
// [dlock.ErrInvalid].
func (t Table) Check(ctx context.Context, tx *sql.Tx, stamps ...Stamp) error {
	ordered, err := t.inOrder(stamps)
	if err != nil {
		return err
	}
	again := false
	for _, s := range ordered {
		switch fresh, err := t.checkOne(ctx, tx, s); {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("%w (%v)", ErrStale, s)
		case conflict(err):
			return fmt.Errorf("%w: %w", ErrRetry, err)
		case err != nil:
			return err
		default:
			again = again || !fresh
		}
	}
	if again {
		return ErrRetry
	}
	return nil
}

func (t Table) inOrder(stamps []Stamp) ([]Stamp, error) {
	if len(stamps) == 0 || t.name == "" {
		return nil, fmt.Errorf("fence: %w: no stamps, or a Table without a name", dlock.ErrInvalid)
	}
	ordered := slices.SortedFunc(slices.Values(stamps), func(a, b Stamp) int { return cmp.Compare(a.Key, b.Key) })
	for i, s := range ordered {
		if err := s.valid(); err != nil {
			return nil, err
		}
		if i > 0 && s.Key == ordered[i-1].Key {
			return nil, fmt.Errorf("fence: %w: two stamps of key %q", dlock.ErrInvalid, s.Key)
		}
	}
	return ordered, nil
}

// checkOne returns sql.ErrNoRows if s is refused. Otherwise it reports whether the transaction sees
// all that earlier holders have written.
func (t Table) checkOne(ctx context.Context, tx *sql.Tx, s Stamp) (fresh bool, err error) {
	key := []byte(s.Key)
	if t.check != "" {
		err = tx.QueryRowContext(ctx, t.sql(t.check), key, s.Fence, s.Holder).Scan(&fresh)
		return fresh, err
	}
	if _, err := tx.ExecContext(ctx, t.sql(mysqlLock), key); err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, t.sql(mysqlRaise), s.Fence, s.Holder, key, s.Fence, s.Fence, s.Holder)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = sql.ErrNoRows
	}
	return true, err
}

// conflict reports whether the database has ended the transaction because of another one, and asks
// for another try. Drivers for PostgreSQL have errors with this method; that for MySQL has a text.
// On MySQL, transactions that wait for the first row of a key meet a deadlock if that row is rolled
// back.
func conflict(err error) bool {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState() == "40001"
	}
	return err != nil && strings.Contains(err.Error(), "Error 1213")
}

// Query returns the check of one Stamp as a query, to be sent in one batch with the statements that
// follow it. That saves a round trip. If the query returns no row, the Stamp is refused, and the
// batch must be rolled back. So the batch must be in a transaction that is committed after a look
// at the row. Several Stamps are queried in the order of their keys.
//
// On PostgreSQL the transaction must be at READ COMMITTED, which is the default. Above that
// level, the query returns no row until a [Table.Begin] of the same lease has been committed. On
// MySQL there is no such query, and the error matches [errors.ErrUnsupported].
func (t Table) Query(s Stamp) (query string, args []any, err error) {
	if _, err := t.inOrder([]Stamp{s}); err != nil {
		return "", nil, err
	}
	if t.query == "" {
		return "", nil, fmt.Errorf("fence: %w: a check on MySQL is two statements", errors.ErrUnsupported)
	}
	return t.sql(t.query), []any{[]byte(s.Key), s.Fence, s.Holder}, nil
}

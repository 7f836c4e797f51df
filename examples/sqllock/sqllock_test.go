//go:build unix

package sqllock_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/examples/sqllock"
	"github.com/dlock-go/dlock/internal/sqltest"
)

func TestConformance(t *testing.T) { conformance.Run(t, harness(t)) }

func harness(t *testing.T) conformance.Harness {
	server := sqltest.Postgres(t)
	admin := sqltest.Open(t, server)
	makeSchema(t, admin)
	return conformance.Harness{
		New:  func(t *testing.T) dlock.Locker { return sqllock.New(sqltest.Open(t, server)) },
		Dial: func(t *testing.T, addr string) dlock.Locker { return sqllock.New(sqltest.Open(t, addr)) },
		Addr: server,
		Wipe: func(t *testing.T) { do(t, admin, wipe) },
		TTL:  400 * time.Millisecond, // a database takes longer than Redis
	}
}

// wipe makes the database forget what it knows of locks, while they are in use: the rows, and what sequences have counted,
// if there were any. A table that is dropped would be missed by whoever uses it just then.
const wipe = `DO $$
DECLARE counter regclass;
BEGIN
	TRUNCATE dlock;
	FOR counter IN SELECT oid FROM pg_class WHERE relkind = 'S' LOOP
		EXECUTE format('ALTER SEQUENCE %s RESTART', counter);
	END LOOP;
END $$`

// makeSchema makes the database empty, but for the table.
func makeSchema(t testing.TB, db *sql.DB) {
	t.Helper()
	do(t, db, "DROP SCHEMA public CASCADE")
	do(t, db, "CREATE SCHEMA public")
	require.NoError(t, sqllock.New(db).CreateTable(context.Background()))
}

func do(t testing.TB, db *sql.DB, stmt string, args ...any) {
	t.Helper()
	_, err := db.Exec(stmt, args...)
	require.NoError(t, err, stmt)
}

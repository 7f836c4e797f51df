//go:build unix

// Package fencetest_test tests package fence on real databases. It is in a module of its own, so that
// users of dlock do not get the drivers.
package fencetest_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/sqltest"
)

// lasts is how long the tests race, if DLOCK_LONG has fences, as in fences=60s. They also write more then.
var lasts, _ = time.ParseDuration(long.Of("fences"))

// A store is an empty database with a table for fences.
type store struct {
	*sql.DB
	driver, dsn, limit string
	table              fence.Table
}

var tables = map[string]fence.Table{
	"pgx":    fence.Postgres("public.dlock_fence"),
	"sqlite": fence.SQLite("dlock_fence"),
	"mysql":  fence.MySQL("dlock_fence"),
}

// A database is a kind of store.
type database struct {
	name, driver string
	dsn          func(t *testing.T) string
	empty        []string
	limit        string // ends a transaction that is idle
}

var databases = []database{
	{"PostgreSQL", "pgx", func(t *testing.T) string {
		return "postgres://postgres@" + sqltest.Postgres(t) + "/postgres?sslmode=disable"
	}, []string{"DROP SCHEMA public CASCADE", "CREATE SCHEMA public"}, "SET idle_in_transaction_session_timeout = '0.3s'"},
	{"SQLite", "sqlite", func(t *testing.T) string {
		return "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	}, nil, ""},
	{"MariaDB", "mysql", func(t *testing.T) string {
		return "root@tcp(" + sqltest.MariaDB(t) + ")/test"
	}, []string{"DROP DATABASE test", "CREATE DATABASE test", "USE test"}, "SET idle_transaction_timeout = 1"},
}

// others have the settings of the drivers that matter, the other way.
var others = []database{
	{"PostgreSQL, simple protocol", "pgx", func(t *testing.T) string {
		return databases[0].dsn(t) + "&default_query_exec_mode=simple_protocol"
	}, databases[0].empty, ""},
	{"MariaDB, interpolated", "mysql", func(t *testing.T) string {
		return databases[2].dsn(t) + "?clientFoundRows=true&interpolateParams=true"
	}, databases[2].empty, ""},
}

// on runs a test on each database.
func on(t *testing.T, f func(t *testing.T, s *store)) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) { f(t, d.fresh(t)) })
	}
}

func (d database) fresh(t *testing.T) *store {
	s := open(t, d.driver, d.dsn(t))
	s.limit = d.limit
	s.do(t, d.empty...)
	s.do(t, s.table.Schema(), s.table.Schema(),
		"CREATE TABLE writes (id integer, fence bigint NOT NULL)",
		"CREATE TABLE account (id integer PRIMARY KEY, fence bigint NOT NULL, changes bigint NOT NULL)")
	return s
}

func open(t testing.TB, driver, dsn string) *store {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	db.SetMaxIdleConns(100)
	return &store{DB: db, driver: driver, dsn: dsn, table: tables[driver]}
}

func (s *store) do(t testing.TB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := s.Exec(statement)
		require.NoError(t, err, statement)
	}
}

func (s *store) number(t testing.TB, query string) (n int64) {
	t.Helper()
	require.NoError(t, s.QueryRow(query).Scan(&n), query)
	return n
}

// write writes a row under the Stamps.
func (s *store) write(ctx context.Context, stamps ...fence.Stamp) error {
	tx, err := s.table.Begin(ctx, s.DB, nil, stamps...)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return insert(ctx, tx, stamps[0].Fence)
}

// insert writes a row, and commits.
func insert(ctx context.Context, tx *sql.Tx, fence int64) error {
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO writes VALUES (1, %d)", fence)); err != nil {
		return err
	}
	return tx.Commit()
}

// stamp makes up the Stamp of a lease.
func stamp(key string, n int64, holder int) fence.Stamp {
	return fence.Stamp{Key: key, Fence: n, Holder: fmt.Sprintf("%024x", holder)}
}

//go:build unix

// Package fencetest_test tests package fence on real databases. It is in a module of its own, so that
// users of dlock do not get the drivers.
package fencetest_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/pgtest"
)

// long is how long the tests race, if DLOCK_FENCE_LONG is set, as to 60s. They also write more then.
var long, _ = time.ParseDuration(os.Getenv("DLOCK_FENCE_LONG"))

var (
	postgres     = sync.OnceValues(pgtest.Start)
	stopPostgres = func() {}
	mariadb      = sync.OnceValues(startMariaDB)
	stopMariaDB  = func() {}
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv("FENCETEST_DSN"); dsn != "" {
		becomeWriter(os.Getenv("FENCETEST_DRIVER"), dsn, os.Getenv("FENCETEST_REDIS"))
		return
	}
	code := m.Run()
	stopPostgres()
	stopMariaDB()
	os.Exit(code)
}

// A store is an empty database with a table for fences.
type store struct {
	*sql.DB
	driver, dsn string
	table       fence.Table
}

var tables = map[string]fence.Table{
	"pgx":    fence.Postgres("public.dlock_fence"),
	"sqlite": fence.SQLite("dlock_fence"),
	"mysql":  fence.MySQL("dlock_fence"),
}

// on runs a test on each database.
func on(t *testing.T, f func(t *testing.T, s *store)) {
	t.Run("PostgreSQL", func(t *testing.T) {
		server, err := postgres()
		pgtest.Require(t, err)
		stopPostgres = server.Stop
		s := open(t, "pgx", "postgres://postgres@"+server.Addr()+"/postgres?sslmode=disable")
		s.do(t, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
		s.makeTables(t)
		f(t, s)
	})
	t.Run("SQLite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "db")
		s := open(t, "sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
		s.makeTables(t)
		f(t, s)
	})
	onMariaDB(t, "", f)
}

func onMariaDB(t *testing.T, flags string, f func(t *testing.T, s *store)) {
	t.Run("MariaDB"+flags, func(t *testing.T) {
		addr, err := mariadb()
		if err == errNoMariaDB {
			t.Skip(err)
		}
		require.NoError(t, err)
		s := open(t, "mysql", "root@tcp("+addr+")/test"+flags)
		s.do(t, "DROP DATABASE test", "CREATE DATABASE test", "USE test")
		s.makeTables(t)
		f(t, s)
	})
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

func (s *store) makeTables(t testing.TB) {
	t.Helper()
	s.do(t, s.table.Schema(), s.table.Schema(),
		"CREATE TABLE writes (id integer, fence bigint NOT NULL)",
		"CREATE TABLE account (id integer PRIMARY KEY, fence bigint NOT NULL, changes bigint NOT NULL)")
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

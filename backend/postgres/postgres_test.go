//go:build unix

package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/sqltest"
)

func dsn(addr string) string { return "postgres://postgres@" + addr + "/postgres?sslmode=disable" }

func pool(t testing.TB, addr string) *pgxpool.Pool {
	p, err := pgxpool.New(context.Background(), dsn(addr))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func open(t testing.TB, addr string) *postgres.Locker {
	l := postgres.New(pool(t, addr))
	t.Cleanup(func() { l.Close() })
	return l
}

// fresh makes the database empty, but for the table, and returns the address of the server.
func fresh(t testing.TB) string {
	server := sqltest.Postgres(t)
	_, err := pool(t, server).Exec(t.Context(), "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
	require.NoError(t, err)
	require.NoError(t, open(t, server).CreateTable(t.Context()))
	return server
}

func TestConformance(t *testing.T) {
	server := fresh(t)
	admin := pool(t, server)
	conformance.Run(t, conformance.Harness{
		New:  func(t *testing.T) dlock.Locker { return open(t, server) },
		Dial: func(t *testing.T, addr string) dlock.Locker { return open(t, addr) },
		Addr: server,
		Wipe: func(t *testing.T) {
			_, err := admin.Exec(context.Background(), "TRUNCATE dlock, dlock_queue")
			require.NoError(t, err)
		},
		TTL: time.Second, // a database takes longer than Redis
	})
}

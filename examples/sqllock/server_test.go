//go:build unix

package sqllock_test

import (
	"database/sql"
	"os"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dlock-go/dlock/internal/pgtest"
)

// theServer is started by the first test that wants it, and stopped by TestMain.
var (
	stopServer = func() {}
	theServer  = sync.OnceValues(func() (*pgtest.Server, error) {
		s, err := pgtest.Start()
		if err == nil {
			stopServer = s.Stop
		}
		return s, err
	})
)

func TestMain(m *testing.M) {
	code := m.Run()
	stopServer()
	os.Exit(code)
}

// postgres returns the server, or skips t where none is installed.
func postgres(t testing.TB) *pgtest.Server {
	t.Helper()
	s, err := theServer()
	pgtest.Require(t, err)
	return s
}

func open(t testing.TB, addr string, settings ...string) *sql.DB {
	t.Helper()
	return pgtest.Open(t, addr, settings...)
}

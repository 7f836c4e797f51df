//go:build unix

package postgres_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/internal/freeport"
)

// bouncer starts PgBouncer in transaction mode before a server, and returns its address.
func bouncer(t *testing.T, server string) string {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("PgBouncer is not installed")
	}
	claim, port, err := freeport.Claim()
	require.NoError(t, err)
	_, behind, err := net.SplitHostPort(server)
	require.NoError(t, err)
	ini := filepath.Join(t.TempDir(), "ini")
	text := fmt.Sprintf("[databases]\npostgres = host=127.0.0.1 port=%s user=postgres\n[pgbouncer]\npool_mode = transaction\nauth_type = any\n"+
		"listen_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n", behind, port)
	require.NoError(t, os.WriteFile(ini, []byte(text), 0o644))
	args := []string{ini}
	if os.Geteuid() == 0 { // which it refuses
		args = []string{"-u", "nobody", ini}
	}
	cmd := exec.Command(path, args...)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait(); claim.Close() })
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", freeport.Addr(port))
		return err == nil && c.Close() == nil
	}, time.Minute, 10*time.Millisecond)
	return freeport.Addr(port)
}

// Behind PgBouncer in transaction mode, waiters poll and are served in order. The Locker says once that it hears nothing, and no
// prepared statement fails.
func TestPgBouncer(t *testing.T) {
	const waiters = 6
	server := fresh(t)
	addr, direct, admin := bouncer(t, server), open(t, server), pool(t, server)
	var lockers []*postgres.Locker
	said := make(chan error, 100)
	for range 2 {
		l := postgres.New(pool(t, addr), postgres.WithInboxError(func(err error) { said <- err }))
		t.Cleanup(func() { l.Close() })
		lockers = append(lockers, l)
	}
	takes(t, direct, "key", "holder")
	var all sync.WaitGroup
	order := make(chan int, waiters)
	for i := range waiters {
		l, token := lockers[i%2], fmt.Sprint("waiter", i)
		all.Go(func() {
			a, err := l.Acquire(t.Context(), "key", token, time.Minute)
			if err != nil || !a.Acquired {
				t.Errorf("%s: %+v, %v", token, a, err)
				return
			}
			order <- i
			if held, err := l.Release(t.Context(), "key", token); err != nil || !held {
				t.Errorf("%s: %v, %v", token, held, err)
			}
		})
		require.Eventually(t, func() bool { return scalar[int](t, admin, "SELECT count(*) FROM dlock_queue") == i+1 }, time.Minute, time.Millisecond)
	}
	for range lockers {
		require.ErrorContains(t, <-said, "pooler")
	}
	gives(t, direct, "key", "holder")
	all.Wait()
	for i := range waiters {
		require.Equal(t, i, <-order)
	}
	for n := range 16 { // more than PgBouncer has sessions for at a time
		l := lockers[n%2]
		all.Go(func() {
			for i := range 20 {
				set := []dlock.Acquisition{{Key: fmt.Sprint(n, i), Token: "x", TTL: time.Minute}, {Key: fmt.Sprint(n, i, "b"), Token: "x", TTL: time.Minute}}
				if as, err := l.TryAcquireSet(t.Context(), set); err != nil || !as[0].Acquired {
					t.Error(as, err)
				}
				for _, s := range set {
					renewed, err := l.Renew(t.Context(), s.Key, "x", time.Minute)
					held, err2 := l.Release(t.Context(), s.Key, "x")
					if !renewed || err != nil || !held || err2 != nil {
						t.Error(renewed, err, held, err2)
					}
				}
			}
		})
	}
	all.Wait()
	require.Empty(t, said)
}

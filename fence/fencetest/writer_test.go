//go:build unix

package fencetest_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	lockKey     = "account:7"
	shortTTL    = 200 * time.Millisecond
	lateWorkers = 4
)

// A process is stopped for longer than its TTL, and another one writes. Then the first goes on and
// writes, many times. All is refused. Without a check, all is accepted.
func TestStoppedHolder(t *testing.T) {
	server := redistest.Start(t)
	on(t, func(t *testing.T, s *store) {
		for _, forgets := range []bool{false, true} {
			s.do(t, "DELETE FROM writes")
			late := startWriter(t, s, server.Addr())
			late.stop(t)
			if forgets {
				_, err := server.Do("FLUSHALL")
				require.NoError(t, err)
			}
			locks, done := clientOf(server.Addr(), time.Minute)
			lease, err := locks.Acquire(t.Context(), lockKey)
			require.NoError(t, err)
			next, err := fence.Of(lease)
			require.NoError(t, err)
			require.NoError(t, s.write(t.Context(), next))

			accepted, unchecked, writes := late.goOn(t)
			t.Logf("FLUSHALL %t: of %d late writes %d were accepted, %d without a check", forgets, writes, accepted, unchecked)
			require.Zero(t, accepted, "late writes")
			require.Equal(t, writes, unchecked, "late writes without a check")
			require.EqualValues(t, 1+unchecked, s.number(t, "SELECT count(*) FROM writes"))
			require.NoError(t, s.write(t.Context(), next))
			require.NoError(t, lease.Release())
			done()
		}
	})
}

func clientOf(addr string, ttl time.Duration) (locks *dlock.Client, done func()) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	locks = dlock.New(goredis.New(rdb), dlock.WithTTL(ttl), dlock.WithFence(true))
	return locks, func() { locks.Close(); rdb.Close() }
}

// A writer is a process that writes late.
type writer struct {
	*exec.Cmd
	out *bufio.Reader
}

// startWriter starts a process that takes the lock.
func startWriter(t *testing.T, s *store, redisAddr string) *writer {
	t.Helper()
	w := &writer{Cmd: exec.CommandContext(t.Context(), os.Args[0])}
	w.Env = append(os.Environ(), "FENCETEST_DRIVER="+s.driver, "FENCETEST_DSN="+s.dsn, "FENCETEST_REDIS="+redisAddr,
		"GORACE=atexit_sleep_ms=0")
	w.Stderr = os.Stderr
	out, err := w.StdoutPipe()
	require.NoError(t, err)
	w.out = bufio.NewReader(out)
	require.NoError(t, w.Start())
	line, err := w.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "holding\n", line)
	return w
}

func (w *writer) stop(t *testing.T) { require.NoError(t, w.Process.Signal(syscall.SIGSTOP)) }

// goOn continues the process, and waits until it has written.
func (w *writer) goOn(t *testing.T) (accepted, unchecked, writes int) {
	t.Helper()
	require.NoError(t, w.Process.Signal(syscall.SIGUSR1)) // comes when the process goes on
	require.NoError(t, w.Process.Signal(syscall.SIGCONT))
	_, err := fmt.Fscan(w.out, &accepted, &unchecked, &writes)
	require.NoError(t, err)
	require.NoError(t, w.Wait())
	return accepted, unchecked, writes
}

// becomeWriter is the program of that process. It does not look at its lease before it writes.
func becomeWriter(driver, dsn, redisAddr string) {
	goOn := make(chan os.Signal, 1)
	signal.Notify(goOn, syscall.SIGUSR1)
	ctx := context.Background()
	locks, _ := clientOf(redisAddr, shortTTL)
	lease, err := locks.Acquire(ctx, lockKey)
	must(err)
	mine, err := fence.Of(lease)
	must(err)
	db, err := sql.Open(driver, dsn)
	must(err)
	db.SetMaxIdleConns(lateWorkers)
	s := &store{DB: db, table: tables[driver]}
	fmt.Println("holding")
	<-goOn

	writes := 200
	if long > 0 {
		writes = 10_000
	}
	accepted := inParallel(writes, func() error { return s.write(ctx, mine) })
	unchecked := inParallel(writes, func() error {
		tx, err := db.BeginTx(ctx, nil)
		must(err)
		return insert(ctx, tx, mine.Fence)
	})
	fmt.Println(accepted, unchecked, writes)
}

// inParallel calls write n times, and returns how many were not refused.
func inParallel(n int, write func() error) int {
	var accepted atomic.Int64
	var all sync.WaitGroup
	for range lateWorkers {
		all.Go(func() {
			for range n / lateWorkers {
				switch err := write(); {
				case err == nil:
					accepted.Add(1)
				case !errors.Is(err, fence.ErrStale):
					must(err)
				}
			}
		})
	}
	all.Wait()
	return int(accepted.Load())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

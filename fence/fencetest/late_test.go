//go:build unix

package fencetest_test

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
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

var lateWrites = map[bool]int64{false: 200, true: 10_000}[lasts > 0]

// A process is stopped for longer than its TTL, and another one gets the lock and writes. Then the
// first goes on, and writes many times: with a check, and without.
func TestLateWrites(t *testing.T) {
	ahead := redistest.StartAhead(t, time.Hour) // two masters go on from its last fence by steps, not by their clocks
	grant(t, clientOf(t, ahead, "two"), "two")
	old := promote(t, redistest.StartReplica(t, ahead))
	promoted := promote(t, redistest.StartReplica(t, old)) // lacks what old grants from now on
	for _, c := range []struct {
		name, key string
		from, to  *redistest.Server // they grant the lock to the first holder and to the next one
		first     string            // what the first holder does before it is stopped
		fences    int               // how the next fence compares with the first
		refused   bool              // the next holder is refused, until its fence is larger
		accepted  bool              // the late writes are
	}{
		{"same server", "one", old, old, "", 1, false, false},
		{"FLUSHALL", "one", ahead, ahead, "write", 1, false, false},
		{"failover", "one", old, promoted, "write", 1, false, false},
		{"failover, equal fences", "two", old, promoted, "", 0, false, false},
		{"failover, equal fences, the first has written", "two", old, promoted, "write", 0, true, false},
		{"failover, smaller fence, the first has written", "two", old, promoted, "write", -1, true, false},
		{"failover, smaller fence: the limit that package fence names", "two", old, promoted, "", -1, false, true},
		{"stopped in a transaction", "one", old, old, "begin", 1, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			on(t, func(t *testing.T, s *store) {
				locks := clientOf(t, c.to, c.key)
				if c.key == "two" { // its first master has granted more leases
					for last := grant(t, locks, c.key); grant(t, clientOf(t, c.from, c.key), c.key) <= last; {
					}
				}
				w, first := startWriter(t, s, c.from, c.key)
				if c.first != "" {
					require.Equal(t, "true", w.ask(t, c.first))
				}
				require.NoError(t, w.Process.Signal(syscall.SIGSTOP))
				if c.name == "FLUSHALL" {
					_, err := c.to.Do("FLUSHALL")
					require.NoError(t, err)
				}
				lease, next := hold(t, locks, c.key)
				rise := func(to int) {
					for cmp.Compare(next.Fence, first.Fence) < to {
						require.NoError(t, lease.Release())
						lease, next = hold(t, locks, c.key)
					}
				}
				if c.key == "two" {
					rise(c.fences)
				}
				require.Equal(t, c.fences, cmp.Compare(next.Fence, first.Fence))
				goOn := func() { require.NoError(t, w.Process.Signal(syscall.SIGCONT)) }
				if c.first == "begin" && s.limit == "" {
					impatient := open(t, s.driver, strings.Replace(s.dsn, "60000", "0", 1))
					require.ErrorContains(t, impatient.write(t.Context(), next), "locked")
					goOn()
					require.Equal(t, "true", w.ask(t, "commit"), "nobody has written since")
				}
				if c.refused {
					require.ErrorIs(t, s.write(t.Context(), next), fence.ErrStale)
					rise(1)
				}
				require.NoError(t, s.write(t.Context(), next))
				goOn()
				if c.first == "begin" && s.limit != "" {
					require.Equal(t, "false", w.ask(t, "commit"), "the database has ended the transaction")
				}

				before := s.number(t, "SELECT count(*) FROM writes")
				var accepted, unchecked, want int64
				_, err := fmt.Sscan(w.ask(t, "late"), &accepted, &unchecked)
				require.NoError(t, err)
				t.Logf("of %d late writes %d were accepted, %d without a check", lateWrites, accepted, unchecked)
				require.Equal(t, lateWrites, unchecked, "late writes without a check")
				require.Equal(t, accepted+unchecked, s.number(t, "SELECT count(*) FROM writes")-before)
				if c.accepted {
					want = lateWrites
				}
				require.Equal(t, want, accepted)
				require.Equal(t, c.accepted, errors.Is(s.write(t.Context(), next), fence.ErrStale), "the next holder's write")
				require.NoError(t, lease.Release())
			})
		})
	}
}

// clientOf returns a client whose locks have a fence counter with those of the same prefix.
func clientOf(t *testing.T, server *redistest.Server, prefix string) *dlock.Client {
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	locks := dlock.New(goredis.New(rdb, goredis.WithPrefix(prefix)), dlock.WithFence(true))
	t.Cleanup(func() { locks.Close(); rdb.Close() })
	return locks
}

func hold(t *testing.T, locks *dlock.Client, key string) (*dlock.Lease, fence.Stamp) {
	t.Helper()
	lease, err := locks.Acquire(t.Context(), key)
	require.NoError(t, err)
	s, err := fence.Of(lease)
	require.NoError(t, err)
	return lease, s
}

// grant returns the fence of a lease that was held for a moment.
func grant(t *testing.T, locks *dlock.Client, key string) int64 {
	lease, s := hold(t, locks, key)
	require.NoError(t, lease.Release())
	return s.Fence
}

func promote(t *testing.T, s *redistest.Server) *redistest.Server {
	_, err := s.Do("REPLICAOF", "NO", "ONE")
	require.NoError(t, err)
	return s
}

// A writer is a process that holds the lock, and writes when it is asked to.
type writer struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startWriter(t *testing.T, s *store, server *redistest.Server, key string) (*writer, fence.Stamp) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	w := &writer{Cmd: exec.CommandContext(ctx, os.Args[0], "writer", s.driver, s.dsn, s.limit, server.Addr(), key)}
	w.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	w.Stderr = os.Stderr
	out, err := w.StdoutPipe()
	require.NoError(t, err)
	w.out = bufio.NewReader(out)
	w.in, err = w.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, w.Start())
	t.Cleanup(func() { cancel(); _ = w.Wait() })
	var stamp fence.Stamp
	require.NoError(t, stamp.UnmarshalText([]byte(w.ask(t, "stamp"))))
	return w, stamp
}

// ask returns what the process answers.
func (w *writer) ask(t *testing.T, what string) string {
	t.Helper()
	_, err := fmt.Fprintln(w.in, what)
	require.NoError(t, err)
	line, err := w.out.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// becomeWriter is the program of that process. It does not look at its lease before it writes.
func becomeWriter(args []string) {
	ctx, driver, dsn, limit, redisAddr, key := context.Background(), args[0], args[1], args[2], args[3], args[4]
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true})
	lease := must(dlock.New(goredis.New(rdb, goredis.WithPrefix(key)), dlock.WithTTL(200*time.Millisecond)).Acquire(ctx, key))
	mine := must(fence.Of(lease))
	s := &store{DB: must(sql.Open(driver, dsn)), table: tables[driver]}
	var tx *sql.Tx
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		switch asked.Text() {
		case "stamp":
			fmt.Println(mine)
		case "write":
			fmt.Println(s.write(ctx, mine) == nil)
		case "begin":
			tx = must(s.table.Begin(ctx, s.DB, nil, mine))
			must(tx.Exec(limit))
			fmt.Println(true)
		case "commit":
			fmt.Println(insert(ctx, tx, mine.Fence) == nil)
		case "late":
			accepted := repeat(func() error { return s.write(ctx, mine) })
			unchecked := repeat(func() error { return insert(ctx, must(s.BeginTx(ctx, nil)), mine.Fence) })
			fmt.Println(accepted, unchecked)
		}
	}
}

// repeat makes the late writes, and returns how many were not refused.
func repeat(write func() error) (accepted int64) {
	for range lateWrites {
		switch err := write(); {
		case err == nil:
			accepted++
		case !errors.Is(err, fence.ErrStale):
			panic(err)
		}
	}
	return accepted
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

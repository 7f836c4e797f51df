//go:build unix

package fencetest_test

import (
	"cmp"
	"database/sql"
	"errors"
	"strings"
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

// A holder does nothing for longer than its TTL, as a process that is stopped, and another one gets the lock and writes.
// Then the first goes on, and writes many times, without a look at its lease: with a check, and without.
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
				ctx, locks := t.Context(), clientOf(t, c.to, c.key)
				if c.key == "two" { // its first master has granted more leases
					for last := grant(t, locks, c.key); grant(t, clientOf(t, c.from, c.key), c.key) <= last; {
					}
				}
				_, first := hold(t, clientOf(t, c.from, c.key, dlock.WithTTL(200*time.Millisecond), dlock.WithRenewal(false)), c.key)
				w := open(t, s.driver, s.dsn)
				var tx *sql.Tx
				var err error
				switch c.first {
				case "write":
					require.NoError(t, w.write(ctx, first))
				case "begin":
					tx, err = w.table.Begin(ctx, w.DB, nil, first)
					require.NoError(t, err)
					_, err = tx.Exec(s.limit)
					require.NoError(t, err)
				}
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
				if c.first == "begin" && s.limit == "" {
					impatient := open(t, s.driver, strings.Replace(s.dsn, "60000", "0", 1))
					require.ErrorContains(t, impatient.write(ctx, next), "locked")
					require.NoError(t, insert(ctx, tx, first.Fence), "nobody has written since")
				}
				if c.refused {
					require.ErrorIs(t, s.write(ctx, next), fence.ErrStale)
					rise(1)
				}
				require.NoError(t, s.write(ctx, next))
				if c.first == "begin" && s.limit != "" {
					require.Error(t, insert(ctx, tx, first.Fence), "the database has ended the transaction")
				}

				before := s.number(t, "SELECT count(*) FROM writes")
				var accepted, want int64
				for range lateWrites {
					if err := w.write(ctx, first); err == nil {
						accepted++
					} else {
						require.ErrorIs(t, err, fence.ErrStale)
					}
					unchecked, err := w.BeginTx(ctx, nil)
					require.NoError(t, err)
					require.NoError(t, insert(ctx, unchecked, first.Fence), "a late write without a check")
				}
				if c.accepted {
					want = lateWrites
				}
				require.Equal(t, want, accepted)
				require.Equal(t, accepted+lateWrites, s.number(t, "SELECT count(*) FROM writes")-before)
				require.Equal(t, c.accepted, errors.Is(s.write(ctx, next), fence.ErrStale), "%s: the next holder's write")
				require.NoError(t, lease.Release())
			})
		})
	}
}

// clientOf returns a client whose locks have a fence counter with those of the same prefix.
func clientOf(t *testing.T, server *redistest.Server, prefix string, opts ...dlock.Option) *dlock.Client {
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	locks := dlock.New(goredis.New(rdb, goredis.WithPrefix(prefix)), append(opts, dlock.WithFence(true))...)
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

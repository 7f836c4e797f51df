//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/sqltest"
	"github.com/dlock-go/dlock/once"
	"github.com/dlock-go/dlock/semaphore"
)

// What uses a Locker works on this one as it does on others: this is the core of what its own tests demand.

func begin(t *testing.T, addr string, opts ...dlock.Option) *dlock.Client {
	l := postgres.New(pool(t, addr))
	c := dlock.New(l, append([]dlock.Option{dlock.WithTTL(10 * time.Second), dlock.WithFence(true)}, opts...)...)
	t.Cleanup(func() { c.Close(); l.Close() })
	return c
}

// doomed returns a Client whose leases end soon, as those of the dead.
func doomed(t *testing.T, addr string) *dlock.Client {
	return begin(t, addr, dlock.WithTTL(300*time.Millisecond), dlock.WithRenewal(false))
}

func acquire(t *testing.T, c *dlock.Client, key string) *dlock.Lease {
	l, err := c.Acquire(t.Context(), key)
	require.NoError(t, err)
	return l
}

// edit changes rows by other means than a Locker.
func edit(t *testing.T, addr, sql string) {
	_, err := pool(t, addr).Exec(t.Context(), sql)
	require.NoError(t, err)
}

// awaitWaiters returns what Inspect shows when so many wait.
func awaitWaiters(t *testing.T, c *dlock.Client, key string, n int) (s dlock.Status) {
	require.Eventually(t, func() bool {
		s, _ = c.Inspect(t.Context(), key)
		return s.Held && s.Waiting == n
	}, 10*time.Second, 5*time.Millisecond)
	return s
}

// crowd lets four callers of each of four Clients work, again and again for a while.
func crowd(t *testing.T, addr string, work func(*dlock.Client) error) {
	var all sync.WaitGroup
	end := time.Now().Add(400 * time.Millisecond)
	for range 4 {
		c := begin(t, addr)
		for range 4 {
			all.Go(func() {
				for n := 0; n == 0 || time.Now().Before(end); n++ {
					assert.NoError(t, work(c))
				}
			})
		}
	}
	all.Wait()
}

// Alone is work of which there is never more than one. Its fences rise.
type alone struct {
	busy  atomic.Bool
	fence int64
}

func (a *alone) work(t *testing.T, l *dlock.Lease, f func() error) error {
	defer a.busy.Store(false)
	assert.False(t, a.busy.Swap(true), "two hold %q", l.Key())
	assert.Greater(t, l.Fence(), a.fence)
	a.fence = l.Fence()
	return f()
}

// A replica runs the job when the one before has failed, or is dead. Nobody runs what is done, unless its mark is broken.
func TestOnce(t *testing.T) {
	server := fresh(t)
	c, due, boom, runs := begin(t, server), time.Now(), errors.New("boom"), 0
	var job alone
	do := func(c *dlock.Client) error {
		_, err := once.New(c, "job", time.Hour).Do(t.Context(), due, func(_ context.Context, l *dlock.Lease) error {
			return job.work(t, l, func() error { runs++; return map[int]error{1: boom, 2: boom}[runs] })
		})
		assert.True(t, err == nil || errors.Is(err, boom), "%v", err)
		return nil
	}
	crowd(t, server, do)
	require.Equal(t, 3, runs)
	require.NoError(t, c.Break(t.Context(), awaitWaiters(t, c, "job@"+due.UTC().Format("2006-01-02T15:04:05.000Z"), 0)))
	require.NoError(t, do(c))
	due = due.Add(time.Hour)
	acquire(t, doomed(t, server), "job")
	require.NoError(t, do(c))
	require.Equal(t, 5, runs)
}

// One leads. When it resigns, the next in the queue does; if its lease is lost, another.
func TestElection(t *testing.T) {
	server := fresh(t)
	operator, all := begin(t, server), make([]*election.Election, 3)
	var leads alone
	begins, ends := make(chan *dlock.Lease, 10), make(chan error, 10)
	var runs sync.WaitGroup
	t.Cleanup(runs.Wait)
	for i := range all {
		all[i] = election.New(begin(t, server, dlock.WithOwner(fmt.Sprint(i))), "leader")
		runs.Go(func() {
			_ = all[i].Run(t.Context(), func(ctx context.Context, l *dlock.Lease) error {
				defer func() { ends <- context.Cause(ctx) }()
				return leads.work(t, l, func() error { begins <- l; <-ctx.Done(); return nil })
			})
		})
		awaitWaiters(t, operator, "leader", i)
	}
	for n := range 3 {
		<-begins
		require.NoError(t, all[n%3].IsLeader(t.Context()))
		require.Equal(t, fmt.Sprint(n%3), awaitWaiters(t, operator, "leader", 2).Owner)
		all[n%3].Resign()
		require.Equal(t, election.ErrResigned, <-ends)
	}
	lease := <-begins
	edit(t, server, "UPDATE dlock SET token = 'thief', expires = clock_timestamp() + interval '1 minute'")
	require.ErrorIs(t, lease.Renew(t.Context()), dlock.ErrLost)
	require.ErrorIs(t, <-ends, dlock.ErrLost)
	gives(t, open(t, server), "leader", "thief")
	<-begins
}

// Nobody has a permit that another has. The next one waits for a permit, and for one of the dead.
func TestSemaphore(t *testing.T) {
	server := fresh(t)
	var permits [3]alone
	crowd(t, server, func(c *dlock.Client) error {
		return semaphore.New(c, "sem", 3).Do(t.Context(), func(_ context.Context, i int, l *dlock.Lease) error {
			return permits[i].work(t, l, func() error { time.Sleep(rand.N(10 * time.Millisecond)); return nil })
		})
	})
	s, dead := semaphore.New(begin(t, server), "sem", 3), semaphore.New(doomed(t, server), "sem", 3)
	for i := range permits {
		require.Positive(t, permits[i].fence)
		_, _, err := dead.Acquire(t.Context())
		require.NoError(t, err)
	}
	_, _, err := s.Acquire(t.Context())
	require.NoError(t, err)
}

// The lock and the rows are in one database, which refuses the write of a holder whose successor has written.
func TestFence(t *testing.T) {
	server := fresh(t)
	db, table := sqltest.Open(t, server), fence.Postgres("dlock_fence")
	edit(t, server, table.Schema()+"; CREATE TABLE account (balance bigint); INSERT INTO account VALUES (0)")
	locker := postgres.NewSQL(db)
	t.Cleanup(func() { locker.Close() })
	deposit := func(l *dlock.Lease) error {
		stamp, err := fence.Of(l)
		require.NoError(t, err)
		tx, err := table.Begin(t.Context(), db, nil, stamp)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE account SET balance = balance + 1")
		return errors.Join(err, tx.Commit())
	}
	late := acquire(t, dlock.New(locker, dlock.WithFence(true), dlock.WithRenewal(false)), "account")
	edit(t, server, "UPDATE dlock SET expires = clock_timestamp()") // its process sleeps
	heir := acquire(t, begin(t, server), "account")
	require.NoError(t, deposit(late), "the heir has not written")
	require.NoError(t, deposit(heir))
	require.ErrorIs(t, deposit(late), fence.ErrStale)
	require.NoError(t, heir.Release())
	var n atomic.Int64
	crowd(t, server, func(c *dlock.Client) error {
		n.Add(1)
		return c.Do(t.Context(), "account", func(_ context.Context, l *dlock.Lease) error { return deposit(l) })
	})
	require.Equal(t, 2+n.Load(), scalar[int64](t, pool(t, server), "SELECT balance FROM account"))
}

// Many take sets that overlap: everybody gets all keys of its set, and nothing is left.
func TestSets(t *testing.T) {
	server := fresh(t)
	var keys [6]alone
	crowd(t, server, func(c *dlock.Client) error {
		set := rand.Perm(len(keys))[:2]
		names := []string{fmt.Sprint(set[0]), fmt.Sprint(set[1])}
		return c.DoAll(t.Context(), names, func(_ context.Context, ls *dlock.Leases) error {
			return keys[set[0]].work(t, ls.Lease(names[0]), func() error {
				return keys[set[1]].work(t, ls.Lease(names[1]), func() error { return nil })
			})
		})
	})
	require.Zero(t, scalar[int](t, pool(t, server), "SELECT (SELECT count(*) FROM dlock WHERE token IS NOT NULL) + count(*) FROM dlock_queue"))
}

// An operator sees and breaks a lock. Its Observers, and those of the others, hear of it.
func TestOperators(t *testing.T) {
	server := fresh(t)
	observed := func(owner string, events *[]string) *dlock.Client {
		note := func(v ...any) { *events = append(*events, fmt.Sprintln(v...)) }
		return begin(t, server, dlock.WithOwner(owner), dlock.WithObserver(&dlock.Observer{
			WaitStart: func(_ context.Context, i dlock.WaitStartInfo) { note("wait for", i.Owner) },
			AcquireDone: func(_ context.Context, i dlock.AcquireDoneInfo) context.Context {
				note(i.Op, i.Contended, i.Err)
				return nil
			},
			LeaseDone: func(_ context.Context, i dlock.LeaseDoneInfo) { note(i.End, errors.Is(i.Err, dlock.ErrLost)) },
			BreakDone: func(_ context.Context, i dlock.BreakDoneInfo) { note("break", i.Owner, i.Err == nil) },
		}))
	}
	var events [3][]string
	stuck, next, operator := observed("stuck", &events[0]), observed("next", &events[1]), observed("operator", &events[2])
	l, granted := acquire(t, stuck, "k"), make(chan *dlock.Lease, 1)
	go func() { granted <- acquire(t, next, "k") }()
	status := awaitWaiters(t, operator, "k", 1)
	require.True(t, status.Owner == "stuck" && 0 < status.Remaining && status.Remaining <= 10*time.Second, "%v", status)
	require.NoError(t, operator.Break(t.Context(), status))
	heir := <-granted
	require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrReleased)
	require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
	edit(t, server, "UPDATE dlock SET token = 'thief', expires = clock_timestamp() + interval '1 minute'")
	require.ErrorIs(t, heir.Renew(t.Context()), dlock.ErrLost)
	require.ErrorIs(t, operator.Break(t.Context(), awaitWaiters(t, operator, "k", 0)), dlock.ErrInvalid)
	require.NoError(t, errors.Join(stuck.Close(), next.Close(), operator.Close())) // after which Observers have heard of all
	require.Equal(t, [3][]string{
		{"acquire false <nil>\n", "removed true\n"},
		{"wait for stuck\n", "acquire true <nil>\n", "removed true\n"},
		{"break stuck true\n", "break stuck false\n", "break  false\n"},
	}, events)
}

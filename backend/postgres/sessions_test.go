//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/internal/sqltest"
)

// tuned returns a Locker on a pool whose configuration f has changed.
func tuned(t *testing.T, addr string, f func(*pgxpool.Config)) *postgres.Locker {
	config, err := pgxpool.ParseConfig(dsn(addr))
	require.NoError(t, err)
	f(config)
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	l := postgres.New(p)
	t.Cleanup(func() { l.Close() })
	return l
}

// A user's handler of notifications does not get those of the Locker, nor the Locker those of a user.
func TestHandlerOfNotifications(t *testing.T) {
	server := fresh(t)
	l := tuned(t, server, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
			if n.Channel != "other" {
				t.Error(n.Channel)
			}
		}
		c.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { _, err := c.Exec(ctx, "LISTEN other"); return err }
	})
	takes(t, l, "key", "holder")
	granted := make(chan dlock.Attempt, 1)
	go func() {
		a, err := l.Acquire(t.Context(), "key", "waiter", time.Minute)
		require.NoError(t, err)
		granted <- a
	}()
	postgres.AwaitInbox(l)
	time.Sleep(50 * time.Millisecond) // for the answer that would date the message
	scalar[any](t, pool(t, server), "SELECT pg_notify('other', '1 99 9000000000000000 9000000000000000')")
	time.Sleep(50 * time.Millisecond)
	gives(t, l, "key", "holder")
	require.NotEqual(t, int64(99), (<-granted).Fence)
}

// Without a connection in time, the error is that of the ctx, and nothing was sent.
func TestNoConnectionInTime(t *testing.T) {
	server := fresh(t)
	p := pool(t, server)
	l := postgres.New(p)
	for range p.Config().MaxConns {
		c, err := p.Acquire(t.Context())
		require.NoError(t, err)
		defer c.Release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.TryAcquire(ctx, "key", "x", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, dlock.NoEffect(err), "%v", err)
}

// A call whose wait is over when it is answered leaves a place in the queue, and says so: else nobody releases it.
func TestLateEnqueueLeavesSomething(t *testing.T) {
	server := fresh(t)
	l, admin := open(t, server), pool(t, server)
	takes(t, l, "key", "holder")
	tx, err := admin.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "SELECT FROM dlock WHERE key = 'key' FOR UPDATE")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(ctx, "key", "waiter", time.Minute)
	var unanswered *dlock.UnansweredError
	require.ErrorAs(t, err, &unanswered)
	left := make(chan dlock.Attempt, 1)
	unanswered.Late(func(a dlock.Attempt, err error) { require.NoError(t, err); left <- a })
	require.NoError(t, tx.Rollback(t.Context()))
	require.True(t, (<-left).Acquired)
}

// scalar returns what a query returns.
func scalar[T any](t *testing.T, p *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, p.QueryRow(t.Context(), sql, args...).Scan(&v))
	return v
}

// stale makes rows that nobody has used for ten days, with this fence.
func stale(t *testing.T, p *pgxpool.Pool, fence int64, keys ...string) {
	for _, key := range keys {
		_, err := p.Exec(t.Context(), "INSERT INTO dlock VALUES ($1, NULL, now() - interval '10 days', now(), $2, current_date - 10)", []byte(key), fence)
		require.NoError(t, err)
	}
}

// blocked runs f while another transaction has locked the row of a key, waits until f is blocked, and calls then with that
// transaction, which ends afterwards. It returns the error of f.
func blocked(t *testing.T, p *pgxpool.Pool, key string, f func() error, then func(func(sql string))) error {
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	do := func(sql string) {
		_, err := tx.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	do(fmt.Sprintf("SELECT FROM dlock WHERE key = '%s' FOR UPDATE", key))
	done := make(chan error, 1)
	go func() { done <- f() }()
	require.Eventually(t, func() bool {
		return scalar[int](t, p, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") > 0
	}, 10*time.Second, 5*time.Millisecond)
	then(do)
	require.NoError(t, tx.Commit(t.Context()))
	return <-done
}

// A session that made its plans while the tables were small reads no table from end to end.
func TestPlansForGrowth(t *testing.T) {
	server := fresh(t)
	p := pool(t, server)
	edit(t, server, "SELECT dlock_listen(1, true)")
	edit(t, server, "VACUUM ANALYZE dlock, dlock_queue, dlock_inbox")
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	for i := range 20 { // it keeps a plan after five calls
		for _, op := range []string{"A", "Q", "C", "I", "N", "R", "R", "A"} {
			_, err := tx.Exec(t.Context(), "SELECT dlock_call($1::text::\"char\", int4send($2), int4send(n), 60000, 1, 1, 0, NULL, 64) FROM unnest(ARRAY[1, 2]) AS n", op, i)
			require.NoError(t, err)
		}
		_, err := tx.Exec(t.Context(), "SELECT dlock_set(ARRAY[int4send($1), 's'], ARRAY['x'::bytea, 'x'], ARRAY[1, 1::bigint])", i+100)
		require.NoError(t, err)
	}
	for _, table := range []string{"dlock", "dlock_queue", "dlock_inbox"} {
		var scans int
		require.NoError(t, tx.QueryRow(t.Context(), "SELECT pg_stat_get_xact_numscans($1::text::regclass)", table).Scan(&scans))
		require.Zero(t, scans, table)
	}
}

// A set locks rows in the order of their keys, also those that it creates.
func TestSetLocksInOrder(t *testing.T) {
	server := fresh(t)
	l, p := open(t, server), pool(t, server)
	takes(t, l, "a", "x")
	gives(t, l, "a", "x")
	set := []dlock.Acquisition{{Key: "b", Token: "s", TTL: time.Minute}, {Key: "a", Token: "s", TTL: time.Minute}}
	err := blocked(t, p, "a", func() error { _, err := l.TryAcquireSet(t.Context(), set); return err }, func(do func(string)) {
		do("SET LOCAL lock_timeout = '100ms'; SELECT verdict FROM dlock_call('A', 'b', 'y', 1, 0, 0, 0, NULL, 0)")
	})
	require.NoError(t, err)
}

// A statement locks rows that it cleans after those of its calls.
func TestCleaningLocksLast(t *testing.T) {
	server := fresh(t)
	l, p := open(t, server), pool(t, server)
	takes(t, l, "m", "x")
	stale(t, p, 1, "z")
	keys := []string{"a", "m"}
	for i := range 20 { // a small statement cleans at times
		keys = append(keys, fmt.Sprint("n", i))
	}
	err := blocked(t, p, "m", func() error { return postgres.Attempts(l, keys...) }, func(do func(string)) {
		do("SET LOCAL lock_timeout = '100ms'; SELECT FROM dlock WHERE key = 'z' FOR UPDATE")
	})
	require.NoError(t, err)
	require.Zero(t, scalar[int](t, p, "SELECT count(*) FROM dlock WHERE key = 'z'"))
}

// Rows go that nobody has used for days, but no fence falls for that.
func TestCleaningKeepsFences(t *testing.T) {
	server := fresh(t)
	l, p := open(t, server), pool(t, server)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	stale(t, p, ahead, "ahead")
	stale(t, p, 1, "a", "b", "c", "d")
	_, err := l.TryAcquireSet(t.Context(), []dlock.Acquisition{{Key: "x", Token: "s", TTL: time.Minute}, {Key: "y", Token: "s", TTL: time.Minute}})
	require.NoError(t, err)
	require.Equal(t, 3, scalar[int](t, p, "SELECT count(*) FROM dlock"))
	for i := range 50 { // a statement does not remove the row that it has locked
		stale(t, p, 1, fmt.Sprint("old", i))
		takes(t, l, fmt.Sprint("old", i), "x")
	}
	a, err := l.TryAcquire(t.Context(), "ahead", "x", time.Minute)
	require.NoError(t, err)
	require.Greater(t, a.Fence, ahead)
}

// A waiter whose key has lost its row is granted it by its check-in, with a fence.
func TestRowIsGone(t *testing.T) {
	server := fresh(t)
	p := pool(t, server)
	for i, c := range []string{"'A', 'key', 'x', 60000, 0, 0, 0, NULL, 0", "'Q', 'key', 'y', 60000, 0, 1, 0, NULL, 0", "'C', 'key', 'y', 60000, 0, 1, 0, NULL, 0"} {
		require.Equal(t, []int{1, 3, 1}[i], scalar[int](t, p, "SELECT verdict FROM dlock_call("+c+") WHERE fence IS NOT NULL"))
		if i == 1 {
			_, err := p.Exec(t.Context(), "DELETE FROM dlock")
			require.NoError(t, err)
		}
	}
	require.Equal(t, "y", scalar[string](t, p, "SELECT convert_from(token, 'UTF8') FROM dlock"))
}

// A pool that its owner has closed ends the waits.
func TestPoolIsClosed(t *testing.T) {
	server := fresh(t)
	p, db := pool(t, server), sqltest.Open(t, server)
	for _, l := range []*postgres.Locker{postgres.New(p), postgres.NewSQL(db)} {
		t.Cleanup(func() { l.Close() })
		_, _ = l.TryAcquire(t.Context(), "key", "holder", time.Minute)
		granted := queues(t, l, "key", "waiter")
		p.Close()
		if db.Stats().OpenConnections > 0 {
			db.Close()
		}
		require.ErrorIs(t, <-granted, dlock.ErrClosed)
	}
}

// The Locker works in each mode of pgx, at each level, and where a pooler forgets prepared statements.
func TestModes(t *testing.T) {
	server := fresh(t)
	n := 0
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for _, level := range []string{"read committed", "repeatable read"} {
			for _, forgets := range []bool{false, true} {
				n++
				t.Run(fmt.Sprint(mode, level, forgets), func(t *testing.T) {
					l := tuned(t, server, func(c *pgxpool.Config) {
						c.MaxConns = 1
						c.ConnConfig.DefaultQueryExecMode = mode
						c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
						if mode < pgx.QueryExecModeExec { // which the answers to the other two depend on
							c.ConnConfig.RuntimeParams["bytea_output"] = "escape"
						}
						if forgets {
							c.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
								_, err := c.Exec(ctx, "DEALLOCATE ALL")
								return true, err
							}
						}
					})
					require.NoError(t, l.CreateTable(t.Context()))
					for i := range 4 {
						key := fmt.Sprint("key\x00'", n, i)
						takes(t, l, key, "holder")
						granted := queues(t, l, key, "waiter")
						gives(t, l, key, "holder")
						require.NoError(t, <-granted)
						all, err := l.TryAcquireSet(t.Context(), []dlock.Acquisition{{Key: key + "2", Token: "x", TTL: time.Minute}})
						require.NoError(t, err)
						require.True(t, all[0].Acquired)
					}
				})
			}
		}
	}
}

// A paused host stops before it commits.
type pausedHost struct{ paused, resumed chan struct{} }

func (h pausedHost) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL == "commit" {
		select {
		case h.paused <- struct{}{}:
			<-h.resumed
		case <-h.resumed:
		}
	}
	return ctx
}

func (pausedHost) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A host that is lost before it commits leaves no key locked for long.
func TestHostIsLostInTransaction(t *testing.T) {
	server := fresh(t)
	h := pausedHost{make(chan struct{}), make(chan struct{})}
	resume := sync.OnceFunc(func() { close(h.resumed) })
	defer resume()
	l := tuned(t, server, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.Tracer = h
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
		c.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
			_, err := c.Exec(ctx, "DEALLOCATE ALL")
			return true, err
		}
	})
	done := make(chan error, 1)
	go func() {
		for err := error(nil); err == nil; { // the second call shows the pooler
			_, err = l.TryAcquire(t.Context(), "key", "x", time.Minute)
			done <- err
		}
	}()
	require.NoError(t, <-done)
	<-h.paused
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	held, err := open(t, server).Release(ctx, "key", "x")
	require.True(t, held && err == nil, "%v, %v", held, err)
	resume()
	require.Error(t, <-done)
}

// A session that listens is at the level at which its calls never fail for what others do.
func TestListenerIsReadCommitted(t *testing.T) {
	server := fresh(t)
	edit(t, server, `CREATE FUNCTION level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE 'another level'; END IF;
		RETURN NEW; END $$; CREATE TRIGGER level BEFORE INSERT ON dlock_inbox FOR EACH ROW EXECUTE FUNCTION level()`)
	l, p := tuned(t, server, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable" }), pool(t, server)
	takes(t, l, "key", "holder")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = l.Acquire(ctx, "key", "waiter", time.Minute) }()
	require.Eventually(t, func() bool { return scalar[int](t, p, "SELECT count(*) FROM dlock_inbox") == 1 }, 20*time.Second, 10*time.Millisecond)
}

// With a new session that listens, the dead go, but for those that another session has locked.
func TestDeadInboxesGo(t *testing.T) {
	server := fresh(t)
	l, p := open(t, server), pool(t, server)
	for _, sql := range []string{
		"INSERT INTO dlock_inbox SELECT i, now() - interval '2 minutes' FROM generate_series(1, 9) i",
		"INSERT INTO dlock_queue SELECT 'dead', int8send(i), i, 1000, i, 1, now() - interval '2 days' FROM generate_series(1, 9) i",
	} {
		_, err := p.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	tx, err := p.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "SELECT FROM dlock_inbox i, dlock_queue q WHERE i.id = 5 AND q.inbox = 4 FOR UPDATE")
	require.NoError(t, err)
	takes(t, l, "key", "holder")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = l.Acquire(ctx, "key", "waiter", time.Minute) }()
	postgres.AwaitInbox(l)
	require.Equal(t, 2, scalar[int](t, p, "SELECT count(*) FROM dlock_inbox"))
	require.Equal(t, 2, scalar[int](t, p, "SELECT count(*) FROM dlock_queue WHERE key = 'dead'"))
}

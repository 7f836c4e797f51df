//go:build unix

package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/sqltest"
)

func takes(t *testing.T, l dlock.Locker, key, token string) {
	t.Helper()
	a, err := l.TryAcquire(t.Context(), key, token, time.Minute)
	require.NoError(t, err)
	require.True(t, a.Acquired, "%+v", a)
}

func gives(t *testing.T, l dlock.Locker, key, token string) {
	t.Helper()
	held, err := l.Release(t.Context(), key, token)
	require.NoError(t, err)
	require.True(t, held)
}

// queues has a token wait for a key, and returns the outcome. The Locker listens by then.
func queues(t *testing.T, l *postgres.Locker, key, token string) <-chan error {
	outcome := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := l.Acquire(ctx, key, token, time.Minute)
		outcome <- err
	}()
	postgres.AwaitInbox(l)
	return outcome
}

// Without a check-in to help, a waiter that comes while the holder leaves is served by one of the two.
func TestNoWakeUpIsLost(t *testing.T) {
	defer postgres.NoCheckIns()()
	server := fresh(t)
	a, b := open(t, server), open(t, server)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	takes(t, a, "warm", "holder")
	go func() { _, _ = a.Release(ctx, "warm", "holder") }()
	_, err := b.Acquire(ctx, "warm", "waiter", time.Minute)
	require.NoError(t, err)
	postgres.AwaitInbox(b)
	for i := range 300 {
		key := fmt.Sprint("key", i)
		takes(t, a, key, "holder")
		released := make(chan error, 1)
		go func() {
			_, err := a.Release(ctx, key, "holder")
			released <- err
		}()
		got, err := b.Acquire(ctx, key, "waiter", time.Minute)
		require.NoError(t, err)
		require.True(t, got.Acquired)
		require.NoError(t, <-released)
	}
}

// What the server has rolled back has no effect, now or later, and says so.
func TestRolledBack(t *testing.T) {
	server := fresh(t)
	admin := pool(t, server)
	for name, of := range map[string]struct {
		settings map[string]string
		code     string
	}{
		"lock_timeout":      {map[string]string{"lock_timeout": "50"}, "55P03"},
		"statement_timeout": {map[string]string{"statement_timeout": "50"}, "57014"},
		"read only":         {map[string]string{"default_transaction_read_only": "on"}, "25006"},
	} {
		t.Run(name, func(t *testing.T) {
			takes(t, open(t, server), name, "holder")
			takes(t, open(t, server), "before "+name, "holder")
			tx, err := admin.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(context.Background())
			_, err = tx.Exec(t.Context(), "SELECT FROM dlock WHERE key = $1 FOR UPDATE", []byte(name))
			require.NoError(t, err)
			l := tuned(t, server, func(c *pgxpool.Config) { maps.Copy(c.ConnConfig.RuntimeParams, of.settings) })
			_, err = l.Release(t.Context(), name, "holder")
			require.ErrorContains(t, err, of.code)
			require.True(t, dlock.NoEffect(err), "%v", err)
			batch := []dlock.Renewal{{Key: "before " + name, Token: "holder", TTL: time.Hour}, {Key: name, Token: "holder", TTL: time.Hour}}
			results, err := l.RenewBatch(t.Context(), batch)
			require.NoError(t, err)
			for _, r := range results {
				require.False(t, r.Held || r.Err == nil, "%+v", r)
			}
			require.NoError(t, tx.Rollback(t.Context()))
			h, err := l.Inspect(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, "holder", h.Token)
		})
	}
}

// The session that listens is ended while something waits: the waiter is served, and a new session listens.
func TestListenerIsEnded(t *testing.T) {
	server := fresh(t)
	admin, said := pool(t, server), make(chan error, 10)
	a, b := open(t, server), postgres.New(pool(t, server), postgres.WithInboxError(func(err error) { said <- err }))
	t.Cleanup(func() { b.Close() })
	takes(t, a, "key", "holder")
	granted := queues(t, b, "key", "waiter")
	_, err := admin.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
	require.NoError(t, err)
	require.ErrorContains(t, <-said, "57P01")
	require.NoError(t, <-said)
	gives(t, a, "key", "holder")
	require.NoError(t, <-granted)
	gives(t, b, "key", "waiter")
}

// While no transaction that notifies could commit, a release hands the key over all the same.
func TestQueueOfNotifyIsFull(t *testing.T) {
	server := fresh(t)
	p := pool(t, server)
	edit(t, server, `CREATE FUNCTION public.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT 0.95::float8';
		CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'too many notifications' USING ERRCODE = '54000'; END $$`)
	l := tuned(t, server, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "public, pg_catalog" })
	takes(t, l, "key", "holder")
	waiter := open(t, server)
	takes(t, waiter, "warm", "holder")
	queues(t, waiter, "warm", "waiter") // it listens before the next one queues
	granted := queues(t, waiter, "key", "waiter")
	require.Eventually(t, func() bool {
		return scalar[int](t, p, "SELECT count(*) FROM dlock_queue WHERE inbox <> 0") == 2
	}, 10*time.Second, 5*time.Millisecond)
	gives(t, l, "key", "holder")
	require.NoError(t, <-granted)
}

// While the server is silent, Close does not wait for the calls that nobody waits for any more.
func TestCloseWithASilentServer(t *testing.T) {
	server := sqltest.Start(t)
	l := open(t, server.Addr)
	require.NoError(t, l.CreateTable(t.Context()))
	takes(t, l, "key", "holder")
	queues(t, l, "key", "waiter")
	server.Suspend()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "key", "given up", time.Minute)
	require.False(t, dlock.NoEffect(err), "%v", err)
	begun := time.Now()
	require.NoError(t, l.Close())
	require.Less(t, time.Since(begun), 5*time.Second)
}

// Updates are HOT: they write no index.
func TestUpdatesAreHOT(t *testing.T) {
	server := fresh(t)
	l := open(t, server)
	for range 200 {
		takes(t, l, "key", "holder")
		held, err := l.Renew(t.Context(), "key", "holder", 2*time.Minute)
		require.True(t, held && err == nil, "%v, %v", held, err)
		gives(t, l, "key", "holder")
	}
	c, err := pool(t, server).Acquire(t.Context())
	require.NoError(t, err)
	defer c.Release()
	var updated, hot int
	require.Eventually(t, func() bool { // sessions report when they have been idle for a second
		_, err := c.Exec(t.Context(), "SELECT pg_stat_clear_snapshot()")
		require.NoError(t, err)
		err = c.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'dlock'").Scan(&updated, &hot)
		return err == nil && updated > 500
	}, time.Minute, 100*time.Millisecond)
	require.Equal(t, updated, hot)
}

// Names of tables are taken as they are written.
func TestTableNames(t *testing.T) {
	server := fresh(t)
	p := pool(t, server)
	text, err := os.ReadFile("schema.sql")
	require.NoError(t, err)
	_, err = p.Exec(t.Context(), "DROP SCHEMA IF EXISTS \"a pp\" CASCADE; CREATE SCHEMA \"a pp\"")
	require.NoError(t, err)
	for _, name := range []string{"Locks", `a"b`, "it's 100%", "d", "a pp.dlock", "a pp.x y"} {
		l := postgres.New(p, postgres.WithTable(name))
		t.Cleanup(func() { l.Close() })
		require.NotEqual(t, string(text), l.Schema())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { assert.NoError(t, l.CreateTable(t.Context()), name) })
		}
		all.Wait()
		require.NoError(t, l.CreateTable(t.Context()), name)
		takes(t, l, "key", "holder")
		granted := queues(t, l, "key", "waiter")
		gives(t, l, "key", "holder")
		require.NoError(t, <-granted)
	}
	for _, name := range []string{"", "a.b.c", ".x", "x\x00", "x\ny", "x$$y"} {
		_, err := postgres.New(p, postgres.WithTable(name)).TryAcquire(t.Context(), "key", "x", time.Minute)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, fmt.Sprintf("%q", name))
	}
}

// CreateTable does not take a part of the schema for the whole.
func TestPartOfTheSchema(t *testing.T) {
	server := fresh(t)
	edit(t, server, "DROP TABLE dlock CASCADE")
	require.ErrorContains(t, open(t, server).CreateTable(t.Context()), "dlock_queue")
}

// A database/sql is as good.
func TestSQL(t *testing.T) {
	server := fresh(t)
	l := postgres.NewSQL(sqltest.Open(t, server))
	t.Cleanup(func() { l.Close() })
	takes(t, l, "key", "holder")
	granted := queues(t, l, "key", "waiter")
	gives(t, l, "key", "holder")
	require.NoError(t, <-granted)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.TryAcquire(ctx, "key", "x", time.Minute)
	require.True(t, errors.Is(err, context.Canceled))
}

// The index of the queue takes no token of any length: one that is too long spoils no statement of others.
func TestLongTokens(t *testing.T) {
	server := fresh(t)
	l, token := open(t, server), rand.Text()
	for len(token) < 1024 {
		token += rand.Text()
	}
	key := token[:1024]
	takes(t, l, key, token+token)
	_, err := l.Acquire(t.Context(), key, token+token, time.Minute)
	require.ErrorIs(t, err, dlock.ErrInvalid)
	granted := queues(t, l, key, token[:1024])
	gives(t, l, key, token+token)
	require.NoError(t, <-granted)
}

// A Client hears of a wait that cannot be notified, and counts it. The wait is served.
func TestWaitWithoutInbox(t *testing.T) {
	server := fresh(t)
	edit(t, server, "DROP ROLE IF EXISTS mute; CREATE ROLE mute; GRANT USAGE ON SCHEMA public TO mute; GRANT ALL ON ALL TABLES IN SCHEMA public TO mute; REVOKE INSERT ON dlock_inbox FROM mute")
	holder, healthy, deaf := open(t, server), open(t, server), open(t, server)
	postgres.Deafen(deaf, strings.Replace(dsn(server), "/postgres?", "/template1?", 1))
	mute := tuned(t, server, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = "mute" })
	for want, l := range map[string]*postgres.Locker{"": healthy, "42501": mute, "pooler": deaf} {
		heard := make(chan error, 10)
		c := dlock.New(l, dlock.WithObserver(&dlock.Observer{
			InboxMissing: func(_ context.Context, i dlock.InboxMissingInfo) { heard <- i.Err },
		}))
		takes(t, holder, want+"key", "holder")
		begun, granted := time.Now(), make(chan *dlock.Lease, 1)
		go func() { granted <- acquire(t, c, want+"key") }()
		if want == "" {
			postgres.AwaitInbox(l)
		} else {
			require.ErrorContains(t, <-heard, want)
			require.True(t, want == "pooler" || time.Since(begun) < 3*time.Second, "a right will not come back by itself")
		}
		gives(t, holder, want+"key", "holder")
		require.NoError(t, (<-granted).Release())
		require.Equal(t, want != "", c.Stats().WaitsWithoutInbox == 1)
		require.NoError(t, c.Close())
		require.Empty(t, heard)
	}
}

// A statement that has waited for its row decides by the time at which it got it.
func TestTimeGoesOnWhileAStatementWaits(t *testing.T) {
	server := fresh(t)
	l, p := open(t, server), pool(t, server)
	for name, call := range map[string]func() (bool, error){
		"renew":   func() (bool, error) { return l.Renew(t.Context(), "renew", "x", time.Minute) },
		"release": func() (bool, error) { return l.Release(t.Context(), "release", "x") },
	} {
		_, err := l.TryAcquire(t.Context(), name, "x", time.Second)
		require.NoError(t, err)
		var held bool
		err = blocked(t, p, name, func() (err error) { held, err = call(); return err }, func(do func(string)) {
			do(fmt.Sprintf("SELECT pg_sleep_until(expires) FROM dlock WHERE key = '%s'", name))
		})
		require.NoError(t, err)
		require.False(t, held, "%s of a lease that ended while it waited", name)
	}
}

// A statement whose answer is lost is not sent again by anybody: the caller hears that the outcome is unknown. So it is if the
// answer to COMMIT is lost.
func TestNothingIsSentTwice(t *testing.T) {
	for name, of := range map[string]struct {
		lost string // the answer to this
		tune func(*pgxpool.Config)
	}{
		"one statement":   {"sole", func(*pgxpool.Config) {}},
		"simple protocol": {"dlock_call", func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }},
		"a transaction":   {"commit", func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable" }},
	} {
		t.Run(name, func(t *testing.T) {
			server := fresh(t)
			way, p := proxy(t, server), pool(t, server)
			l := tuned(t, way.Addr(), of.tune)
			if of.lost == "commit" {
				postgres.Unprepared(l)
			}
			edit(t, server, "CREATE TABLE writes (n int); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO writes VALUES (1); RETURN NULL; END'")
			edit(t, server, "CREATE TRIGGER note AFTER INSERT OR UPDATE ON dlock FOR EACH ROW EXECUTE FUNCTION note()")
			for i, call := range []func() (bool, error){
				func() (bool, error) {
					a, err := l.TryAcquire(t.Context(), "sole", "x", time.Minute)
					return a.Acquired, err
				},
				func() (bool, error) { return l.Renew(t.Context(), "sole", "x", time.Hour) },
				func() (bool, error) { return l.Release(t.Context(), "sole", "x") },
			} {
				way.DropReply(faultproxy.Contains(of.lost), faultproxy.Cut)
				_, err := call()
				require.Error(t, err)
				require.False(t, dlock.NoEffect(err), "%v", err)
				require.Equal(t, i+1, scalar[int](t, p, "SELECT count(*) FROM writes"))
			}
		})
	}
}

//go:build unix

package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/examples/sqllock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/sqltest"
)

const long = 10 * time.Minute

// fresh returns a Locker on an empty table, whose sessions have the settings given,
// and the database for looking behind its back.
func fresh(t *testing.T, settings ...string) (*sqllock.Locker, *sql.DB) {
	t.Helper()
	server := sqltest.Postgres(t)
	db := sqltest.Open(t, server)
	makeSchema(t, db)
	return sqllock.New(sqltest.Open(t, server, settings...)), db
}

// lock locks the row of a key, as a statement of another session does, until the function that it returns is called.
func lock(t *testing.T, db *sql.DB, key string) (unlock func()) {
	t.Helper()
	tx, err := db.Begin()
	require.NoError(t, err)
	t.Cleanup(func() { tx.Rollback() })
	_, err = tx.Exec("SELECT FROM dlock WHERE key = $1 FOR UPDATE", []byte(key))
	require.NoError(t, err)
	return func() { tx.Rollback() }
}

// soon is a context for calls that must not wait for a row. They return long before it ends, or never.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// acquire takes a key, without waiting for a row.
func acquire(t *testing.T, l dlock.Locker, key, token string, ttl time.Duration) dlock.Attempt {
	t.Helper()
	a, err := l.TryAcquire(soon(t), key, token, ttl)
	require.NoError(t, err)
	require.True(t, a.Acquired, "TryAcquire(%q, %q, %v) = %+v", key, token, ttl, a)
	return a
}

// refused asks for a key that is held, without waiting for a row.
func refused(t *testing.T, l dlock.Locker, key string) {
	t.Helper()
	a, err := l.TryAcquire(soon(t), key, "stranger", long)
	require.NoError(t, err)
	require.False(t, a.Acquired)
	require.Equal(t, "holder", a.Holder)
}

// A call is one of those that change something.
type call struct {
	name string
	do   func() (held bool, err error)
}

func calls(ctx context.Context, l *sqllock.Locker, key, token string) []call {
	return []call{
		{"TryAcquire", func() (bool, error) { a, err := l.TryAcquire(ctx, key, token, long); return a.Acquired, err }},
		{"Renew", func() (bool, error) { return l.Renew(ctx, key, token, long) }},
		{"RenewBatch", func() (bool, error) {
			results, err := l.RenewBatch(ctx, []dlock.Renewal{{Key: key, Token: token, TTL: long}})
			return err == nil && results[0].Held, err
		}},
		{"Release", func() (bool, error) { return l.Release(ctx, key, token) }},
	}
}

func number(t *testing.T, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(query, args...).Scan(&n), query)
	return n
}

const rows = "SELECT count(*) FROM dlock"

// A row is kept while it may be needed, and not for ever.
func TestOldRowsAreDeleted(t *testing.T) {
	l, db := fresh(t)
	for i := range 5 {
		key := fmt.Sprint("old", i)
		acquire(t, l, key, "holder", long)
		held, err := l.Release(t.Context(), key, "holder")
		require.NoError(t, err)
		require.True(t, held)
	}
	do(t, db, "UPDATE dlock SET expires = expires - interval '23 hours'")
	acquire(t, l, "a", "holder", long)
	assert.Equal(t, 6, number(t, db, rows), "none is a day old")
	do(t, db, "UPDATE dlock SET expires = expires - interval '1 hour' WHERE key <> 'a'")
	refused(t, l, "a")
	assert.Equal(t, 6, number(t, db, rows), "a refusal writes nothing")
	for i, want := range []int{5, 4, 4} { // one is added, up to two are deleted
		acquire(t, l, fmt.Sprint("new", i), "holder", long)
		assert.Equal(t, want, number(t, db, rows), "after grant %d", i)
	}
	assert.Zero(t, number(t, db, rows+" WHERE convert_from(key, 'UTF8') LIKE 'old%'"))
}

// An old row that another session is using just now is not waited for.
func TestLockedRowsAreNotWaitedFor(t *testing.T) {
	l, db := fresh(t)
	acquire(t, l, "old", "holder", long)
	do(t, db, "UPDATE dlock SET expires = expires - interval '2 days'")
	lock(t, db, "old")
	acquire(t, l, "new", "holder", long)
	assert.Equal(t, 2, number(t, db, rows), "the old one is locked")
}

// A refusal locks no row: those who ask do not stand in each other's way, nor in the holder's.
func TestRefusalLocksNothing(t *testing.T) {
	l, db := fresh(t)
	acquire(t, l, "key", "holder", long)
	lock(t, db, "key")
	refused(t, l, "key")
}

// A statement that has waited for its row decides by the time at which it got it.
func TestTimeGoesOnWhileAStatementWaits(t *testing.T) {
	for i, name := range []string{"Renew", "RenewBatch", "Release"} {
		t.Run(name, func(t *testing.T) {
			l, db := fresh(t)
			acquire(t, l, "key", "holder", time.Second)
			unlock := lock(t, db, "key")
			c := calls(soon(t), l, "key", "holder")[i+1]
			require.Equal(t, name, c.name)
			var call sync.WaitGroup
			call.Go(func() {
				held, err := c.do()
				assert.NoError(t, err)
				assert.False(t, held, "it has waited for the row until the lease had expired")
			})
			const waiting, alive = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", rows + " WHERE expires > clock_timestamp()"
			for number(t, db, waiting) == 0 && number(t, db, alive) == 1 {
				time.Sleep(5 * time.Millisecond)
			}
			for number(t, db, alive) == 1 {
				time.Sleep(5 * time.Millisecond)
			}
			unlock()
			call.Wait()
		})
	}
}

// The fence rises above the key's last one though the clock does not.
func TestFenceRisesWithoutTheClock(t *testing.T) {
	l, db := fresh(t)
	first := acquire(t, l, "key", "first", long)
	do(t, db, "UPDATE dlock SET fence = fence + 3600e6") // the clock is set back by an hour
	assert.Equal(t, first.Fence+3600e6+8, acquire(t, l, "key", "first", long).Fence)
}

// A server that cannot write does not say "not held".
func TestReadOnlyServer(t *testing.T) {
	l, db := fresh(t, "default_transaction_read_only=on")
	do(t, db, "INSERT INTO dlock VALUES ('held', 'holder', 'infinity', 8)")
	for _, key := range []string{"held", "free"} {
		for _, token := range []string{"holder", "stranger"} {
			for _, c := range calls(t.Context(), l, key, token) {
				_, err := c.do()
				assert.ErrorContains(t, err, "25006", "read_only_sql_transaction: %s of the key %q by %s", c.name, key, token)
			}
		}
	}
}

// Batches over the same keys in different orders, single calls, and deletions do not wait for each other in a circle.
func TestNoDeadlocks(t *testing.T) {
	l, db := fresh(t)
	const keys, rounds = 40, 30
	batch := make([]dlock.Renewal, keys)
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("key", i), Token: "holder", TTL: long}
		acquire(t, l, batch[i].Key, "holder", long)
	}
	var wg sync.WaitGroup
	ctx := t.Context()
	for i := range 8 {
		wg.Go(func() {
			mine := make([]dlock.Renewal, keys)
			for n := range rounds {
				for j := range mine { // each in another order
					mine[j] = batch[(j*(2*i+1)+n)%keys]
				}
				results, err := l.RenewBatch(ctx, mine)
				assert.NoError(t, err)
				assert.NotContains(t, results, dlock.RenewResult{}, "all are held")
				held, err := l.Renew(ctx, mine[n].Key, "holder", long)
				assert.NoError(t, err)
				assert.True(t, held)
			}
		})
		wg.Go(func() {
			for n := range rounds {
				old := fmt.Sprint("old", (n+i)%5)
				_, err := l.TryAcquire(ctx, old, fmt.Sprint("holder", i), time.Millisecond)
				assert.NoError(t, err)
				_, err = db.Exec("UPDATE dlock SET expires = 'epoch' WHERE key = $1", []byte(old))
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
}

// Whatever the answer is, the connection goes back to the pool.
func TestConnectionsAreGivenBack(t *testing.T) {
	_, db := fresh(t)
	db.SetMaxOpenConns(1)
	l := sqllock.New(db)
	ctx := soon(t)
	acquire(t, l, "key", "holder", long)
	for _, token := range []string{"stranger", "holder"} {
		for _, key := range []string{"key", "other"} {
			inspect := call{"Inspect", func() (bool, error) { h, err := l.Inspect(ctx, key); return h.Held, err }}
			for _, c := range append(calls(ctx, l, key, token), inspect) {
				_, err := c.do()
				assert.NoError(t, err, "%s of the key %q by %s", c.name, key, token)
				require.Zero(t, db.Stats().InUse, "%s of the key %q by %s has kept its connection", c.name, key, token)
			}
		}
	}
}

// A statement whose reply is lost with its connection is not sent again by the driver
// or by database/sql: the caller must hear that the outcome is unknown.
func TestNothingIsSentTwice(t *testing.T) {
	_, db := fresh(t)
	do(t, db, "CREATE TABLE writes (n bigint)")
	do(t, db, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO writes VALUES (NEW.fence); RETURN NULL; END $$`)
	do(t, db, "CREATE TRIGGER note AFTER INSERT OR UPDATE ON dlock FOR EACH ROW EXECUTE FUNCTION note()")
	p, err := faultproxy.New(sqltest.Postgres(t))
	require.NoError(t, err)
	t.Cleanup(p.Close)
	l := sqllock.New(sqltest.Open(t, p.Addr()))
	for _, c := range calls(soon(t), l, "key", "holder") {
		acquire(t, l, "key", "holder", time.Minute)
		_, err := c.do() // prepares the statement
		require.NoError(t, err, c.name)
		acquire(t, l, "key", "holder", time.Minute)
		before := number(t, db, "SELECT count(*) FROM writes")
		p.DropReply(faultproxy.Any, faultproxy.Cut)
		_, err = c.do()
		assert.Error(t, err, "%s, whose reply was lost", c.name)
		assert.Equal(t, before+1, number(t, db, "SELECT count(*) FROM writes"), "writes of %s", c.name)
	}
}

func TestCreateTableAtOnce(t *testing.T) {
	_, db := fresh(t)
	const name = `Odd "name"`
	l := sqllock.New(db, sqllock.WithTable("public."+name))
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { assert.NoError(t, l.CreateTable(t.Context())) })
	}
	wg.Wait()
	acquire(t, l, "key", "holder", long)
	assert.Equal(t, 2, number(t, db, "SELECT count(*) FROM pg_indexes WHERE tablename = $1", name), "indexes: of the key, and of the end of the lease")
}

func TestBadArguments(t *testing.T) {
	var none *sql.DB
	db := sqltest.Open(t, "127.0.0.1:1") // nothing is sent
	try := func(l dlock.Locker, key, token string, ttl time.Duration) error {
		_, err := l.TryAcquire(t.Context(), key, token, ttl)
		return err
	}
	table := func(name string) error { return try(sqllock.New(db, sqllock.WithTable(name)), "key", "token", long) }
	good := sqllock.New(db)
	for name, err := range map[string]error{
		"nil db":        try(sqllock.New(none), "key", "token", long),
		"empty table":   table(""),
		"NUL in table":  table("a\x00b"),
		"three parts":   table("a.b.c"),
		"a long table":  table(strings.Repeat("x", 64)),
		"empty key":     try(good, "", "token", long),
		"empty token":   try(good, "key", "", long),
		"TTL too short": try(good, "key", "token", time.Microsecond),
		"CreateTable":   sqllock.New(none).CreateTable(t.Context()),
	} {
		assert.ErrorIs(t, err, dlock.ErrInvalid, name)
	}
}

// Whoever was refused, or had no connection, owes nothing, so that a Client closes at once.
func TestNothingIsOwedAfterARefusal(t *testing.T) {
	server := sqltest.Postgres(t)
	makeSchema(t, sqltest.Open(t, server))
	for name, l := range map[string]*sqllock.Locker{
		"no server":        sqllock.New(sqltest.Open(t, "127.0.0.1:1")),
		"no such table":    sqllock.New(sqltest.Open(t, server), sqllock.WithTable("absent")),
		"no such role":     sqllock.New(sqltest.Open(t, server, "user=nobody")),
		"no such database": sqllock.New(sqltest.Open(t, server, "database=absent")),
		"read-only":        sqllock.New(sqltest.Open(t, server, "default_transaction_read_only=on")),
	} {
		for _, c := range calls(t.Context(), l, "key", "token") {
			_, err := c.do()
			mark, ok := errors.AsType[*dlock.NoEffectError](err)
			assert.True(t, ok && !mark.Temporary, "%s: %s: %v; want an error that is marked, and not temporary", name, c.name, err)
		}
		client := dlock.New(l)
		_, err := client.TryAcquire(t.Context(), "key")
		assert.Error(t, err, name)
		assert.NotErrorIs(t, err, dlock.ErrHeld, name)
		assert.NoError(t, client.Close(), "%s: nothing is owed", name)
	}
}

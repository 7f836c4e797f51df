//go:build unix

package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/examples/sqllock"
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

// lock locks the row of a key, as a statement of another session does, until the
// function that it returns is called.
func lock(t *testing.T, db *sql.DB, key string) (unlock func()) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	if _, err := tx.Exec("SELECT FROM dlock WHERE key = $1 FOR UPDATE", []byte(key)); err != nil {
		t.Fatal(err)
	}
	return func() { tx.Rollback() }
}

// soon is a context for calls that must not wait for a row. They return long before
// it ends, or never.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func acquire(t *testing.T, l dlock.Locker, key, token string, ttl time.Duration) dlock.Attempt {
	t.Helper()
	a, err := l.TryAcquire(t.Context(), key, token, ttl)
	if err != nil || !a.Acquired {
		t.Fatalf("TryAcquire(%q, %q, %v) = %+v, %v; want it to be acquired", key, token, ttl, a, err)
	}
	return a
}

// A call is one of those that change something.
type call struct {
	name string
	do   func() error
}

func calls(ctx context.Context, l *sqllock.Locker, key, token string) []call {
	batch := []dlock.Renewal{{Key: key, Token: token, TTL: long}}
	return []call{
		{"TryAcquire", func() error { _, err := l.TryAcquire(ctx, key, token, long); return err }},
		{"Renew", func() error { _, err := l.Renew(ctx, key, token, long); return err }},
		{"RenewBatch", func() error { _, err := l.RenewBatch(ctx, batch); return err }},
		{"Release", func() error { _, err := l.Release(ctx, key, token); return err }},
	}
}

func number(t *testing.T, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// A row is kept while it may be needed, and not for ever.
func TestOldRowsAreDeleted(t *testing.T) {
	l, db := fresh(t)
	for i := range 5 {
		key := fmt.Sprint("old", i)
		acquire(t, l, key, "holder", long)
		if held, err := l.Release(t.Context(), key, "holder"); !held || err != nil {
			t.Fatalf("Release(%q) = %v, %v; want true", key, held, err)
		}
	}
	do(t, db, "UPDATE dlock SET expires = expires - interval '23 hours'")
	acquire(t, l, "a", "holder", long)
	if n := number(t, db, "SELECT count(*) FROM dlock"); n != 6 {
		t.Errorf("%d rows after the grant of a 6th key; want 6, because none is a day old", n)
	}
	do(t, db, "UPDATE dlock SET expires = expires - interval '1 hour' WHERE key <> 'a'")
	if a, err := l.TryAcquire(t.Context(), "a", "stranger", long); err != nil || a.Acquired {
		t.Fatalf("TryAcquire of a held key = %+v, %v; want it to be refused", a, err)
	}
	if n := number(t, db, "SELECT count(*) FROM dlock"); n != 6 {
		t.Errorf("%d rows after a refusal; want 6, because it writes nothing", n)
	}
	for i, want := range []int64{5, 4, 4} { // one is added, up to two are deleted
		acquire(t, l, fmt.Sprint("new", i), "holder", long)
		if n := number(t, db, "SELECT count(*) FROM dlock"); n != want {
			t.Errorf("%d rows after grant %d; want %d", n, i, want)
		}
	}
	if n := number(t, db, "SELECT count(*) FROM dlock WHERE convert_from(key, 'UTF8') LIKE 'old%'"); n != 0 {
		t.Errorf("%d old rows are left after three grants; want 0", n)
	}
}

// An old row that another session is using just now is not waited for.
func TestLockedRowsAreNotWaitedFor(t *testing.T) {
	l, db := fresh(t)
	acquire(t, l, "old", "holder", long)
	do(t, db, "UPDATE dlock SET expires = expires - interval '2 days'")
	lock(t, db, "old")
	if a, err := l.TryAcquire(soon(t), "new", "holder", long); err != nil || !a.Acquired {
		t.Errorf("TryAcquire of another key = %+v, %v; want it to be acquired", a, err)
	}
	if n := number(t, db, "SELECT count(*) FROM dlock"); n != 2 {
		t.Errorf("%d rows; want 2, because the old one is locked", n)
	}
}

// A refusal locks no row: those who ask do not stand in each other's way, nor in the
// holder's.
func TestRefusalLocksNothing(t *testing.T) {
	l, db := fresh(t)
	acquire(t, l, "key", "holder", long)
	lock(t, db, "key")
	if a, err := l.TryAcquire(soon(t), "key", "stranger", long); err != nil || a.Acquired || a.Holder != "holder" {
		t.Errorf("TryAcquire = %+v, %v; want it to be refused, because of the holder", a, err)
	}
}

// A statement that has waited for its row decides by the time at which it got it.
func TestTimeGoesOnWhileAStatementWaits(t *testing.T) {
	for name, call := range map[string]func(l *sqllock.Locker) (held bool, err error){
		"Renew":   func(l *sqllock.Locker) (bool, error) { return l.Renew(soon(t), "key", "holder", long) },
		"Release": func(l *sqllock.Locker) (bool, error) { return l.Release(soon(t), "key", "holder") },
		"RenewBatch": func(l *sqllock.Locker) (bool, error) {
			results, err := l.RenewBatch(soon(t), []dlock.Renewal{{Key: "key", Token: "holder", TTL: long}})
			return err == nil && results[0].Held, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, db := fresh(t)
			acquire(t, l, "key", "holder", time.Second)
			unlock := lock(t, db, "key")
			done := make(chan struct{})
			var held bool
			var err error
			go func() {
				defer close(done)
				held, err = call(l)
			}()
			const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
			for number(t, db, waiting) == 0 && number(t, db, alive) == 1 {
				time.Sleep(5 * time.Millisecond)
			}
			for number(t, db, alive) == 1 {
				time.Sleep(5 * time.Millisecond)
			}
			unlock()
			<-done
			if held || err != nil {
				t.Errorf("%s, which waited for the row until the lease had expired: %v, %v; want false", name, held, err)
			}
		})
	}
}

const alive = "SELECT count(*) FROM dlock WHERE expires > clock_timestamp()"

// The fence rises above the key's last one though the clock does not.
func TestFenceRisesWithoutTheClock(t *testing.T) {
	l, db := fresh(t)
	first := acquire(t, l, "key", "first", long)
	do(t, db, "UPDATE dlock SET fence = fence + 3600e6") // the clock is set back by an hour
	second := acquire(t, l, "key", "first", long)
	if want := first.Fence + 3600e6 + 8; second.Fence != want {
		t.Errorf("the fence after %d is %d; want %d", want-8, second.Fence, want)
	}
}

// A server that cannot write does not say "not held".
func TestReadOnlyServer(t *testing.T) {
	l, db := fresh(t, "default_transaction_read_only=on")
	do(t, db, "INSERT INTO dlock VALUES ('held', 'holder', 'infinity', 8)")
	for _, key := range []string{"held", "free"} {
		for _, token := range []string{"holder", "stranger"} {
			for _, c := range calls(t.Context(), l, key, token) {
				if err := c.do(); err == nil || !strings.Contains(err.Error(), "25006") {
					t.Errorf("%s of the key %q by %s: %v; want the error 25006, read_only_sql_transaction", c.name, key, token, err)
				}
			}
		}
	}
}

// Batches over the same keys in different orders, single calls, and deletions do not
// wait for each other in a circle.
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
				if err != nil || slices.Contains(results, dlock.RenewResult{}) {
					t.Errorf("RenewBatch of leases that are all held: %v, %v", results, err)
				}
				if held, err := l.Renew(ctx, mine[n].Key, "holder", long); err != nil || !held {
					t.Errorf("Renew of a lease that is held: %v, %v", held, err)
				}
			}
		})
		wg.Go(func() {
			for n := range rounds {
				old := fmt.Sprint("old", (n+i)%5)
				if _, err := l.TryAcquire(ctx, old, fmt.Sprint("holder", i), time.Millisecond); err != nil {
					t.Errorf("TryAcquire: %v", err)
				}
				if _, err := db.Exec("UPDATE dlock SET expires = 'epoch' WHERE key = $1", []byte(old)); err != nil {
					t.Errorf("making %s old: %v", old, err)
				}
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
			inspect := call{"Inspect", func() error { _, err := l.Inspect(ctx, key); return err }}
			for _, c := range append(calls(ctx, l, key, token), inspect) {
				if err := c.do(); err != nil {
					t.Errorf("%s of the key %q by %s: %v", c.name, key, token, err)
				}
				if n := db.Stats().InUse; n != 0 {
					t.Fatalf("%s of the key %q by %s has kept its connection", c.name, key, token)
				}
			}
		}
	}
}

func TestCreateTableAtOnce(t *testing.T) {
	_, db := fresh(t)
	const name = `Odd "name"`
	l := sqllock.New(db, sqllock.WithTable("public."+name))
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := l.CreateTable(t.Context()); err != nil {
				t.Errorf("CreateTable: %v", err)
			}
		})
	}
	wg.Wait()
	acquire(t, l, "key", "holder", long)
	if n := number(t, db, "SELECT count(*) FROM pg_indexes WHERE tablename = $1", name); n != 2 {
		t.Errorf("the table has %d indexes; want 2: of the key, and of the end of the lease", n)
	}
}

func TestBadArguments(t *testing.T) {
	var none *sql.DB
	db := sqltest.Open(t, "127.0.0.1:1") // nothing is sent
	good := sqllock.New(db)
	for name, err := range map[string]error{
		"nil db":        tryAcquire(sqllock.New(none), "key", "token", long),
		"empty table":   tryAcquire(sqllock.New(db, sqllock.WithTable("")), "key", "token", long),
		"NUL in table":  tryAcquire(sqllock.New(db, sqllock.WithTable("a\x00b")), "key", "token", long),
		"three parts":   tryAcquire(sqllock.New(db, sqllock.WithTable("a.b.c")), "key", "token", long),
		"a long table":  tryAcquire(sqllock.New(db, sqllock.WithTable(strings.Repeat("x", 64))), "key", "token", long),
		"empty key":     tryAcquire(good, "", "token", long),
		"empty token":   tryAcquire(good, "key", "", long),
		"TTL too short": tryAcquire(good, "key", "token", time.Microsecond),
		"CreateTable":   sqllock.New(none).CreateTable(context.Background()),
	} {
		if !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: %v; want dlock.ErrInvalid", name, err)
		}
	}
}

// Whoever was refused, or had no connection, owes nothing, so that a Client closes at once.
func TestNothingIsOwedAfterARefusal(t *testing.T) {
	server := sqltest.Postgres(t)
	db := sqltest.Open(t, server)
	makeSchema(t, db)
	for name, l := range map[string]*sqllock.Locker{
		"no server":        sqllock.New(sqltest.Open(t, "127.0.0.1:1")),
		"no such table":    sqllock.New(db, sqllock.WithTable("absent")),
		"no such role":     sqllock.New(sqltest.Open(t, server, "user=nobody")),
		"no such database": sqllock.New(sqltest.Open(t, server, "database=absent")),
		"read-only":        sqllock.New(sqltest.Open(t, server, "default_transaction_read_only=on")),
	} {
		var mark *dlock.NoEffectError
		for _, c := range calls(t.Context(), l, "key", "token") {
			if err := c.do(); !errors.As(err, &mark) || mark.Temporary {
				t.Errorf("%s: %s: %v; want an error that is marked, and not temporary", name, c.name, err)
			}
		}
		client := dlock.New(l)
		if _, err := client.TryAcquire(t.Context(), "key"); err == nil || errors.Is(err, dlock.ErrHeld) {
			t.Errorf("TryAcquire, with %s: %v; want the refusal", name, err)
		}
		if err := client.Close(); err != nil {
			t.Errorf("Close, with %s: %v; want nil, because nothing is owed", name, err)
		}
	}
}

func tryAcquire(l dlock.Locker, key, token string, ttl time.Duration) error {
	_, err := l.TryAcquire(context.Background(), key, token, ttl)
	return err
}

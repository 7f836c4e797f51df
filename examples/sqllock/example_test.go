//go:build unix

package sqllock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/examples/sqllock"
)

var errBehind = errors.New("a later holder has been here")

// withdraw reads a balance, thinks about it, and writes it back, under a lock: the
// kind of work that cannot be one statement. The lease's fence goes along with the
// reading and the writing, and the row refuses smaller fences than it has seen. So
// a process that was stopped for longer than its lease lasts does no harm. While a
// standby takes over, two leases can have the same fence: a random name tells them
// apart. (The token would not do: it is a secret.)
func withdraw(ctx context.Context, db *sql.DB, locks *dlock.Client, account string, amount int64) error {
	return locks.Do(ctx, "account:"+account, func(ctx context.Context, lease *dlock.Lease) error {
		name := rand.Text()
		balance, err := read(ctx, db, account, lease.Fence(), name)
		if err != nil {
			return err
		}
		if balance < amount {
			return fmt.Errorf("account %q has %d, less than %d", account, balance, amount)
		}
		return write(ctx, db, account, lease.Fence(), name, balance-amount)
	})
}

// newer is the condition under which a row obeys a lease with the fence $2 and the name $3.
const newer = "(fence < $2 OR fence = $2 AND lease = $3)"

func read(ctx context.Context, db *sql.DB, account string, fence int64, lease string) (balance int64, err error) {
	err = db.QueryRowContext(ctx, "UPDATE account SET fence = $2, lease = $3 WHERE id = $1 AND "+newer+" RETURNING balance",
		account, fence, lease).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errBehind
	}
	return balance, err
}

func write(ctx context.Context, db *sql.DB, account string, fence int64, lease string, balance int64) error {
	res, err := db.ExecContext(ctx, "UPDATE account SET balance = $4, fence = $2, lease = $3 WHERE id = $1 AND "+newer,
		account, fence, lease, balance)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errBehind)
	}
	return nil
}

// An application with PostgreSQL, and nothing else.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://…")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	forLocks, err := sql.Open("pgx", "postgres://…") // so that a renewal always has a connection
	if err != nil {
		fmt.Println(err)
		return
	}
	defer forLocks.Close()
	locker := sqllock.New(forLocks)
	if err := locker.CreateTable(ctx); err != nil {
		fmt.Println(err)
		return
	}
	locks := dlock.New(locker, dlock.WithFence(true))
	defer locks.Close()
	if err := withdraw(ctx, db, locks, "savings", 100); err != nil {
		fmt.Println(err)
	}
}

// openAccount puts 100 into savings.
func openAccount(t *testing.T, db *sql.DB) {
	do(t, db, "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '')")
	do(t, db, "INSERT INTO account VALUES ('savings', 100)")
}

func TestWithdraw(t *testing.T) {
	l, db := fresh(t)
	ctx := t.Context()
	openAccount(t, db)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			locks := dlock.New(l, dlock.WithFence(true))
			defer locks.Close()
			for range 5 {
				if err := withdraw(ctx, db, locks, "savings", 3); err != nil {
					t.Errorf("withdraw: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if n := number(t, db, "SELECT balance FROM account"); n != 40 {
		t.Errorf("100, and 20 times 3 withdrawn: the balance is %d; want 40", n)
	}
}

// A holder that is stopped between reading and writing comes back too late.
func TestWithdrawTooLate(t *testing.T) {
	l, db := fresh(t)
	ctx := t.Context()
	openAccount(t, db)
	stopped := acquire(t, l, "account:savings", "stopped", long)
	balance, err := read(ctx, db, "savings", stopped.Fence, "stopped")
	if err != nil {
		t.Fatal(err)
	}
	do(t, db, "UPDATE dlock SET expires = 'epoch'") // as if long had passed
	locks := dlock.New(l, dlock.WithFence(true))
	defer locks.Close()
	if err := withdraw(ctx, db, locks, "savings", 30); err != nil {
		t.Fatal(err)
	}
	if err := write(ctx, db, "savings", stopped.Fence, "stopped", balance-50); !errors.Is(err, errBehind) {
		t.Errorf("the late write: %v; want %v", err, errBehind)
	}
	if n := number(t, db, "SELECT balance FROM account"); n != 70 {
		t.Errorf("the balance is %d; want 70", n)
	}
}

// Of two leases with the same fence, a row obeys the first that comes.
func TestWithdrawWithEqualFences(t *testing.T) {
	_, db := fresh(t)
	ctx := t.Context()
	openAccount(t, db)
	for _, step := range []struct {
		what  string
		fence int64
		lease string
		want  error
	}{
		{"the first write", 8, "mine", nil},
		{"an equal fence of another lease", 8, "other", errBehind},
		{"a write that is repeated", 8, "mine", nil},
		{"a larger fence", 16, "other", nil},
		{"a smaller fence", 8, "mine", errBehind},
	} {
		if err := write(ctx, db, "savings", step.fence, step.lease, step.fence); !errors.Is(err, step.want) {
			t.Errorf("%s: write: %v; want %v", step.what, err, step.want)
		}
		if _, err := read(ctx, db, "savings", step.fence, step.lease); !errors.Is(err, step.want) {
			t.Errorf("%s: read: %v; want %v", step.what, err, step.want)
		}
	}
	if n := number(t, db, "SELECT balance FROM account"); n != 16 {
		t.Errorf("the balance is %d; want 16", n)
	}
}

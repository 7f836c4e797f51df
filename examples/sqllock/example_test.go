//go:build unix

package sqllock_test

import (
	"context"
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
// a process that was stopped for longer than its lease lasts does no harm.
func withdraw(ctx context.Context, db *sql.DB, locks *dlock.Client, account string, amount int64) error {
	return locks.Do(ctx, "account:"+account, func(ctx context.Context, lease *dlock.Lease) error {
		balance, err := read(ctx, db, account, lease.Fence())
		if err != nil {
			return err
		}
		if balance < amount {
			return fmt.Errorf("account %q has %d, less than %d", account, balance, amount)
		}
		return write(ctx, db, account, lease.Fence(), balance-amount)
	})
}

func read(ctx context.Context, db *sql.DB, account string, fence int64) (balance int64, err error) {
	err = db.QueryRowContext(ctx, "UPDATE account SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING balance", account, fence).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errBehind
	}
	return balance, err
}

func write(ctx context.Context, db *sql.DB, account string, fence, balance int64) error {
	res, err := db.ExecContext(ctx, "UPDATE account SET balance = $3, fence = $2 WHERE id = $1 AND fence <= $2", account, fence, balance)
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

func TestWithdraw(t *testing.T) {
	l, db := fresh(t)
	ctx := t.Context()
	do(t, db, "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)")
	do(t, db, "INSERT INTO account VALUES ('savings', 100)")
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
	do(t, db, "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)")
	do(t, db, "INSERT INTO account VALUES ('savings', 100)")
	stopped := acquire(t, l, "account:savings", "stopped", long)
	balance, err := read(ctx, db, "savings", stopped.Fence)
	if err != nil {
		t.Fatal(err)
	}
	do(t, db, "UPDATE dlock SET expires = 'epoch'") // as if long had passed
	locks := dlock.New(l, dlock.WithFence(true))
	defer locks.Close()
	if err := withdraw(ctx, db, locks, "savings", 30); err != nil {
		t.Fatal(err)
	}
	if err := write(ctx, db, "savings", stopped.Fence, balance-50); !errors.Is(err, errBehind) {
		t.Errorf("the late write: %v; want %v", err, errBehind)
	}
	if n := number(t, db, "SELECT balance FROM account"); n != 70 {
		t.Errorf("the balance is %d; want 70", n)
	}
}

//go:build unix

package sqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/examples/sqllock"
	"github.com/dlock-go/dlock/fence"
)

// fences is the table that makes the database refuse late writes.
var fences = fence.Postgres("dlock_fence")

// withdraw reads a balance, thinks about it, and writes it back, under a lock: the
// kind of work that cannot be one statement. The lease's Stamp is checked in the
// transaction, so a process that was stopped for longer than its lease lasts does no harm.
func withdraw(ctx context.Context, db *sql.DB, locks *dlock.Client, account string, amount int64) error {
	return locks.Do(ctx, "account:"+account, func(ctx context.Context, lease *dlock.Lease) error {
		stamp, err := fence.Of(lease)
		if err != nil {
			return err
		}
		return withdrawStamped(ctx, db, stamp, account, amount)
	})
}

func withdrawStamped(ctx context.Context, db *sql.DB, stamp fence.Stamp, account string, amount int64) error {
	tx, err := fences.Begin(ctx, db, nil, stamp)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var balance int64
	if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = $1", account).Scan(&balance); err != nil {
		return err
	}
	if balance < amount {
		return fmt.Errorf("account %q has %d, less than %d", account, balance, amount)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = $2 WHERE id = $1", account, balance-amount); err != nil {
		return err
	}
	return tx.Commit()
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
	if _, err := db.ExecContext(ctx, fences.Schema()); err != nil {
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
	do(t, db, "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL)")
	do(t, db, fences.Schema())
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
				assert.NoError(t, withdraw(ctx, db, locks, "savings", 3))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 40, number(t, db, "SELECT balance FROM account"))
}

// A holder that is stopped before it writes comes back too late.
func TestWithdrawTooLate(t *testing.T) {
	l, db := fresh(t)
	ctx := t.Context()
	openAccount(t, db)
	locks := dlock.New(l, dlock.WithFence(true))
	defer locks.Close()
	stopped, err := locks.Acquire(ctx, "account:savings")
	require.NoError(t, err)
	stamp, err := fence.Of(stopped)
	require.NoError(t, err)
	do(t, db, "UPDATE dlock SET expires = 'epoch'") // as if long had passed
	require.NoError(t, withdraw(ctx, db, locks, "savings", 30))
	assert.ErrorIs(t, withdrawStamped(ctx, db, stamp, "savings", 50), fence.ErrStale, "the late write")
	assert.Equal(t, 70, number(t, db, "SELECT balance FROM account"))
}

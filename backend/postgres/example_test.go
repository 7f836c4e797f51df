package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/once"
)

// The lock and the rows are in one database. A process that was stopped for longer than its lease lasts does no harm: the
// database refuses its write once its successor has written.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	db, err := sql.Open("pgx", "postgres://localhost/app")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	fences := fence.Postgres("dlock_fence") // the migration has run fences.Schema() and schema.sql
	locker := postgres.New(pool)
	defer locker.Close()
	locks := dlock.New(locker, dlock.WithFence(true))
	defer locks.Close()

	err = locks.Do(ctx, "account:savings", func(ctx context.Context, lease *dlock.Lease) error {
		stamp, err := fence.Of(lease)
		if err != nil {
			return err
		}
		tx, err := fences.Begin(ctx, db, nil, stamp)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance - 100 WHERE id = 'savings'"); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		fmt.Println(err)
	}
}

// A program for cron on several machines: it runs another once in each period, as dlock run --once does on Redis.
func Example_command() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	locker := postgres.New(pool) // a migration has run schema.sql
	defer locker.Close()
	locks := dlock.New(locker)
	defer locks.Close()

	night := once.New(locks, "nightly-report", 24*time.Hour, once.Phase(3*time.Hour))
	err = night.Task(func(ctx context.Context, _ *dlock.Lease) error {
		return exec.CommandContext(ctx, "/usr/local/bin/report", "--all").Run() // killed if the lease is lost
	})(ctx)
	if err != nil {
		fmt.Println(err)
	}
}

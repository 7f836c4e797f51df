package dlock_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/fence"
)

// fences is a table beside the accounts, in the same database. It is created once:
//
//	db.ExecContext(ctx, fences.Schema())
var fences = fence.Postgres("dlock_fence")

// withdraw changes an account in a database. The locks are made with dlock.WithFence(true).
func withdraw(ctx context.Context, locks *dlock.Client, db *sql.DB, account string, amount int) error {
	done := false
	err := locks.Do(ctx, "account:"+account, func(ctx context.Context, lease *dlock.Lease) error {
		stamp, err := fence.Of(lease)
		if err != nil {
			return err
		}
		tx, err := fences.Begin(ctx, db, nil, stamp)
		if err != nil {
			return err // fence.ErrStale: another process has the lock
		}
		defer tx.Rollback()
		var balance int
		err = tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = $1", account).Scan(&balance)
		if err != nil {
			return err
		}
		if balance < amount {
			return fmt.Errorf("account %q has %d, less than %d", account, balance, amount)
		}
		_, err = tx.ExecContext(ctx, "UPDATE account SET balance = $2 WHERE id = $1", account, balance-amount)
		if err != nil {
			return err
		}
		err = tx.Commit()
		done = err == nil
		return err
	})
	if done {
		return nil // also if err is ErrLost: the database has accepted the write
	}
	return err
}

// A register is a resource that is kept in Go, in place of a database. It compares, remembers and
// writes in one step.
type register struct {
	mu    sync.Mutex
	last  fence.Stamp
	value string
}

func (r *register) write(s fence.Stamp, value string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.Admits(s) {
		return fence.ErrStale
	}
	r.last, r.value = s, value
	return nil
}

// A fence guards each write. A holder that is paused for longer than its TTL does not know, when it
// writes, that it has lost the lock. The database knows. So its answer counts: a write that it has
// accepted is done, even if Do or Release returns ErrLost afterwards.
//
// The function withdraw is what a service with a database does: see package fence. The register
// shows the same without a database.
func Example_fence() {
	_ = withdraw // it needs a database
	store := memory.New()
	locks := dlock.New(store, dlock.WithFence(true)) // refuses stores that have no fences
	defer locks.Close()
	var r register
	acquire := func() (*dlock.Lease, fence.Stamp) {
		lease, err := locks.Acquire(context.Background(), "register")
		if err != nil {
			panic(err)
		}
		stamp, err := fence.Of(lease)
		if err != nil {
			panic(err)
		}
		return lease, stamp
	}

	first, stamp1 := acquire()
	defer first.Release()
	fmt.Println("first writes:", r.write(stamp1, "one"))

	store.Expire("register") // as if the first holder was paused for longer than its TTL
	second, stamp2 := acquire()
	defer second.Release()
	fmt.Println("second writes:", r.write(stamp2, "two"))
	fmt.Println("first writes again:", r.write(stamp1, "one and a half"))
	fmt.Println("value:", r.value)
	// Output:
	// first writes: <nil>
	// second writes: <nil>
	// first writes again: fence: a later holder has been here
	// value: two
}

package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/fence"
)

// fences is the table beside the accounts. It is created once:
//
//	db.ExecContext(ctx, fences.Schema())
var fences = fence.Postgres("dlock_fence")

// transfer moves money between two accounts, under the locks of both.
func transfer(ctx context.Context, locks *dlock.Client, db *sql.DB, from, to string, amount int) error {
	return locks.DoAll(ctx, []string{from, to}, func(ctx context.Context, leases *dlock.Leases) error {
		stamps, err := fence.OfAll(leases)
		if err != nil {
			return err
		}
		tx, err := fences.Begin(ctx, db, nil, stamps...)
		if err != nil {
			return err // fence.ErrStale: another process has one of the locks
		}
		defer tx.Rollback()
		const change = "UPDATE account SET balance = balance + $2 WHERE lock_key = $1"
		if _, err := tx.ExecContext(ctx, change, from, -amount); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, change, to, amount); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// A transaction under a set of locks gives all Stamps to one Begin.
func ExampleOfAll() {
	_ = transfer // it needs a database
}

// rename is a handler of a service that has the data. Its clients hold the locks.
func rename(db *sql.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		stamp, err := fence.FromHeader(r.Header, "account:"+id)
		if err != nil {
			http.Error(w, err.Error(), http.StatusPreconditionRequired)
			return
		}
		tx, err := fences.Begin(r.Context(), db, nil, stamp)
		if errors.Is(err, fence.ErrStale) {
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
			return
		}
		if err == nil {
			defer tx.Rollback()
			_, err = tx.ExecContext(r.Context(), "UPDATE account SET name = $2 WHERE id = $1", id, r.FormValue("name"))
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}
}

// A client of a service that has the data sends the Stamp of its lease along.
func ExampleSetHeader() {
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}", rename(nil)) // this example has no database
	post := func(stamps ...fence.Stamp) {
		r := httptest.NewRequest(http.MethodPost, "/accounts/7", nil)
		fence.SetHeader(r.Header, stamps...)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	post()
	post(fence.Stamp{Key: "account:8", Fence: 16, Holder: "0123456789abcdef01234567"})
	// Output:
	// 428 fence: invalid header: 0 stamps of key "account:7", not 1
	// 428 fence: invalid header: 0 stamps of key "account:7", not 1
}

// A register is a resource that is kept in Go. It looks at the Stamp and writes in one step.
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

// A resource that is kept in Go follows the rule of the tables with Admits.
func ExampleStamp_Admits() {
	store := memory.New()
	locks := dlock.New(store, dlock.WithFence(true))
	defer locks.Close()
	var r register
	acquire := func() fence.Stamp {
		lease, err := locks.Acquire(context.Background(), "register")
		if err != nil {
			panic(err)
		}
		s, err := fence.Of(lease)
		if err != nil {
			panic(err)
		}
		return s
	}

	first := acquire()
	store.Expire("register") // as if the first holder was stopped for longer than its TTL
	second := acquire()
	fmt.Println("second:", r.write(second, "two"))
	fmt.Println("first:", r.write(first, "one"))
	// Output:
	// second: <nil>
	// first: fence: a later holder has been here
}

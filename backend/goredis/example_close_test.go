package goredis_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A worker has the three things that are to be closed: the driver, the backend on it, and
// the Client on that.
type worker struct {
	rdb   *redis.Client
	store *rediscore.Locker
	locks *dlock.Client
}

func newWorker(addr string) *worker {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	store := goredis.New(rdb)
	return &worker{rdb, store, dlock.New(store)}
}

// close closes what newWorker has opened, in the opposite order. Nobody may be working any
// more: a lease that is still held is not released, and its key stays until its TTL has
// passed.
//
//   - The Client ends its waits and renewals, and sends the releases that it owes. For
//     that it needs the other two.
//   - The backend removes its waiters from the queues, and ends its subscription. For that
//     it needs the driver.
//   - The driver closes its connections. It belongs to the application: leave it open if
//     others use it.
func (w *worker) close() error {
	err := w.locks.Close()
	err = errors.Join(err, w.store.Close())
	return errors.Join(err, w.rdb.Close())
}

// The order in which a program ends: the work, the Client, the backend, the driver. The
// memory backend has nothing to close.
func Example_close() {
	server, err := miniredis.Run() // stands for Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	w := newWorker(server.Addr())
	err = w.locks.Do(context.Background(), "order:1234", func(context.Context, *dlock.Lease) error {
		fmt.Println("working, locked:", server.Exists("order:1234"))
		return nil
	})
	fmt.Println("worked:", err)
	fmt.Println("closed:", w.close())
	fmt.Println("locked:", server.Exists("order:1234"))
	_, err = w.locks.TryAcquire(context.Background(), "order:1234")
	fmt.Println("closed for good:", errors.Is(err, dlock.ErrClosed))
	// Output:
	// working, locked: true
	// worked: <nil>
	// closed: <nil>
	// locked: false
	// closed for good: true
}

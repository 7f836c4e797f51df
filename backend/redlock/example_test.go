package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
)

// Three servers decide. TTLs may be up to a minute long, so a server that has restarted does not
// count for about a minute.
func ExampleNew() {
	connect := func(addr string) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	}
	a, b, c := connect("a:6379"), connect("b:6379"), connect("c:6379")

	nodes := []dlock.Locker{goredis.New(a), goredis.New(b), goredis.New(c)}
	quorum := redlock.New(nodes, redlock.WithLongestTTL(time.Minute))
	locks := dlock.New(quorum, dlock.WithTTL(time.Minute), dlock.WithFence(true))

	defer a.Close()
	defer b.Close()
	defer c.Close()
	defer quorum.Close() // nothing is sent to the nodes any more
	defer locks.Close()
}

// One of three nodes fails, and the lock goes on. When a second one fails, the error says what
// each of them said.
func ExampleMajorityError() {
	ctx := context.Background()
	var nodes []dlock.Locker
	var stores []*memory.Locker
	for range 3 {
		store := memory.New()
		store.SetAge(time.Hour) // as if it had been running for that long
		stores, nodes = append(stores, store), append(nodes, store)
	}
	quorum := redlock.New(nodes)
	defer quorum.Close()
	locks := dlock.New(quorum, dlock.WithFence(true))
	defer locks.Close()

	stores[0].Fail(errors.New("connection refused"))
	err := locks.Do(ctx, "order:7", func(context.Context, *dlock.Lease) error {
		fmt.Println("handling the order")
		return nil
	})
	fmt.Println(err)

	stores[1].Fail(errors.New("disk full"))
	_, err = locks.TryAcquire(ctx, "order:7")
	if missing := new(redlock.MajorityError); errors.As(err, &missing) {
		fmt.Println("needed:", missing.Quorum)
		for i, err := range missing.Nodes {
			fmt.Println(missing.Names[i], err)
		}
	}
	stores[1].Fail(nil) // lest Close wait for it

	// Output:
	// handling the order
	// <nil>
	// needed: 2
	// 0 connection refused
	// 1 disk full
	// 2 <nil>
}

// One of three nodes fails. Every call succeeds, and the failure is reported.
func ExampleOnNodeChange() {
	var nodes []dlock.Locker
	var stores []*memory.Locker
	for range 3 {
		store := memory.New()
		store.SetAge(time.Hour) // as if it had been running for that long
		stores, nodes = append(stores, store), append(nodes, store)
	}
	report := func(n redlock.NodeState) {
		if n.Status != redlock.NodeUp {
			fmt.Println(n.Node, "is", n.Status, "-", n.Err)
		}
	}
	quorum := redlock.New(nodes, redlock.WithNames("north", "south", "west"), redlock.OnNodeChange(report))
	locks := dlock.New(quorum)

	stores[1].Fail(errors.New("connection refused"))
	lease, err := locks.Acquire(context.Background(), "order:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Release())
	locks.Close()
	quorum.Close() // the node that failed has been reported by now
	for _, n := range quorum.Nodes() {
		fmt.Println(n.Node, n.Status)
	}

	// Unordered output:
	// south is down - connection refused
	// <nil>
	// north up
	// south down
	// west up
}

// Nodes that have just been started or emptied may have forgotten leases. They do not count until
// these leases have ended.
func ExampleMajorityError_wait() {
	quorum := redlock.New([]dlock.Locker{memory.New(), memory.New(), memory.New()})
	defer quorum.Close()
	locks := dlock.New(quorum)
	defer locks.Close()

	_, err := locks.TryAcquire(context.Background(), "order:7")
	if missing := new(redlock.MajorityError); errors.As(err, &missing) && missing.Wait > 0 {
		fmt.Println("two of three nodes count in", missing.Wait.Round(time.Second))
	}

	// Output:
	// two of three nodes count in 31s
}

package dlock_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A process that is being replaced sends its lease to its successor over a socket, so that
// nobody else gets the lock in between.
func Example_successor() {
	ctx := context.Background()
	store := memory.New() // stands for a server that both processes reach

	// The new process listens for the lease.
	successor := dlock.New(store)
	defer successor.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer listener.Close()
	taken := make(chan *dlock.Lease)
	go func() {
		lease, err := takeOver(ctx, successor, listener)
		if err != nil {
			log.Fatal(err)
		}
		taken <- lease
	}()

	// The old process holds the lock until it is replaced.
	old := dlock.New(store)
	defer old.Close()
	lease, err := old.Acquire(ctx, "consumer:orders")
	if err != nil {
		log.Fatal(err)
	}
	if err := handOver(ctx, old, lease, listener.Addr().String()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("old:", lease.Err())

	next := <-taken
	defer next.Release()
	fmt.Println("new:", next.Key(), "with the next fence:", next.Fence() == lease.Fence()+1)

	// Output:
	// old: lease released
	// new: consumer:orders with the next fence: true
}

// handOver sends the lease to the process at addr, or releases the lease if it cannot.
func handOver(ctx context.Context, client *dlock.Client, lease *dlock.Lease, addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return lease.Release() // no successor
	}
	defer conn.Close()
	detached, err := lease.Detach()
	if err != nil {
		return err
	}
	text, err := detached.MarshalText() // a secret: keep it out of logs
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(text, '\n')); err == nil {
		return nil
	}
	// The text did not arrive whole, so nobody can adopt the lease: take it back.
	back, err := client.Adopt(ctx, detached)
	if err != nil {
		return err
	}
	return back.Release()
}

// takeOver adopts the lease that arrives at the listener.
func takeOver(ctx context.Context, client *dlock.Client, listener net.Listener) (*dlock.Lease, error) {
	conn, err := listener.Accept()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var detached dlock.Detached
	if err := detached.UnmarshalText(line); err != nil {
		return nil, err
	}
	return client.Adopt(ctx, detached)
}

package election_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/election"
)

// A server is one of several processes. One of them leads.
type server struct {
	name string
	news chan string
	stop context.CancelFunc
	done chan error
}

func startServer(name string, store dlock.Locker) *server {
	ctx, stop := context.WithCancel(context.Background()) // in a program: signal.NotifyContext
	s := &server{name, make(chan string, 10), stop, make(chan error, 1)}
	go func() { s.done <- s.run(ctx, store) }()
	return s
}

// run returns when ctx has ended. It has released the lead then.
func (s *server) run(ctx context.Context, store dlock.Locker) error {
	client := dlock.New(store, dlock.WithOwner(s.name), dlock.WithTTL(time.Second))
	err := election.New(client, "leader").Run(ctx, s.lead)
	return errors.Join(err, client.Close())
}

// lead does the leader's work until ctx ends.
func (s *server) lead(ctx context.Context, _ *dlock.Lease) error {
	s.news <- s.name + " leads"
	<-ctx.Done() // the work goes here
	if errors.Is(context.Cause(ctx), dlock.ErrLost) {
		s.news <- s.name + " has lost the lead"
	} else {
		s.news <- s.name + " shuts down"
	}
	return nil
}

// One of two processes leads. The other takes over when the leader is cut off, and when it stops.
func Example() {
	store := memory.New() // between processes: goredis.New(rdb)
	anna := startServer("anna", store)
	fmt.Println(<-anna.news)
	ben := startServer("ben", store)

	store.Expire("leader") // as if anna had been cut off for longer than her TTL
	fmt.Println(<-ben.news)
	fmt.Println(<-anna.news)

	ben.stop()
	fmt.Println(<-ben.news, <-ben.done)
	fmt.Println(<-anna.news)
	anna.stop()
	fmt.Println(<-anna.news, <-anna.done)
	// Output:
	// anna leads
	// ben leads
	// anna has lost the lead
	// ben shuts down <nil>
	// anna leads
	// anna shuts down <nil>
}

// If two leaders at once would do harm, lead ends the process when it is at work after its lease.
func Example_exit() {
	lead := func(ctx context.Context, lease *dlock.Lease) error {
		returned := make(chan struct{})
		defer close(returned)
		context.AfterFunc(lease.Context(context.Background()), func() {
			select {
			case <-returned:
			case <-time.After(100 * time.Millisecond):
				os.Exit(1)
			}
		})
		<-ctx.Done() // the work goes here
		return nil
	}
	client := dlock.New(memory.New())
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	fmt.Println(election.New(client, "leader").Run(ctx, lead))
	// Output: <nil>
}

package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A candidate is one of several instances. One of them leads.
type candidate struct {
	name  string
	locks *dlock.Client
	news  chan string
}

// run competes for the lead, and again after each loss, until ctx ends. When it returns, it
// has released the lead.
func (c *candidate) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.locks.Do(ctx, "leader", c.lead)
		switch {
		case ctx.Err() != nil, errors.Is(err, dlock.ErrLost):
		case err != nil: // the store does not answer: try again, but not at once
			c.news <- err.Error()
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// lead does the leader's work. ctx ends on shutdown, or before another can lead.
func (c *candidate) lead(ctx context.Context, _ *dlock.Lease) error {
	c.news <- c.name + " leads"
	<-ctx.Done() // the work goes here
	if errors.Is(context.Cause(ctx), dlock.ErrLost) {
		c.news <- c.name + " has lost the lead"
	} else {
		c.news <- c.name + " shuts down"
	}
	return context.Cause(ctx)
}

// start runs a candidate. stop ends it, and waits until it has ended.
func start(name string, store dlock.Locker) (c *candidate, stop func()) {
	locks := dlock.New(store, dlock.WithOwner(name), dlock.WithTTL(3*time.Second))
	c = &candidate{name, locks, make(chan string, 10)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer locks.Close()
		c.run(ctx)
	}()
	return c, func() {
		cancel()
		<-ended
	}
}

// A leader loop competes again after a loss, and releases the lead on shutdown. The cause of
// the work's context says which of the two has ended it.
func Example_leader() {
	store := memory.New()
	anna, stopAnna := start("anna", store)
	fmt.Println(<-anna.news)
	ben, stopBen := start("ben", store)

	store.Expire("leader") // as if anna was cut off for longer than her TTL
	fmt.Println(<-ben.news)
	fmt.Println(<-anna.news)

	stopBen()
	fmt.Println(<-ben.news)
	fmt.Println(<-anna.news)
	stopAnna()
	fmt.Println(<-anna.news)

	holder, err := dlock.New(store).Inspect(context.Background(), "leader")
	fmt.Println("held:", holder.Held, err)
	// Output:
	// anna leads
	// ben leads
	// anna has lost the lead
	// ben shuts down
	// anna leads
	// anna shuts down
	// held: false <nil>
}

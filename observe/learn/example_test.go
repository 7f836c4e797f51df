package learn_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/observe/learn"
)

// The work takes about a millisecond. After 20 holds, a lease lasts much less than the longest
// TTL of five minutes, so a holder that dies blocks its key for much less.
func Example() {
	learner := learn.New(nil, 10*time.Millisecond, 5*time.Minute)
	locks := dlock.New(memory.New(),
		dlock.WithRenewal(false),
		dlock.WithTTL(5*time.Minute),
		dlock.WithTTLFrom(learner.TTL),
		dlock.WithObserver(learner.Observer()))
	defer locks.Close()

	fmt.Println("at first:", learner.TTL("order:1"))
	for i := range 20 {
		err := locks.Do(context.Background(), fmt.Sprint("order:", i), func(context.Context, *dlock.Lease) error {
			time.Sleep(time.Millisecond) // the work
			return nil
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("below a minute later:", learner.TTL("order:1") < time.Minute)
	// Output:
	// at first: 5m0s
	// below a minute later: true
}

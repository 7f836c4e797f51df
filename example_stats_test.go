package dlock_test

import (
	"context"
	"expvar"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// lockStats has one entry for each Client. Any HTTP server that uses http.DefaultServeMux
// serves it under /debug/vars.
var lockStats = expvar.NewMap("dlock")

// publish makes the figures of a Client visible. Each request for them calls Stats.
func publish(name string, locks *dlock.Client) {
	lockStats.Set(name, expvar.Func(func() any { return locks.Stats() }))
}

// Publish the figures of a Client with expvar. Alert if Lost or RenewalsFailed grow, if
// ReleasesOwed stays high, or if ReleasesDropped is above 0.
func ExampleClient_Stats() {
	locks := dlock.New(memory.New())
	defer locks.Close()
	publish("orders", locks)

	lease, err := locks.Acquire(context.Background(), "order:1234")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lockStats.Get("orders"))
	lease.Release()
	fmt.Println("leases after the release:", locks.Stats().Leases)
	// Output:
	// {"Leases":1,"Waiters":0,"ReleasesOwed":0,"ReleasesDropped":0,"Lost":0,"RenewalsFailed":0,"EventsDropped":0}
	// leases after the release: 0
}

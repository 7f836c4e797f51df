package redistest

import (
	"testing"
	"time"
)

// A Bed is a store whose masters have replicas that take their places: [Sentinels] or a [Cluster].
// A test that strikes it with all its Faults need not know which it is.
type Bed interface {
	// Addrs returns the addresses that a client is given.
	Addrs() []string

	// Masters returns the servers that are masters now.
	Masters(t testing.TB) []*Server

	// MasterOf returns the master that has key.
	MasterOf(t testing.TB, key string) *Server

	// Faults returns what can happen to the bed.
	Faults() []Fault
}

var (
	_ Bed = (*Sentinels)(nil)
	_ Bed = (*Cluster)(nil)
)

// A Fault is something that can happen to a Bed.
type Fault struct {
	Name string

	// Strike makes it happen, to a master at random, and puts it right again. When it returns, all
	// servers run, and each knows its place. It returns the time from the fault until a replica was
	// master, or 0 if that is not what happens.
	Strike func(t testing.TB) (failover time.Duration)
}

// lateness is how long a master that was replaced goes on unreachable.
const lateness = 300 * time.Millisecond

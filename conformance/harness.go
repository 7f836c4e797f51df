package conformance

import (
	"cmp"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// A Harness says how to reach a store, and what the store claims. Only New is needed, or PerCase.
type Harness struct {
	// New returns one more client of the same store, and cleans up with t.Cleanup. All calls in one
	// case get the same t. The Locker may be a [dlock.TTLLimiter] that allows at least 10 minutes.
	New func(t *testing.T) dlock.Locker

	// TTL is the shortest TTL that the store can keep, in whole milliseconds. Raise it for a store
	// that counts in seconds. 0 means 200 ms.
	TTL time.Duration

	// Grace is how late the store may end a lease. It must never end one early. 0 means 50 ms.
	Grace time.Duration

	// Bubble says that the store lives in this process and reads time only from package time. Every
	// case then runs in a testing/synctest bubble, where no real time passes, and where nothing from
	// another bubble may be used: keep a store for each t.
	Bubble bool

	// Dial returns a client of a network store that listens at addr. Set it for every store on a
	// network: the suite then stands between the two, at an address of its own, and causes faults.
	Dial func(t *testing.T, addr string) dlock.Locker
	Addr string // where the store of Dial really is: host and port

	// Wipe makes the store lose all data. Set it if fences survive this. It is also called from other
	// goroutines than that of t. Calls in flight must not fail because of it. Nobody else may use the
	// store. Cases that call it run alone.
	Wipe func(t *testing.T)

	// Count returns how many keys, rows or records the store keeps, not counting kinds whose number
	// is limited. NoLeaks then finds what is never removed. Nobody else may use the store.
	Count func(t *testing.T) int

	// PerCase returns a Harness with a store of its own for one case. Set it for stores that are quick to
	// create: all cases then run at the same time, and all other fields are ignored.
	PerCase func(t *testing.T) Harness

	// Unordered says that the store serves waiters in any order. Where time really passes, an answer may then name a
	// holder whose attempt is still under way, as with a majority of servers.
	Unordered bool

	verdicts *verdicts     // of Run, if that runs the case
	patient  time.Duration // what patience returns, if not 0
	shorten  time.Duration // in place of shortening, if not 0
	explore  time.Duration // in place of budget, if not 0
	idles    bool          // idleTimes pass in this case
}

const (
	defaultTTL   = 200 * time.Millisecond
	defaultGrace = 50 * time.Millisecond

	// long is a TTL that no case outlives.
	long = 10 * time.Minute
)

func (h Harness) ttl() time.Duration { return cmp.Or(h.TTL.Truncate(time.Millisecond), defaultTTL) }

func (h Harness) grace() time.Duration { return cmp.Or(h.Grace, defaultGrace) }

// patience is how long the suite waits for what must happen soon: several times the check-in period of waiters.
func (h Harness) patience() time.Duration { return cmp.Or(h.patient, 15*time.Second+10*h.grace()) }

// limit is how long a case may take altogether.
func (h Harness) limit() time.Duration {
	limit := 2*time.Minute + 100*h.ttl() + 20*h.grace()
	if h.idles && h.Bubble {
		for _, idle := range idleTimes {
			limit += idle
		}
	}
	return limit
}

// gap is the time that a call is given to reach the store.
func (h Harness) gap() time.Duration {
	if h.Bubble {
		return 10 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// rounds is how many times a case does what is left to chance: n, or half of that with
// go test -short where time really passes.
func (h Harness) rounds(n int) int {
	if testing.Short() && !h.Bubble {
		return max(1, n/2)
	}
	return n
}

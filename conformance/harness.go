package conformance

import (
	"cmp"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// A Harness tells the suite how to reach a store, and what the store claims.
// Only New is needed, or PerCase.
type Harness struct {
	// New returns one more client of the same store, and cleans up with
	// t.Cleanup. All calls that one case makes get the same t. With Bubble
	// they run inside the bubble of the case, where nothing made in another
	// bubble may be used: a store per t is what is wanted there.
	New func(t *testing.T) dlock.Locker

	// TTL is the shortest TTL that the store keeps honestly, a multiple of a
	// millisecond; 0 means 200 ms.
	TTL time.Duration

	// Grace is how late the store may expire a lease; 0 means 50 ms.
	Grace time.Duration

	// Advance lets time pass for the store, for stores whose clock is moved by
	// hand; nil means time.Sleep. It may be asked for days, and must not take
	// as long itself. With Advance, cases run one at a time (unless there is PerCase),
	// and those that compare the store's clock with the process's are skipped.
	Advance func(time.Duration)

	// Bubble says that the store lives in this process and uses nothing but
	// package time: every case runs in a testing/synctest bubble, and no real
	// time passes.
	Bubble bool

	// Dial returns a client of the network store that listens at addr. The
	// suite stands between the two, at an address of its own.
	Dial func(t *testing.T, addr string) dlock.Locker

	// Addr is where the store of Dial really is: host and port.
	Addr string

	// Wipe makes the store lose everything that it has stored, where it claims
	// that fences survive this. Cases that call it run alone; nobody else may be
	// using the store. It is called from other goroutines than that of t too, and
	// while calls are under way, which must not fail of it.
	Wipe func(t *testing.T)

	// Count returns how many keys, rows or records the store keeps altogether, so
	// that NoLeaks sees what is never removed. It leaves out what has a limit,
	// however many locks there are. Nobody else may be using the store.
	Count func(t *testing.T) int

	// PerCase returns a Harness for one case, of a store that nobody else uses, and
	// cleans up with t.Cleanup. It stands in for all other fields. Cases can run at
	// the same time then, whatever they do to their store.
	PerCase func(t *testing.T) Harness

	// Unordered says that the store wakes waiters in any order.
	Unordered bool

	patient time.Duration // what patience returns, if not 0
	shorten time.Duration // in place of shortening, if not 0
	idles   bool          // idleTimes pass in this case
}

const (
	defaultTTL   = 200 * time.Millisecond
	defaultGrace = 50 * time.Millisecond

	// long is a TTL that no case outlives.
	long = 10 * time.Minute
)

func (h Harness) ttl() time.Duration {
	return cmp.Or(h.TTL.Truncate(time.Millisecond), defaultTTL)
}

func (h Harness) grace() time.Duration { return cmp.Or(h.Grace, defaultGrace) }

// patience is how long the suite waits for what a store owes it "soon": several
// times the period in which waiters ask whether they have been served.
func (h Harness) patience() time.Duration {
	return cmp.Or(h.patient, 15*time.Second+10*h.grace())
}

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

// rounds is how often a case does what is left to chance: n times, or half as often
// with go test -short.
func (h Harness) rounds(n int) int {
	if testing.Short() {
		return max(1, n/2)
	}
	return n
}

// forwarded is h with every client wrapped in a dlock.Forward.
func (h Harness) forwarded() Harness {
	f := h
	f.New = func(t *testing.T) dlock.Locker { return dlock.Forward{Locker: h.New(t)} }
	if h.Dial != nil {
		f.Dial = func(t *testing.T, addr string) dlock.Locker {
			return dlock.Forward{Locker: h.Dial(t, addr)}
		}
	}
	if h.PerCase != nil {
		f.PerCase = func(t *testing.T) Harness { return h.PerCase(t).forwarded() }
	}
	return f
}

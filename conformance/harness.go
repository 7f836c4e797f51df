package conformance

import (
	"cmp"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// A Harness says how to reach a store, and what the store claims. Only New is
// needed, or PerCase.
type Harness struct {
	// New returns one more client of the same store, and cleans up with
	// t.Cleanup. All calls in one case get the same t. With Bubble they run
	// inside the bubble of the case, where nothing from another bubble may be
	// used: keep a store for each t. If the Locker is a [dlock.TTLLimiter], no case asks for more
	// than its LongestTTL, which must be at least 10 minutes.
	New func(t *testing.T) dlock.Locker

	// TTL is the shortest TTL that the store can keep, in whole milliseconds.
	// 0 means 200 ms.
	TTL time.Duration

	// Grace is how late the store may expire a lease. 0 means 50 ms.
	Grace time.Duration

	// Advance lets time pass for a store whose clock is moved by hand. nil means
	// time.Sleep. The suite asks for days, so Advance must not take as long itself.
	// With Advance, cases run one at a time (unless there is PerCase). Cases that
	// compare the store's clock with the process's are skipped.
	Advance func(time.Duration)

	// Bubble says that the store lives in this process and reads time only from
	// package time. Every case then runs in a testing/synctest bubble, and no real
	// time passes.
	Bubble bool

	// Dial returns a client of the network store that listens at addr. The
	// suite stands between the two, at an address of its own.
	Dial func(t *testing.T, addr string) dlock.Locker

	// Addr is where the store of Dial really is: host and port.
	Addr string

	// DialAll is in place of Dial for a store that has several addresses, such as a
	// majority of servers: addrs stand for those of Addrs, in the same order. Faults then
	// strike one of them and as many as a majority can spare, when calls must succeed all the
	// same, and a majority and all.
	DialAll func(t *testing.T, addrs []string) dlock.Locker

	// Addrs are where the stores of DialAll really are.
	Addrs []string

	// Wipe makes the store lose everything that it has stored. Set it if the store
	// claims that fences survive this. Cases that call it run alone, and nobody else
	// may use the store. It is also called from other goroutines than that of t, and
	// while calls are in flight, which must not fail because of it.
	Wipe func(t *testing.T)

	// Count returns how many keys, rows or records the store keeps altogether.
	// NoLeaks then sees what is never removed. Count leaves out what has a limit,
	// however many locks there are. Nobody else may use the store.
	Count func(t *testing.T) int

	// PerCase returns a Harness for one case, with a store that nobody else uses, and
	// cleans up with t.Cleanup. If it is set, all other fields but SkipForward are
	// ignored. Cases then run at the same time, whatever they do to their store.
	PerCase func(t *testing.T) Harness

	// Unordered says that the store serves waiters in any order.
	Unordered bool

	// Scattered says that the store has several nodes, which do not execute a call at the same
	// instant. An answer may then show a call that is still under way: it may name as the holder one
	// whose attempt is refused in the end.
	Scattered bool

	// SkipForward leaves out the subtest Forward. It is for clients that are also
	// tested with another Harness.
	SkipForward bool

	// Observer, if it is set, is added to the Clients of the random histories. The suite compares
	// events with histories itself; this is for those who want to compare more.
	Observer *dlock.Observer

	skips   *skips        // of Run, if that runs the case
	patient time.Duration // what patience returns, if not 0
	shorten time.Duration // in place of shortening, if not 0
	explore time.Duration // in place of budget, if not 0
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

// patience is how long the suite waits for what must happen soon: several times the
// check-in period of waiters.
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

// rounds is how many times a case does what is left to chance: n, or half of that with
// go test -short where time really passes.
func (h Harness) rounds(n int) int {
	if testing.Short() && !h.Bubble {
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
	if h.DialAll != nil {
		f.DialAll = func(t *testing.T, addrs []string) dlock.Locker {
			return dlock.Forward{Locker: h.DialAll(t, addrs)}
		}
	}
	if h.PerCase != nil {
		f.PerCase = func(t *testing.T) Harness { return h.PerCase(t).forwarded() }
	}
	return f
}

// Package conformance checks that a store keeps the contract of [dlock.Locker].
// Every backend of this module passes it; so should anyone else's.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Harness{
//			New: func(t *testing.T) dlock.Locker {
//				conn := dial(t) // closed with t.Cleanup
//				return mylock.New(conn)
//			},
//		})
//	}
//
//	func BenchmarkLocker(b *testing.B) { conformance.Bench(b, harness) }
//
// # The cases
//
// Each clause of the contract is a subtest of its name: go test -run
// TestConformance/SameTokenAgain checks one of them. All of them run a second
// time, below the subtest Forward, with every client wrapped in a
// [dlock.Forward], which must not change anything.
//
// Cases use random keys, so that they can share one store and run in parallel;
// those that make the store lose its data, or count goroutines, run alone.
//
// # The harness
//
// Only Harness.New is needed. It returns one more client of the same store,
// however often a case calls it: most cases use several, as a store is used by
// several processes.
//
//   - TTL is the shortest TTL that the store keeps honestly. Raise it for a store
//     that counts in seconds.
//   - Grace is how late the store may expire a lease: the period of its sweeper,
//     for instance. It is added wherever the suite waits for an expiry. There is
//     no such allowance for a lease that ends too early.
//   - Sleep lets time pass where the store's clock is moved by hand, as that of
//     miniredis is: Sleep: server.FastForward.
//   - Bubble runs every case in a [testing/synctest] bubble, so that a store that
//     lives in this process is tested in virtual time, in milliseconds.
//   - Via and Addr let the suite stand between a client and its server.
//   - Wipe makes the store lose everything that it has stored, as FLUSHALL does.
//     Set it only if fences survive this.
//   - Unordered is for stores that queue waiters, but not in order.
//
// In a bubble nothing may be used that was made in another. All calls of New and
// Wipe in one case get the same t, so a store is kept for each t:
//
//	var stores sync.Map
//	store := func(t *testing.T) *memory.Locker {
//		l, _ := stores.LoadOrStore(t, memory.New())
//		return l.(*memory.Locker)
//	}
//	conformance.Run(t, conformance.Harness{
//		New:    func(t *testing.T) dlock.Locker { return store(t) },
//		Wipe:   func(t *testing.T) { store(t).Wipe() },
//		Bubble: true,
//	})
//
// # Reading a failure
//
// A failure says what was called, what came back and what the contract wants;
// then which calls were made before, with the time since the case began, the
// client (A, B, …), and the answer, so that what another client did in between
// can be seen; and at last the clause:
//
//	B.Release("conformance-QX2…", "stranger-7KD…"): held = true; want false
//	the latest calls:
//	      120µs  A.TryAcquire("conformance-QX2…", "holder-M3A…", 10m0s) = acquired, fence 8
//	      170µs  B.Release("conformance-QX2…", "stranger-7KD…") = true
//	clause: a backend reports false and changes nothing, also when another has taken the key over
//
// A case that does not end names the calls that have not returned. History is
// random: its failure tells the seed, and the environment variable
// DLOCK_CONFORMANCE_SEED repeats it.
//
// No case fails because the machine is slow. Where a lease may have expired
// meanwhile, the case begins anew, and after several times is skipped.
//
// # What a store cannot do
//
// Optional interfaces that a Locker does not implement, or whose method answers
// [errors.ErrUnsupported], and fences that are 0, show as skips that name the
// reason; so do the fields of the Harness that are not set. Nothing else is
// optional.
package conformance

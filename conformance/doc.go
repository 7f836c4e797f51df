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
// docs/writing-a-backend.md goes from nothing to a backend that passes, with one on
// PostgreSQL as the example.
//
// # The cases
//
// Each clause of the contract is a subtest of its name. Most of them run a second
// time, below the subtest Forward, with every client wrapped in a
// [dlock.Forward], which must not change anything.
//
// Cases use random keys, so that they can share one store, and several run at the
// same time; those that make the store lose its data, or count goroutines, run
// alone. With go test -short what is left to chance is done half as often.
//
// The clauses are listed in docs/contract.md. What each is there for is shown by the
// broken locks in docs/museum.md, which the suite catches.
//
// # The harness
//
// Only Harness.New is needed. It returns one more client of the same store,
// however often a case calls it, and several cases at once: most use several, as a
// store is used by several processes.
//
//   - TTL is the shortest TTL that the store keeps as it should: a lease ends
//     neither earlier, nor later than by Grace. Raise it for a store that counts in
//     seconds.
//   - Grace is how late the store may expire a lease: the period of its sweeper,
//     for instance. It is added wherever the suite waits for an expiry. There is
//     no such allowance for a lease that ends too early.
//   - Advance lets time pass where the store's clock is moved by hand, as that of
//     miniredis is: Advance: server.FastForward. It may be asked for days, and must
//     not take as long itself.
//   - Bubble runs every case in a [testing/synctest] bubble, so that a store that
//     lives in this process is tested in virtual time, in milliseconds.
//   - Dial and Addr let the suite stand between a client and its server, and make the
//     network faulty. It loses, holds back, delays and cuts whatever is sent: any
//     protocol will do. To choose a request it looks for the key or the token in what
//     is sent, so UnreachableStore (in part), LostReplyOverNetwork,
//     LateDuplicateOverNetwork and Reconnection need a client that does not encrypt,
//     compress or encode these. Dial should make clients with time-outs of about a
//     second, if they do not end a call when its context does: cases wait for that.
//   - Wipe makes the store lose everything that it has stored, as FLUSHALL does.
//     Set it only if fences survive this.
//   - Count counts what the store keeps, so that NoLeaks sees what is never removed:
//     a record, or a counter, for each lock that ever was.
//   - Unordered is for stores that queue waiters, but not in order.
//   - PerCase returns a Harness of a store of its own for each case, for stores that are
//     made in no time. Cases run together then also where Advance is set.
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
// then which calls were made before: when each began, counted from the beginning
// of the case, the client (A, B, …), and the answer, so that what another client
// did in between can be seen; and at last the clause. Calls are in the order of
// their answers. Where several run at once, one that began earlier may so stand
// below one that began later.
//
//	B.Release("conformance-QX2…", "stranger-7KD…"): held = true; want false
//	the latest calls:
//	      120µs  A.TryAcquire("conformance-QX2…", "holder-M3A…", 10m0s) = acquired, fence 8
//	      170µs  B.Release("conformance-QX2…", "stranger-7KD…") = true
//	clause: a backend reports false and changes nothing, also when another has taken the key over
//
//	go test -run 'TestConformance/^SameTokenAgain$'   checks one clause
//	go test -run TestConformance -skip /Forward       checks each of them once
//	go test -run TestConformance -v                   tells which were skipped, and why
//
// A case that does not end names the calls that have not returned.
//
// History, HistoryAcrossDataLoss, GuardedCounter and GuardedRegister are random.
// A failure tells the seed; with the environment variable DLOCK_CONFORMANCE_SEED
// set to that, the clients make the same choices again, though in real time not
// at the same instants. With -short they do half as much.
//
// A history fails with the few calls that contradict each other, whatever was
// answered to the others. Each line gives call and return, counted from the
// beginning, and the client; tokens are shortened:
//
//	these answers cannot all be right: Renew("dloc…A4UX", 200ms) = true of client 3 is impossible where the key is free:
//	     265.832ms to    265.832ms  client 3  TryAcquire("dloc…A4UX", 200ms) = acquired, fence 8
//	     466.500ms to    466.500ms  client 3  Release("dloc…A4UX") = true
//	     466.976ms to    466.976ms  client 3  Renew("dloc…A4UX", 200ms) = true
//
// It also names a file with a picture of the whole history, with these calls in
// red: a page of HTML among the artifacts of the test if go test was given
// -artifacts, and otherwise in the directory for temporary files.
//
// AgreesWithModel is random, too: it asks the store many things, one after the
// other, and compares the answers with a model of a few lines. It uses package
// [pgregory.net/rapid], which makes a sequence of calls that fails shorter, until
// it is of two or three calls as a rule, and leaves what it takes to repeat it in
// testdata/rapid, where the next run looks first. Its flags apply: with
// -rapid.checks 10000 it tries more than 100 sequences (where time really
// passes, not for longer than a few seconds), and -rapid.nofailfile leaves nothing
// behind.
//
// FenceSurvivesIdleness lets days pass, and AnyTTL asks for leases of months. Where time
// really passes, the one is skipped, and the other looks at the beginning of the leases
// only: that fences are still there after a day, and leases end after a month, is then not
// tested.
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

// Package conformance checks that a backend keeps the contract of [dlock.Locker].
// Every backend of this module passes it. Yours should too:
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
// docs/writing-a-backend.md shows how to write a backend that passes, with one on PostgreSQL as the example.
//
// # The cases
//
// Each clause of the contract is a subtest with a name of its own. docs/contract.md lists them in chapters: Taking, Renewing,
// Releasing and so on. Each chapter is a file here (taking.go, renewing.go, releasing.go), which begins with the chapter's
// clauses and goes on with the checks.
//
// Cases use random keys, so they can share one store. Several run at the same time, except those
// that make the store lose its data or count goroutines. Where time really passes, go test -short
// halves the number of rounds of the cases that depend on chance.
//
// # The harness
//
// Only Harness.New is needed. It returns one more client of the same store. A case calls it several
// times, as a store is used by several processes. Cases may call it concurrently. The other fields
// of the [Harness] tell the suite more about the store.
//
// With Harness.Dial and Addr, the suite stands between a client and its server, and makes the network faulty. It loses, holds
// back, delays and cuts what is sent, whatever the protocol. To find a request, it looks for the key or the token in what is
// sent. UnreachableStore (in part), NoEffectOverNetwork, LostReplyOverNetwork, LateDuplicateOverNetwork and Reconnection
// therefore need a client that does not encrypt, compress or encode these. If a client does not end a call when its ctx ends,
// give it time-outs of about a second in Dial: cases wait for them.
//
// With Harness.Bubble, a store that lives in this process is tested in virtual time, within
// milliseconds. Nothing that was made in one bubble may be used in another. All calls of New and Wipe
// in one case get the same t, so keep a store for each t:
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
// This is a backend that answers true to every release:
//
//	--- FAIL: TestConformance/ReleaseAfterExpiry (0.00s)
//	    /go/pkg/mod/github.com/dlock-go/dlock@v0.1.0/conformance/releasing.go:67: A.Release("conformance-P6IAVBY6QMUN", "dead-KEPGGZ6L7ASK"): held = true; want false
//	    the latest calls:
//	            0s  A.TryAcquire("conformance-P6IAVBY6QMUN", "dead-KEPGGZ6L7ASK", 200ms) = acquired, fence 946684800000000
//	         251ms  A.Release("conformance-P6IAVBY6QMUN", "dead-KEPGGZ6L7ASK") = true
//	    clause (/go/pkg/mod/github.com/dlock-go/dlock@v0.1.0/conformance/releasing.go:17): A backend answers false, and changes nothing, when a lease is released that has ended, even if another token holds the key by then.
//
// The first line names the line of the check, the call, its answer, and what the contract wants. The last line is the clause,
// with its place in the table of the chapter. The paths open wherever the suite is run, unless -trimpath shortens them.
//
// In between are the calls that led to the failure. Each line gives the time at which the call began, counted from the
// beginning of the case, then the client (A, B, …), the call and the answer. A token's name says what it does in the case.
// Calls stand in the order of their answers: where several run at once, a call that began earlier can stand below one that
// began later. The list ends with the calls that have not returned. It always contains the calls, tokens and fences that the
// first line names, and the latest grants of its key. If other calls are left out, it says how many.
//
// If a lease ended less than a millisecond early, the first line asks whether the clock is cut to whole milliseconds.
//
//	go test -run 'TestConformance/^SameTokenAgain$'   checks one clause
//	go test -run TestConformance -v                   ends with those that were skipped, by reason
//
// A case that does not end names the calls that have not returned.
//
// # Random cases
//
// History and HistoryAcrossDataLoss are random. A failure prints its seed. Set the environment variable
// DLOCK_CONFORMANCE_SEED to it, and the clients make the same choices again, though in real time not at the same instants.
//
// A history fails with the few calls that contradict each other. Each line gives the
// times of call and return since the beginning, and the client. Tokens are shortened:
//
//	these answers cannot all be right: Renew("dloc…A4UX", 200ms) = true of client 3 is impossible where the key is free:
//	     265.832ms to    265.832ms  client 3  TryAcquire("dloc…A4UX", 200ms) = acquired, fence 8
//	     466.500ms to    466.500ms  client 3  Release("dloc…A4UX") = true
//	     466.976ms to    466.976ms  client 3  Renew("dloc…A4UX", 200ms) = true
//
// The failure also names a file with the whole history, in which these calls are marked.
// With go test -artifacts it is among the artifacts of the test, otherwise in the directory for temporary files.
//
// AgreesWithModel makes random calls, one after the other, and compares the answers with those of a
// short model. It uses package [pgregory.net/rapid], which shortens a sequence of calls that fails,
// usually to two or three calls. The flags of rapid apply. With -rapid.checks 10000 it tries more than
// 100 sequences, though for no longer than a few seconds where time really passes. With
// -rapid.nofailfile=false, rapid leaves a file in testdata/rapid, and the next run begins with the
// sequence that failed. Otherwise this package sets -rapid.nofailfile when the case fails, also for
// tests of your own that use rapid in the same process.
//
// # What is not tested
//
// FenceSurvivesIdleness lets days pass, and AnyTTL asks for leases of months. Where time really passes, FenceSurvivesIdleness
// is skipped, and AnyTTL looks only at the beginning of the leases. Fences after a day, and the end of a lease after a month,
// are then not tested.
//
// No case fails because the machine is slow. If a lease may have expired in the meantime, the case starts again. After five
// times it is inconclusive: it is skipped, and counted in the summary of Run. If the environment variable
// DLOCK_CONFORMANCE_STRICT is 1, it fails instead. A case also starts again after a time-out of the client, unless it makes
// the network faulty. After five such times it fails.
//
// A case is skipped, with the reason, if an optional interface is not implemented or its method answers
// [errors.ErrUnsupported], if fences are 0, or if it needs a field of the Harness that is not set. OneReleaseSettles is
// skipped if no error of a wait says that one release is enough. No backend has to say so. Nothing else is optional.
package conformance

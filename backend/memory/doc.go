// Package memory is a dlock backend in the memory of one process. It is for tests, for programs
// that run as a single process, and for trying dlock without a server.
//
//	client := dlock.New(memory.New())
//
// It keeps the whole contract of [dlock.Locker] and has all optional methods but LongestTTL.
// Waiters are served in the order of arrival, and the call that frees a key hands it over. The
// package starts no goroutines. It works inside a [testing/synctest] bubble, where leases of any
// length expire in no real time.
//
// # Testing how a service handles a lost lock
//
// A test can make the store misbehave in ways that are rare in production:
//
//   - [Locker.Expire] ends a lease as if its TTL had passed.
//   - [Locker.Steal] does the same and gives the key to a stranger. Both report whether there was a lease.
//   - [Locker.Fail] makes calls fail. [Locker.FailReplies] makes them take effect and fail.
//     [Locker.Delay] makes them slow.
//   - [Locker.Wipe] makes the store lose all data.
//   - [Locker.SetClock] makes the store's clock wrong, and [Locker.SetAge] makes the store older.
//
// This test checks that a service stops working when its lease is lost:
//
//	synctest.Test(t, func(t *testing.T) {
//		store := memory.New()
//		stopped := make(chan error, 1)
//		go func() { stopped <- NewWorker(dlock.New(store)).Run(t.Context()) }()
//		synctest.Wait() // the worker holds its lock and works
//		if !store.Steal("report", time.Hour) { // now a stranger holds it
//			t.Fatal("the worker does not hold report")
//		}
//		err := <-stopped // the next renewal finds out, in no real time
//		if !errors.Is(err, dlock.ErrLost) {
//			t.Errorf("the worker did not notice that it lost its lock: %v", err)
//		}
//	})
package memory

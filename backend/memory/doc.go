// Package memory is a dlock backend in the memory of one process: for tests, for
// programs that are a single process, and for trying dlock out without a server.
//
//	client := dlock.New(memory.New())
//
// It keeps the whole contract of [dlock.Locker], with all the optional
// interfaces: waiters are served first come first served, and the call that
// frees a key hands it over. It has no goroutine of its own, and works inside a
// [testing/synctest] bubble, where leases of any length expire at once.
//
// # Testing what a service does when it loses a lock
//
// The store can be told to misbehave, so that a service's own tests see what
// rarely happens in production:
//
//   - [Locker.Expire] ends a lease as if its TTL had passed,
//   - [Locker.Steal] does, and gives the key to a stranger,
//   - [Locker.Fail] makes calls fail, [Locker.FailReplies] makes them take effect
//     and fail, [Locker.Delay] makes them slow,
//   - [Locker.Wipe] makes the store lose everything.
//
// A service that must stop its work when its lease is lost is tested so:
//
//	synctest.Test(t, func(t *testing.T) {
//		store := memory.New()
//		stopped := make(chan error, 1)
//		go func() { stopped <- NewWorker(dlock.New(store)).Run(t.Context()) }()
//		synctest.Wait()                  // the worker holds its lock and works
//		store.Steal("report", time.Hour) // and now another has it
//		err := <-stopped                 // the next renewal finds out, in no real time
//		if !errors.Is(err, dlock.ErrLost) {
//			t.Errorf("the worker did not notice that it lost its lock: %v", err)
//		}
//	})
package memory

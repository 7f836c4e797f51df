// Package semaphore lets at most N callers work at the same time, in any number of processes: N calls
// of a slow service, N uploads, N workers of a kind.
//
//	limit := semaphore.New(client, "llm", 5)
//	err := limit.Do(ctx, func(ctx context.Context, permit int, lease *dlock.Lease) error {
//		return ask(ctx, prompt)
//	})
//
// # What a caller gets
//
//   - At most N callers hold a permit, as surely as at most one holds a lock: see "Guarantees" and
//     "Limits" of package dlock. If processes name different numbers, the largest is N. To make it
//     smaller, change all processes.
//   - Each permit is a lock with a lease of its own: it has its own TTL, and is renewed. If a process
//     dies, its permits are free when their TTLs have passed. The permits of others stay as they are.
//   - Callers that wait are served in the order of their arrival, if the store has a queue. On a
//     majority of stores, a caller that comes just as the gate is released may get it first.
//     [Semaphore.TryAcquire] does not wait, and may get a permit before those that do.
//   - A permit has a number from 0 to N-1, which nobody else has at the same time. Use it as the number
//     of a worker, a port or a directory. Package fence protects what belongs to it: the key of the lease
//     contains the number.
//
// # How long others wait
//
// The first in the queue waits for a permit, and everybody else waits behind it.
//
//	what happens                               the next in the queue waits
//	a holder releases its permit               for one round trip
//	a holder dies                              until the TTL of its permit has passed
//	the first in the queue dies                for 3 s more at most, although a permit may be free
//	it is stopped, or cut off from the store   likewise, for 5 s more at most
//	the store is away, or refuses because of   until it is back, or grants; see [dlock.Client.Acquire]
//	its own state
//
// The first in the queue leaves it in the background. If its process ends just after [dlock.Client.Close], that
// may be too early, and counts as a death. [dlock.Client.Shutdown] waits for it.
//
// # Range
//
// A semaphore is for N up to 64, and for work that takes longer than 2.5 round trips times N, such as jobs,
// uploads and calls of slow services. The queue gives out one permit in about 2.5 round trips, which is 400 a
// second at 1 ms. With shorter work the queue is the limit, not N. With N = 4, work of 40 ms and a round trip
// of 2 ms, a semaphore reaches 0.96 of N / (work + 1 round trip).
//
// Acquire makes three requests if most permits are free. If it has to wait, it makes 4N, and on Redis N more
// about every two seconds while it is the first. TryAcquire makes up to N, one after the other. On a store
// without a queue, the first polls all N permits.
//
// # What it is not
//
//   - It limits how many callers work at the same time, not how many begin in a second: it is not a
//     rate limiter. Callers that need 10 ms each get through a semaphore of 5 up to 500 times a second.
//     If a provider allows 100 calls in a minute, use a token bucket.
//   - It has no weights: a caller has one permit. An Acquire within the work of a permit fails with
//     [dlock.ErrNested]: callers that each hold one and wait for another could deadlock.
//   - It has no readers and writers.
//
// A counter in Redis is not a semaphore. With INCR and EXPIRE, the counter expires while permits are
// held, and N more get in. Without EXPIRE, the permits of dead processes are lost forever.
//
// # In the store
//
// Permit 3 of the semaphore "llm" is the lock with the key "llm#3". The lock with the key "llm" is the gate:
// its holder waits for a permit, and everybody else waits for the gate. No other lock may have these keys.
// [dlock.Client.Inspect] and [dlock.Client.Break] work with each of them. Nothing else is stored, and the
// user of the store needs no more rights than for locks.
//
// Observers see the acquisition of the gate and of each permit. Those that are given up, because another
// permit was free, end with [context.Canceled]. On a majority (package backend/redlock), [dlock.Stats]
// counts as owed, for one TTL, the release of each permit that was waited for.
package semaphore

// Package dlock is a distributed lock: one holder at a time among any number of
// processes, kept by a store that they share.
//
//	client := dlock.New(goredis.New(rdb)) // or another backend
//	err := client.Do(ctx, "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
//		return handle(ctx, order)
//	})
//
// # The words
//
// A key names the lock. A token is the secret of one acquisition. The TTL is how
// long a grant lasts without renewal. A lease is a grant with its TTL. The fence
// is the number of a grant, larger than that of every earlier grant of the same
// key. The deadline is the instant, on the holder's own monotonic clock, until
// which it may believe in its lease; until then its hold is certain. A backend
// implements [Locker]. A waiter waits for a held lock.
//
// # What is promised
//
// As long as the store keeps its data and its clock runs at a steady rate:
//
//   - Until its deadline, nobody but its holder is granted a lock, and nobody but
//     its holder renews or releases it.
//   - The lock of a holder that dies is free when its TTL has passed. While a
//     holder lives and reaches the store, a [Client] renews its lease.
//   - A holder hears of the loss of its lease at the deadline at the latest, even
//     if the network swallows every packet: [Lease.Context] ends, [Lease.Done] is
//     closed, and [Lease.Err] matches [ErrLost].
//   - [Lease.Fence] rises with each grant of a key, where the store has fences.
//   - Held, lost, cancelled, invalid, and a store that did not answer are told
//     apart with [errors.Is].
//
// # What no lock of this kind can promise
//
// A holder may be stopped at any instant, by its garbage collector, its machine or
// its network, and go on when its lease has long been lost, before it looks. A
// write that it had begun then arrives late. Nor does a lock survive a store that
// forgets it: a server that crashes without having saved, or a replica promoted
// without the last writes. Where two holders at once would cost money, send the
// fence along with each write, and let the resource remember the largest fence
// that it has seen and refuse any smaller one. See [WithFence].
//
// Locks are not reentrant: who asks again for a key that it holds, waits.
//
// # Time
//
// A lease's deadline counts from the instant at which the request was sent that
// the store acknowledged last, so it never outlasts what the store keeps; 1 % of
// the TTL and 2 ms are taken off for clocks of different speed. Stores are told
// relative times only, so clocks need not agree on what time it is. The clock of
// the store is trusted to run at a steady rate. Either of the process's own
// clocks may end a lease, because the monotonic one stops while a machine is
// suspended: if the wall clock is set forward by more than what is left of a
// lease, the lease is given up though it is still good.
//
// # Unknown outcomes
//
// When a request gets no answer, its outcome is unknown. A token whose acquisition
// ended so is never used again, and its release is owed: the Client sends it in
// the background until the store says that it has ended the lease, or one TTL has
// passed. A renewal that fails is retried until the deadline. Nothing is retried
// by the store's own client, as far as a backend can prevent it, since that hides
// unknown outcomes and sends requests again when they are out of date.
//
// # Writing a backend
//
// See [Locker], and the package conformance, which tests one.
package dlock

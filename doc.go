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
// A key names a lock. The store, such as a Redis server, remembers who holds it; a
// backend, which is a [Locker], is how this package talks to the store. A [Client] adds
// everything else.
//
// A grant is the store's answer that the caller holds the lock now. Its holder has a
// [Lease]. The lease lasts for the TTL (time to live), and the Client renews it in the
// background: each renewal makes it last for a full TTL from then on. The deadline is
// the instant, on the holder's own clock, until which the lease is certain. A lease is
// lost if it ends in any other way than by the holder's will.
//
// A token is the secret of one acquisition, stored under the key. Only its holder knows
// it, and so only its holder can renew or release the lease. An owner label is the part
// of a token that others may see: who the holder is.
//
// A fence is the number of a grant. It is larger than that of every earlier grant of the
// same key, so that a resource can refuse a writer whose lease was lost.
//
// A waiter waits for a lock that another holds. If the store has a queue, waiters are
// served in the order in which they came, and a release hands the lock over to the
// first. Otherwise a waiter polls: it asks again and again.
//
// A release is owed if the store has not answered it, or if an attempt to acquire the
// lock has failed and may have been granted nevertheless. The Client repeats it in the
// background.
//
// A lease is detached while it is on its way from one holder, the giver, to the next,
// the taker, who adopts it. A lease is nested if work that holds the lock of a key asks
// for the same lock again.
//
// # What is promised
//
// As long as the store keeps its data and its clock runs at a steady rate:
//
//   - Until the holder's deadline, nobody else is granted the lock, and nobody else
//     renews or releases it.
//   - If a holder dies, its lock is free when the TTL has passed. While a holder
//     lives and reaches the store, its lease is renewed.
//   - A holder learns of the loss of its lease at the deadline at the latest, or at most
//     a second later if the machine was suspended, even if the network swallows every
//     packet: [Lease.Context] ends, [Lease.Done] is closed, and [Lease.Err] matches
//     [ErrLost].
//   - [Lease.Fence] rises with each grant of a key, if the store has fences.
//   - [errors.Is] tells apart a lock that is held, a lease that was lost, a call that
//     was cancelled or was invalid, and a store that did not answer.
//
// # What no lock of this kind can promise
//
// A holder may be stopped at any instant, by its garbage collector, its machine or
// its network. It may go on when its lease was lost long ago, before it looks. A
// write that it had begun then arrives late. Nor does a lock survive a store that
// forgets it: a server that crashes without having saved, or a replica promoted
// without the last writes. Where two holders at once would cost money, send the
// fence along with each write. Let the resource remember the largest fence that it
// has seen, and refuse any smaller one. See [WithFence].
//
// Locks are not reentrant: acquiring a key that you already hold blocks, or fails with
// [ErrNested] if ctx carries the lease.
//
// # Time
//
// A lease's deadline counts from the sending of the last request that the store has
// acknowledged, so it is never later than what the store keeps. 1 % of the TTL and 2 ms
// are taken off for clocks of different speed. Stores are sent relative times only, so
// clocks need not agree on what time it is. The store's clock is trusted to run at a
// steady rate. A lease ends when either of the process's own clocks has passed its
// deadline, because the monotonic one stops while a machine is suspended. If the wall
// clock is set forward past the deadline, the lease is given up though it is still good.
//
// # Unknown outcomes
//
// If a request gets no answer, its outcome is unknown. After an unanswered attempt to
// acquire a lock the token is never reused, and its release is owed until the store
// answers that it has ended the lease, or until one TTL has passed. A renewal that fails
// is retried until the deadline. As far as a backend can prevent it, the store's own
// client library retries nothing: that would hide unknown outcomes, and send requests
// that are out of date.
//
// # For authors of backends
//
// Users of locks can stop reading here. They need [New] and the methods of [Client] and
// [Lease], and neither call nor implement the types below.
//
// A backend implements [Locker], and returns an [Attempt] for each attempt to acquire.
// If its store can do more, it also implements [Acquirer], [BatchRenewer] (with
// [Renewal] and [RenewResult]) and [Inspector] (with [Hold]). It marks errors of calls
// that had no effect with [NoEffectError]. A Locker around another, such as one that
// counts calls, embeds [Forward]. The package conformance tests a backend.
package dlock

// Package dlock is a distributed lock: one holder at a time among any number of
// processes, kept by a store that they share.
//
//	client := dlock.New(goredis.New(rdb), dlock.WithOwner(dlock.HostOwner())) // or another backend
//	err := client.Do(ctx, "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
//		return handle(ctx, order)
//	})
//
// # The words
//
// A key names a lock. The store, such as a Redis server, remembers who holds it. A
// backend is the code that talks to a store; it implements [Locker]. A [Client] adds
// everything else.
//
// A grant is the store's answer that the caller holds the lock now. The caller is then its
// holder, and has a [Lease]. An attempt is one request for a grant; the store answers
// whether the key was acquired, or is held by another.
//
// The lease lasts for the TTL (time to live), and the Client renews it in the background:
// each renewal makes it last for a full TTL from then on. A batch is one request that
// renews many leases. The deadline is the instant, on the holder's own clock, until which
// the lease is certain. A lease is lost if it ends without its holder's call: the deadline
// has passed, or the store does not know the lease any more.
//
// A token is the secret of one acquisition, stored under the key. Only its holder knows
// it, and so only its holder can renew or release the lease. An owner label is the part
// of a token that others may see: who the holder is.
//
// A fence is the number of a grant. It is larger than that of every earlier grant of the
// same key, so that a resource can refuse a writer whose lease was lost.
//
// A waiter waits for a lock that another holds. If the store has a queue, waiters are
// served in the order in which they came. A handover is a release that grants the lock to
// the first waiter. Without a queue a waiter polls: it makes one attempt after the other,
// with pauses.
//
// The outcome of a request is unknown if no answer came: the store may have done it, may
// do it later, or never. A release is owed while the Client has to repeat it in the
// background: the store has not answered it, an attempt with an unknown outcome may still
// be granted, or [WithMinHold] keeps the key.
//
// A lease is detached while it is on its way from one holder, the giver, to the next,
// the taker, who adopts it. A lease is nested if work that holds the lock of a key asks
// for the same lock again.
//
// A master is a server that answers for its keys. A replica copies a master, and may be
// promoted to take its place.
//
// # What is promised
//
// As long as the store keeps its data and its clock runs at a steady rate:
//
//   - Until the holder's deadline, nobody else is granted the lock, and nobody else
//     renews or releases it. The exception is an operator who calls [Client.Break].
//   - If a holder dies, its lock is free when the TTL has passed. While a holder
//     lives and reaches the store, its lease is renewed.
//   - A holder learns of the loss of its lease at the deadline at the latest, even if the
//     network swallows every packet. If the machine was suspended, it learns of it at most
//     a second later. [Lease.Context] ends then, [Lease.Done] is closed, and [Lease.Err]
//     matches [ErrLost].
//   - [Lease.Fence] rises with each grant of a key, if the store has fences.
//   - [errors.Is] tells apart a lock that is held, a lease that was lost, a call that
//     was cancelled or was invalid, and a store that did not answer.
//
// # What no lock of this kind can promise
//
// A holder may be stopped at any instant, by its garbage collector, its machine or its
// network. When it goes on, its lease may have been lost long ago, and it may write before
// it looks. A write that it had begun arrives late. Nor does a lock survive a store that
// forgets it: a server that crashes without having saved, or a replica promoted
// without the last writes. Where two holders at once would cost money, send the
// fence along with each write. Let the resource remember the largest fence that it
// has seen, and refuse any smaller one. See [WithFence].
//
// Locks are not reentrant: acquiring a key that you already hold blocks, or fails with
// [ErrNested] if ctx carries the lease. A goroutine that outlives the work needs a ctx
// without the lease: see [LeaseFromContext].
//
// # Time
//
// A lease's deadline counts from the sending of the last request that the store has
// acknowledged, so it is never later than what the store keeps. Clocks run at different
// speeds: for that the drift, which is 1 % of the TTL and 2 ms, is taken off. Stores are
// sent relative times only, so clocks need not agree on what time it is.
//
// A process has two clocks. The wall clock shows the date, and can be set. The monotonic
// clock cannot be set, and stops while the machine is suspended. A lease ends when either
// has passed its deadline. If the wall clock is set forward past the deadline, the lease is
// given up though the store still keeps it. [Lease.Err] looks at both clocks; contexts and
// Done follow within a second if only the wall clock has passed the deadline.
//
// [WithMaxHold] and [WithMinHold] count from the grant, also when the lease is detached and
// adopted.
//
// # Unknown outcomes
//
// After an attempt with an unknown outcome the token is never used for another attempt,
// and its release is owed. It is owed until a release was answered and no other request
// with the token can be on its way, or until one TTL has passed: the store has then ended
// the lease by itself. Nothing is owed for a call of which the backend says that it did not
// and will not take effect.
//
// An owed release without an answer is repeated after 0.1 s, then after pauses that double
// up to 1 s, and are at most a quarter of the TTL. When eight tries in a row got no answer,
// the store counts as away. Then only one of all owed releases is tried every half second;
// once one is answered, the others follow at once. A release that the store refuses,
// because its user lacks a right, is repeated after 2 s, then less and less often. A Client
// keeps up to 100,000 owed releases, beside those of WithMinHold. Beyond that it drops
// answered ones first, then the oldest. [Client.Stats] counts those that are owed, and those
// that were dropped.
//
// A renewal that fails or hangs is repeated until the deadline. As far as a backend can
// prevent it, the store's own client library repeats nothing: that would hide unknown
// outcomes, and send requests that are out of date.
//
// # For authors of backends
//
// Users of locks can stop reading here. They need [New] and the methods of [Client] and
// [Lease], and neither call nor implement the types below.
//
// A backend implements [Locker], and returns an [Attempt] for each attempt to acquire.
// If its store can do more, it also implements [Acquirer], [BatchRenewer] (with
// [Renewal] and [RenewResult]) and [Inspector] (with [Hold]). It marks errors of calls
// that had no effect with [NoEffectError]. A decorator is a Locker around another one, to
// count its calls for example; it embeds [Forward]. The package conformance tests a backend.
package dlock

// Package dlock is a distributed lock: one holder at a time among any number of processes.
// The processes share a store, such as a Redis server, that keeps the lock.
//
//	locks := dlock.New(goredis.New(rdb), dlock.WithMaxWait(2*time.Second)) // one for each process
//	err := locks.Do(ctx, "order:1234", func(ctx context.Context, lease *dlock.Lease) error {
//		return handle(ctx, order) // ctx ends when the lock is lost
//	})
//	switch {
//	case errors.Is(err, dlock.ErrHeld): // another has the lock
//	case errors.Is(err, dlock.ErrLost): // the work began, and another may have begun it too
//	case err != nil: // the store or the work failed
//	}
//
// [Client.Do] waits for the lock, renews its lease while the function runs, and releases it.
// [Client.Acquire], [Lease.Context] and [Lease.Release] do the same for work that does not fit into a
// function. [Client.TryAcquire] does not wait, and [Client.DoAll] takes several keys.
//
// While the store keeps its data, nobody else is granted the lock before the holder's deadline, and the
// holder learns of a loss by then. A process that was paused may still write later: if two holders at
// once would cost money, write in transactions of package fence. The backends are the packages below
// backend: goredis, rueidis, redigo, redlock, postgres, and memory for tests.
//
// # Options
//
// All options are for [New] and [Client.With]. The defaults suit background work: Acquire waits without
// a limit, and the lease is renewed until its release.
//
//	option          default   use it for
//	WithTTL         30 s      how long a dead holder's key stays taken, such as a leader's; a lease
//	                          survives an outage of up to two thirds of it
//	WithMaxWait     no limit  a user's request: 2 s [Http]; 0 makes one attempt
//	WithOutage      0         work that must not be skipped: longer than a failover
//	WithOwner       none      every service: WithOwner(HostOwner()) shows others who holds a key
//	WithObserver    none      every service: metrics, traces, logs [NewLogObserver]
//	WithFence       false     writes that cost money if done twice [Fence]
//	WithMaxHold     0: none   work that may hang; an operator calls Break [Client.Break]
//	WithMinHold     0         a job that several machines start, and one must do; a form that is sent twice [Form]
//	WithRenewal     true      false: work of known length, which must end within the TTL
//	WithTTLFrom     none      the same, with a TTL for each key [package learn]
//	WithLocalTurns  1         8: many goroutines of a process want one key
//	WithBackoff     50–250 ms a store without a queue, where each poll costs money
//
// Some jobs need more than an option. The examples in brackets, here and above, show how.
//
//	the job                                 what to use
//	a scheduled job, on several machines    package once
//	a leader                                package election
//	at most N callers at a time             package semaphore
//	several keys at once                    DoAll or AcquireAll [Client.DoAll]
//	one computes, the others use its result Do, and a second look [Stampede]
//	a later process continues the work      Lease.Detach and Client.Adopt [Successor]
//	requests during an outage               a breaker around the backend [package breaker]
//	leases that survive a failover          rediscore.WithReplicas
//	a program in a shell or in cron         the command dlock run
//	a test that loses its lock              memory.Locker.Steal [Loss]
//
// # Errors
//
// Test for errors with [errors.Is], in this order.
//
//	the error matches     what has happened                          what to do
//	the error of ctx      ctx has ended; the text says more          nothing: nobody is listening
//	ErrHeld               another holds the key                      answer 409, or try later
//	ErrUnavailable        the store did not answer                   answer 503; the outcome is unknown
//	ErrLost               the lease has ended, perhaps during work   stop; if a fenced write was accepted,
//	                                                                 it is done: do not repeat it
//	ErrNested             the caller holds the key already           correct the program
//	ErrInvalid            an argument, an option or a right          correct it: the text names it
//	ErrReleased           the lease was released or detached         correct the order of the calls
//	ErrClosed             the Client or its backend is closed        see "What to close"
//	none of them          the store refused (wrong password, no      answer 503; look up the text in
//	                      memory) or failed, or the work failed      docs/operations.md
//
// To find a wrong password when a service starts, inspect any key [Start].
//
// # What to close
//
// Close in this order, and only what the process has made. Each needs what comes after it.
//
//	the work, such as an HTTP server    with its own Shutdown: it waits for requests under way
//	the Client                          Shutdown or Close; this closes those made by With, too
//	the Locker of package redlock       Close
//	the Lockers of Redis                Close
//	the client library of Redis         with its own Close, if nobody else uses it
//
// There is nothing to close in the packages memory, breaker and learn, nor in an Observer.
// Unregister what RegisterStats of observe/otel has returned. A process that ends after one job
// also closes its Client: otherwise owed releases are not sent, and [WithMinHold] may not be kept.
// See the example Close of package goredis for a program, and its example Shutdown for a service.
//
// # Terms
//
// A key names a lock. The store remembers who holds it. A backend is the code that talks to
// a store; it implements [Locker]. A [Client] adds everything else.
//
// An attempt is one request for a lock. The store grants the lock, or answers that another
// holds it. A grant makes the caller the holder, with a [Lease].
//
// A lease lasts for the TTL (time to live). The Client renews it in the background: each
// renewal extends it to a full TTL from then. A batch is one request that renews many leases.
// The deadline is the instant, on the holder's own clock, until which the lease is certain. A
// lease is lost if it ends without a call of its holder: the deadline has passed, or the store
// no longer knows the lease.
//
// A token is the secret of one acquisition, stored under the key. Only the holder knows it, so
// only the holder can renew or release the lease. With [WithLocalTurns], the holders that pass a
// lease on inside a process share its token. An owner label is the part of a token that others may
// see. It names the holder.
//
// A fence is the number of a grant. It is larger than the fence of every earlier grant of
// the same key, so a resource can refuse a writer that has lost its lease. The exception is a
// store that lets two masters grant at once: see Limits.
//
// A waiter waits for a lock that another holds. If the store has a queue, waiters are served
// in the order of their arrival. A handover is a release that grants the lock to the first
// waiter. The store sends that waiter a message, to its inbox. Without a queue a waiter polls: it makes
// attempts, with pauses between them.
//
// A call waits for the store, not for a holder, if its last request to the store has failed and it goes
// on trying.
//
// The outcome of a request is unknown if no answer came: the request may have taken effect, may do
// so later, or never will. A release is owed while the Client still has to complete it in the
// background. There are three causes: the store has not answered the release, an attempt with an
// unknown outcome may still be granted, or [WithMinHold] keeps the key.
//
// A lease is detached while it is on its way from one holder, the giver, to the next, the
// taker, who adopts it. An acquisition is nested if the work that holds a key's lock
// acquires the same key again.
//
// A master is a server that answers for its keys. A replica copies a master, and may be
// promoted to take its place.
//
// # Guarantees
//
// As long as the store keeps its data and its clock runs at a steady rate:
//
//   - Until the holder's deadline, nobody else is granted the lock, and nobody else
//     renews or releases it. The exception is an operator who calls [Client.Break].
//   - If a holder dies, its lock is free when the TTL has passed. While a holder
//     lives and reaches the store, its lease is renewed.
//   - A holder learns of the loss of its lease by the deadline, even if the network drops every
//     packet. If the machine was suspended, or its wall clock was set forward, it learns up to a
//     second later. [Lease.Context] ends, [Lease.Done] is closed, and [Lease.Err] matches
//     [ErrLost].
//   - [Lease.Fence] rises with each grant of a key, if the store has fences.
//   - [errors.Is] distinguishes a lock that is held, a lease that was lost, a call that
//     was cancelled or invalid, and a store that did not answer ([ErrUnavailable]).
//
// # Limits
//
// A holder may be paused at any instant, by its garbage collector, its machine or its network.
// When it continues, its lease may have been lost long ago, and it may write before it checks. A
// write that it had already sent may arrive late. A store may also forget a lock: a server may
// crash before it saves, or a replica may be promoted without the last writes. Without fences, a lock
// makes double work rare, not impossible.
//
// If two holders at once would cost money, write in transactions that package fence begins, on
// PostgreSQL, MySQL, MariaDB or SQLite. A table remembers the fence of the last holder and a hash of
// its token. The database refuses a smaller fence, and an equal fence of another lease: both show that
// another process has had the lock. The database's answer counts, even after [ErrLost]: a write that it
// has accepted is done, and a second try would do it twice. Once a holder's successor has written, the
// holder's late writes are refused, however long it was paused. See [WithFence] and the example Fence.
//
// While a master is replaced, some stores let two masters grant the same key. Redis with Sentinel or in a cluster
// is such a store, unless leases wait for replicas. The new master's fences are larger, so its holders win, unless
// the former master goes on granting for more than 10 s. After that, two fences can be equal: then only the holder
// that writes first can write. They can also be in the wrong order: then a late write with the larger fence is
// accepted.
//
// Callers that take one lock inside another can deadlock. [Client.AcquireAll] takes several keys
// without that risk.
//
// Locks are not reentrant: acquiring a key that you already hold blocks, or fails with
// [ErrNested] if ctx carries the lease. A goroutine that outlives the work needs a ctx
// without the lease: see [LeaseFromContext].
//
// # Time
//
// A lease's deadline counts from when the last acknowledged request was sent, so it is never
// later than the end of the lease in the store. To allow for clocks that run at different
// speeds, 1 % of the TTL and 2 ms are subtracted. Requests contain durations, not times of
// day, so clocks need not be synchronized.
//
// A lease is renewed when a third of its TTL has passed. So at least two thirds remain when an outage begins, and the
// lease survives if the store is back in time for one renewal. Renewals at half of the TTL would leave only half, and
// would save little, since renewals travel in batches. After a wait, the first TTL is at most 5 s, or the MinHold if
// that is longer, and the first renewal follows 0.1 s after the grant: if the waiter has died unnoticed, the key is
// soon free.
//
// A process has two clocks. The wall clock shows the date, and can be set. The monotonic
// clock cannot be set, and stops while the machine is suspended. A lease ends when either
// has passed its deadline. If the wall clock is set forward past the deadline, the lease is
// lost although the store still keeps it. [Lease.Err] looks at both clocks; contexts and
// Done follow within a second if only the wall clock has passed the deadline.
//
// [WithMaxHold] and [WithMinHold] count from the grant, even if the lease is detached and adopted.
// The time between a Detach and its Adopt does not count.
//
// # Unknown outcomes
//
// After an attempt with an unknown outcome its token is never used for another attempt, and
// its release is owed. The release remains owed until the store has answered it and no other
// request with the token can be on its way, or until one TTL has passed: by then the store
// has ended the lease itself. Nothing is owed if the backend says that the call did not and
// will not take effect.
//
// If ctx ends an attempt whose answer is still on its way, the backend may say so with an [UnansweredError]. The
// release then waits for that answer for up to 250 ms. If the answer says that the attempt has left nothing, nothing
// is owed. If it has left a lease or a place in the queue, one release that is answered is enough. Otherwise, and
// without the answer, the release is owed as above. If the answer comes after the release was given up, and reports a
// lease, that is released too, unless the Client is closed.
//
// An owed release without an answer is retried after 0.1 s. The pauses then double up to 1 s, and
// are at most a quarter of the TTL. After eight tries in a row without an answer, the Client
// treats the store as unreachable. It then tries a single owed release every half second. Once one
// is answered, the others follow at once. If the store refuses a release, for example because its
// user lacks a right, the pauses begin at 2 s and double, up to a quarter of the TTL. A Client
// keeps up to 100,000 owed releases, not counting those of WithMinHold. Beyond that it drops
// answered ones first, then the oldest. [Client.Stats] counts owed releases and dropped ones.
//
// A renewal that fails or hangs is retried until the deadline. Backends turn off the retries of
// the store's client library where they can: retries would hide unknown outcomes, and send
// outdated requests.
//
// # Events
//
// An [Observer] sees what happens in a Client: acquisitions, waits, renewals, losses, releases. It is
// for metrics, traces and logs: see [WithObserver], and [NewLogObserver] for log/slog. What matters
// most is the overrun of [ReleaseDoneInfo]: for that long, somebody worked without the lock.
// [Client.Stats] says how many leases and waiters there are now, and how many calls wait for the store.
// Do not count events for that: some may be dropped. Waiting for the store is never silent: see
// [StoreWaitInfo].
//
// # For authors of backends
//
// Users of locks can stop reading here. They need only [New] and the methods of [Client] and
// [Lease].
//
// A backend implements [Locker], and returns an [Attempt] for each attempt to acquire a key. If its store can do
// more, it also implements [Acquirer], [BatchRenewer] (with [Renewal] and [RenewResult]), [SetAcquirer] (with
// [Acquisition]) and [Inspector] (with [Hold]). If it takes only short TTLs, it implements [TTLLimiter]. It marks
// errors of calls that had no effect with [NoEffectError]. A decorator is a Locker around another one, for example to
// count its calls; it embeds [Forward], which passes on all but the sets. [NoEffect] and [Refused] tell it what an
// error of the inner one says. Package conformance tests a backend.
package dlock

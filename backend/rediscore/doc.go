// Package rediscore is the common part of dlock's Redis backends: the [Locker], its Lua
// scripts, and the names of what they store. Applications import the package for their client
// library instead: [github.com/dlock-go/dlock/backend/goredis],
// [github.com/dlock-go/dlock/backend/rueidis] or
// [github.com/dlock-go/dlock/backend/redigo]. To support another library, write a [Conn]
// and pass it to [New].
//
// It needs Redis 6.0 or newer, Valkey or Redict. A single server, replicas, Sentinel and Redis Cluster
// are supported. docs/operations.md has a table of the versions on which the tests have run, of other
// servers, and of services. Before Redis 5, a
// server refuses scripts that read its clock and then write: attempts fail with an error that says
// so, and store nothing. In a cluster, messages to waiters need shard channels, which came with
// Redis 7.0.
//
// # The rights that it needs
//
// docs/security.md has the ACL SETUSER commands for a Redis user, feature by feature, and programs
// that connect over TLS as that user.
//
// If the user lacks a right for the queue, or may subscribe but not publish, an Acquire that
// would have to wait fails with an error that matches [dlock.ErrInvalid]. [WithQueue](false)
// needs none of these rights. If the user may not subscribe, waiters queue but get no messages,
// and are served more slowly: [WithInboxError] reports why.
//
// The scripts run on Lua 5.1 to 5.4. Some proxies refuse scripts by their text: a key must be literally KEYS[1] and so on,
// the name of a command must be a literal, and PUBLISH is not allowed. With [WithQueue](false), every script keeps these
// rules except the one for a set of keys: if it is refused, the Locker does not send it again, and each key gets an attempt
// of its own. With the queue, the error matches [dlock.ErrInvalid] and names that option.
//
// # What is stored
//
// The lock named key is a string at prefix followed by key. Its value is the holder's token,
// and its TTL is the lease's, rounded up to whole milliseconds. This is how redsync, redislock
// and StackExchange.Redis store their locks, so their locks and dlock's exclude each other on the
// same key. A fleet can change from one library to another while it runs.
//
// All locks of a prefix share one fence counter. It is named prefix{06S}dlock1:fence, or {06S}prefixdlock1:fence if the
// prefix has an opening brace. Locks in the hash slot of that name (one in 16,384) share another counter, with the tag
// {2Gx}. So a million different locks leave two keys at most. In a cluster, each slot in which a lock is used has a counter,
// for all its locks: the tag is that of the slot then. A counter expires a day after its last use or, if it is ahead of
// the clock, a day after the clock has reached it. Keys and prefixes that contain "dlock1:" are refused,
// because they could be such names.
//
// The server decides which counter a lock uses. A cluster refuses a script whose keys are in two slots, as those of a lock
// and the common counter always are. A Locker that gets this refusal uses the counter of the slot from then on, so all
// clients of a server agree. [WithCounterBySlot] is for servers that do not refuse this, when some clients are cluster
// clients.
//
// While a lock has waiters, it has two more keys: prefix{tag}dlock1:queue: followed by the key, and
// prefix{tag}dlock1:waiters: followed by the key. For a prefix with an opening brace, the tag comes
// first here too. Both are removed with the last waiter. Otherwise they expire a minute after the
// last check-in or ten seconds after the last waiter came, whichever is later.
//
// All programs must split the name of a lock into prefix and key at the same place. Prefix "a:"
// with key "b:1" stores the same lock as prefix "a:b:" with key "1", and the two exclude each
// other. But each has its own fence counter and its own queue: a fence of one can be smaller than
// an earlier fence of the other, and each hands the lock over to its own waiters only.
//
// In a cluster, keys that are unique per use (an order number, a random part) can end up using every one of
// the 16,384 slots, and leave a counter in each for a day. If that is too much, a common hash
// tag keeps them in one slot: "{orders}:1234".
//
// The first vote (see below) stores a marker that never expires, at prefixdlock1:birth. In a cluster
// there is one for each slot, named prefix{tag}dlock1:birth or {tag}prefixdlock1:birth.
//
// These names, tags and values are the wire format, which all clients of a lock must agree on.
// A later format will have another number in place of the "1".
//
// # Fences
//
// The fence of a grant is the last fence of its counter + 8, or the server's clock in microseconds
// if that is larger. The clock is read at each grant.
//
// So fences rise as long as the server has its data, even if its clock is set back. The exception is a clock that had been
// set forward by more than a day, which ends the counter. Fences also rise when the server has lost its data (FLUSHALL, a
// restart without persistence, a failover that lost writes), because time has moved on, under two conditions: the clock of
// the new server is behind the old one's by less than the outage lasted; and there were fewer than 125,000 grants a
// second.
//
// Without [WithReplicas], two masters may grant the same lock if the network is split or Sentinel was asked for a failover.
// Their fences then follow the two clocks: the holder at the server whose clock is ahead has the larger fence, even than
// later grants of the other server, until the other clock catches up. Fences are equal only if both servers grant the lock
// in the same microsecond of their clocks, or if the clock of the promoted one is behind the last fence that it knows.
//
// So a resource should compare the whole Stamp of package fence: then it accepts only one of two
// equal fences.
//
// A fence fits exactly into a float64, and so into a JavaScript number, until the year 2255.
//
// # Sets
//
// [Locker.TryAcquireSet] takes up to 256 keys in one call of a script, or none of them. A script has one fence counter. So
// on a single server, keys in the slot of the common counter (one in 16,384) and other keys cannot share a call. In a
// cluster, the keys must have one slot: give them a common hash tag, such as "{user1}:a" and "{user1}:b". Each key gets an
// attempt of its own in all other sets, if a free key has waiters, or while the slot is being moved.
//
// # Connections
//
// Concurrent calls travel together. A call that is alone is sent at once, in the goroutine of its caller.
// While two flights to a master are under way, further calls wait. They are sent in one pipeline when one of
// the two is back: renewals first, the others in the order in which they came. So a thousand goroutines need
// no more connections than ten. A flight has at most 64 calls, plus one for each 50 µs of the round trip,
// and never more than 500.
//
// If a round trip takes more than a millisecond, or none has been measured yet, more flights may be under way: at most half
// of the connections of the client's pool, rounded up. A pool of one or two connections has one flight at a time. With
// [WithReplicas], renewals, grants and all other calls have flights of their own: one each, or up to a sixth of the pool
// each if that is more. One WAIT is for all calls of a flight.
//
// A flight that takes ten times as long as the fastest, and 50 ms more, may be on a dead connection: the next
// one does not wait for it, as long as the pool has a connection.
//
// A call whose ctx ends while it waits is not sent: it has no effect. If ctx ends later, the call returns, and its
// outcome is unknown. A flight with several calls has a time limit of its own: 5 s plus the time-out of
// WithReplicas. Its context has no caller's values.
//
// # Waiting
//
// Waiters queue in the order in which the server received their calls. A release gives the lock
// to the first waiter in the same step, and sends that waiter a message: one network round trip
// from holder to holder, however long the queue is. While a lock has waiters, everybody else is
// refused, even if the lock is free: nobody jumps the queue.
//
// Messages come through an inbox: a channel that the Locker subscribes to. A Locker opens its inbox
// when a wait begins, and closes it a second after the last wait. In a cluster, there is an inbox
// for each slot that is waited for, a shard channel. All inboxes of a Locker on one master share
// one connection, which is not one of the pool of the client library.
//
// Messages can be lost. So waiters check in with the server about every two seconds, to find out whether
// they were granted the lock and to show that they are alive. For each key, the first waiter of a Locker
// checks in for all others of that Locker. So ten thousand goroutines that wait for a key cost one call in
// two seconds. A waiter that checks in, and is first or second in the queue, also does so when the
// holder's lease ends. A waiter whose Locker has not checked in for five seconds, or whose inbox has no
// subscriber, counts as dead and is passed over. If it was alive after all, it returns to its old place
// with its next check-in.
//
// While the lock is held, check-ins remove the waiters that have been silent for a minute. New waiters also
// remove two dead ones once a second, or two each while they find some: the queue cannot grow if waiters die
// before their first check-in. One call of a script removes at most about 5,000 dead waiters, in 10 ms or less.
// If there are more, the Locker repeats the call, and the server can serve others in between.
//
// A waiter may have no inbox: the user may have no right to subscribe, a proxy may not support it, the cluster may be
// older than Redis 7, or the client may subscribe on another server than the one that runs the scripts, such as a
// replica (a check-in detects this). Such waiters queue too, and check in more often: the first one five to ten times
// a second, the others about once a second or more often, and each at least three times in its TTL. The lock is
// reserved for the first waiter for at most 2 s after its last check-in, or for its TTL if that is shorter.
//
// Programs with other libraries do not queue. They do not get a lock that dlock's waiters pass
// on among themselves, and when they free a lock, no waiter gets a message. While both are in
// use, make dlock's Lockers with [WithQueue](false).
//
// docs/handover.md has the rules of the protocol. The tests of internal/sim/world search for what breaks them.
//
// # Votes
//
// A Locker is a [quorum.VoteAcquirer]. The Store of a [quorum.Ballot] is the replication ID of the
// master, and the marker has the ID and the time of the first vote under it. A restart, with its data
// or without, and a promotion give a master another ID. FLUSHALL removes the marker. Age begins at 0
// in each case. It also does for each new prefix, for each new slot of a cluster, and if the clock is
// set back to before the time of the marker.
//
// A master also takes another ID when its first replica connects, and when it has had no replica
// for repl-backlog-ttl (an hour). Age then begins again, although nothing was lost.
//
// If the user lacks the right to INFO, Vote, Confirm and AcquireVote fail with [dlock.ErrInvalid].
//
// # Limits of Redis
//
// While a slot is moved from one server of a cluster to another, the keys of a lock may be on
// different servers. A free lock cannot be acquired then: attempts fail with TRYAGAIN, and the
// Client repeats them for up to 10 s. A held lock can be renewed and released. But a release then
// hands it to nobody: a waiter gets it at a later check-in.
//
// Leases are as durable as the server's data. A server that restarts without its data, or a
// replica that is promoted without the last writes, has lost leases: use fences where that
// matters, or [WithReplicas], which costs a round trip to the replicas. Set maxmemory-policy to
// noeviction, the default. Any other policy may evict locks when memory runs short.
//
// The server's clock decides when a lease expires. If the clock is set forward, leases end
// early. If it is set back by an hour, the key of a dead holder stays for an hour longer.
package rediscore

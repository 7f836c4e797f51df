// Package rediscore is what all dlock backends on Redis share: names of keys,
// scripts, and how their replies are read. Applications use the package for their
// client library: [github.com/dlock-go/dlock/backend/goredis],
// [github.com/dlock-go/dlock/backend/rueidis] or
// [github.com/dlock-go/dlock/backend/redigo]. For another library, write a [Conn]
// and pass it to [New].
//
// It needs Redis 6.0 or newer, or Valkey, alone, with replicas, with Sentinel or as a
// cluster; its tests have run on Redis 6.0, 7.0 and 8.0, and on Valkey 8.0, 8.1 and
// 9.1. A server before Redis 5 refuses scripts that look at its clock and then write:
// attempts fail with an error that says so, and store nothing. Shard channels, over
// which grants are told in a cluster, came with Redis 7.0.
//
// # The rights that it needs
//
// A Redis user with these rights, here for the prefix "lock:", can do everything:
//
//	ACL SETUSER dlock on >PASSWORD ~lock:* resetchannels &lock:* -@all +asking +cluster|shards +cluster|slots +command +del +eval +evalsha +exists +get +hdel +hget +hset +incrby +persist +pexpire +ping +pttl +publish +pubsub +renamenx +set +spublish +ssubscribe +subscribe +time +zadd +zcard +zrange +zrank +zrem +zscore
//
// The channels (&) matter: new users have none since Redis 7. Before Redis 7.0 leave out
// SPUBLISH and SSUBSCRIBE, which are for clusters, as CLUSTER, COMMAND and ASKING are;
// before 6.2 leave out the channels. With a prefix that contains an opening brace, as
// "my{app:", the patterns begin with a star too, as "~*my{app:*", since some names have a
// tag before the prefix. A client that caches on its side (rueidis, unless DisableCache is set) needs
// CLIENT TRACKING too.
//
// A user who lacks a right for the queue, or may subscribe but not publish, gets an error that
// matches [dlock.ErrInvalid] when it is to wait; [WithQueue](false) does without. A user who
// may not subscribe waits all the same, but has to ask, which is slower: [WithInboxError]
// tells why.
//
// # What is stored
//
// The lock named key is a plain string under prefix followed by key; its value is
// the holder's token and its TTL is the lease's. This is how redsync, redislock and
// StackExchange.Redis store theirs, so locks of these libraries and of this one
// exclude each other on the same key, and a fleet can change from one to another
// while it runs.
//
// Beside the locks there is one counter of fences for each of the 16,384 hash
// slots, however many locks there are, and only for slots in use: it expires a day
// after its last use. Its name is prefix{tag}dlock1:fence, or
// {tag}prefixdlock1:fence for a prefix with an opening brace, where the tag puts it
// into the slot of the lock. So it is under the same prefix, for access control, and
// in the same slot, for Redis Cluster. Keys and prefixes that contain "dlock1:" are
// refused, since they could be such names.
//
// Use one prefix for a lock. "a:" and "b:1" store the same lock as "a:b:" and "1", and
// exclude each other; but each has a counter of fences and a queue of its own, so that
// fences can go back from one to the other, and who waits in one is passed over by those
// who wait in the other.
//
// Where somebody waits there are two more keys, prefix{tag}dlock1:queue: and the key,
// and prefix{tag}dlock1:waiters: and the key, placed like the counter. They go with the
// last waiter, or a minute after everybody has stopped to ask.
//
// Keys that are made up anew each time (an order number, a random part) may so come
// to use every slot, and leave a counter in each for a day. Where that is too much, a
// common hash tag keeps them in one slot: "{orders}:1234".
//
// These names, the tags and the values are the wire format, which all clients of a
// lock must agree on. A change of it would change the "1".
//
// # Fences
//
// The fence of a grant is the larger of the last one in the slot + 8, and the
// server's clock in microseconds; the clock is looked at again when the last fence
// that was made of it is 10 ms old. So it rises as long as the server lives, and it
// still rises when the server has lost everything (FLUSHALL, a restart without
// persistence, a failover that lost writes), because time has moved on: provided
// that the outage took at least 10 ms, that the clock of the new server is not behind
// the old one's by more than the outage took, and that there were fewer than 125,000
// grants a second in a slot. It fits a float64, and with it JavaScript, exactly until
// the year 2255.
//
// # Waiting
//
// Waiters stand in a queue, in the order in which the server took them in. Whoever
// releases the lock gives it to the first of them in the same step, and tells that one
// by a message: one round trip from holder to holder, however many wait. An attempt
// on a lock that is free gets nothing while somebody waits for it, so nobody barges in.
//
// Messages come through an inbox, a channel on a connection of its own that a Locker
// opens when somebody begins to wait (in a cluster a shard channel for each slot, up to
// 32) and closes when nobody has waited for a second. Messages can be lost, so every
// waiter asks about every two seconds whether it has been served, and the first two
// ask when the holder's lease runs out. Who has not asked for five seconds, or whose
// inbox nobody listens to, counts as dead and is passed over; if that was wrong, it
// comes back with its old place.
//
// Where there is no inbox (no right to subscribe, a proxy that cannot, a cluster before
// Redis 7) waiters queue all the same, and ask five to ten times a second when they are
// first, the others about once a second or oftener, and each at least three times in its
// TTL. The lock stays free for such a one until it comes, at most for two seconds, or its
// TTL, since it last asked.
//
// Programs with other libraries do not queue. They get no turn at a lock that dlock's
// waiters pass on among themselves, and when they free it, nobody is told. While both
// are in use, make dlock's Lockers with [WithQueue](false).
//
// docs/handover.md has the protocol rule by rule, and docs/model a model of it that is
// searched exhaustively.
//
// # What a user must know of Redis
//
// While a slot is moved from one server of a cluster to another, a free lock in it
// cannot be taken if not all that is stored beside it is where the lock would be: the
// attempt fails with TRYAGAIN. Locks that are held are renewed and released, but not
// handed over: the waiters find out when they ask.
//
// Leases are as durable as the server's data. A server that restarts without its
// data, or a replica that is promoted without the last writes, has forgotten who
// holds what: use fences where that matters. Set maxmemory-policy to noeviction, its
// default: any other policy may evict locks when memory runs short.
//
// Expiry is decided by the server's clock. A clock that is set forward ends leases early. One
// that is set back keeps the key of a holder that has died for as much longer: for an hour,
// if it is set back by an hour.
package rediscore

// Package rediscore is what all dlock backends on Redis share: names of keys,
// scripts, and how their replies are read. Applications use the package for their
// client library: [github.com/dlock-go/dlock/backend/goredis],
// [github.com/dlock-go/dlock/backend/rueidis] or
// [github.com/dlock-go/dlock/backend/redigo]. For another library, write a [Conn]
// and pass it to [New].
//
// It needs Redis 6.0 or newer, or Valkey, alone, with replicas, with Sentinel or as a
// cluster; its tests have run on Redis 6.0, 7.0 and 8.0, and on Valkey 8.0, 8.1 and
// 9.1. A server before Redis 5 refuses scripts that read its clock and then write:
// attempts fail with an error that says so, and store nothing. Shard channels, which
// announce grants in a cluster, came with Redis 7.0.
//
// # The rights that it needs
//
// A Redis user with these rights can do everything, here with the prefix "lock:":
//
//	ACL SETUSER dlock on >PASSWORD ~lock:* resetchannels &lock:* -@all +asking +cluster|shards +cluster|slots +command +del +eval +evalsha +exists +get +hdel +hget +hset +incrby +persist +pexpire +ping +pttl +publish +pubsub +renamenx +set +spublish +ssubscribe +subscribe +time +zadd +zcard +zrange +zrank +zrem +zscore
//
// The channels (&) matter: new users have none since Redis 7. Before Redis 7.0 leave out
// SPUBLISH and SSUBSCRIBE. These are for clusters, as are CLUSTER, COMMAND and ASKING.
// Before 6.2 leave out the channels. If the prefix contains an opening brace, as "my{app:",
// some names have a tag before the prefix, so begin the patterns with a star too:
// "~*my{app:*". A client that caches on its side (rueidis, unless DisableCache is set)
// needs CLIENT TRACKING too.
//
// If the user lacks a right for the queue, or may subscribe but not publish, an Acquire that
// would wait fails with an error that matches [dlock.ErrInvalid]. [WithQueue](false) needs
// none of these rights. If the user may not subscribe, waiters queue and poll, which is
// slower: [WithInboxError] reports why.
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
// All programs must split the name of a lock into prefix and key at the same place. Prefix
// "a:" with key "b:1" stores the same lock as prefix "a:b:" with key "1", and the two exclude
// each other. But each has its own counter of fences and its own queue: a fence of one can
// be smaller than an earlier fence of the other, and the waiters of one are passed over by
// those of the other.
//
// While a lock is waited for there are two more keys, prefix{tag}dlock1:queue: and the key,
// and prefix{tag}dlock1:waiters: and the key, placed like the counter. They are removed
// with the last waiter, or a minute after the last waiter has polled.
//
// Keys that are unique per use (an order number, a random part) can end up using every
// slot, and leave a counter in each for a day. If that is too much, a common hash tag keeps
// them in one slot: "{orders}:1234".
//
// These names, the tags and the values are the wire format, which all clients of a
// lock must agree on. A later format will have another number than the "1".
//
// # Fences
//
// The fence of a grant is the last fence in the slot + 8, or the server's clock in
// microseconds if that is larger. The clock is read again when the last fence that was made
// from it is 10 ms old.
//
// So fences rise as long as the server lives. They also rise when the server has lost
// everything (FLUSHALL, a restart without persistence, a failover that lost writes),
// because time has moved on. That has three conditions: the outage took at least 10 ms; the
// clock of the new server is not behind the old one's by more than the outage took; and
// there were fewer than 125,000 grants a second in a slot. A fence fits into a float64,
// and so into a number of JavaScript, exactly until the year 2255.
//
// # Waiting
//
// Waiters queue in the order in which the server received them. A release gives the lock to
// the first waiter in the same step, and sends that waiter a message: one round trip from
// holder to holder, however long the queue is. While a lock has waiters, an attempt by
// anybody else is refused even if the lock is free, so nobody barges in.
//
// Messages come through an inbox, which is a channel on a connection of its own. A Locker
// opens its inbox when a wait begins, and closes it when there was no wait for a second. (In
// a cluster an inbox is a shard channel for each slot, for up to 32 slots.) Messages can be
// lost. So each waiter polls: it asks the server about every two seconds whether it was
// granted the lock, and the first two waiters ask when the holder's lease runs out. A waiter
// that has not polled for five seconds, or whose inbox has no listener, counts as dead and
// is passed over. If it was alive, it returns to its old place with its next poll.
//
// There may be no inbox: the user has no right to subscribe, a proxy does not support it,
// or it is a cluster before Redis 7. Then waiters queue too, and poll more often: the first
// one five to ten times a second, the others about once a second or more often, and each at
// least three times in its TTL. The lock is reserved for such a waiter for at most 2 s after
// its last poll, or for its TTL if that is shorter.
//
// Programs with other libraries do not queue. They get no turn at a lock that dlock's
// waiters pass on among themselves. When they free a lock, no waiter gets a message. While
// both are in use, make dlock's Lockers with [WithQueue](false).
//
// docs/handover.md has the protocol rule by rule, and docs/model a model of it that is
// searched exhaustively.
//
// # What a user must know of Redis
//
// While a slot is moved from one server of a cluster to another, the keys of a lock may be
// on different servers. Such a lock, if it is free, cannot be taken: attempts fail with
// TRYAGAIN, which the Client repeats for up to 10 s. Locks that are held are renewed and
// released, but not handed over: the waiters find out with their next poll.
//
// Leases are as durable as the server's data. A server that restarts without its
// data, or a replica that is promoted without the last writes, has forgotten who
// holds what: use fences where that matters. Set maxmemory-policy to noeviction, its
// default: any other policy may evict locks when memory runs short.
//
// Expiry is decided by the server's clock. A clock that is set forward ends leases early. A
// clock that is set back by an hour keeps the key of a dead holder for an hour longer.
package rediscore

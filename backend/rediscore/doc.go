// Package rediscore is what all dlock backends on Redis share: names of keys,
// scripts, and how their replies are read. Applications use the package for their
// client library: [github.com/dlock-go/dlock/backend/goredis],
// [github.com/dlock-go/dlock/backend/rueidis] or
// [github.com/dlock-go/dlock/backend/redigo]. For another library, write a [Conn]
// and pass it to [New].
//
// It is made for Redis 5 and newer, and what is compatible with it, alone, with
// replicas or as a cluster; its tests run on Redis 7. The user of the connection
// must be allowed EVAL, EVALSHA, GET, SET, INCRBY, DEL, PTTL, PEXPIRE, PERSIST,
// RENAMENX and TIME on the keys below the prefix.
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
// in the same slot, for Redis Cluster. Keys that contain "dlock1:" are refused, since
// they could be such names.
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
// # What a user must know of Redis
//
// While a slot is moved from one server of a cluster to another, a free lock in it
// cannot be taken if its counter is not yet where the lock would be: the attempt fails
// with TRYAGAIN. Locks that are held are renewed and released.
//
// Leases are as durable as the server's data. A server that restarts without its
// data, or a replica that is promoted without the last writes, has forgotten who
// holds what: use fences where that matters. Expiry is decided by the server's
// clock; a clock that is set forward ends leases early.
package rediscore

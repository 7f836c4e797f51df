// Package goredis is a dlock backend for services that use go-redis.
//
//	rdb := redis.NewClient(&redis.Options{
//		Addr:                  "localhost:6379",
//		ContextTimeoutEnabled: true,
//	})
//	client := dlock.New(goredis.New(rdb), dlock.WithOwner(dlock.HostOwner()))
//
// A single server, Sentinel or a cluster will do. A [redis.Ring] will not: its clients
// need not agree on which server has a key, so that two of them would hold the same
// lock. What is stored, and what it needs of the server, is told by the package
// [github.com/dlock-go/dlock/backend/rediscore].
//
// # Settings of the client
//
// Set ContextTimeoutEnabled. Without it go-redis looks at a context only while it
// waits for a connection: a call that hangs then ends after ReadTimeout (3 s if it
// is not set), however soon the deadline of its context is. Even with it only a
// deadline ends a call that is on its way: one whose context is cancelled ends after
// ReadTimeout. Leases stay safe without it, since
// they are lost on their deadline whatever a call does; but with a TTL of less than
// about three times ReadTimeout there is no time for a second try when a renewal
// hangs.
//
// MaxRetries may be what it is: lock commands are marked so that go-redis does not
// send them again, because a retry hides that the outcome of the first try is
// unknown, and dlock retries by itself where that is safe. In a cluster,
// redirections are followed, and ReadOnly, RouteByLatency and RouteRandomly do no
// harm: scripts and subscriptions are sent to masters. When a master does not answer, the
// client is made to look which replica has taken its place, which it does by itself only
// once a minute: locks can be taken again within 3 s of that, or ReadTimeout and a second
// if the master accepts connections and says nothing.
//
// go-redis tries five times to connect before it fails (0.4 s if connections are
// refused), and logs that to standard error; see its SetLogger.
package goredis

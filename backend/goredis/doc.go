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
// lock. The package [github.com/dlock-go/dlock/backend/rediscore] documents what is stored,
// and what is needed of the server.
//
// # Settings of the client
//
// Set ContextTimeoutEnabled. Without it go-redis looks at a context only while it
// waits for a connection: a call that hangs ends after ReadTimeout (3 s if it is not set),
// however soon the deadline of its context is. With it the deadline ends the call. But a
// call whose context is cancelled before ends only at the deadline or after ReadTimeout.
// Leases stay safe without the setting, since each is lost at its deadline whatever a call
// does. But a renewal that hangs then leaves no time for a second try if the TTL is less
// than about three times ReadTimeout.
//
// MaxRetries may have any value. Lock commands are marked so that go-redis does not send
// them again: a retry would hide that the outcome of the first try is unknown, and dlock
// retries by itself where that is safe.
//
// In a cluster, redirections are followed. ReadOnly, RouteByLatency and RouteRandomly do no
// harm: scripts and subscriptions are sent to masters. When a master does not answer, this
// package makes the client look which replica has taken its place; by itself the client
// does that only once a minute. Locks can be taken within 3 s of the promotion of the
// replica. If the old master accepts connections and says nothing, they can be taken within
// ReadTimeout and one second.
//
// go-redis tries five times to connect before it fails (0.4 s if connections are
// refused), and logs that to standard error; see its SetLogger.
package goredis

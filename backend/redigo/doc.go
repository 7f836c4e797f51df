// Package redigo is a dlock backend for services that use redigo.
//
//	pool := &redis.Pool{
//		MaxIdle: 10,
//		DialContext: func(ctx context.Context) (redis.Conn, error) {
//			return redis.DialContext(ctx, "tcp", "localhost:6379",
//				redis.DialConnectTimeout(3*time.Second),
//				redis.DialReadTimeout(3*time.Second),
//				redis.DialWriteTimeout(3*time.Second))
//		},
//	}
//	client := dlock.New(dlockredigo.New(pool), dlock.WithOwner(dlock.HostOwner()))
//
// The pool must connect to a master. redigo supports neither Sentinel nor Redis Cluster: after a
// failover, DialContext must find the new master itself. A DNS name, a Service or a proxy that leads to
// the master is enough. A pool works with a cluster only while a single node has the slots of all keys. The package
// [github.com/dlock-go/dlock/backend/rediscore] documents what is stored and what the server
// must allow.
//
// # Settings of the pool
//
// Set DialReadTimeout and DialWriteTimeout: by default redigo has no limits. A call whose context
// has a deadline within the next 5 s ends at that deadline, even if the context is cancelled
// earlier. Any other call ends when its context ends; it uses a goroutine.
//
// Set MaxIdle to the number of concurrent calls: further calls open new connections. If you set MaxActive, set
// Wait too, or calls fail with [redis.ErrPoolExhausted]. If the server closes idle connections (its timeout is
// not 0), set IdleTimeout to less, or a call on such a connection fails with EOF. TestOnBorrow is not needed, and
// costs a round trip. After a failover the old master is a replica, and may keep its connections open. If a call
// is answered with READONLY, MASTERDOWN or LOADING, this package dials a new connection and makes the call there.
// While that does not help, it dials at most four times a second. If it helps, all idle connections are closed,
// and others when they get such an answer.
//
// One connection outside of the pool receives the messages for all waiters. The server does not close it
// while it is idle. Concurrent calls travel together in pipelines. The pipelines use two connections at a
// time, or up to half of MaxActive if the network is slow: see package rediscore. With a MaxActive of one
// or two they use one, and a call of yours may have to wait for a pipeline.
//
// The pool may wrap its connections in a type that has only the methods of [redis.Conn]. A call on
// such a connection also ends with its context, and uses a goroutine. But the pool gets the
// connection back only when the server answers or DialReadTimeout ends the call. DialReadTimeout
// must then be more than a second, or waiters get no messages.
package redigo

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
// The pool must connect to a master. redigo knows no cluster: a pool works with one
// only as long as it holds the slots of all keys. What is stored, and what it needs
// of the server, is told by the package
// [github.com/dlock-go/dlock/backend/rediscore].
//
// # Settings of the pool
//
// Set DialReadTimeout and DialWriteTimeout, which redigo leaves unlimited. A call
// whose context has a deadline ends by then, though not earlier if the context is
// cancelled before; one whose context has none ends when it is cancelled, at the
// price of a goroutine. Set MaxIdle to the number of calls that are made at once, or
// each connects anew; with MaxActive set, set Wait too, or calls fail with
// [redis.ErrPoolExhausted]. Where the server cuts idle connections (its timeout is not
// 0), set IdleTimeout to less, or a call on one fails with EOF. One connection is
// enough for any number of waiters: they hear of their grants over another, which is
// not of the pool, and which the server does not cut. TestOnBorrow is not needed, and costs a round trip.
//
// Connections may be wrapped in a type that has only what [redis.Conn] demands. A call on
// one ends with its context too, at the price of a goroutine; but the connection is lost to
// the pool until the server answers, or DialReadTimeout ends it. Such a DialReadTimeout
// should be more than a second, or waiters have to ask instead of being told.
package redigo

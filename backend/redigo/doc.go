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
// only as long as it holds the slots of all keys. The package
// [github.com/dlock-go/dlock/backend/rediscore] documents what is stored, and what is needed
// of the server.
//
// # Settings of the pool
//
// Set DialReadTimeout and DialWriteTimeout, which redigo leaves unlimited. If the context of
// a call has a deadline, the call ends at the deadline, even if the context is cancelled
// before. If it has no deadline, the call ends when the context is cancelled, at the price
// of a goroutine.
//
// Set MaxIdle to the number of calls that are made at once, or each call opens a new
// connection. With MaxActive set, set Wait too, or calls fail with [redis.ErrPoolExhausted].
// If the server cuts idle connections (its timeout is not 0), set IdleTimeout to less, or a
// call on such a connection fails with EOF. TestOnBorrow is not needed, and costs a round
// trip. One connection is enough for any number of waiters: the messages that tell them of
// their grants come over another connection, outside of the pool, which the server does not
// cut.
//
// Connections may be wrapped in a type that has only what [redis.Conn] demands. A call on
// such a connection ends with its context too, at the price of a goroutine. But the pool
// does not get the connection back until the server answers, or DialReadTimeout ends the
// call. Make this DialReadTimeout more than a second, or waiters have to poll.
package redigo

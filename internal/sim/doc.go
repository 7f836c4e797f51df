// Package sim is Redis in this process, for tests in virtual time.
//
// A [Server] runs the Lua scripts that are shipped, on maps. Its clock is [time.Now], so it works
// in a [testing/synctest] bubble: leases of hours expire within microseconds. A [Conn] is a client
// of it, with a network in between that a test can make slow, lossy and late. A [Held] is one call or
// message that a test orders by hand.
//
// A server can have replicas, which are as far behind as a test wants, and can take its place. A [Cluster]
// has several masters, between which slots move.
//
// The package knows the commands that the scripts use, and no others. Random commands,
// values and calls of a Locker must have the same replies, keys, TTLs and messages as on a real server
// (redis_test.go).
//
// Nothing here waits while it holds a mutex, and no goroutine outlives its Conn.
package sim

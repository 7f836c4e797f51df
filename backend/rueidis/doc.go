// Package rueidis is a dlock backend for services that use rueidis.
//
//	import dlockrueidis "github.com/dlock-go/dlock/backend/rueidis" // the library is called rueidis, too
//	// ...
//	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	client := dlock.New(dlockrueidis.New(rdb), dlock.WithOwner(dlock.HostOwner()))
//
// It works with a single server, Sentinel and Redis Cluster. The package
// [github.com/dlock-go/dlock/backend/rediscore] documents what is stored and what the server
// must allow.
//
// # Settings of the client
//
// The defaults are right for a single server. If the server does not support client-side
// caching, set DisableCache, or NewClient fails. NewClient connects at once, and takes at most
// Dialer.Timeout (5 s by default).
//
// Messages for waiters come over the connection that carries the commands, so a Locker needs no
// connection of its own, nor one of the blocking pool. With AlwaysRESP2 there is one more
// connection to each master. Set AlwaysRESP2 if the server says that it speaks RESP3, but takes no
// other commands on a connection that has subscribed, as miniredis does.
//
// With SendToReplicas, rueidis treats a subscription as a read. This package therefore subscribes on the node whose ROLE is
// master. If the user has no right to ROLE, and rueidis subscribes on a replica, waiters get no messages: [WithInboxError]
// says so.
//
// After a failover behind an address (a DNS name, a Service, a proxy), the shared connections may stay open and lead to
// the old master, which refuses lock commands with READONLY, MASTERDOWN or LOADING. rueidis keeps them. All lock
// commands and messages then share one connection of the blocking pool. Once a second, the Locker tries the shared
// ones, and returns to them when they lead to a master. Commands of the application are not affected: they reach the
// old master until its connections are closed.
//
// With ConnLifetime, rueidis also closes the connection that a subscription is on, at random ages. The subscription
// is made again within 0.3 s. A lock that is released meanwhile is granted when its waiter checks in, 0.1 to 0.2 s later than by
// message. Leave ConnLifetime at 0 unless you need it: it does not help after a failover.
//
// With [WithReplicas], each flight of grants or renewals takes a connection of the blocking pool
// (BlockingPoolSize), because WAIT would hold up the commands of others on a shared one. Such a call
// ends 5 s after the time-out of WithReplicas at the latest.
//
// In a cluster, there is a subscription, with a goroutine, for each slot that is waited for. rueidis
// does not tell which master has a slot, so calls travel together only if their keys are in the same slot.
//
// In a cluster, set ClusterOption.ShardsRefreshInterval to one second. By default, rueidis
// refreshes its table of slots only after a call has failed, up to a second later. If a master
// accepts connections but does not answer, the next call is sent to the same master before the
// refresh, and takes just as long to fail.
//
// rueidis does not retry lock commands, whether DisableRetry is set or not, because they may
// write. Commands of many goroutines share connections, so the locks of a process need few of
// them.
//
// # A server that hangs
//
// A call ends when its context ends, even if the server does not answer. Its outcome is unknown then.
// A call without a deadline ends when rueidis' own pings go unanswered (after ConnWriteTimeout, 10 s
// by default).
//
// By itself, rueidis lets a call wait past its deadline for a connection that another call is making.
// Therefore a call runs in a goroutine of its own if the last call of the client has failed (in a
// cluster: one of the last 10 s), or if other calls are in flight and none has been answered for 100 ms.
// When its context ends, the goroutine stays until rueidis has finished the call: by default for at most
// 10 s (Dialer.Timeout or ConnWriteTimeout). There are at most 1,024 of these goroutines. Beyond that, a
// call waits for one of them to end. If the contexts of all 1,024 calls have ended, it fails at once
// with a [dlock.NoEffectError] that matches [dlock.ErrUnavailable]. Close of the Locker waits for the
// goroutines for at most 5 s.
//
// Calls without such a goroutine can outlast their contexts:
//
//   - A call that is alone on its connection ends at its deadline, but not when its context is
//     cancelled. With [WithReplicas], every call is alone on its connection.
//   - A call that begins less than 100 ms after the last answer, while another call is making a connection,
//     waits for it: by default for at most 5 s (Dialer.Timeout).
//   - A call behind 1,024 others on its connection (RingScaleEachConn) waits for one of them to end.
//   - In a cluster whose other masters answer, the first calls to a master that hangs wait for the
//     connection that one of them is making, until one has failed.
//
// # Closing
//
// Close the dlock Client first, then the Locker, then the rueidis client. Once the rueidis
// client is closed, waits and calls fail with an error that matches [dlock.ErrClosed]. There is
// one exception: a rueidis client that failed to connect earlier connects again after its
// Close.
package rueidis

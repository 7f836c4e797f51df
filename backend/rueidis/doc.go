// Package rueidis is a dlock backend for services that use rueidis.
//
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
// connection of its own, and none of the blocking pool. With AlwaysRESP2 there is one more
// connection to each master. Set AlwaysRESP2 if the server says that it speaks RESP3, but takes no
// other commands on a connection that has subscribed, as miniredis does.
//
// With [WithReplicas], each grant or renewal in flight takes a connection of the blocking pool
// (BlockingPoolSize), because WAIT would hold up the commands of others on a shared one. Such a call
// ends 5 s after the time-out of WithReplicas at the latest. It also ends at the deadline of its
// context. But while the server does not answer, it does not end when its context is cancelled.
//
// In a cluster, there is a subscription, with a goroutine, for each slot that is waited for. rueidis
// does not tell which master has a slot, so calls of waiters go together only if their keys are in the
// same slot.
//
// In a cluster, set ClusterOption.ShardsRefreshInterval to one second. By default, rueidis
// refreshes its table of slots only after a call has failed, up to a second later. If a master
// accepts connections but does not answer, the next call is sent to the same master before the
// refresh, and takes just as long to fail.
//
// A call ends when its context ends. Its outcome is unknown then. A call without a deadline on
// a connection that hangs ends when rueidis' own pings go unanswered (after ConnWriteTimeout,
// 10 s by default).
//
// rueidis does not retry lock commands, whether DisableRetry is set or not, because they may
// write. Commands of many goroutines share connections, so the locks of a process need few of
// them.
//
// Close the dlock Client first, then the Locker, then the rueidis client. Once the rueidis
// client is closed, waits and calls fail with an error that matches [dlock.ErrClosed]. There is
// one exception: a rueidis client that failed to connect earlier connects again after its
// Close.
package rueidis

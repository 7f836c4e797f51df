// Package rueidis is a dlock backend for services that use rueidis.
//
//	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	client := dlock.New(dlockrueidis.New(rdb), dlock.WithOwner(dlock.HostOwner()))
//
// A single server, Sentinel or a cluster will do. What is stored, and what it needs
// of the server, is told by the package
// [github.com/dlock-go/dlock/backend/rediscore].
//
// # Settings of the client
//
// None is needed, but for DisableCache on servers without client-side caching (Redis
// 5), where NewClient fails otherwise. NewClient connects at once, bounded by
// Dialer.Timeout (5 s if it is not set).
//
// In a cluster, set ClusterOption.ShardsRefreshInterval to a second. rueidis looks where
// the slots are up to a second after a call has failed. If a master accepts connections
// and says nothing, the next call has gone to it by then, and takes as long to fail.
//
// rueidis honours contexts, and does not send again what may write,
// which lock commands may; DisableRetry makes no difference to them. A call without
// a deadline on a connection that hangs ends when rueidis' own pings go unanswered
// (ConnWriteTimeout, 10 s if it is not set). Commands of many goroutines share
// connections and travel together, so locks of one process cost few connections;
// a command that waits for its reply when its context ends is given up, and its
// outcome is unknown.
//
// When the client is closed, waits and calls end with an error that matches
// dlock's ErrClosed: unless it has failed to connect to a server before, since rueidis
// connects again then, closed or not. Close the dlock Client first, then the Locker, then
// the client.
package rueidis

// Package rueidis is a dlock backend for services that use rueidis.
//
//	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	client := dlock.New(dlockrueidis.New(rdb), dlock.WithOwner(dlock.HostOwner()))
//
// A single server, Sentinel or a cluster will do. The package
// [github.com/dlock-go/dlock/backend/rediscore] documents what is stored, and what is needed
// of the server.
//
// # Settings of the client
//
// A single server needs none, unless it lacks client-side caching: then set DisableCache, or
// NewClient fails. NewClient connects at once, and takes at most Dialer.Timeout (5 s if it
// is not set).
//
// In a cluster, set ClusterOption.ShardsRefreshInterval to a second. By default rueidis looks
// where the slots are only up to a second after a call has failed. If a master accepts
// connections and says nothing, the next call has been sent to it by then, and takes as long
// to fail.
//
// rueidis honours contexts. It sends no lock command again, since these may write;
// DisableRetry makes no difference to them. A call without a deadline on a connection that
// hangs ends when rueidis' own pings go unanswered (ConnWriteTimeout, 10 s if it is not
// set). Commands of many goroutines share connections and travel together, so the locks of
// one process cost few connections. If the context of a command ends before its reply, the
// outcome of the command is unknown.
//
// Close the dlock Client first, then the Locker, then the rueidis client. When the rueidis
// client is closed, waits and calls end with an error that matches dlock's ErrClosed. There
// is one exception: if rueidis has failed to connect to a server before, it connects again,
// closed or not.
package rueidis

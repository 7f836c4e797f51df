// Package goredis is a dlock backend for services that use go-redis.
//
//	rdb := redis.NewClient(&redis.Options{
//		Addr:                  "localhost:6379",
//		ContextTimeoutEnabled: true,
//	})
//	client := dlock.New(goredis.New(rdb), dlock.WithOwner(dlock.HostOwner()))
//
// It works with a single server, Sentinel and Redis Cluster. It refuses a [redis.Ring], because
// the clients of a ring may disagree on which server has a key, and two of them could then hold
// the same lock.
//
// A decorator, for metrics or traces, is recognized by its methods. A struct that embeds a [redis.Client] or
// [redis.ClusterClient] works like that client. A decorator that hides the client's methods, such as a struct that embeds a
// [redis.UniversalClient], works for one server or Sentinel, but not with [WithReplicas]. Otherwise it is refused, unless
// [WithInside] names the client inside. In a cluster, batches, subscriptions and calls with a WAIT go to the clients of
// single masters (MasterForKey), and not through the decorator.
//
// The package [github.com/dlock-go/dlock/backend/rediscore] documents what is
// stored and what the server must allow.
//
// # Settings of the client
//
// Set ContextTimeoutEnabled. With it, a call ends at the deadline of its context. Without it,
// go-redis uses the context only while it waits for a connection, and a call that hangs ends after
// ReadTimeout (by default 3 s, or 5 s in recent releases). Locks stay exclusive either way, because
// each lease ends at its deadline. But without the setting, a renewal that hangs leaves no time for
// a second try if the TTL is less than about three times ReadTimeout. In both cases, a call whose
// context is cancelled still waits for the deadline or ReadTimeout.
//
// MaxRetries may have any value: lock commands are not retried. A retry would hide that the outcome of the first try is
// unknown. dlock itself retries where that is safe. go-redis 9.5.1 is the oldest release that works. From 9.19 on,
// go-redis is asked not to retry. In older releases, a lock command uses a copy of the [redis.Client] without retries,
// which costs about a microsecond unless MaxRetries is -1. A [redis.ClusterClient] is kept from repeating an unanswered
// command, and the call fails with the first error.
//
// One connection outside of the pool receives the messages for all waiters. In a cluster, there is one to each master.
// Before go-redis 9.17, MaxActiveConns, if it is set, must exceed PoolSize: otherwise that connection is refused, and
// waiters get no messages ([WithInboxError] says why). Concurrent calls travel together in pipelines: two at a time, or up
// to half of PoolSize if the network is slow (see package rediscore). go-redis has a pool of its own for pipelines
// (PipelinePoolSize).
//
// [WithReplicas] needs a client whose methods show whether it is for a cluster, and a ReadTimeout above
// the time-out of WithReplicas. Calls that wait for replicas use connections as pipelines do.
//
// A cluster client for a single master, such as that of [redis.NewFailoverClusterClient], is used as a
// client of a single server. (Close of that client leaves two goroutines behind: go-redis does not end
// them.)
//
// After a failover behind an address (a DNS name, a Service, a proxy), connections of the pool may stay open and lead to
// the old master. If a call is answered with READONLY, MASTERDOWN or LOADING, its connection is closed, and the call is
// made again over the next one. If that does not help, only a few connections are closed each second. In between, calls
// fail at once with the last answer.
//
// In a cluster, redirections are followed. ReadOnly, RouteByLatency and RouteRandomly of a cluster client do no harm:
// scripts and subscriptions always go to masters. ReadOnly of [redis.UniversalOptions] with a MasterName, and ReplicaOnly of
// [redis.FailoverOptions], make a client of replicas: all lock commands fail with READONLY. When a master does not answer,
// this package makes go-redis look for its replacement. By itself, go-redis looks only once a minute. Locks can be acquired
// within 3 s of the promotion of a replica. If the old master accepts connections but does not answer, this takes up to
// ReadTimeout plus one second.
//
// Recent releases of go-redis try five times to connect before a call fails (0.4 s if connections
// are refused). go-redis logs each failure to standard error (see its SetLogger). If the context of
// the call ends earlier, the call fails with the context's error, and only the log says why
// connecting failed. The error of the [dlock.Client] then matches [dlock.ErrUnavailable].
package goredis

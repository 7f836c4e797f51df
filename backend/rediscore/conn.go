package rediscore

import (
	"context"
	"strings"
	"time"
)

// A Conn is what a backend needs from a Redis client library. To support another library,
// implement Conn with it and pass it to [New]. All methods must be safe for concurrent use.
//
// A Conn must not repeat a call that may have reached the server: the Locker has to know that
// the outcome of the first try is unknown. It follows redirections of Redis Cluster, because
// the server that redirects has not executed the call.
//
// A Conn returns the library's errors, wrapped or not. The Locker decides by [dlock.NoEffect], and by
// the text of the innermost error, whether the call had no effect: if the server has answered, that
// text is its answer. Joined errors (Unwrap() []error) never mean that. A Conn should be a [Replier],
// which says that an error is an answer although the Locker does not know its text.
//
// A Conn returns a [dlock.NoEffectError] if it is certain that the call was not sent and will
// not be, for example because the pool had no free connection, or because the server has refused the HELLO, AUTH or
// SELECT of a new connection. When in doubt, it does not.
//
// When the library's client was closed, all methods fail with [ClientClosed], which ends all
// waits. A single closed connection must not be reported like this.
type Conn interface {
	// Eval runs a script on the master that has its keys. It sends EVALSHA, and then
	// EVAL if the server does not know the script (see [IsNoScript]). It returns the
	// reply as an int64, a string, nil, or a []any of these, which may be nested.
	Eval(ctx context.Context, call Call) (any, error)

	// EvalAll does the same for several independent calls, in as few round trips as the
	// library can. The calls may be for different masters; if one of these does not
	// answer, the calls to the others succeed anyway. EvalAll sets Reply or Err of
	// each result; results is as long as calls.
	EvalAll(ctx context.Context, calls []Call, results []Result)

	// Listen subscribes to a channel of a master (SUBSCRIBE) or, if sharded, to a shard
	// channel on the master of its slot (SSUBSCRIBE). Calls do not wait for the connection that
	// it uses. In a cluster, thousands of Listens may run at once, each with its own channel:
	// those on one master should share a connection.
	//
	// Listen calls on with Subscribed when the server has confirmed the subscription, and with
	// Message for each message, one after the other. It returns when ctx ends or the
	// subscription is lost, for example because the server ended it (sunsubscribe, when a slot
	// moves). It does not subscribe again, and never returns nil. When it has returned, the
	// subscription is over and on is not called any more. The Locker then may call Listen
	// for the same channel again, and not before.
	Listen(ctx context.Context, channel string, sharded bool, on func(Event)) error

	// Cluster reports whether the server is a Redis Cluster. The Locker uses shard
	// channels there.
	Cluster() bool
}

// A Router is a [Conn] of a Redis Cluster that knows the masters. Calls for one master then travel
// together. Otherwise only those for one slot do.
type Router interface {
	// Master returns a comparable value that stands for the master that has the keys of a call, or
	// nil if that is not known. It avoids waiting for a server.
	Master(ctx context.Context, call Call) any
}

// A Locator is a [Conn] of a Redis Cluster that finds out which master has a slot. The Locker then ends
// a Listen when another master turns out to have the slot of its channel, and calls it again.
type Locator interface {
	// Locate returns a comparable value that stands for the master that has the slot of a channel
	// now, or nil if that is not known. It may ask a server.
	Locate(ctx context.Context, channel string) any
}

// A Pooled is a [Conn] whose calls take connections from a pool. The Locker uses at most half of them at a
// time, rounded up, unless some do not answer, or [WithReplicas] needs one for each kind of call.
type Pooled interface {
	// PoolSize returns how many connections to a master the pool has, or 0 if there is no limit, or it is not
	// known.
	PoolSize() int
}

// A Drainer is a [Conn] whose calls return when their context ends, even if the library has not finished
// them.
type Drainer interface {
	// Drain returns when the library has finished all calls, or ctx ends.
	Drain(ctx context.Context)
}

// An Addressed is a [Conn] that may know the address of its server.
type Addressed interface {
	// Addr returns the address of the only server, or "" if there may be several or it is not known.
	Addr() string
}

// A Replier is a [Conn] that knows which errors are replies of a server. Without it, an error whose text the Locker does
// not know counts as silence.
type Replier interface {
	// IsReply reports whether an error that wraps no other is an error reply, from a server or a proxy, and was not made by
	// the library. It decides by the type of the error.
	IsReply(err error) bool
}

// A Call is a call of a script, with its keys and arguments.
type Call struct {
	Script *Script
	Args   []string // those after the keys
	keys   *lockKeys
}

// Keys returns the keys. There is at least one, and in a cluster all are in the same slot. The caller must
// not change the slice.
func (c Call) Keys() []string {
	if c.Script.Keys == 0 {
		return c.keys.set
	}
	return c.keys.texts[:c.Script.Keys]
}

// Append appends to args what follows the script in an EVALSHA command: the number of keys,
// the keys, and the arguments. It returns the extended slice.
func (c Call) Append(args []any) []any {
	keys := c.Keys()
	args = append(args, len(keys))
	for _, key := range keys {
		args = append(args, key)
	}
	for _, arg := range c.Args {
		args = append(args, arg)
	}
	return args
}

// Len returns the number of elements that Append appends.
func (c Call) Len() int { return 1 + len(c.Keys()) + len(c.Args) }

// A Result is the reply to a [Call], or an error.
type Result struct {
	Reply any
	Err   error

	// Of a call that a [Replicator] has made.
	Replicas int   // how many replicas have what the call wrote
	NoWait   error // why that is not known, or nil
}

// Fail gives all results the same error.
func Fail(results []Result, err error) {
	for i := range results {
		results[i].Err = err
	}
}

// An Event is something that happened to a subscription.
type Event struct {
	Kind    EventKind
	Payload string // of a Message
}

// EventKind is the kind of an [Event].
type EventKind int

// The kinds of events.
const (
	Subscribed EventKind = iota + 1 // the server has confirmed the subscription
	Message                         // a message has come
)

// IsNoScript reports whether the text of an error says that the server does not know a
// script.
func IsNoScript(text string) bool { return strings.HasPrefix(text, "NOSCRIPT") }

// ListenPeriod is how long a Listen waits for a message before it pings the server, and then
// for the answer to the ping before it returns. It can be long, because waiters also check in.
const ListenPeriod = 15 * time.Second

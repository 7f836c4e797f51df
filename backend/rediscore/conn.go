package rediscore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"time"
)

// A Conn is what a backend needs of a Redis client library. Whoever has a
// library that this package does not know writes one, and has a backend with
// [New]. It is safe for use by any number of goroutines.
//
// A Conn never sends a call again by itself if the first try may have reached the
// server; redirections of Redis Cluster, which did not execute the call, and the
// EVAL after a NOSCRIPT are no such tries. Errors are those of the library, with the chain
// intact that tells a connection that could not be made (a [net.OpError] of "dial"), and
// what the server said: that it has refused a call is found out from its text.
//
// An error of a call of which nothing was sent, and nothing will be, is marked as a
// [dlock.NoEffectError]: when the library could not provide a connection, or says so. When
// in doubt it is not. When the library's client itself was closed, all methods fail with
// [ClientClosed], which ends waits for good; never for a connection that was closed.
type Conn interface {
	// Eval runs a script on the master that has its keys, in one round trip:
	// EVALSHA, followed by EVAL if the server does not know the script. It
	// returns the reply as an int64, a string, nil, or a []any of these.
	Eval(ctx context.Context, call Call) (any, error)

	// EvalAll does the same for calls that are independent of each other and
	// may be for different masters, in as few round trips as the library can.
	// It sets Reply or Err of each. A master that does not answer spoils the
	// calls for no other.
	EvalAll(ctx context.Context, calls []Call, results []Result)

	// Listen subscribes to a channel on the master that has it, or with sharded
	// to a shard channel (SSUBSCRIBE) on the master of its slot, over a
	// connection that is not one of a pool others wait for. It calls on with
	// Subscribed when the subscription has come into force and with Message
	// for each message, one after the other, and returns when ctx has ended or
	// the subscription is lost for any reason, the server's sunsubscribe when
	// a slot moves included. It never subscribes again by itself, and never
	// returns nil. Nothing of it is left when it has returned.
	Listen(ctx context.Context, channel string, sharded bool, on func(Event)) error

	// Cluster reports whether the server is a Redis Cluster, where channels
	// are to be sharded.
	Cluster() bool
}

// A Call is a script with its keys and its other arguments.
type Call struct {
	Script *Script
	Args   []string // those after the keys
	keys   *lockKeys
}

// Keys returns the keys, at least one, all in the same slot. The slice must not be
// changed.
func (c Call) Keys() []string { return c.keys.texts[:c.Script.Keys] }

// Append appends what follows the script in an EVALSHA to args: the number of keys,
// the keys, and the other arguments.
func (c Call) Append(args []any) []any {
	args = append(args, c.Script.Keys)
	args = append(args, c.keys.boxed[:c.Script.Keys]...)
	for _, arg := range c.Args {
		args = append(args, arg)
	}
	return args
}

// Len returns how many arguments Append appends.
func (c Call) Len() int { return 1 + c.Script.Keys + len(c.Args) }

// A Result is the reply to a [Call], or an error.
type Result struct {
	Reply any
	Err   error
}

// An Event is what happens to a subscription.
type Event struct {
	Kind    EventKind
	Payload string // of a Message
}

// EventKind is the kind of an [Event].
type EventKind int

// The kinds of events.
const (
	Subscribed EventKind = iota + 1
	Message
)

// A Script is a Lua script that takes a fixed number of keys, at least one, all
// in the same slot.
type Script struct {
	Source string
	SHA    string // SHA-1 of Source in hexadecimal, its name on the server
	Keys   int
}

func newScript(source string, keys int) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{Source: source, SHA: hex.EncodeToString(sum[:]), Keys: keys}
}

// Half returns a context for the first of two tries, which ends when half of the
// time is over that ctx has left.
func Half(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// IsNoScript reports whether the text of a server's error says that it does not
// know a script.
func IsNoScript(text string) bool { return strings.HasPrefix(text, "NOSCRIPT") }

// ListenPeriod is how long a Listen waits in silence before it pings the server,
// and then for the answer before the subscription counts as lost. It can be long:
// waiters find out what they were not told.
const ListenPeriod = 15 * time.Second

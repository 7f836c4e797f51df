package rediscore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

//go:embed lua/acquire.lua
var acquireSource string

//go:embed lua/renew.lua
var renewSource string

//go:embed lua/release.lua
var releaseSource string

//go:embed lua/inspect.lua
var inspectSource string

var (
	acquireScript = newScript(acquireSource, 2)
	renewScript   = newScript(renewSource, 1)
	releaseScript = newScript(releaseSource, 1)
	inspectScript = newScript(inspectSource, 1)
)

// A Locker keeps leases on Redis. It is a [dlock.Locker], [dlock.BatchRenewer]
// and [dlock.Inspector]. All methods may be called by any number of goroutines.
type Locker struct {
	conn   Conn
	prefix string
	err    error // why no call can succeed: a bad argument of the constructor
	closed atomic.Bool
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
)

// An Option changes where or how a [Locker] keeps leases.
type Option func(*Locker)

// WithPrefix puts all keys under a prefix: the lock named key is stored as prefix
// followed by key, and what else is stored begins with the prefix too, unless it
// contains a brace (see the package documentation). The default is no prefix.
func WithPrefix(prefix string) Option {
	return func(l *Locker) {
		if len(prefix) > maxPrefix {
			l.refuse("WithPrefix(%.32q…): %d bytes, more than %d", prefix, len(prefix), maxPrefix)
		}
		l.prefix = prefix
	}
}

const maxPrefix = 1024

// New returns a Locker on the server that conn talks to. Bad arguments make its
// methods fail with [dlock.ErrInvalid].
func New(conn Conn, opts ...Option) *Locker {
	l := &Locker{conn: conn}
	if conn == nil {
		l.refuse("client: nil")
	}
	for i, opt := range opts {
		if opt == nil {
			l.refuse("Option %d of %d: nil", i+1, len(opts))
			continue
		}
		opt(l)
	}
	return l
}

func (l *Locker) refuse(format string, args ...any) {
	if l.err == nil {
		l.err = invalid(format, args...)
	}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}

// Close makes all later calls fail with [dlock.ErrClosed]. It does not close the
// client, and frees no lock.
func (l *Locker) Close() error {
	l.closed.Store(true)
	return nil
}

// TryAcquire implements [dlock.Locker] in one round trip.
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return dlock.Attempt{}, err
	}
	name := l.prefix + key
	reply, err := l.eval(ctx, acquireScript, name, l.companion(name, fenceSuffix), token, milliseconds(ttl))
	if err != nil {
		return dlock.Attempt{}, err
	}
	switch r := reply.(type) {
	case int64:
		return dlock.Attempt{Acquired: true, Fence: r}, nil
	case []any:
		if hold, err := parseHold(r); err == nil {
			return dlock.Attempt{Holder: hold.Token, Remaining: hold.Remaining}, nil
		}
	}
	return dlock.Attempt{}, unexpected(reply)
}

// Renew implements [dlock.Locker] in one round trip.
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return false, err
	}
	return held(l.eval(ctx, renewScript, l.prefix+key, token, milliseconds(ttl)))
}

// Release implements [dlock.Locker] in one round trip.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.check(ctx, key, token, time.Second); err != nil {
		return false, err
	}
	return held(l.eval(ctx, releaseScript, l.prefix+key, token))
}

// RenewBatch implements [dlock.BatchRenewer], in one round trip to each server
// that has some of the keys.
func (l *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	results := make([]dlock.RenewResult, len(batch))
	calls := make([]Call, 0, len(batch))
	sent := make([]int, 0, len(batch)) // the place in the batch of each call
	for i, r := range batch {
		if results[i].Err = checkArgs(r.Key, r.Token, r.TTL); results[i].Err == nil {
			calls = append(calls, Call{renewScript, []string{l.prefix + r.Key, r.Token, milliseconds(r.TTL)}})
			sent = append(sent, i)
		}
	}
	if len(calls) == 0 {
		return results, nil
	}
	replies := make([]Result, len(calls))
	l.conn.EvalAll(ctx, calls, replies)
	for i, r := range replies {
		results[sent[i]].Held, results[sent[i]].Err = held(r.Reply, r.Err)
	}
	return results, nil
}

// Inspect implements [dlock.Inspector] in one round trip.
func (l *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	if err := l.check(ctx, key, "-", time.Second); err != nil {
		return dlock.Hold{}, err
	}
	reply, err := l.eval(ctx, inspectScript, l.prefix+key)
	if err != nil || reply == nil {
		return dlock.Hold{}, err
	}
	if r, ok := reply.([]any); ok {
		return parseHold(r)
	}
	return dlock.Hold{}, unexpected(reply)
}

func (l *Locker) eval(ctx context.Context, s *Script, args ...string) (any, error) {
	return l.conn.Eval(ctx, Call{s, args})
}

func (l *Locker) check(ctx context.Context, key, token string, ttl time.Duration) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	return checkArgs(key, token, ttl)
}

func (l *Locker) ready(ctx context.Context) error {
	switch {
	case l.err != nil:
		return l.err
	case l.closed.Load():
		return dlock.ErrClosed
	}
	return ctx.Err()
}

func checkArgs(key, token string, ttl time.Duration) error {
	switch {
	case key == "":
		return invalid("key: empty")
	case strings.Contains(key, companionMark):
		return invalid("key %q: contains %q, which marks what dlock stores beside its locks", key, companionMark)
	case token == "":
		return invalid("token: empty")
	case ttl < time.Millisecond:
		return invalid("TTL %v: less than 1ms", ttl)
	}
	return nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// held reads the reply 1 or 0.
func held(reply any, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, ok := reply.(int64)
	if !ok || n != 0 && n != 1 {
		return false, unexpected(reply)
	}
	return n == 1, nil
}

// parseHold reads the reply {token, rest in ms or -1}.
func parseHold(r []any) (dlock.Hold, error) {
	if len(r) == 2 {
		token, ok1 := r[0].(string)
		rest, ok2 := r[1].(int64)
		if ok1 && ok2 {
			return dlock.Hold{Held: true, Token: token, Remaining: time.Duration(rest) * time.Millisecond}, nil
		}
	}
	return dlock.Hold{}, errUnexpected
}

var errUnexpected = errors.New("unexpected reply of a script")

// unexpected does not show the reply, which may hold a token.
func unexpected(reply any) error { return fmt.Errorf("%w: %T", errUnexpected, reply) }

// What is stored beside a lock is named prefix{tag}… if the prefix has no
// opening brace, or {tag}prefix…, with the tag of the lock's slot. So it is in
// the lock's slot, and there is one of it for each slot, not for each lock.
const (
	companionMark = "dlock1:"
	fenceSuffix   = "dlock1:fence"
)

// companion returns the name of what is stored beside the lock of that name.
func (l *Locker) companion(name, suffix string) string {
	tag := tags()[Slot(name)]
	if strings.Contains(l.prefix, "{") {
		return "{" + tag + "}" + l.prefix + suffix
	}
	return l.prefix + "{" + tag + "}" + suffix
}

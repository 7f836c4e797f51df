package rediscore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/lanes"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A Locker keeps leases on Redis. It implements [dlock.Locker], [dlock.Acquirer],
// [dlock.BatchRenewer], [dlock.SetAcquirer], [dlock.Inspector] and [quorum.VoteAcquirer]. All methods are safe for concurrent use.
//
// If a call had no effect, [dlock.NoEffect] says so of its error: nothing was sent, or the server refused the call before
// its script had granted, renewed or released anything. The error is a temporary [dlock.NoEffectError] if the server said
// LOADING, TRYAGAIN, CLUSTERDOWN, MASTERDOWN or READONLY, or the client of a cluster has followed too many redirections
// (MOVED, ASK). After any other error the outcome of the call is unknown. The same holds if the client library, a hook or a
// decorator panicked: the call then fails with an error that names the line of code, and the process goes on.
type Locker struct {
	// No two mutexes of this package are ever held together, and none during a call of a
	// method of conn or of inboxErr. Functions named …Locked need the mutex of their type.
	conn        guarded
	prefix      string
	unqueued    bool         // WithQueue(false)
	inboxErr    func(error)  // WithInboxError
	replicas    *Replication // WithReplicas; nil for none
	err         error        // returned by every call: a bad argument of the constructor
	closed      atomic.Bool
	unconnected atomic.Pointer[error] // why the last call had no connection; nil if it had one
	bySlot      atomic.Bool           // the server is a cluster, or like one: the client may be that of a single server
	probing     chan time.Time        // has when the server was last asked whether it is; or nothing while it is asked
	trip        atomic.Int64          // about how long a call of a wait takes, in nanoseconds; 0 if unknown
	post        *post
	lanes       *lanes.Lanes[route, Call, Result]
	leaving     leavings
	setsRefused atomic.Bool // a proxy has refused the text of setScript
}

var (
	_ dlock.Locker        = (*Locker)(nil)
	_ dlock.Acquirer      = (*Locker)(nil)
	_ dlock.BatchRenewer  = (*Locker)(nil)
	_ dlock.SetAcquirer   = (*Locker)(nil)
	_ dlock.Inspector     = (*Locker)(nil)
	_ quorum.VoteAcquirer = (*Locker)(nil)
)

// An Option changes where or how a [Locker] keeps leases.
type Option func(*Locker)

// WithPrefix sets the prefix of all Redis keys and channels: the lock named key is stored
// under prefix followed by key. If the prefix contains an opening brace, some names have a
// hash tag before the prefix; the package documentation says which. All programs that share a
// lock must split its name into prefix and key at the same place. The default is no prefix.
//
// A prefix that contains "dlock1:" or is longer than 1,024 bytes is refused: all methods fail
// with [dlock.ErrInvalid].
func WithPrefix(prefix string) Option {
	return func(l *Locker) {
		if len(prefix) > maxPrefix {
			l.refuse("WithPrefix(%.32q…): %d bytes, more than %d", prefix, len(prefix), maxPrefix)
		}
		if strings.Contains(prefix, companionMark) {
			l.refuse("WithPrefix(%q): contains %q, which marks what dlock stores beside its locks", prefix, companionMark)
		}
		l.prefix = prefix
	}
}

const maxPrefix = 1024

// WithQueue sets whether waiters queue on the server. The default is true. With false, they
// poll: Acquire returns [errors.ErrUnsupported], and the [dlock.Client] repeats TryAcquire.
// Use WithQueue(false) for a lock that programs with other libraries acquire too. These
// programs do not queue, so they would not get the lock while a waiter of dlock is queued.
func WithQueue(on bool) Option { return func(l *Locker) { l.unqueued = !on } }

// WithCounterBySlot sets whether there is a fence counter for each hash slot, in place of one for the prefix. The client of
// a cluster always does this, and so does any client of a server that refuses scripts with keys of several slots, as each
// node of a cluster does. Use WithCounterBySlot(true) if only some programs have a client of a cluster, and the server
// refuses no slots: all programs that share a lock must use the same counter. The default is false.
func WithCounterBySlot(on bool) Option { return func(l *Locker) { l.bySlot.Store(on) } }

// WithInboxError sets a function that is called with the reason when the Locker cannot open an inbox, or when the server
// that runs the scripts says that the inbox has no subscriber. Waiters get no messages then, and check in more often
// instead. The usual reasons are that the Redis user has no right to subscribe to the channels under the prefix (see the
// package documentation), and that the client subscribes on a replica. An Observer sees such waits, too: see
// [dlock.InboxMissingInfo]. f is called once, and again only after an inbox has worked. It should return soon, because
// Close waits for it.
func WithInboxError(f func(error)) Option { return func(l *Locker) { l.inboxErr = f } }

// WithConn lets f replace the [Conn] or refuse it. If it refuses, all methods of the Locker fail with [dlock.ErrInvalid] and
// the text of its error. It is for the options of adapters.
func WithConn(f func(Conn) (Conn, error)) Option {
	return func(l *Locker) {
		conn, err := f(l.conn.conn)
		if err != nil {
			l.refuse("%v", err)
			return
		}
		l.conn.conn = conn
	}
}

// New returns a Locker that keeps its leases on conn's server. If an argument is invalid, all
// methods of the Locker fail with [dlock.ErrInvalid].
func New(conn Conn, opts ...Option) *Locker {
	l := &Locker{conn: guarded{conn}, probing: make(chan time.Time, 1)}
	l.probing <- time.Time{}
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
	l.post = newPost(l)
	l.lanes = lanes.New(l.laneSettings())
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

// Addr returns the address of the server, as the Redis client knows it. It is empty for a cluster,
// for Sentinel, and for redigo.
func (l *Locker) Addr() string { return ask(l.conn, Addressed.Addr) }

// Close ends the subscriptions and the waits in progress. These waits and all later calls fail
// with [dlock.ErrClosed]. Close returns when the waiters have left the queues and nothing more
// is sent, so the caller can then close the Redis client. If calls of the library can outlive their
// context (see [Drainer]), Close waits for them for at most 5 s. Close does not release any lease. It
// always returns nil.
func (l *Locker) Close() error {
	l.closed.Store(true)
	l.post.close()
	l.lanes.Close(dlock.ErrClosed)
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	ask(l.conn, func(d Drainer) any { d.Drain(ctx); return nil })
	return nil
}

// TryAcquire implements [dlock.Locker] in one round trip. It fails with [dlock.ErrReleased] if token has
// waited and was released, and a call in flight may still release the grant.
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return dlock.Attempt{}, err
	}
	if err := l.post.use(key, token); err != nil {
		return dlock.Attempt{}, err
	}
	sent, reply, err := l.evalSent(ctx, l.call(l.first(acquireScript), key, token, milliseconds(ttl)))
	if moving(err) {
		hold, failure := l.inspect(ctx, holderScript, key)
		if failure == nil && hold.Held && hold.Token != token {
			return refused(hold), nil
		}
	}
	attempt, err := readAttempt(reply, promise(err, readAttempt))
	if attempt.Acquired {
		attempt.Since = sent
	}
	return attempt, err
}

// first returns the text that is sent first for a script.
func (l *Locker) first(s *Script) *Script {
	if p := plain[s]; p != nil && l.unqueued {
		return p
	}
	return s
}

// readAttempt reads the reply of acquire.lua.
func readAttempt(reply any, err error) (dlock.Attempt, error) {
	if err != nil {
		return dlock.Attempt{}, err
	}
	if fence, ok := reply.(int64); ok {
		return dlock.Attempt{Acquired: true, Fence: fence}, nil
	}
	hold, err := parseHold(reply)
	return refused(hold), err
}

// refused is the answer to an attempt that finds the lock held.
func refused(h dlock.Hold) dlock.Attempt {
	return dlock.Attempt{Holder: h.Token, Remaining: h.Remaining, HeldSince: h.Since}
}

// Renew implements [dlock.Locker] in one round trip.
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return false, err
	}
	return held(l.eval(ctx, renewScript, key, token, milliseconds(ttl)))
}

// Release implements [dlock.Locker] in one round trip. If token holds nothing, but a call of
// an earlier wait of token has not been answered, Release waits for that answer until ctx
// ends, and releases what the call was granted.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.check(ctx, key, token, time.Second); err != nil {
		return false, err
	}
	return l.end(ctx, releaseScript, key, token)
}

// end is Release or Pass, by a script whose first argument is the token.
func (l *Locker) end(ctx context.Context, s *Script, key, token string, args ...string) (bool, error) {
	before := l.post.releasing(key, token, s == passScript)
	ok, err := l.release(ctx, s, key, append([]string{token}, args...)...)
	return l.post.released(ctx, key, token, before, ok, err)
}

// release calls a script that releases the token that is its first argument.
func (l *Locker) release(ctx context.Context, s *Script, key string, args ...string) (bool, error) {
	reply, err := l.eval(ctx, l.first(s), key, args...)
	if moving(err) {
		reply, err = l.eval(ctx, freeScript, key, args[0])
	}
	return held(reply, err)
}

// moving reports whether a call was refused because its slot is being moved from one server
// of a cluster to another, and its keys are not all on the same one. A call with a single key
// is not refused so.
func moving(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "TRYAGAIN") }

// RenewBatch implements [dlock.BatchRenewer], in one round trip to each server that has keys
// of the batch.
func (l *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	results := make([]dlock.RenewResult, len(batch))
	replies := l.batch(ctx, len(batch), func(i int) (Call, error) {
		r := batch[i]
		return l.call(renewScript, r.Key, r.Token, milliseconds(r.TTL)), l.checkArgs(r.Key, r.Token, r.TTL)
	})
	for i, r := range replies {
		results[i].Held, results[i].Err = held(r.Reply, r.Err)
	}
	return results, nil
}

// batch makes n calls of one script, but for those with an error, which is their result then.
func (l *Locker) batch(ctx context.Context, n int, call func(i int) (Call, error)) []Result {
	results := make([]Result, n)
	calls := make([]Call, 0, n)
	sent := make([]int, 0, n) // the index of each call
	for i := range n {
		if c, err := call(i); err != nil {
			results[i].Err = mark(err)
		} else {
			calls = append(calls, c)
			sent = append(sent, i)
		}
	}
	replies := make([]Result, len(calls))
	l.evalAll(ctx, calls, replies)
	for i, r := range replies {
		results[sent[i]] = r
	}
	return results
}

// Inspect implements [dlock.Inspector] in one round trip. Waiting includes waiters that have died
// but have not been removed yet: most are removed a minute later. It is 0 while the slot of the key
// is being moved to another server of a cluster, or if the user lacks the right to count them.
func (l *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	if err := l.check(ctx, key, "-", time.Second); err != nil {
		return dlock.Hold{}, err
	}
	hold, err := l.inspect(ctx, inspectScript, key)
	if moving(err) {
		return l.inspect(ctx, holderScript, key)
	}
	return hold, err
}

func (l *Locker) inspect(ctx context.Context, s *Script, key string) (dlock.Hold, error) {
	reply, err := l.eval(ctx, s, key)
	if err != nil {
		return dlock.Hold{}, err
	}
	return parseInspection(reply)
}

// parseInspection reads the reply of inspect.lua.
func parseInspection(reply any) (hold dlock.Hold, err error) {
	r, ok := reply.([]any)
	if ok && (len(r) == 3 || len(r) == 4) {
		hold, err = parseHold(append(r[:2:2], r[3:]...))
		reply = r[2]
	}
	waiting, ok := reply.(int64)
	if err != nil || !ok {
		return dlock.Hold{}, unexpected(reply)
	}
	hold.Waiting = int(waiting)
	return hold, nil
}

func (l *Locker) eval(ctx context.Context, s *Script, key string, args ...string) (any, error) {
	return l.evalOne(ctx, l.call(s, key, args...))
}

func (l *Locker) call(s *Script, key string, args ...string) Call {
	return Call{Script: s, Args: args, keys: l.keysOf(key)}
}

func (l *Locker) check(ctx context.Context, key, token string, ttl time.Duration) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	if err := l.checkArgs(key, token, ttl); err != nil {
		return mark(err)
	}
	return nil
}

func (l *Locker) ready(ctx context.Context) error {
	switch {
	case l.err != nil:
		return mark(l.err)
	case l.closed.Load():
		return mark(dlock.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return mark(err)
	}
	return nil
}

func (l *Locker) checkArgs(key, token string, ttl time.Duration) error {
	switch {
	case key == "":
		return invalid("key: empty")
	case l.marked(key):
		return invalid("key: contains %q (with the prefix), which marks what dlock stores beside its locks", companionMark)
	case token == "":
		return invalid("token: empty")
	case ttl < time.Millisecond:
		return invalid("TTL %v: less than 1ms", ttl)
	}
	return nil
}

// marked reports whether the mark of companions is in a key, or begins at the end of the prefix and ends in the key.
func (l *Locker) marked(key string) bool {
	n := len(companionMark) - 1
	border := l.prefix[max(0, len(l.prefix)-n):] + key[:min(n, len(key))] // so short that it needs no allocation
	return strings.Contains(key, companionMark) || strings.Contains(border, companionMark)
}

// milliseconds returns a TTL as an argument of a script. A fraction is rounded up, so that the lease
// does not end before its TTL has passed; but no TTL becomes longer than the longest.
func milliseconds(ttl time.Duration) string {
	ms := ttl.Milliseconds()
	if ttl < longestTTL && ttl%time.Millisecond > 0 {
		ms++
	}
	return strconv.FormatInt(ms, 10)
}

const longestTTL = 365 * 24 * time.Hour

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

// remaining converts a reply of PTTL. It returns a negative duration for a lock that never
// ends (-1), and 0 for one that is free (-2).
func remaining(ms int64) time.Duration {
	if ms == -2 {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// parseHold reads the reply {token, remaining TTL in ms or -1, the last handover or nil}.
func parseHold(reply any) (dlock.Hold, error) {
	if r, ok := reply.([]any); ok && (len(r) == 2 || len(r) == 3) {
		token, ok1 := r[0].(string)
		ms, ok2 := r[1].(int64)
		last, _ := append(r, nil)[2].(string)
		if ok1 && ok2 {
			return holdOf(token, ms, last), nil
		}
	}
	return dlock.Hold{}, unexpected(reply)
}

// holdOf is what is known of a lock that is held. The last handover says when, if it was to the holder.
func holdOf(token string, ms int64, last string) dlock.Hold {
	hold := dlock.Hold{Held: true, Token: token, Remaining: remaining(ms)}
	if h, to, ok := parseHandover(last); ok && to == token {
		hold.Since = time.UnixMicro(h.time)
	}
	return hold
}

var errUnexpected = errors.New("unexpected reply of a script")

// unexpected does not show the reply, which may contain a token.
func unexpected(reply any) error { return fmt.Errorf("%w: %T", errUnexpected, reply) }

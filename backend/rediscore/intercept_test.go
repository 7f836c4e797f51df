package rediscore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/redistest"
)

// limit is how long a test waits for something before it fails.
const limit = 30 * time.Second

// A plainConn is a Conn to one server.
type plainConn struct{ pool *redis.Pool }

func plain(t testing.TB, addr string) plainConn {
	pool := &redis.Pool{MaxIdle: 10, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr)
	}}
	t.Cleanup(func() { pool.Close() })
	return plainConn{pool}
}

func (c plainConn) Eval(ctx context.Context, call Call) (any, error) {
	conn, err := c.pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	reply, err := conn.Do("EVAL", call.Append([]any{call.Script.Source})...)
	return text(reply), err
}

func (c plainConn) EvalAll(ctx context.Context, calls []Call, results []Result) {
	for i, call := range calls {
		results[i].Reply, results[i].Err = c.Eval(ctx, call)
	}
}

func (c plainConn) Cluster() bool { return false }

func (c plainConn) Listen(ctx context.Context, channel string, _ bool, on func(Event)) error {
	conn, err := c.pool.DialContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	sub := redis.PubSubConn{Conn: conn}
	if err := sub.Subscribe(channel); err != nil {
		return err
	}
	for {
		switch m := sub.ReceiveWithTimeout(0).(type) {
		case error:
			return m
		case redis.Subscription:
			on(Event{Kind: Subscribed})
		case redis.Message:
			on(Event{Kind: Message, Payload: string(m.Data)})
		}
	}
}

// An interceptConn is a Conn to a server on which a test can hold back single calls and messages.
type interceptConn struct {
	plainConn
	t testing.TB

	mu      sync.Mutex
	waiting []*interceptedCall
	log     []Call // all calls, as they came
	silent  bool   // messages are held back
	held    []func()
	came    chan struct{} // of capacity 1: a message is held
	refuse  error         // what Listen returns, if not nil
	opened  int           // how many subscriptions came into force
}

// An interceptedCall holds back the next call of a script, for a given token or any.
type interceptedCall struct {
	s      *interceptConn
	script *Script
	token  string
	came   chan struct{} // closed when it has caught one
	call   Call
	result chan Result // for the caller
}

var errLost = errors.New("the answer was lost")

func (s *interceptConn) intercept(script *Script) *interceptedCall { return s.interceptOf("", script) }

func (s *interceptConn) interceptOf(token string, script *Script) *interceptedCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &interceptedCall{s: s, script: script, token: token, came: make(chan struct{}), result: make(chan Result, 1)}
	s.waiting = append(s.waiting, c)
	return c
}

func (s *interceptConn) intercepted(call Call) *interceptedCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, call)
	for i, c := range s.waiting {
		if c.script == call.Script && (c.token == "" || c.token == call.Args[0]) {
			s.waiting = slices.Delete(s.waiting, i, i+1)
			c.call = call
			close(c.came)
			return c
		}
	}
	return nil
}

func (s *interceptConn) Eval(ctx context.Context, call Call) (any, error) {
	c := s.intercepted(call)
	if c == nil {
		return s.plainConn.Eval(ctx, call)
	}
	select {
	case r := <-c.result:
		return r.Reply, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// await waits until the call has been made.
func (c *interceptedCall) await() *interceptedCall {
	c.s.t.Helper()
	await(c.s.t, c.came, "a call")
	return c
}

// execute sends the call to the server, possibly not for the first time. It returns the answer, and
// does not pass it on to the caller.
func (c *interceptedCall) execute() any {
	c.s.t.Helper()
	reply, err := c.s.plainConn.Eval(context.Background(), c.call)
	require.NoError(c.s.t, err)
	return reply
}

func (c *interceptedCall) answer(reply any) { c.result <- Result{Reply: reply} }
func (c *interceptedCall) lose()            { c.result <- Result{Err: errLost} }

func (s *interceptConn) Listen(ctx context.Context, channel string, sharded bool, on func(Event)) error {
	if s.refuse != nil {
		return s.refuse
	}
	return s.plainConn.Listen(ctx, channel, sharded, func(e Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.Kind == Subscribed {
			s.opened++
		}
		if !s.silent || e.Kind != Message {
			on(e)
			return
		}
		s.held = append(s.held, func() { on(e) })
		select {
		case s.came <- struct{}{}:
		default:
		}
	})
}

// silence sets whether messages that come from now on are held back.
func (s *interceptConn) silence(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = on
}

// message waits for a message that is held back, and returns a function that delivers it.
func (s *interceptConn) message() (deliver func()) {
	s.t.Helper()
	await(s.t, s.came, "a message")
	s.mu.Lock()
	defer s.mu.Unlock()
	deliver, s.held = s.held[0], s.held[1:]
	return deliver
}

// calls returns how often a script was called for a token.
func (s *interceptConn) calls(script *Script, token string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.log {
		if call.Script == script && call.Args[0] == token {
			n++
		}
	}
	return n
}

func await(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(limit):
		require.FailNow(t, "nothing came", "%s, after %v", what, limit)
	}
}

// A scene has a lock on a server: a bench to look at it, Lockers that each have an interceptConn,
// and a token "H" that holds it.
type scene struct {
	*bench
	server *redistest.Server
}

func newScene(t *testing.T) *scene {
	t.Helper()
	server := redistest.Start(t)
	b := benchOn(t, server, "", "k")
	b.hold("H")
	return &scene{b, server}
}

// enter returns one more Locker.
func (s *scene) enter(opts ...Option) (*Locker, *interceptConn) {
	s.Helper()
	c := &interceptConn{plainConn: plain(s.T, s.addr), t: s.T, came: make(chan struct{}, 1)}
	l := New(c, opts...)
	s.Cleanup(func() { l.Close() })
	return l, c
}

// A waiting is an Acquire in progress.
type waiting struct {
	*scene
	token   string
	began   time.Time
	cancel  context.CancelFunc
	done    chan struct{}
	attempt dlock.Attempt
	ballot  quorum.Ballot // of AcquireVote
	err     error
}

const waitTTL = time.Minute

func (s *scene) acquire(l *Locker, token string) *waiting {
	return s.begin(token, func(ctx context.Context, w *waiting) {
		w.attempt, w.err = l.Acquire(ctx, s.key, token, waitTTL)
	})
}

// acquireVote begins an AcquireVote.
func (s *scene) acquireVote(l *Locker, token string, place int64) *waiting {
	return s.begin(token, func(ctx context.Context, w *waiting) {
		w.ballot, w.err = l.AcquireVote(ctx, s.key, token, waitTTL, 0, place)
		w.attempt = w.ballot.Attempt
	})
}

func (s *scene) begin(token string, acquire func(context.Context, *waiting)) *waiting {
	ctx, cancel := context.WithCancel(s.Context())
	w := &waiting{scene: s, token: token, began: time.Now(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		acquire(ctx, w)
	}()
	s.Cleanup(func() { cancel(); <-w.done })
	return w
}

// listening waits until the token is in the queue, with an inbox.
func (w *waiting) listening() *waiting {
	w.Helper()
	w.eventually(func() bool {
		_, inbox, _ := strings.Cut(w.waiters()[":"+w.token], " p")
		return inbox != ""
	}, "%q waits and listens", w.token)
	return w
}

func (b *bench) eventually(is func() bool, what string, args ...any) {
	b.Helper()
	for end := time.Now().Add(limit); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(b, "not so: "+what, args...)
		}
	}
}

// granted waits for the grant. It fails unless the server keeps the lease at least until Since plus
// the TTL.
func (w *waiting) granted() dlock.Attempt {
	w.Helper()
	await(w, w.done, "the end of the wait")
	require.NoError(w, w.err, "wait of %q", w.token)
	require.True(w, w.attempt.Acquired)
	w.requireKept(w.attempt)
	return w.attempt
}

func (w *waiting) requireKept(a dlock.Attempt) {
	w.Helper()
	rest := time.Duration(w.integer(w, "PTTL", w.key)) * time.Millisecond
	end := time.Now().Add(rest + time.Millisecond) // not before the end of the lease
	require.Equal(w, w.token, w.bench.holder())
	earliest := w.began.Add(-time.Since(w.began) - 2*time.Millisecond)
	require.False(w, a.Since.Before(earliest), "Since is %v before the wait", earliest.Sub(a.Since))
	require.False(w, a.Since.Add(waitTTL).After(end), "the lease ends %v before Since and the TTL", a.Since.Add(waitTTL).Sub(end))
	require.Equal(w, w.text(w, "GET", w.lock.texts[1]), fmtInt(a.Fence), "fence")
}

// waits fails if the wait has ended.
func (w *waiting) waits() {
	w.Helper()
	select {
	case <-w.done:
		require.FailNow(w, "the wait has ended", "%+v %v", w.attempt, w.err)
	default:
	}
}

// ended waits until the wait has ended without a grant.
func (w *waiting) ended() {
	w.Helper()
	await(w, w.done, "the end of the wait")
	require.Error(w, w.err)
	require.False(w, w.attempt.Acquired)
}

// forceCheckIn makes a waiter check in now, as if its inbox had been opened again.
func forceCheckIn(l *Locker, token string) {
	l.post.mu.Lock()
	defer l.post.mu.Unlock()
	if w := l.post.tokens[token].addressee; w != nil { // else it has checked in by itself, and is granted the lock
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

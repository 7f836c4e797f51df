package rediscore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// A fakeConn is a Conn without a server, for virtual time. It answers as its fields say, and
// records the calls.
type fakeConn struct {
	Conn
	cluster bool
	eval    func(ctx context.Context, call Call) (any, error)
	listen  func(ctx context.Context, on func(Event)) error // nil: subscribes, and waits for the end

	mu      sync.Mutex
	calls   []noted
	listens []noted
	on      func(Event) // of the last subscription
	open    int         // subscriptions
}

// A noted is the record of a call or a subscription.
type noted struct {
	at      time.Time
	script  *Script
	args    []string
	channel string
	sharded bool
}

func (f *fakeConn) Cluster() bool { return f.cluster }

func (f *fakeConn) Eval(ctx context.Context, call Call) (any, error) {
	f.mu.Lock()
	f.calls = append(f.calls, noted{at: time.Now(), script: call.Script, args: call.Args})
	eval := f.eval
	f.mu.Unlock()
	return eval(ctx, call)
}

func (f *fakeConn) Listen(ctx context.Context, channel string, sharded bool, on func(Event)) error {
	f.mu.Lock()
	f.listens = append(f.listens, noted{at: time.Now(), channel: channel, sharded: sharded})
	listen := f.listen
	f.on = on
	f.open++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open--
	}()
	if listen != nil {
		return listen(ctx, on)
	}
	on(Event{Kind: Subscribed})
	<-ctx.Done()
	return ctx.Err()
}

var errDown = errors.New("down")

func refuse(context.Context, func(Event)) error { return errDown }

// set changes the answers from now on.
func (f *fakeConn) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// tell delivers a message through the last subscription.
func (f *fakeConn) tell(message string) {
	f.mu.Lock()
	on := f.on
	f.mu.Unlock()
	on(Event{Kind: Message, Payload: message})
}

// grant delivers the message of a grant that is newer than all answers.
func (f *fakeConn) grant(fence int, token string) {
	f.tell(fmt.Sprint(fence, " ", time.Now().UnixMicro()+1, " ", token))
}

// evals returns the calls after the first n.
func (f *fakeConn) evals(n int) []noted {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[n:]
}

func (f *fakeConn) listened() []noted {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listens
}

func (f *fakeConn) opened() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

func gaps(all []noted) (gaps []time.Duration) {
	for i := 1; i < len(all); i++ {
		gaps = append(gaps, all[i].at.Sub(all[i-1].at))
	}
	return gaps
}

const fakeTicket = 4800

// waits is the answer "waits". The server's clock is the virtual one.
func waits(rank int64, holder string, rest int64) []any {
	return []any{int64(answerWaits), int64(fakeTicket), rank, time.Now().UnixMicro(), holder, rest}
}

// always makes an eval that answers every call with answer().
func always(answer func() []any) func(context.Context, Call) (any, error) {
	return func(context.Context, Call) (any, error) { return answer(), nil }
}

func waitsAlways(rank int64, holder string, rest int64) func(context.Context, Call) (any, error) {
	return always(func() []any { return waits(rank, holder, rest) })
}

// bubble runs a test in virtual time, with a Locker that is closed at the end.
func bubble(t *testing.T, test func(t *testing.T, f *fakeConn, l *Locker), opts ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := new(fakeConn)
		f.eval = waitsAlways(0, "H", 60_000)
		l := New(f, opts...)
		defer func() {
			require.NoError(t, l.Close())
			synctest.Wait()
			require.Zero(t, f.opened(), "subscriptions that are left")
		}()
		test(t, f, l)
	})
}

// A fakeWait is an Acquire on a fakeConn.
type fakeWait struct {
	cancel  context.CancelFunc
	done    chan struct{}
	attempt dlock.Attempt
	err     error
}

func begin(t *testing.T, l *Locker, key, token string) *fakeWait {
	return beginFor(t, l, key, token, time.Minute)
}

func beginFor(t *testing.T, l *Locker, key, token string, ttl time.Duration) *fakeWait {
	return beginTo(t, func(ctx context.Context, w *fakeWait) { w.attempt, w.err = l.Acquire(ctx, key, token, ttl) })
}

func beginVote(t *testing.T, l *Locker, key, token string) *fakeWait {
	return beginTo(t, func(ctx context.Context, w *fakeWait) {
		ballot, err := l.AcquireVote(ctx, key, token, time.Minute, 0, 1)
		w.attempt, w.err = ballot.Attempt, err
	})
}

func beginTo(t *testing.T, acquire func(context.Context, *fakeWait)) *fakeWait {
	ctx, cancel := context.WithCancel(t.Context())
	w := &fakeWait{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		acquire(ctx, w)
	}()
	synctest.Wait()
	return w
}

// isDone waits until all goroutines are blocked, and reports whether the wait is over.
func (w *fakeWait) isDone() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

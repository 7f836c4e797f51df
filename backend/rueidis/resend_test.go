package rueidis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// sentCalls are methods that send one command, and a pipeline.
var sentCalls = []string{"TryAcquire", "RenewBatch"}

// A call is not harmed by the deadline of the call in front of it on the connection, and
// is sent once.
func TestDeadlineOfTheCallInFront(t *testing.T) {
	for _, name := range sentCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l := newLocker(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}})
			sent := server.CommandCount(t)["evalsha"]
			server.Suspend()
			short := begin(t, l, 100*time.Millisecond, method("TryAcquire"))
			time.Sleep(50 * time.Millisecond) // it waits for its reply
			long := begin(t, l, time.Minute, method(name))
			require.ErrorIs(t, <-short, context.DeadlineExceeded)
			server.Resume()
			require.NoError(t, <-long)
			require.LessOrEqual(t, server.CommandCount(t)["evalsha"]-sent, int64(2), "the long call was sent more than once")
		})
	}
}

// A call is not harmed by the context of the call that makes the connection for both.
func TestContextOfTheCallThatConnects(t *testing.T) {
	for _, name := range sentCalls {
		for _, reason := range []error{context.DeadlineExceeded, context.Canceled} {
			t.Run(name+"/"+reason.Error(), func(t *testing.T) {
				t.Parallel()
				d := &dialer{began: make(chan struct{}), fail: make(chan error)}
				l := newLocker(t, rueidis.ClientOption{InitAddress: []string{redistest.Start(t).Addr()}, DialCtxFn: d.dial})
				d.conn.Close()
				require.Error(t, <-begin(t, l, time.Minute, method(name))) // it finds that out
				connects := begin(t, l, time.Minute, method(name))
				<-d.began
				waits := begin(t, l, time.Minute, method(name))
				time.Sleep(50 * time.Millisecond) // for the connection
				d.fail <- reason
				require.NoError(t, <-waits)
				require.NoError(t, <-connects)
			})
		}
	}
}

// A dialer fails at the second connection, when and as it is told.
type dialer struct {
	began chan struct{}
	fail  chan error

	dials atomic.Int32
	conn  net.Conn // the first
}

func (d *dialer) dial(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (conn net.Conn, err error) {
	n := d.dials.Add(1)
	if n == 2 {
		d.began <- struct{}{}
		return nil, &net.OpError{Op: "dial", Err: <-d.fail}
	}
	conn, err = dialer.DialContext(ctx, "tcp", addr)
	if n == 1 {
		d.conn = conn
	}
	return conn, err
}

func newLocker(t *testing.T, option rueidis.ClientOption) *rediscore.Locker {
	option.PipelineMultiplex = -1 // one connection for all
	client := newClient(t, option)
	l := New(client)
	t.Cleanup(func() { l.Close() })
	for _, name := range sentCalls {
		require.NoError(t, <-begin(t, l, time.Minute, method(name))) // the scripts are known now
	}
	return l
}

func begin(t *testing.T, l *rediscore.Locker, limit time.Duration, call lockCall) <-chan error {
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	go func() { defer cancel(); ended <- call(ctx, l) }()
	return ended
}

// What the call in front leaves to those behind it, and what is of another kind.
func TestUnsent(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	timeout := os.ErrDeadlineExceeded
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want bool
	}{
		{t.Context(), context.DeadlineExceeded, true},
		{t.Context(), fmt.Errorf("dial: %w", context.Canceled), true},
		{t.Context(), &net.OpError{Op: "dial", Err: timeout}, true},
		{t.Context(), &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, false},
		{t.Context(), &net.OpError{Op: "read", Err: timeout}, false},
		{t.Context(), timeout, false},
		{t.Context(), nil, false},
		{over, context.Canceled, false},
		{over, &net.OpError{Op: "dial", Err: timeout}, false},
	} {
		require.Equal(t, c.want, unsent(c.ctx, c.err), "%v", c.err)
	}
}

package rueidis

import (
	"context"
	"errors"
	"net"
	"time"
)

const (
	resendLimit  = 5 * time.Second // the default time limit of rueidis for connecting
	resendPause  = time.Millisecond
	slowCall     = 500 * time.Millisecond
	refreshDelay = 500 * time.Millisecond // rueidis refreshes its table of slots within a second
)

// unsent reports whether a call failed with the context error of another call, and so was not
// sent. Calls of rueidis share connections, and can get the error of the call in front of them:
//
//   - A call with a deadline that is alone on a connection reads its own reply. If the deadline
//     passes, it closes the connection. The calls behind it, which are written only after it
//     has ended, get its [context.DeadlineExceeded].
//   - A call that finds no connection makes one within its own context. If that fails, the
//     calls that wait for the connection get its error.
//
// A time-out of a connection, which may have calls in flight, is no context error. A time-out
// of connecting may be one, and nothing was sent then either.
func unsent(ctx context.Context, err error) bool {
	if ended(ctx) {
		return false
	}
	// A deadline that passes while the socket connects is an os.ErrDeadlineExceeded.
	dial, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || ok && dial.Op == "dial" && dial.Timeout()
}

// ended reports whether ctx has ended or its deadline has passed. The time-out of a socket can
// come before that of the context that it was set from.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// pause waits before an unsent call is made again. It returns false if the call should not be:
// ctx has ended, or the first try was at start, more than resendLimit ago. The last try was at
// last. If that try took long in a cluster, the master does not answer, and pause leaves
// rueidis time to find its replacement.
func (c conn) pause(ctx context.Context, start, last time.Time) bool {
	if time.Since(start) >= resendLimit {
		return false
	}
	d := resendPause
	if c.Cluster() && time.Since(last) >= slowCall {
		d = refreshDelay
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

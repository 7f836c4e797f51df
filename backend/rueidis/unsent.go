package rueidis

import (
	"context"
	"errors"
	"net"
	"time"
)

const (
	unsentLimit  = 5 * time.Second // the time that rueidis takes to connect by default
	unsentPause  = time.Millisecond
	slowCall     = 500 * time.Millisecond
	refreshDelay = 500 * time.Millisecond // that of rueidis is random, up to a second
)

// unsent reports whether a call has got the context error of another call, and so
// was not sent. rueidis has calls share a connection, and the fate of the call in
// front of them:
//
//   - A call with a deadline that is alone on a connection reads its own reply. If the
//     deadline passes, it closes the connection, and the calls that wait behind it,
//     which are not written before it has ended, get its [context.DeadlineExceeded].
//   - The call that finds no connection makes one within its own context. If it fails,
//     those that wait for the connection get its error.
//
// A time-out of the connection itself, for which calls may be on their way, is no
// context error. One of connecting may be: nothing was sent either.
func unsent(ctx context.Context, err error) bool {
	if ended(ctx) {
		return false
	}
	// A deadline that passes while the socket connects is an os.ErrDeadlineExceeded.
	dial, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || ok && dial.Op == "dial" && dial.Timeout()
}

// ended reports whether ctx has ended, or ought to have: the deadline of a socket may
// be noticed before that of the context which it comes from.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// pause waits before a call that was not sent is made again, and reports whether it
// should be: it began at start, was last made at last, and ends in time if nobody ever
// connects. In a cluster, a call that took long has met a master that says nothing, and
// waits until rueidis has looked which replica takes its place.
func (c conn) pause(ctx context.Context, start, last time.Time) bool {
	if time.Since(start) >= unsentLimit {
		return false
	}
	d := unsentPause
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

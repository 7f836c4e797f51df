package rediscore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

// decisive are the scripts whose last write is the one that counts. If such a script fails, it
// has granted, renewed or released nothing, whatever it wrote before: the fence counter may
// have moved on, a dead waiter may be gone, and a released token may have left the queue. The
// other scripts record a waiter in two writes.
var decisive = map[*Script]bool{
	acquireScript: true, renewScript: true, releaseScript: true, releasesScript: true, freeScript: true,
	plainAcquireScript: true, plainReleaseScript: true, setScript: true,
	inspectScript: true, holderScript: true,
	voteScript: true, confirmScript: true, passScript: true,
}

// judge marks the error of a call if the answer of the server says that the call has no effect,
// now or later: it was refused, or its script failed before the write that counts. Whether an error
// without such an answer says so is decided by [dlock.NoEffect]. judge also names the cause if the
// server is too old, or is not one that the client is for. The client of a cluster follows redirections: if
// it has given up, the nodes disagree, and will soon agree. To another client, a redirection is a refusal.
// Any other error reply is a failure.
func judge(s *Script, err error, conn guarded) error {
	if err == nil {
		return nil
	}
	reply := conn.isReply(err)
	text := rediserr.Answer(err)
	if strings.Contains(text, "non deterministic commands") {
		err = fmt.Errorf("a server before Redis 5: %w", err)
	}
	if cause := rediserr.Cause(text, conn.cluster()); cause != "" {
		err = fmt.Errorf("%w (%s)", err, cause)
	}
	if class := rediserr.Refusal(text); class != 0 {
		address, _ := rediserr.Redirection(text)
		return &dlock.NoEffectError{
			Err:       err,
			Temporary: class == rediserr.Temporary || address != "" && conn.cluster(),
			State:     class == rediserr.State,
		}
	}
	if decisive[s] && rediserr.InScript(text) {
		return &dlock.NoEffectError{Err: err, Temporary: rediserr.NonLocal(text)}
	}
	if reply {
		err = failure{err}
	}
	if dlock.NoEffect(err) && !errors.Is(err, dlock.ErrInvalid) {
		return unsent{err}
	}
	return err
}

// A failure is an error reply that does not say what has become of the call. A proxy may have made it because its
// server is away, or the reply may be to the beginning of a connection, over which the call was not sent.
type failure struct{ error }

func (e failure) Unwrap() error { return e.error }
func (failure) Failed() bool    { return true }

// An unsent is the error of a call that was not sent, such as one for which the pool had no
// connection. No server has answered: see [dlock.Refused].
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }
func (unsent) Answered() bool  { return false }

// blameQueue names the cause if what only the queue needs was refused. If the words are not those of Redis, the server must
// answer a call that has none of it.
func (l *Locker) blameQueue(ctx context.Context, calls []Call, results []Result) {
	tried, serves := false, false
	for i, call := range calls {
		err := results[i].Err
		if err == nil || l.unqueued || !l.refusesQueue(call.Script, err) {
			continue
		}
		if !forbidden(err) && !tried {
			tried, serves = true, l.conn.eval(ctx, Trial(call)).Err == nil
		}
		if !forbidden(err) && !serves {
			continue
		}
		results[i].Err = fmt.Errorf("%w: the server, a proxy or the rights of the Redis user do not allow what the queue needs "+
			"(ZADD, PUBLISH and others, in scripts): see the package documentation of rediscore, or use WithQueue(false): %w", dlock.ErrInvalid, err)
		if call.Script == acquireScript || dlock.NoEffect(err) {
			results[i].Err = mark(results[i].Err)
		}
	}
}

// refusesQueue reports whether an error of a script may be about a part of it that only the queue needs. When an attempt
// has reached such a part, the lock is held.
func (l *Locker) refusesQueue(s *Script, err error) bool {
	switch s {
	case enqueueScript, checkInScript:
		return forbidden(err) || l.conn.unsupported(err)
	case acquireScript: // as a whole
		return !forbidden(err) && !rediserr.InScript(rediserr.Answer(err)) && l.conn.unsupported(err)
	}
	return false
}

// mark makes an error say that its call had no effect.
func mark(err error) error {
	if dlock.NoEffect(err) {
		return err
	}
	return &dlock.NoEffectError{Err: err}
}

// unmark makes an error say nothing about the effect: it is that of the last call, but is returned
// for several.
func unmark(err error) error {
	if dlock.NoEffect(err) {
		return errors.Join(err)
	}
	return err
}

// A closedError says that the library's client is closed.
type closedError struct{ err error }

// ClientClosed returns the error for a [Conn] to return when its client was closed. It matches
// [dlock.ErrClosed] and err, which is the library's own error.
func ClientClosed(err error) error { return closedError{err} }

func (e closedError) Error() string        { return dlock.ErrClosed.Error() + ": " + e.err.Error() }
func (e closedError) Unwrap() error        { return dlock.ErrClosed }
func (e closedError) Is(target error) bool { return errors.Is(e.err, target) }

// IsClosed finds out whether a client was closed, or only one of its connections. A [Conn]
// calls it when the error of a call satisfies says. IsClosed sends up to three pings, and
// returns true if the error of each satisfies says too.
func IsClosed(ctx context.Context, says func(error) bool, ping func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for i := range 3 {
		sleep(ctx, time.Duration(i)*10*time.Millisecond)
		if !says(ping(ctx)) {
			return false
		}
	}
	return true
}

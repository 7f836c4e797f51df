package rediscore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// decisive are the scripts whose last write is the one that counts. If such a script fails, it
// has granted, renewed or released nothing, whatever it wrote before: the fence counter may
// have moved on, a dead waiter may be gone, and a released token may have left the queue. The
// other scripts record a waiter in two writes.
var decisive = map[*Script]bool{
	acquireScript: true, renewScript: true, releaseScript: true, freeScript: true,
	inspectScript: true, holderScript: true,
	voteScript: true, confirmScript: true, passScript: true,
}

// judge marks the error of a call if the call certainly has no effect, now or later: the Conn
// says so, there was no connection, the server refused the call, or its script failed before
// the write that counts. It also names the cause if the server is too old.
func judge(s *Script, err error) error {
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "non deterministic commands") {
		err = fmt.Errorf("a server before Redis 5: %w", err)
	}
	if temporary, ok := refused(err); ok {
		return &dlock.NoEffectError{Err: err, Temporary: temporary}
	}
	if marked(err) && !errors.Is(err, dlock.ErrInvalid) {
		return unsent{err}
	}
	if dial, ok := find[*net.OpError](err); ok && dial.Op == "dial" || decisive[s] && failedInScript(err) {
		return mark(err)
	}
	return err
}

// An unsent is the error of a call that the Conn did not send, such as one for which the pool had
// no connection. No server has answered: see [dlock.Refused].
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }
func (unsent) Answered() bool  { return false }

func failedInScript(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if inScript(err.Error()) {
			_, joined := err.(interface{ Unwrap() []error })
			return !joined
		}
	}
	return false
}

// mark makes an error say that its call had no effect.
func mark(err error) error {
	if marked(err) {
		return err
	}
	return &dlock.NoEffectError{Err: err}
}

// unmark removes the mark of an error: it is true of the last call, but not of all the calls
// for which the error is returned.
func unmark(err error) error {
	if marked(err) {
		return errors.Join(err) // a mark does not count among joined errors
	}
	return err
}

func marked(err error) bool {
	_, ok := find[*dlock.NoEffectError](err)
	return ok
}

// find returns the first error of a type in a chain. It does not look into joined errors,
// since these may be of different calls.
func find[E error](err error) (e E, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if e, ok = err.(E); ok {
			return e, true
		}
	}
	return e, false
}

// refusals are the codes with which a server refuses a call before its script runs, or refuses
// a connection. The value is true if the cause goes away by itself.
var refusals = map[string]bool{
	"ASK":         false,
	"BUSY":        false,
	"CLUSTERDOWN": true,
	"CROSSSLOT":   false,
	"DENIED":      false,
	"LOADING":     true,
	"MASTERDOWN":  true,
	"MISCONF":     false,
	"MOVED":       false,
	"NOAUTH":      false,
	"NOPERM":      false,
	"NOREPLICAS":  false,
	"NOSCRIPT":    false,
	"OOM":         false,
	"READONLY":    true,
	"TRYAGAIN":    true,
	"WRONGPASS":   false,
}

// generalRefusals are the beginnings of refusals that have no code of their own.
var generalRefusals = []string{
	"ERR unknown command",
	"ERR wrong number of arguments",
	"ERR Protocol error: unauthenticated", // a long command, before AUTH
	"ERR max number of clients reached",
	"ERR Client sent AUTH",
	"ERR AUTH ",
	"ERR DB index is out of range",
	"ERR invalid DB index",
}

// firstWrites are the codes of an error inside a script that prove that the script has written
// nothing. They depend on the state of the whole server, which does not change while a script
// runs, so it was the first write that was refused. (OOM is not even checked after the first
// write.) A missing right proves nothing: earlier commands of the script may have been allowed.
var firstWrites = []string{"MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"}

// refused reports whether an error says that a server refused the call, and if so, whether the
// cause goes away by itself.
func refused(err error) (temporary, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if temporary, ok = refusal(err.Error()); ok {
			return temporary, true
		}
	}
	return false, false
}

// refusal is refused for the text of one error. Errors of client libraries do not begin with
// these codes.
func refusal(text string) (temporary, ok bool) {
	if inScript(text) {
		if strings.HasPrefix(strings.TrimPrefix(text, "ERR "), "Error running script") { // Redis 6: the command's error is the rest
			_, text, _ = strings.Cut(text, ": -")
		}
		for _, code := range firstWrites {
			if strings.HasPrefix(text, code+" ") {
				return refusals[code], true
			}
		}
		return false, false
	}
	code, _, _ := strings.Cut(text, " ")
	if temporary, ok = refusals[code]; ok {
		return temporary, true
	}
	for _, general := range generalRefusals {
		if strings.HasPrefix(text, general) {
			return false, true
		}
	}
	return false, false
}

// inScript reports whether an error came from inside a script. Redis 6 says "ERR Error
// running script (call to f_…): @user_script:1: …", and newer servers "… script: …, on
// @user_script:1."
func inScript(text string) bool {
	return strings.Contains(text, "user_script") || strings.Contains(text, "Error running script")
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

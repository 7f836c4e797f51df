package rediscore

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// decisive are the scripts whose last write is the one that counts: if one ends with an
// error, what it was called for has not happened, whatever has been written before. (The
// fence counter may have moved on, a waiter that is dead have been removed, and a token that
// was released have lost its place in the queue.) The others write down a waiter in two steps.
var decisive = map[*Script]bool{
	acquireScript: true, renewScript: true, releaseScript: true, freeScript: true,
	inspectScript: true, holderScript: true,
}

// judge marks the error of a call that certainly had no effect, and never will have: the
// Conn says so, there was no connection, the server refused it, or its script failed before
// the write that counts.
func judge(s *Script, err error) error {
	if err == nil {
		return nil
	}
	if temporary, ok := refused(err); ok {
		return &dlock.NoEffectError{Err: err, Temporary: temporary}
	}
	if dial, ok := find[*net.OpError](err); ok && dial.Op == "dial" || decisive[s] && failedInScript(err) {
		return mark(err)
	}
	return err
}

func failedInScript(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if inScript(err.Error()) {
			_, joined := err.(interface{ Unwrap() []error })
			return !joined
		}
	}
	return false
}

// mark says of an error that its call had no effect.
func mark(err error) error {
	if marked(err) {
		return err
	}
	return &dlock.NoEffectError{Err: err}
}

// unmark takes back what an error says of one call, since it is returned for several.
func unmark(err error) error {
	if marked(err) {
		return errors.Join(err) // a marker counts for nothing among joined errors
	}
	return err
}

func marked(err error) bool {
	_, ok := find[*dlock.NoEffectError](err)
	return ok
}

// find returns the first error of a type in a chain, and looks into no joined errors:
// each of them may be of another call.
func find[E error](err error) (e E, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if e, ok = err.(E); ok {
			return e, true
		}
	}
	return e, false
}

// refusals are the codes with which a server refuses a call before its script runs, or a
// connection. The value says whether this passes by itself.
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

// generalRefusals are those that have no code of their own.
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

// firstWrites are the codes with which a server refuses a command inside a script that
// prove that the script has written nothing: they are for the state of the whole server,
// which does not change while a script runs, so that its first write was refused. (OOM is
// not even checked after the first write.) A missing right proves nothing: a script may
// have done what it may.
var firstWrites = []string{"MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"}

// refused reports whether an error is that of a server which refused a call, and whether
// that passes by itself.
func refused(err error) (temporary, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if temporary, ok = refusal(err.Error()); ok {
			return temporary, true
		}
	}
	return false, false
}

// refusal reads the text of an error. Other texts than those of servers do not begin with
// these words.
func refusal(text string) (temporary, ok bool) {
	if inScript(text) {
		if strings.HasPrefix(text, "ERR Error running script") { // Redis 6: the command's error is the rest
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

// ClientClosed returns the error of a [Conn] whose client has been closed: it matches
// [dlock.ErrClosed], and err, what the library said.
func ClientClosed(err error) error { return closedError{err} }

func (e closedError) Error() string        { return dlock.ErrClosed.Error() + ": " + e.err.Error() }
func (e closedError) Unwrap() error        { return dlock.ErrClosed }
func (e closedError) Is(target error) bool { return errors.Is(e.err, target) }

// IsClosed reports whether a client is closed, for a [Conn] one of whose calls has failed
// with an error that says so, but that may be of a single connection: three pings fail with
// such an error too.
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

package rediscore

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// judge marks the error of a call if the answer of the server says that the call has no effect,
// now or later: it was refused, or its script failed before the write that counts. Whether an error
// without such an answer says so is decided by [dlock.NoEffect]. judge also names the cause if the
// server is too old. The client of a cluster follows redirections: if it has given up, the nodes
// disagree, and will soon agree. To another client, a redirection is a refusal.
func judge(s *Script, err error, cluster func() bool) error {
	if err == nil {
		return nil
	}
	text := answerIn(err)
	if strings.Contains(text, "non deterministic commands") {
		err = fmt.Errorf("a server before Redis 5: %w", err)
	}
	if temporary, refused := refusal(text); refused {
		return &dlock.NoEffectError{Err: err, Temporary: temporary || redirects(text) && cluster()}
	}
	if dlock.NoEffect(err) && !errors.Is(err, dlock.ErrInvalid) {
		return unsent{err}
	}
	if decisive[s] && inScript(text) {
		return mark(err)
	}
	return err
}

// An unsent is the error of a call that was not sent, such as one for which the pool had no
// connection. No server has answered: see [dlock.Refused].
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }
func (unsent) Answered() bool  { return false }

// answerIn returns the text of the innermost error, which is the server's answer if there is one. Of
// errors that are joined, none is the answer to the call alone.
func answerIn(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	if _, joined := err.(interface{ Unwrap() []error }); joined {
		return ""
	}
	return err.Error()
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

// generalRefusals are the beginnings of refusals whose code is ERR, which rueidis leaves out.
var generalRefusals = []string{
	"unknown command",
	"wrong number of arguments",
	"Protocol error: unauthenticated", // a long command, before AUTH
	"max number of clients reached",
	"Client sent AUTH",
	"AUTH ",
	"DB index is out of range",
	"invalid DB index",
}

// firstWrites are the codes of an error inside a script that prove that the script has written
// nothing. They depend on the state of the whole server, which does not change while a script
// runs, so it was the first write that was refused. (OOM is not even checked after the first
// write.) A missing right proves nothing: earlier commands of the script may have been allowed.
var firstWrites = []string{"MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"}

// refusal reports whether an answer says that the server refused the call, and if so, whether the
// cause goes away by itself. Errors of client libraries do not begin with these codes.
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
	text = strings.TrimPrefix(text, "ERR ")
	return false, slices.ContainsFunc(generalRefusals, func(general string) bool { return strings.HasPrefix(text, general) })
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

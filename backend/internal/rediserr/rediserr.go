// Package rediserr knows what the texts of Redis errors say of a call.
package rediserr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Innermost returns the innermost error, which is the server's answer if there is one. Of errors that are
// joined, none is the answer to the call alone, and a [*Panic] is none: then it returns nil.
func Innermost(err error) error {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	switch err.(type) {
	case interface{ Unwrap() []error }, *Panic:
		return nil
	}
	return err
}

// Answer returns the text of the innermost error, or "" if there is none.
func Answer(err error) string {
	if inner := Innermost(err); inner != nil {
		return inner.Error()
	}
	return ""
}

// A Class is why a server refused a call.
type Class int

const (
	Request   Class = iota + 1 // because of the call or its user: it would refuse the same call again
	State                      // because of the state that the server is in, which lasts for an unknown time
	Temporary                  // because of a state that ends soon
)

// refusals are the codes with which a server refuses a call before its script runs, or refuses
// a connection.
var refusals = map[string]Class{
	"ASK":         Request,
	"BUSY":        State,
	"CLUSTERDOWN": Temporary,
	"CROSSSLOT":   Request,
	"DENIED":      Request,
	"LOADING":     Temporary,
	"MASTERDOWN":  Temporary,
	"MISCONF":     State,
	"MOVED":       Request,
	"NOAUTH":      Request,
	"NOPERM":      Request,
	"NOREPLICAS":  State,
	"NOSCRIPT":    Request,
	"OOM":         State,
	"READONLY":    Temporary,
	"TRYAGAIN":    Temporary,
	"WRONGPASS":   Request,
}

// roles are the codes of refusals by a server that is a replica, or becomes one.
var roles = []string{"LOADING", "MASTERDOWN", "READONLY"}

// generalRefusals are the beginnings of refusals whose code is ERR, which rueidis leaves out.
var generalRefusals = map[string]Class{
	"unknown command":                 Request,
	"wrong number of arguments":       Request,
	"Protocol error: unauthenticated": Request, // a long command, before AUTH
	"max number of clients ":          State,   // a cluster's node goes on with "+ cluster connections"
	"Client sent AUTH":                Request,
	"AUTH ":                           Request,
	"DB index is out of range":        Request,
	"invalid DB index":                Request,
}

// firstWrites are the codes of an error inside a script that prove that the script has written
// nothing. They depend on the state of the whole server, which does not change while a script
// runs, so it was the first write that was refused. (OOM is not even checked after the first
// write.) A missing right proves nothing: earlier commands of the script may have been allowed.
var firstWrites = []string{"MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY"}

// Refusal returns why the server refused a call, as its answer says, or 0 if the answer is no refusal.
// Errors of client libraries do not begin with these codes.
func Refusal(text string) Class {
	if InScript(text) {
		text = inScript(text)
		for _, code := range firstWrites {
			if strings.HasPrefix(text, code+" ") {
				return refusals[code]
			}
		}
		return 0
	}
	text = strings.TrimPrefix(text, "ERR ")
	code, _, _ := strings.Cut(text, " ")
	if class, ok := refusals[code]; ok {
		return class
	}
	for begin, class := range generalRefusals {
		if strings.HasPrefix(text, begin) {
			return class
		}
	}
	if CrossSlot(text) {
		return Request
	}
	return 0
}

// CrossSlot reports whether an answer refuses a call because its keys are in several slots. Proxies have words of their
// own for that.
func CrossSlot(text string) bool {
	if InScript(text) {
		return false
	}
	text = strings.TrimPrefix(text, "ERR ")
	return strings.HasPrefix(text, "CROSSSLOT") || strings.Contains(text, "same slot") || strings.Contains(text, "same hash slot")
}

// NonLocal reports whether a command in a script was refused because a slot is moving to another node: the same call may
// succeed soon.
func NonLocal(text string) bool { return InScript(text) && strings.Contains(text, "non local key") }

// Unserving reports whether an answer is a refusal by a server whose role is that of a replica, or will be. The
// address that led there may lead to a master by now.
func Unserving(text string) bool {
	if InScript(text) {
		text = inScript(text)
	}
	code, _, _ := strings.Cut(text, " ")
	return slices.Contains(roles, code)
}

// inScript returns the error of a command in a script.
func inScript(text string) string {
	if strings.HasPrefix(strings.TrimPrefix(text, "ERR "), "Error running script") { // Redis 6: the command's error is the rest
		_, text, _ = strings.Cut(text, ": -")
	}
	return text
}

// InScript reports whether an error came from inside a script. Redis 6 says "ERR Error
// running script (call to f_…): @user_script:1: …", and newer servers "… script: …, on
// @user_script:1."
func InScript(text string) bool {
	return strings.Contains(text, "user_script") || strings.Contains(text, "Error running script")
}

// Cause names what is wrong with the client that got an answer, or returns "".
func Cause(text string, cluster bool) string {
	address, _ := Redirection(text)
	switch {
	case strings.HasPrefix(text, "READONLY "), strings.Contains(text, ": -READONLY "): // as Refusal reads it
		return "the client is connected to a replica, or to a master that was replaced: locks need a client of the master"
	case address != "" && !cluster:
		return "the server is a node of a Redis Cluster, and the client is for a single server: locks need a client of the cluster"
	}
	return ""
}

// Redirection returns the address that a MOVED or an ASK names, or "". A call that follows an ASK has to say ASKING.
func Redirection(text string) (address string, asking bool) {
	fields := strings.Fields(text)
	if len(fields) != 3 || fields[0] != "MOVED" && fields[0] != "ASK" {
		return "", false
	}
	return fields[2], fields[0] == "ASK"
}

// AllInUse returns the error of a call whose context has ended while it waited for one of the connections of a pool.
// Another error is returned as it is.
func AllInUse(err error, connections int) error {
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, end) {
			return fmt.Errorf("%w: %w", end, fmt.Errorf("the connection pool is exhausted: all %d are in use", connections))
		}
	}
	return err
}

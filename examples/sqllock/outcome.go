package sqllock

import (
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dlock-go/dlock"
)

// outcome marks the errors of calls that did not take effect and never will: those without a connection, and those that the
// server refused before it did anything. A connection that broke says nothing of what was sent on it.
func outcome(err error) error {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &dlock.NoEffectError{Err: err, Temporary: code(err) == startingUp}
	}
	if refuses(code(err)) {
		return &dlock.NoEffectError{Err: err}
	}
	return err
}

// What the server says, in the codes of SQLSTATE.
const (
	startingUp = "57P03"
	readOnly   = "25006" // on a standby, for instance: after a failover another server may write
)

// code is empty for an error that does not come from the server.
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// refuses says of a code that a statement with it was not begun: the session was not let in (class 28), or there is no such
// database (3D), or no such table or right to it (42).
func refuses(code string) bool {
	return code == readOnly || len(code) == 5 && slices.Contains([]string{"28", "3D", "42"}, code[:2])
}

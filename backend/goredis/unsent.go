package goredis

import (
	"errors"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
)

// A script is the argument of a command that names the script. It records when go-redis writes
// the command.
type script struct {
	text    string
	written atomic.Bool
	buf     [40]byte // for the text of an EVALSHA
}

func (s *script) MarshalBinary() ([]byte, error) {
	s.written.Store(true)
	return append(s.buf[:0], s.text...), nil
}

// String is for hooks that log commands.
func (s *script) String() string { return s.text }

// outcome returns the result of a command that go-redis has processed. If the command was not
// written, the error is a [dlock.NoEffectError].
func (c conn) outcome(cmd *command, err error) (any, error) {
	switch {
	case err == nil:
		return cmd.Val(), nil
	case errors.Is(err, redis.Nil):
		return nil, nil
	case cmd.script.written.Load() || !c.writesAtOnce():
		return nil, err
	}
	return nil, &dlock.NoEffectError{Err: err}
}

// writesAtOnce reports whether the client is known to write a command before Process returns,
// or never. Other clients, such as automatic pipelines, may write it later.
func (c conn) writesAtOnce() bool {
	switch c.client.(type) {
	case *redis.Client, *redis.ClusterClient:
		return true
	}
	return false
}

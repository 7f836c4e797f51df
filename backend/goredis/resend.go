package goredis

import (
	"errors"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// knowsNoRetry reports whether go-redis asks a command whether it may be repeated: it does from 9.19 on. When go.mod requires
// that, knowsNoRetry, withoutRetries and mayRepeat may go.
var knowsNoRetry = func() bool {
	_, ok := any(new(redis.Cmd)).(interface{ NoRetry() bool })
	return ok
}()

// NoRetry keeps go-redis from repeating the command.
func (*command) NoRetry() bool { return true }

// withoutRetries returns a client with the connections and the hooks of c that repeats nothing. It is for a go-redis that
// does not know NoRetry; else it is c. A cluster's client repeats a call itself: its scriptArg refuses that.
func withoutRetries(c redis.UniversalClient) redis.UniversalClient {
	single, ok := c.(*redis.Client)
	if !ok || knowsNoRetry || single.Options().MaxRetries <= 0 {
		return c
	}
	o := single.Options()
	single = single.WithTimeout(o.ReadTimeout) // a copy, with Options of its own
	single.Options().WriteTimeout, single.Options().MaxRetries = o.WriteTimeout, 0
	return single
}

// mayRepeat reports whether a client may repeat a call unasked. In a pipeline, it says what was answered before.
func mayRepeat(c redis.UniversalClient) bool {
	_, known := c.(*redis.Client)
	return !known && !knowsNoRetry
}

// A scriptArg is the argument of a command that names the script. It records when go-redis writes the command, and refuses
// to be written again, unless the server has answered: go-redis repeats a call after a redirection, and after answers which
// say that the server has done nothing.
type scriptArg struct {
	text    string
	cmd     *redis.Cmd
	written atomic.Bool
	revoked atomic.Bool
	first   error    // of the first try, if a second one was refused and go-redis has said
	buf     [40]byte // for the text of an EVALSHA
}

// revoke reports whether the command was not written. It will not be then: a decorator may have left it behind.
func (s *scriptArg) revoke() bool {
	s.revoked.Store(true)
	return !s.written.Load()
}

func (s *scriptArg) MarshalBinary() ([]byte, error) {
	if s.written.Swap(true) {
		var answer redis.Error
		if err := s.cmd.Err(); !errors.As(err, &answer) {
			s.first = err
			return nil, errTwice
		}
	}
	if s.revoked.Load() {
		return nil, errLate
	}
	return append(s.buf[:0], s.text...), nil
}

var errTwice = errors.New("no answer, and the Redis client was about to send the call again: set MaxRetries to -1, or use go-redis 9.19")

var errLate = errors.New("the caller has gone")

// String is for hooks that log commands.
func (s *scriptArg) String() string { return s.text }

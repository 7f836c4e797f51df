// Package adaptertest tests what the backends on Redis have in common, on a real
// server and on miniredis.
package adaptertest

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/redistest"
)

// An Adapter is a backend under test.
type Adapter struct {
	// Dial makes a client of the server at addr, with the settings that the
	// package documentation asks for and time-outs of a few seconds, and
	// closes it when t ends. An error is that of a library that connects at once.
	Dial func(t testing.TB, addr, password string) (Client, error)

	// Nil returns a Locker made of a nil client.
	Nil func(opts ...rediscore.Option) *rediscore.Locker
}

// A Client is a client of the adapter's library.
type Client struct {
	Conn rediscore.Conn
	New  func(opts ...rediscore.Option) *rediscore.Locker // the package's New with this client
}

// Run runs all tests.
func Run(t *testing.T, a Adapter) {
	t.Cleanup(AwaitGoroutines)
	t.Run("Redis", func(t *testing.T) { conformance.Run(t, a.onRedis(t)) })
	t.Run("Miniredis", func(t *testing.T) { conformance.Run(t, conformance.Harness{PerCase: a.onMiniredis}) })
	for name, test := range map[string]func(*testing.T, Adapter){
		"FenceSurvivesRestart":        fenceSurvivesRestart,
		"RoundTrips":                  roundTrips,
		"RenewalRoundTrips":           renewalRoundTrips,
		"NothingIsSentTwice":          nothingIsSentTwice,
		"ScriptFlush":                 scriptFlush,
		"BadArguments":                badArguments,
		"Closed":                      closed,
		"Unreachable":                 unreachable,
		"WrongPassword":               wrongPassword,
		"WrongType":                   wrongType,
		"ForeignValue":                foreignValue,
		"KeyWithoutTTL":               keyWithoutTTL,
		"OutOfMemory":                 outOfMemory,
		"Replica":                     replica,
		"PausedServer":                pausedServer,
		"SuspendedServer":             suspendedServer,
		"Listen":                      listen,
		"ListenEndsWithTheConnection": listenEndsWithTheConnection,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, a)
		})
	}
}

func (a Adapter) dial(t testing.TB, addr string) Client {
	t.Helper()
	c, err := a.Dial(t, addr, "")
	require.NoError(t, err)
	return c
}

// locker makes a Locker for the suite.
func (a Adapter) locker(t *testing.T, addr string) dlock.Locker {
	t.Helper()
	l := a.dial(t, addr).New()
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func (a Adapter) onRedis(t *testing.T) conformance.Harness {
	server := redistest.Start(t)
	return conformance.Harness{
		New:   func(t *testing.T) dlock.Locker { return a.locker(t, server.Addr()) },
		Dial:  func(t *testing.T, addr string) dlock.Locker { return a.locker(t, addr) },
		Addr:  server.Addr(),
		Wipe:  func(t *testing.T) { do(t, server, "FLUSHALL") },
		Count: func(t *testing.T) int { return stored(server.Keys(t)) },
	}
}

// stored counts keys, but for the counters of fences: there is one for each slot at most.
func stored(keys []string) (n int) {
	for _, key := range keys {
		if !strings.HasSuffix(key, "dlock1:fence") {
			n++
		}
	}
	return n
}

// onMiniredis has a server for each case, since its clock is moved by hand.
func (a Adapter) onMiniredis(t *testing.T) conformance.Harness {
	server := miniredis.RunT(t)
	return conformance.Harness{
		New: func(t *testing.T) dlock.Locker { return a.locker(t, server.Addr()) },
		Advance: func(d time.Duration) {
			if d < time.Minute {
				time.Sleep(d) // its clock is the real one: only its TTLs are moved by hand
			}
			server.FastForward(d)
		},
		Wipe:  func(*testing.T) { server.FlushAll() },
		Count: func(*testing.T) int { return stored(server.Keys()) },
	}
}

func do(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	require.NoError(t, err, "%q", args)
	return reply
}

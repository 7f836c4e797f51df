// Package adaptertest tests what the backends on Redis have in common, on a real
// server and on miniredis.
package adaptertest

import (
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/votetest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/redistest"
)

// An Adapter is a backend under test.
type Adapter struct {
	// Dial makes a client of a server, and closes it when t ends. An error is that
	// of a library that connects at once.
	Dial func(t testing.TB, s Settings) (Client, error)

	// Nil returns a Locker made of a nil client.
	Nil func(opts ...rediscore.Option) *rediscore.Locker
}

// Settings are those of a client, beside the ones that the package documentation asks
// for.
type Settings struct {
	Addr     string
	Password string
	Timeout  time.Duration // of a command
}

// A Client is a client of the adapter's library.
type Client struct {
	Conn rediscore.Conn
	New  func(opts ...rediscore.Option) *rediscore.Locker // the package's New with this client
}

// Run runs all tests, at the same time, since most of them wait. With -short the suite is
// left out.
func Run(t *testing.T, a Adapter) {
	t.Parallel()
	var all sync.WaitGroup
	if !testing.Short() {
		all.Go(func() { t.Run("Redis", a.onRedis) })
		all.Go(func() { t.Run("Miniredis", a.onMiniredis) })
		all.Go(func() { t.Run("Votes", a.votes) })
	}
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
		"DeadWaiters":                 deadWaiters,
		"OutOfMemory":                 outOfMemory,
		"Replica":                     replica,
		"Replicated":                  replicated,
		"PausedServer":                pausedServer,
		"SuspendedServer":             suspendedServer,
		"Listen":                      listen,
		"ListenEndsWithTheConnection": listenEndsWithTheConnection,
	} {
		all.Go(func() {
			t.Run(name, func(t *testing.T) {
				share(t)
				test(t, a)
			})
		})
	}
	all.Wait()
}

const (
	timeout = 2 * time.Second
	patient = time.Minute // for tests that are not about time-outs, on a busy machine
)

func (a Adapter) dial(t testing.TB, addr string) Client {
	t.Helper()
	return a.dialWith(t, Settings{Addr: addr, Timeout: timeout})
}

func (a Adapter) dialWith(t testing.TB, s Settings) Client {
	t.Helper()
	c, err := a.Dial(t, s)
	require.NoError(t, err)
	return c
}

// locker makes a Locker for the suite.
func (a Adapter) locker(t *testing.T, addr string, timeout time.Duration) dlock.Locker {
	t.Helper()
	l := a.dialWith(t, Settings{Addr: addr, Timeout: timeout}).New()
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func (a Adapter) onRedis(t *testing.T) {
	server := redistest.Start(t)
	h := conformance.Harness{
		New:   func(t *testing.T) dlock.Locker { return a.locker(t, server.Addr(), patient) },
		Dial:  func(t *testing.T, addr string) dlock.Locker { return a.locker(t, addr, timeout) },
		Addr:  server.Addr(),
		Wipe:  func(t *testing.T) { do(t, server, "FLUSHALL") },
		Count: func(t *testing.T) int { return stored(server.Keys(t)) },
	}
	conformance.Run(t, conformance.Harness{PerCase: func(t *testing.T) conformance.Harness {
		share(t)
		return h
	}})
}

// onMiniredis has a server for each case, since its clock is moved by hand.
func (a Adapter) onMiniredis(t *testing.T) {
	conformance.Run(t, conformance.Harness{
		SkipForward: true, // it runs on Redis
		PerCase: func(t *testing.T) conformance.Harness {
			share(t)
			server := miniredis.RunT(t)
			addr := server.Addr() // not to be asked for when the server has ended
			return conformance.Harness{
				New: func(t *testing.T) dlock.Locker {
					l := a.locker(t, addr, patient).(*rediscore.Locker)
					return struct { // no Voter: miniredis has no replication ID
						dlock.Locker
						dlock.Acquirer
						dlock.BatchRenewer
						dlock.Inspector
					}{l, l, l, l}
				},
				Advance: func(d time.Duration) {
					if d < time.Minute {
						time.Sleep(d) // its clock is the real one: only its TTLs are moved by hand
					}
					server.FastForward(d)
				},
				Wipe:  func(*testing.T) { server.FlushAll() },
				Count: func(*testing.T) int { return stored(server.Keys()) },
			}
		},
	})
}

// votes has a server of its own, since nobody else may raise its fences or lose its data.
func (a Adapter) votes(t *testing.T) {
	server := redistest.Start(t)
	votetest.Run(t, sharing, func(t *testing.T) votetest.Store {
		return votetest.Store{
			New:  func() votetest.Client { return a.locker(t, server.Addr(), patient).(*rediscore.Locker) },
			Wipe: func() { do(t, server, "FLUSHALL") },
		}
	})
}

// sharing is the stage of votetest.Run in real time.
func sharing(t *testing.T, f func(*testing.T)) {
	share(t)
	f(t)
}

// process is locked by the case that counts the goroutines of the process, and shared by
// all others.
var process sync.RWMutex

func share(t *testing.T) {
	if path.Base(t.Name()) == "NoLeaks" {
		process.Lock()
		t.Cleanup(process.Unlock)
	} else {
		process.RLock()
		t.Cleanup(process.RUnlock)
	}
}

// stored counts keys, but for the counters of fences and the markers of votes: there is one for each
// slot at most.
func stored(keys []string) (n int) {
	for _, key := range keys {
		if !strings.HasSuffix(key, "dlock1:fence") && !strings.HasSuffix(key, "dlock1:birth") {
			n++
		}
	}
	return n
}

func do(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	require.NoError(t, err, "%q", args)
	return reply
}

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

// A Dial makes a client of the adapter's library, and closes it when t ends. An error is that of a
// library that connects at once.
type Dial func(t testing.TB, s Settings) (rediscore.Conn, error)

// Settings are those of a client, beside the ones that the package documentation asks
// for.
type Settings struct {
	Addrs    []string // of one server, of the nodes of a cluster, or of Sentinels
	Master   string   // what Sentinels call it
	Password string
	Timeout  time.Duration // of a command; 0: that of the library
}

// An Adapter is a backend under test.
type Adapter struct {
	Dial Dial

	// Nil returns a Locker made of a nil client.
	Nil func(opts ...rediscore.Option) *rediscore.Locker
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
	ttl     = time.Minute
	timeout = 2 * time.Second
	patient = time.Minute // for tests that are not about time-outs, on a busy machine
)

func (dial Dial) must(t testing.TB, s Settings) rediscore.Conn {
	t.Helper()
	c, err := dial(t, s)
	require.NoError(t, err)
	return c
}

func (a Adapter) dial(t testing.TB, addr string) rediscore.Conn {
	t.Helper()
	return a.Dial.must(t, Settings{Addrs: []string{addr}, Timeout: timeout})
}

// locker makes a Locker for the suite.
func (a Adapter) locker(t *testing.T, addr string, timeout time.Duration) dlock.Locker {
	t.Helper()
	l := rediscore.New(a.Dial.must(t, Settings{Addrs: []string{addr}, Timeout: timeout}))
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// start starts a server, and makes a Locker on it.
func (a Adapter) start(t *testing.T) (*redistest.Server, *rediscore.Locker) {
	t.Helper()
	server := redistest.Start(t)
	return server, rediscore.New(a.dial(t, server.Addr()))
}

// take acquires a key that is free.
func take(t testing.TB, l *rediscore.Locker, key, token string) dlock.Attempt {
	t.Helper()
	attempt, err := l.TryAcquire(t.Context(), key, token, ttl)
	require.NoError(t, err)
	require.True(t, attempt.Acquired)
	return attempt
}

// A call is a call of a Locker, with key "k" and token "t". It reports whether the token holds the key, or
// has held it until then.
type call struct {
	name string
	do   func() (bool, error)
}

// calls returns calls that all report true, in this order.
func calls(t testing.TB, l *rediscore.Locker) []call {
	ctx := t.Context()
	return []call{
		{"TryAcquire", func() (bool, error) {
			a, err := l.TryAcquire(ctx, "k", "t", ttl)
			return a.Acquired, err
		}},
		{"Renew", func() (bool, error) { return l.Renew(ctx, "k", "t", ttl) }},
		{"RenewBatch", func() (bool, error) {
			results, err := l.RenewBatch(ctx, []dlock.Renewal{{Key: "k", Token: "t", TTL: ttl}})
			if err != nil {
				return false, err
			}
			return results[0].Held, results[0].Err
		}},
		{"Inspect", func() (bool, error) {
			h, err := l.Inspect(ctx, "k")
			return h.Held, err
		}},
		{"Release", func() (bool, error) { return l.Release(ctx, "k", "t") }},
	}
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

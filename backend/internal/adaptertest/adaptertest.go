// Package adaptertest tests what only the client libraries and a server can show: the wire,
// time-outs, lost connections and subscriptions. What the scripts and package rediscore decide is
// tested in virtual time (internal/sim).
package adaptertest

import (
	"cmp"
	"context"
	"flag"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/votetest"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A Dial makes a client of the adapter's library, and closes it when t ends. An error is that of a
// library that connects at once.
type Dial func(t testing.TB, s Settings) (rediscore.Conn, error)

// Settings are those of a client, beside the ones that the package documentation asks
// for.
type Settings struct {
	Addrs   []string      // of one server, of the nodes of a cluster, or of Sentinels
	Master  string        // what Sentinels call it
	Timeout time.Duration // of a command; 0: that of the library
}

// An Adapter is a backend under test.
type Adapter struct {
	Dial Dial

	// Nil returns a Locker made of a nil client.
	Nil func(opts ...rediscore.Option) *rediscore.Locker
}

// All reports whether DLOCK_LONG has adapters: then also what package rediscore decides is tested with each
// library on a server, and each way in which servers fail. Otherwise it is a short form.
func All() bool { return long.Of("adapters") != "" }

// Run runs all tests. The suite comes first, since NoLeaks counts the goroutines of the process. With
// -short it is left out.
func Run(t *testing.T, a Adapter) {
	t.Run("Nil", func(t *testing.T) { RequireInvalid(t, a.Nil(), "client: nil") })
	t.Run("Miniredis", a.onMiniredis)
	if !testing.Short() {
		t.Run("Redis", a.onRedis)
	}
	for name, test := range map[string]func(*testing.T, Adapter){
		"RoundTrips":                  roundTrips,
		"RenewalRoundTrips":           renewalRoundTrips,
		"NothingIsSentTwice":          NothingIsSentTwice,
		"ScriptFlush":                 scriptFlush,
		"ForbiddenAlgorithms":         forbiddenAlgorithms,
		"Replicated":                  replicated,
		"Listen":                      listen,
		"Scan":                        scan,
		"ListenEndsWithTheConnection": listenEndsWithTheConnection,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, a) })
	}
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

// HandOver has a token wait for the key "k", which another holds, until each condition has become true. Then it is released.
func HandOver(t *testing.T, l *rediscore.Locker, until ...func() bool) {
	t.Helper()
	take(t, l, "k", "holder")
	granted := make(chan error, 1)
	go func() { _, err := l.Acquire(t.Context(), "k", "waiter", ttl); granted <- err }()
	for n, condition := range until {
		require.Eventually(t, condition, patient, time.Millisecond, "condition %d", n)
	}
	held, err := l.Release(t.Context(), "k", "holder")
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, <-granted)
}

// Methods returns calls of all methods that may call the server, with key "k". A call reports whether the token holds the
// key, or held it.
func Methods(ctx context.Context, l *rediscore.Locker, token string) map[string]func() (bool, error) {
	renewal := dlock.Renewal{Key: "k", Token: token, TTL: ttl}
	attempt := func(a dlock.Attempt, err error) (bool, error) { return a.Acquired, err }
	ballot := func(b quorum.Ballot, err error) (bool, error) { return b.Acquired, cmp.Or(err, b.Err) }
	return map[string]func() (bool, error){
		"TryAcquire": func() (bool, error) { return attempt(l.TryAcquire(ctx, "k", token, ttl)) },
		"Acquire":    func() (bool, error) { return attempt(l.Acquire(ctx, "k", token, ttl)) },
		"TryAcquireSet": func() (bool, error) {
			attempts, err := l.TryAcquireSet(ctx, []dlock.Acquisition{{Key: "k", Token: token, TTL: ttl}, {Key: "l", Token: token, TTL: ttl}})
			return err == nil && attempts[1].Acquired, err
		},
		"Renew": func() (bool, error) { return l.Renew(ctx, "k", token, ttl) },
		"RenewBatch": func() (bool, error) {
			results, err := l.RenewBatch(ctx, []dlock.Renewal{renewal})
			r := append(results, dlock.RenewResult{})[0]
			return r.Held, cmp.Or(err, r.Err)
		},
		"Release":     func() (bool, error) { return l.Release(ctx, "k", token) },
		"Inspect":     func() (bool, error) { h, err := l.Inspect(ctx, "k"); return h.Held, err },
		"Vote":        func() (bool, error) { return ballot(l.Vote(ctx, "k", token, ttl, 0)) },
		"AcquireVote": func() (bool, error) { return ballot(l.AcquireVote(ctx, "k", token, ttl, 0, 1)) },
		"Confirm": func() (bool, error) {
			ballots, err := l.Confirm(ctx, []quorum.Confirmation{{Renewal: renewal, Fence: 1}})
			return ballot(append(ballots, quorum.Ballot{})[0], err)
		},
		"Pass": func() (bool, error) { return l.Pass(ctx, "k", token, "to", 0) },
	}
}

// inOrder are calls that all report true, in this order.
var inOrder = []string{"TryAcquire", "TryAcquireSet", "Renew", "RenewBatch", "Inspect", "Release"}

// RequireInvalid makes all calls, which must be refused for the reason that what says.
func RequireInvalid(t *testing.T, l *rediscore.Locker, what string) {
	t.Helper()
	for name, call := range Methods(t.Context(), l, "t") {
		_, err := call()
		require.ErrorIs(t, err, dlock.ErrInvalid, name)
		require.ErrorContains(t, err, what, name)
	}
}

// onMiniredis makes each call, and a handover, where there is no server.
func (a Adapter) onMiniredis(t *testing.T) {
	server := miniredis.RunT(t)
	l := rediscore.New(a.Dial.must(t, Settings{Addrs: []string{server.Addr()}, Timeout: patient}))
	requireCalls(t, l, func() {}) // EVALSHA, and EVAL where the script is not known
	requireCalls(t, l, func() {})
	HandOver(t, l, func() bool { return len(server.PubSubChannels("*")) == 1 })
	require.NoError(t, l.Close())
}

// shortForm has the cases that depend on the library: what happens to its connections, ctx, bytes of
// any kind, and batches.
var shortForm = []string{
	"NoEffectOverNetwork", "LostReplyOverNetwork", "LateDuplicateOverNetwork", "UnreachableStore", "Reconnection",
	"EndedContext", "KeysAreIndependent", "BatchOfAnySize",
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
	if All() {
		suite(t, h)
		return
	}
	conformance.Run(t, conformance.Harness{PerCase: func(t *testing.T) conformance.Harness {
		if !slices.Contains(shortForm, path.Base(t.Name())) {
			t.Skip("left out unless DLOCK_LONG has adapters")
		}
		return h
	}})
}

// suite runs package conformance, and the clauses of votes.
func suite(t *testing.T, h conformance.Harness) {
	conformance.Run(t, h)
	t.Run("Votes", func(t *testing.T) {
		votetest.Run(t, func(t *testing.T, f func(*testing.T)) { f(t) }, func(t *testing.T) votetest.Store {
			return votetest.Store{
				New:  func() votetest.Client { return h.New(t).(*rediscore.Locker) },
				Wipe: func() { h.Wipe(t) },
			}
		})
	})
}

// stored counts keys, but for the counters of fences and the markers of votes.
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

// Main runs the tests of a package, for TestMain. It runs more tests at once than there are CPUs, since
// most of them wait. A goroutine that is left in the end is a failure.
func Main(m *testing.M) { goleak.VerifyTestMain(parallel{m}) }

type parallel struct{ *testing.M }

func (p parallel) Run() int {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := p.M.Run()
	AwaitGoroutines()
	return code
}

// AwaitGoroutines waits until client libraries have ended all their goroutines, for
// at most 10 s. rueidis closes connections to nodes that have lost their slots after 5 s
// only, also when the client has been closed.
func AwaitGoroutines() {
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit) && goleak.Find() != nil; {
	}
}

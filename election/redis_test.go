package election_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	envChanges = "DLOCK_ELECTION_CHANGES" // how many TestOrderlyChangesOnRedis makes
	envTTL     = "DLOCK_ELECTION_TTL"     // of TestOutagesOfRedis
)

// A field is the candidates on a real server, and their terms.
type field struct {
	*testing.T
	server *redistest.Server
	all    []*election.Election
	mu     sync.Mutex
	terms  []*span
}

// A span is a term, until the end of lead's ctx. The end is zero before that.
type span struct{ begin, end time.Time }

func connect(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// compete starts n candidates, and waits until one leads and the others wait. In the end, Run must return
// nil in all.
func (f *field) compete(addr string, n int, ttl time.Duration) {
	for range n {
		store := goredis.New(connect(f.T, addr))
		client := dlock.New(store, dlock.WithTTL(ttl))
		e, ended := election.New(client, "leader"), make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { ended <- e.Run(ctx, f.lead) }()
		f.Cleanup(func() {
			cancel()
			assert.NoError(f, <-ended)
			assert.NoError(f, client.Close())
			assert.NoError(f, store.Close())
		})
		f.all = append(f.all, e)
	}
	f.await(1, n-1)
}

func (f *field) lead(ctx context.Context, _ *dlock.Lease) error {
	f.mu.Lock()
	term := &span{begin: time.Now()}
	f.terms = append(f.terms, term)
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	term.end = time.Now()
	return nil
}

func (f *field) resign() {
	for _, e := range f.all {
		e.Resign()
	}
}

// await waits until so many terms have begun, one goes on, and so many candidates wait. It returns the
// terms. The last ends now.
func (f *field) await(terms, waiting int) (all []span) {
	f.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(time.Millisecond) {
		status, err := f.all[0].Leader(f.Context())
		f.mu.Lock()
		all = nil
		for _, term := range f.terms {
			all = append(all, *term)
		}
		f.mu.Unlock()
		if n := len(all); n >= terms && all[n-1].end.IsZero() && err == nil && status.Waiting >= waiting {
			all[n-1].end = time.Now()
			return all
		}
	}
	f.Fatalf("%d terms, and %d candidates that wait: not within a minute", terms, waiting)
	return nil
}

// TestOrderlyChangesOnRedis compares the time from the end of a term to the next with that of a PING. Since
// a candidate pauses when it has resigned, there are many. For the figures: DLOCK_ELECTION_CHANGES=1000
func TestOrderlyChangesOnRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	changes, err := strconv.Atoi(os.Getenv(envChanges))
	limit := 1.15
	if err != nil {
		changes, limit = 60, 5 // a poll takes longer
	}
	f := &field{T: t, server: redistest.Start(t)}
	proxy, err := faultproxy.New(f.server.Addr())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: time.Millisecond})
	f.compete(proxy.Addr(), 8, time.Minute)
	rdb := connect(t, proxy.Addr())
	var pings, gaps []time.Duration
	for n := range changes {
		begin := time.Now()
		require.NoError(t, rdb.Ping(t.Context()).Err())
		pings = append(pings, time.Since(begin))
		f.resign()
		terms := f.await(n+2, 2)
		gaps = append(gaps, terms[n+1].begin.Sub(terms[n].end))
	}
	slices.Sort(pings)
	slices.Sort(gaps)
	rtt, median := pings[changes/2], gaps[changes/2]
	ratio := float64(median) / float64(rtt)
	t.Logf("%d changes at RTT %v: median %v = %.2f RTT, p95 %v, longest %v",
		changes, rtt, median, ratio, gaps[changes*95/100], gaps[changes-1])
	require.Positive(t, gaps[0], "two led")
	require.LessOrEqual(t, ratio, limit)
}

// An outage is what happens to the server of a field.
type outage struct {
	field
	name   string
	strike func(*field) (heal func())
	nobody bool          // can begin to lead before the server is healed
	two    time.Duration // may lead
	args   []string      // of the server

	begin, struck, healing, healed time.Time

	heal func()
}

func killed(f *field) func()    { f.server.Kill(); return f.server.Restart }
func suspended(f *field) func() { f.server.Suspend(); return f.server.Resume }
func restarted(f *field) func() { f.server.Restart(); return func() {} }

func flushed(f *field) func() {
	_, err := f.server.Do("FLUSHALL")
	require.NoError(f, err)
	return func() {}
}

// set changes a setting, and cuts connections of the given types.
func set(name, value, before string, cut ...string) func(*field) func() {
	return func(f *field) func() {
		rdb := connect(f.T, f.server.Addr()) // whose connection goes on
		require.NoError(f, rdb.ConfigSet(f.Context(), name, value).Err())
		for _, kind := range cut {
			require.NoError(f, rdb.ClientKillByFilter(f.Context(), "TYPE", kind).Err())
		}
		return func() { require.NoError(f, rdb.ConfigSet(f.Context(), name, before).Err()) }
	}
}

// TestOutagesOfRedis strikes servers for 2.5 TTL. After that one leads, and the others wait. For the
// figures: DLOCK_ELECTION_TTL=6s
func TestOutagesOfRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	ttl, err := time.ParseDuration(os.Getenv(envTTL))
	if err != nil {
		ttl = 2 * time.Second
	}
	full := set("maxmemory", "1", "0")
	outages := []*outage{
		{name: "suspended", strike: suspended, nobody: true},
		{name: "killed", strike: killed, nobody: true, args: []string{"--appendonly", "yes"}},
		{name: "killed, comes back empty", strike: killed, nobody: true},
		{name: "another password", strike: set("requirepass", "other", "", "normal", "pubsub"), nobody: true},
		{name: "full", strike: full},
		{name: "full, the leader resigns", strike: func(f *field) func() { defer f.resign(); return full(f) }},
		{name: "restarted empty at once", strike: restarted, two: ttl},
		{name: "FLUSHALL", strike: flushed, two: ttl},
	}
	for _, o := range outages {
		o.T, o.server = t, redistest.Start(t, o.args...)
		o.compete(o.server.Addr(), 3, ttl)
	}
	for _, o := range outages {
		o.begin = time.Now()
		o.heal = o.strike(&o.field)
		o.struck = time.Now()
	}
	time.Sleep(ttl * 5 / 2)
	for _, o := range outages {
		o.healing = time.Now()
		o.heal()
		o.healed = time.Now()
	}
	for _, o := range outages {
		terms := o.await(1, 2)
		var together time.Duration
		for i, next := range terms[1:] {
			together = max(together, terms[i].end.Sub(next.begin))
			if o.nobody && next.begin.After(o.struck) {
				assert.True(t, next.begin.After(o.healing), "%s: another led in the outage", o.name)
				assert.True(t, terms[i].end.Before(o.healing), "%s: lead's ctx did not end", o.name)
			}
		}
		assert.LessOrEqual(t, together, o.two, "%s: two led", o.name)
		since := func(end time.Time) float64 { return end.Sub(o.begin).Seconds() }
		t.Logf("%s: lead's ctx ended at %.3f s, healed at %.3f s, the last led at %.3f s, two led for %v",
			o.name, since(terms[0].end), since(o.healed), since(terms[len(terms)-1].begin), together)
	}
}

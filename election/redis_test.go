package election_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

func connect(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// compete starts n candidates on a server, and waits until one leads and the others wait. In the end, Run
// must return nil in all.
func (g *group) compete(addr string, n int, ttl time.Duration) {
	if testing.Short() {
		g.Skip("left out with -short")
	}
	for range n {
		store, c := goredis.New(connect(g.T, addr)), new(candidate)
		g.Cleanup(func() {
			assert.NoError(g, c.err)
			assert.NoError(g, store.Close())
		})
		c = g.stand(store, nil, dlock.WithTTL(ttl))
	}
	g.await(1, n-1)
}

func (g *group) resign() {
	for _, c := range g.all {
		c.Resign()
	}
}

// await waits until so many terms have begun, only the last goes on, and so many candidates wait. It returns
// the terms. The last ends now.
func (g *group) await(terms, waiting int) (all []term) {
	g.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(time.Millisecond) {
		status, err := g.all[0].Leader(g.Context())
		g.mu.Lock()
		all = slices.Clone(g.terms)
		g.mu.Unlock()
		on := slices.IndexFunc(all, func(t term) bool { return t.end.IsZero() })
		if n := len(all); n >= terms && on == n-1 && err == nil && status.Waiting >= waiting {
			all[on].end = time.Now()
			return all
		}
	}
	g.Fatalf("%d terms, and %d candidates that wait: not within a minute", terms, waiting)
	return nil
}

// TestOrderlyChangesOnRedis compares the time from the end of a term to the next with that of a PING. Since
// a candidate pauses when it has resigned, there are many. For the figures: DLOCK_LONG=election-changes=1000
func TestOrderlyChangesOnRedis(t *testing.T) {
	changes, err := strconv.Atoi(long.Of("election-changes"))
	limit := 1.15
	if err != nil {
		changes, limit = 60, 5 // a poll takes longer
	}
	g := &group{T: t, real: true}
	proxy, err := faultproxy.New(redistest.Start(t).Addr())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: time.Millisecond})
	g.compete(proxy.Addr(), 8, time.Minute)
	rdb := connect(t, proxy.Addr())
	var pings, gaps []time.Duration
	for n := range changes {
		begin := time.Now()
		require.NoError(t, rdb.Ping(t.Context()).Err())
		pings = append(pings, time.Since(begin))
		g.resign()
		terms := g.await(n+2, 2)
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

// An outage is what happens to the server of a group.
type outage struct {
	group
	name           string
	strike         func(*outage) (heal func())
	nobody         bool          // leads in the end
	two            time.Duration // may lead at once
	args           []string      // of the server
	server         *redistest.Server
	heal           func()
	begin, healing time.Time
}

func suspend(o *outage) func() { o.server.Suspend(); return o.server.Resume }
func kill(o *outage) func()    { o.server.Kill(); return o.server.Restart }
func restart(o *outage) func() { o.server.Restart(); return func() {} }

func flush(o *outage) func() {
	_, err := o.server.Do("FLUSHALL")
	require.NoError(o, err)
	return func() {}
}

// set changes a setting, and cuts connections of the given types.
func set(name, value, before string, cut ...string) func(*outage) func() {
	return func(o *outage) func() {
		rdb := connect(o.T, o.server.Addr()) // whose connection goes on
		require.NoError(o, rdb.ConfigSet(o.Context(), name, value).Err())
		for _, kind := range cut {
			require.NoError(o, rdb.ClientKillByFilter(o.Context(), "TYPE", kind).Err())
		}
		return func() { require.NoError(o, rdb.ConfigSet(o.Context(), name, before).Err()) }
	}
}

// TestOutagesOfRedis strikes servers for 2.5 TTL. After that one leads, and the others wait. For the
// figures: DLOCK_LONG=election-ttl=6s
func TestOutagesOfRedis(t *testing.T) {
	ttl, err := time.ParseDuration(long.Of("election-ttl"))
	if err != nil {
		ttl = 2 * time.Second
	}
	full := set("maxmemory", "1", "0")
	outages := []*outage{
		{name: "suspended", strike: suspend, nobody: true},
		{name: "killed", strike: kill, nobody: true, args: []string{"--appendonly", "yes"}},
		{name: "killed, comes back empty", strike: kill, nobody: true},
		{name: "another password", strike: set("requirepass", "other", "", "normal", "pubsub"), nobody: true},
		{name: "full", strike: full},
		{name: "full, the leader resigns", strike: func(o *outage) func() { defer o.resign(); return full(o) }},
		{name: "restarted empty at once", strike: restart, two: ttl},
		{name: "FLUSHALL", strike: flush, two: ttl},
	}
	for _, o := range outages {
		o.T, o.real, o.server = t, true, redistest.Start(t, o.args...)
		o.compete(o.server.Addr(), 3, ttl)
	}
	for _, o := range outages {
		o.begin = time.Now()
		o.heal = o.strike(o)
	}
	time.Sleep(ttl * 5 / 2)
	for _, o := range outages {
		o.healing = time.Now()
		o.heal()
	}
	for _, o := range outages {
		terms, together := o.await(1, 2), time.Duration(0)
		for i, term := range terms {
			if i > 0 {
				together = max(together, terms[i-1].end.Sub(term.begin))
			}
			if o.nobody && term.begin.Before(o.healing) {
				assert.True(t, term.begin.Before(o.begin) && term.end.Before(o.healing), "%s: one led in the outage", o.name)
			}
			t.Logf("%s: a term from %v to %v", o.name, term.begin.Sub(o.begin), term.end.Sub(o.begin))
		}
		t.Logf("%s from 0 to %v: two led for %v", o.name, o.healing.Sub(o.begin), together)
		assert.LessOrEqual(t, together, o.two, "%s: two led", o.name)
	}
}

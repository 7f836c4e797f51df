package peers

import (
	"flag"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
)

// TestShortRun measures in all scenarios, on a real server.
func TestShortRun(t *testing.T) {
	testShortRun(t, short(slices.Concat(loads(), onOneServer())))
}

// TestShortRunOnNodes measures on several servers, with each kind of fault.
func TestShortRunOnNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	faults := regexp.MustCompile("slow|idle|16, 1")
	testShortRun(t, slices.DeleteFunc(short(onNodes()), func(s scenario) bool { return !faults.MatchString(s.name) }))
}

func testShortRun(t *testing.T, all []scenario) {
	m, err := run(t.Context(), t, all)
	require.NoError(t, err)
	for _, s := range all {
		for _, c := range s.among {
			r := m.Find(s.name, c.id())
			require.NotNil(t, r, "%s: %s", s.name, c.id())
			require.NotEmpty(t, r.Figures, "%s: %s", s.name, c.id())
			require.Zero(t, slices.Max(append(r.Figures["lost"], 0)), "%s: %s has lost leases", s.name, c.id())
		}
	}
	require.NotEqual(t, "unknown", m.Redis)
}

// TestDelay measures through a network that adds a round-trip time.
func TestDelay(t *testing.T) {
	const rtt = 20 * time.Millisecond
	s := scenario{name: "far", rtt: rtt, n: 1, window: 2 * time.Second, ttl: time.Minute, rounds: 1, among: contestants[:1], run: (*turn).cycles}
	m, err := run(t.Context(), t, []scenario{s})
	require.NoError(t, err)
	for _, r := range m.Results {
		require.Greater(t, r.Figure("p50 µs"), float64(rtt.Microseconds())*0.99, "%s: an acquisition is a round trip", r.Contestant)
	}
}

var update = flag.Bool("update", false, "write the tables of the page")

func TestPage(t *testing.T) { performance.Check(t, 9, *update) }

// at makes a tenure whose instants are in milliseconds.
func at(who int32, asked, got, done int64) tenure {
	const ms = int64(time.Millisecond)
	return tenure{Who: who, Asked: asked * ms, Got: got * ms, Done: done * ms}
}

func TestContend(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	all := []tenure{
		at(1, 0, 15, 20), // handed over after 4 ms
		at(0, 0, 1, 5),
		at(0, 5, 6, 11),     // takes it again: no handover, and no wait
		at(0, 11, 22, 30),   // handed over after 2 ms
		at(2, 0, 0, 0),      // waits still
		at(1, 20, 120, 121), // got it after the end
		at(3, 150, 0, 0),    // asked after the end
	}
	served, gaps, waits := contend(all, 4, 0, int64(ms(100)))
	assert.Equal(t, []time.Duration{ms(4), ms(2)}, gaps)
	assert.ElementsMatch(t, []time.Duration{ms(15), ms(11), ms(100), ms(80)}, waits)
	assert.Equal(t, []float64{3, 1, 0, 0}, served)

	_, gaps, _ = contend(all, 4, int64(ms(20)), int64(ms(100)))
	assert.Equal(t, []time.Duration{ms(2)}, gaps, "only one since 20 ms, from one who held before")
}

func TestJain(t *testing.T) {
	assert.Equal(t, 1.0, jain([]float64{7, 7, 7}))
	assert.Equal(t, 0.25, jain([]float64{0, 9, 0, 0}))
	assert.Zero(t, jain([]float64{0, 0}))
}

// TestRatios: a ratio is to the bare client or to the best other library, on the same client.
func TestRatios(t *testing.T) {
	m := new(figures.Measurement)
	for id, x := range map[string][2]float64{
		"bare (go-redis)": {40, 20}, "redsync (go-redis)": {20, 25}, "redislock (go-redis)": {32, 30}, "redsync (redigo)": {99, 1}, "dlock (go-redis)": {48, 10},
	} {
		m.Of("orders", id).Figures = map[string][]float64{"rate": {x[0]}, "server µs": {x[1]}}
	}
	r := m.Find("orders", "dlock (go-redis)")
	for name, want := range map[string]string{"rate / bare": "1.20", "rate / best": "1.50", "server µs / bare": "0.50", "server µs / best": "0.40", "keys / bare": "–"} {
		assert.Equal(t, want, ratio(m, r, name), name)
	}
}

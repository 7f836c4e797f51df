package learn

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	scale = 10 * time.Second
	rtt   = 2 * time.Millisecond
)

func times10s(x float64) time.Duration { return time.Duration(x * float64(scale)) }

// holds are how long work takes, in units of scale, by its number of n.
var holds = []struct {
	name string
	work func(r *rand.Rand, i, n int) float64
}{
	{"constant", func(*rand.Rand, int, int) float64 { return 1 }},
	{"exponential", func(r *rand.Rand, _, _ int) float64 { return r.ExpFloat64() }},
	{"lognormal", func(r *rand.Rand, _, _ int) float64 { return math.Exp(r.NormFloat64()) }},
	{"bimodal, 10 % take 20 times as long", func(r *rand.Rand, _, _ int) float64 { return mode(r, 0.1, 20) }},
	{"bimodal, 0.7 % take 100 times as long", func(r *rand.Rand, _, _ int) float64 { return mode(r, 0.007, 100) }},
	{"drifting, 10 times as long in the end", func(r *rand.Rand, i, n int) float64 {
		return math.Exp(0.3*r.NormFloat64()) * (1 + 9*float64(i)/float64(n))
	}},
	{"drifting, three times as long from the middle on", func(r *rand.Rand, i, n int) float64 {
		return math.Exp(0.3*r.NormFloat64()) * float64(1+2*(2*i/n))
	}},
}

func mode(r *rand.Rand, share, long float64) float64 {
	if r.Float64() < share {
		return long * (0.9 + 0.2*r.Float64())
	}
	return 0.9 + 0.2*r.Float64()
}

// lost reports whether work of d with a round trip loses its lease.
func lost(d, ttl time.Duration) bool { return rtt+d >= ttl-ttl/100-2*time.Millisecond }

func TestLostLeases(t *testing.T) {
	const n = 20_000
	for _, h := range holds {
		r := rand.New(rand.NewPCG(1, 2))
		l := New(nil, time.Second, time.Hour)
		o, losses := l.Observer(), 0
		for i := range n {
			d, ttl := times10s(h.work(r, i, n)), l.TTL("k")
			if i > enough && ttl == time.Hour {
				t.Fatalf("%s: nothing was learned from %d holds", h.name, i)
			}
			play(o, d, ttl)
			if lost(d, ttl) {
				losses++
			}
		}
		t.Logf("%s: %d lost leases of %d", h.name, losses, n)
		require.LessOrEqual(t, losses, n*5/1000, h.name)
	}
}

// play tells an Observer of one hold.
func play(o *dlock.Observer, d, ttl time.Duration) {
	ctx := context.Background()
	o.AcquireDone(ctx, dlock.AcquireDoneInfo{Key: "k", Took: rtt, Attempts: 1})
	if lost(d, ttl) {
		held := ttl - ttl/100 - 2*time.Millisecond - rtt
		o.LeaseDone(ctx, dlock.LeaseDoneInfo{Key: "k", Held: held, End: dlock.EndExpired, Err: dlock.ErrLost})
		o.ReleaseDone(ctx, dlock.ReleaseDoneInfo{Key: "k", Held: held, Overrun: d - held, Err: dlock.ErrLost})
		return
	}
	released(o, "k", d)
	o.ReleaseDone(ctx, dlock.ReleaseDoneInfo{Key: "k", Held: d, Took: rtt})
}

func released(o *dlock.Observer, key string, held time.Duration) {
	o.LeaseDone(context.Background(), dlock.LeaseDoneInfo{Key: key, Held: held, End: dlock.EndReleased, Err: dlock.ErrReleased})
}

// A Client with a Learner loses few leases, and its dead holders block less than the maximum.
func TestClientThatLearns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		l := New(nil, time.Second, time.Hour)
		c := dlock.New(memory.New(), dlock.WithRenewal(false), dlock.WithTTL(time.Hour), dlock.WithTTLFrom(l.TTL), dlock.WithObserver(l.Observer()))
		const n = 2000
		for range n {
			_ = c.Do(t.Context(), "k", func(context.Context, *dlock.Lease) error {
				time.Sleep(times10s(r.ExpFloat64()))
				return nil
			})
		}
		require.LessOrEqual(t, c.Stats().Lost, uint64(n/200))
		require.InDelta(t, 2*math.Log(100)*float64(scale), float64(l.TTL("k")), 0.3*2*math.Log(100)*float64(scale))
		require.NoError(t, c.Close())
	})
}

// Work that ends when its lease is lost shows too short a time. The TTL grows all the same.
func TestWorkThatIsCutShort(t *testing.T) {
	l := New(nil, time.Millisecond, time.Hour)
	o := l.Observer()
	for range enough {
		play(o, time.Second, time.Hour)
	}
	for range 200 {
		ttl := l.TTL("k")
		play(o, min(time.Minute, ttl+time.Millisecond), ttl)
	}
	require.Greater(t, l.TTL("k"), time.Minute)
}

// The work suddenly takes ten times as long. More leases are lost if it stops with its lease.
func TestSuddenlyLongerWork(t *testing.T) {
	for name, work := range map[string]func(*rand.Rand) float64{
		"constant":        func(*rand.Rand) float64 { return 1 },
		"nearly constant": func(r *rand.Rand) float64 { return math.Exp(0.3 * r.NormFloat64()) },
		"exponential":     func(r *rand.Rand) float64 { return r.ExpFloat64() },
		"lognormal":       func(r *rand.Rand) float64 { return math.Exp(r.NormFloat64()) },
	} {
		for _, stops := range []bool{false, true} {
			r := rand.New(rand.NewPCG(5, 6))
			l := New(nil, time.Millisecond, 1000*time.Hour)
			o := l.Observer()
			for range 3 * window / 2 {
				play(o, times10s(work(r)), l.TTL("k"))
			}
			losses, most := 0, 25
			for range window {
				d, ttl := times10s(10*work(r)), l.TTL("k")
				if lost(d, ttl) {
					losses++
				}
				if stops {
					d, most = min(d, ttl), 40
				}
				play(o, d, ttl)
			}
			t.Logf("%s, stops with its lease: %v: %d lost", name, stops, losses)
			require.LessOrEqual(t, losses, most, "%s, stops with its lease: %v", name, stops)
		}
	}
}

func TestLimits(t *testing.T) {
	l := New(nil, time.Minute, 2*time.Minute)
	require.Equal(t, 2*time.Minute, l.TTL("k"), "nothing is known")
	o := l.Observer()
	for range enough - 1 {
		play(o, time.Second, time.Hour)
	}
	require.Equal(t, 2*time.Minute, l.TTL("k"), "too little is known")
	play(o, time.Second, time.Hour)
	require.Equal(t, time.Minute, l.TTL("k"))
	for range window {
		play(o, time.Hour, 10*time.Hour)
	}
	require.Equal(t, 2*time.Minute, l.TTL("k"))
	require.Equal(t, time.Minute, New(nil, time.Minute, time.Second).TTL("k"), "max below min")
}

func TestClasses(t *testing.T) {
	l := New(func(key string) string { return key[:1] }, time.Millisecond, time.Hour)
	o := l.Observer()
	for range 2 * enough {
		released(o, "short:1", time.Second)
		released(o, "long:1", time.Minute)
		o.LeaseDone(context.Background(), dlock.LeaseDoneInfo{Key: "given away", Held: time.Minute, End: dlock.EndDetached})
	}
	require.InDelta(t, 3*time.Second, l.TTL("short:2"), float64(500*time.Millisecond))
	require.InDelta(t, 3*time.Minute, l.TTL("long:2"), float64(30*time.Second))
	require.Equal(t, time.Hour, l.TTL("given away"))
}

// The allowance covers round trips that are long beside the work.
func TestAllowance(t *testing.T) {
	l := New(nil, time.Millisecond, time.Hour)
	o := l.Observer()
	for range enough {
		released(o, "k", time.Millisecond)
		o.ReleaseDone(context.Background(), dlock.ReleaseDoneInfo{Key: "k", Took: time.Second})
	}
	require.Greater(t, l.TTL("k"), 2*time.Second)
	require.Less(t, l.TTL("k"), 3*time.Second)
}

func TestManyKeys(t *testing.T) {
	l := New(func(key string) string { return key }, time.Millisecond, time.Hour)
	o := l.Observer()
	use := func(i int) {
		key := fmt.Sprint("key ", i)
		l.TTL(key)
		released(o, key, time.Second)
	}
	for i := range 1000 {
		use(i)
	}
	before := heap()
	for i := range 100_000 {
		use(i)
	}
	require.Less(t, heap()-before, int64(100_000))
	require.Len(t, l.classes, maxClasses+1)
	require.InDelta(t, 3*time.Second, l.TTL("unseen"), float64(500*time.Millisecond))
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestQuantiles(t *testing.T) {
	var none times
	require.Zero(t, none.quantile(0.99))
	require.Zero(t, none.mean())
	var all times
	for i := range 100 {
		all.add(time.Duration(i+1) * time.Second)
	}
	require.InDelta(t, 50*time.Second, all.mean(), float64(time.Second))
	for q, want := range map[float64]time.Duration{0.5: 50 * time.Second, 0.99: 99 * time.Second, 1: 100 * time.Second} {
		got := all.quantile(q)
		require.GreaterOrEqual(t, got, want, "%v", q)
		require.LessOrEqual(t, got, want*112/100, "%v", q)
	}
	all.add(math.MaxInt64)
	all.add(-1)
	require.Positive(t, all.quantile(1))
}

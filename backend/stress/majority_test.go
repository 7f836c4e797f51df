package stress

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	byMajority = "redlock" // in place of a library's name: all work on the same keys

	// majorityTTL is the TTL of all leases, and the longest TTL.
	majorityTTL = loadTTL
	// young is how long an emptied server does not vote, with a little more.
	young = majorityTTL + majorityTTL/100 + time.Second + 100*time.Millisecond
)

// A majority is a bed of independent servers, each behind a proxy.
type majority struct {
	servers []*redistest.Server
	proxies []*faultproxy.Proxy
	served  func() // waits until some have been granted a lock
}

func newMajority(t *testing.T, servers ...*redistest.Server) *majority {
	m := &majority{servers: servers}
	for _, s := range servers {
		p, err := faultproxy.New(s.Addr())
		require.NoError(t, err)
		t.Cleanup(p.Close)
		m.proxies = append(m.proxies, p)
	}
	return m
}

func (m *majority) Addrs() (addrs []string) {
	for _, p := range m.proxies {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

func (m *majority) Masters(testing.TB) []*redistest.Server        { return m.servers }
func (m *majority) MasterOf(testing.TB, string) *redistest.Server { return m.servers[0] }

// Faults returns what can happen to one server, to as many as a majority can do without, and to all.
func (m *majority) Faults() (all []redistest.Fault) {
	n := len(m.servers)
	for _, kind := range []struct {
		name         string
		begin, end   func(i int)
		lasts, after time.Duration
	}{
		{"killed", func(i int) { m.servers[i].Kill() }, func(i int) { m.servers[i].Restart() }, 0, young},
		{"restarted", func(i int) { m.servers[i].Restart() }, func(int) {}, 0, young},
		{"suspended", func(i int) { m.servers[i].Suspend() }, func(i int) { m.servers[i].Resume() }, majorityTTL * 3 / 2, 0},
		{"delayed", func(i int) {
			m.proxies[i].Slow(faultproxy.Both, faultproxy.Pace{Latency: 250 * time.Millisecond})
		}, func(i int) { m.proxies[i].Slow(faultproxy.Both, faultproxy.Pace{}) }, majorityTTL, 0},
	} {
		for _, struck := range slices.Compact([]int{1, (n - 1) / 2, n}) {
			all = append(all, redistest.Fault{Name: fmt.Sprint(struck, " ", kind.name), Strike: func(testing.TB) time.Duration {
				begun := time.Now()
				which := rand.Perm(n)[:struck]
				for _, i := range which {
					kind.begin(i)
				}
				time.Sleep(kind.lasts)
				if struck < n {
					m.served()
				}
				for _, i := range which {
					kind.end(i)
				}
				time.Sleep(kind.after)
				if struck < n {
					return 0
				}
				return time.Since(begun)
			}})
		}
	}
	return all
}

// dial returns a Locker that decides by the majority, as one process has it.
func (m *majority) dial(t *testing.T, library int, opts ...redlock.Option) (l *redlock.Locker, closeAll func()) {
	var nodes []dlock.Locker
	var closers []func()
	for _, addr := range m.Addrs() {
		node, closeClient, err := libraries[library].dial(addr, patience)
		require.NoError(t, err)
		nodes = append(nodes, node)
		closers = append(closers, func() {
			node.Close()
			closeClient()
		})
	}
	return redlock.New(nodes, opts...), func() {
		for _, f := range closers {
			f()
		}
	}
}

// TestMajority strikes beds of independent servers with faults under load. See the package
// documentation.
func TestMajority(t *testing.T) {
	text := long.Of("majority")
	if text == "" {
		t.Skip("set DLOCK_LONG=majority=2m")
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	awaitGoroutines := watchGoroutines(t)
	t.Run("Beds", func(t *testing.T) {
		for _, bed := range []struct {
			name  string
			n     int
			apart time.Duration
		}{
			{"3", 3, 0},
			{"5", 5, 0},
			{"5, clocks apart", 5, time.Hour},
		} {
			t.Run(bed.name, func(t *testing.T) {
				t.Parallel()
				var servers []*redistest.Server
				for i := range bed.n {
					if bed.apart == 0 {
						servers = append(servers, redistest.Start(t))
						continue
					}
					// Fences follow real time if servers with clocks that differ do not lose them.
					servers = append(servers, redistest.StartAhead(t, time.Duration(i-bed.n/2)*bed.apart, "--appendonly", "yes", "--appendfsync", "always"))
				}
				m := newMajority(t, servers...)
				l := newLoad(t, m)
				m.served = func() { l.awaitHolds(20) }
				for library := range libraries { // each like a process
					locker, closeAll := m.dial(t, library, redlock.WithLongestTTL(majorityTTL))
					l.start(byMajority, locker, closeAll)
				}
				l.awaitHolds(1)
				l.strike(d)
				l.settle()
				l.report()
			})
		}
	})
	awaitGoroutines()
}

// awaitHolds waits until n more holds have begun.
func (l *load) awaitHolds(n int) {
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.known)
	}
	before := count()
	awaitNil(l.t, "holds while a minority is away", func() error {
		if now := count(); now < before+n {
			return fmt.Errorf("%d, and before %d", now, before)
		}
		return nil
	})
}

// TestEarlyRestart: two of three servers forget a lease. Without the guard, they grant the lock again
// at once, and the judge of histories sees that. With it, they do so when the lease has ended.
func TestEarlyRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, test := range []struct {
		name  string
		opt   redlock.Option
		ttl   time.Duration
		known bool // that certain holds overlap
	}{
		{"WithoutGuard", redlock.WithoutGuard(), time.Hour, true},
		{"Guarded", redlock.WithLongestTTL(majorityTTL), majorityTTL, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMajority(t, redistest.Start(t), redistest.Start(t), redistest.Start(t))
			j := newJournal()
			hold := func(id int64) {
				l, closeAll := m.dial(t, 0, test.opt)
				t.Cleanup(closeAll)
				t.Cleanup(func() { l.Close() })
				c := dlock.New(l, dlock.WithTTL(test.ttl), dlock.WithRenewal(false), dlock.WithFence(true))
				t.Cleanup(func() { c.Close() })
				var lease *dlock.Lease
				var asked int64
				awaitNil(t, "a majority", func() (err error) {
					asked = now()
					lease, err = c.Acquire(t.Context(), "k")
					return err
				})
				until := lease.Deadline().UnixNano()
				j.note("", event{Kind: holdBegins, ID: id, Key: "k", Asked: asked, At: now(), Until: until, Fence: lease.Fence()})
				j.note("", event{Kind: holdEnds, ID: id, At: until}) // it is never released
			}
			hold(1)
			m.servers[0].Restart()
			m.servers[1].Restart()
			hold(2)
			h, _ := j.judged()
			require.Equal(t, test.known, len(h.Overlaps()) > 0, "%v", h.Holds)
		})
	}
}

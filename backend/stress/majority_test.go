package stress

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
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
	slow := func(i int, by time.Duration) { m.proxies[i].Slow(faultproxy.Both, faultproxy.Pace{Latency: by}) }
	for _, kind := range []struct {
		name         string
		begin, end   func(i int)
		lasts, after time.Duration
	}{
		{"killed", func(i int) { m.servers[i].Kill() }, func(i int) { m.servers[i].Restart() }, 0, young},
		{"restarted", func(i int) { m.servers[i].Restart() }, func(int) {}, 0, young},
		{"suspended", func(i int) { m.servers[i].Suspend() }, func(i int) { m.servers[i].Resume() }, majorityTTL * 3 / 2, 0},
		{"delayed", func(i int) { slow(i, 250*time.Millisecond) }, func(i int) { slow(i, 0) }, majorityTTL, 0},
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

// open opens a Locker that decides by the majority, as one process has it.
func (m *majority) open(lib clients.Library) opener {
	return func() (dlock.Locker, func(), error) {
		var nodes []dlock.Locker
		var closers []func()
		for _, addr := range m.Addrs() {
			node, closeNode, err := openWith(lib, clients.At(addr))()
			if err != nil {
				return nil, nil, err
			}
			nodes, closers = append(nodes, node), append(closers, closeNode)
		}
		l := redlock.New(nodes, redlock.WithLongestTTL(majorityTTL))
		return l, func() {
			l.Close()
			for _, f := range closers {
				f()
			}
		}, nil
	}
}

// TestMajority strikes beds of independent servers with faults under load. See the package
// documentation.
func TestMajority(t *testing.T) {
	on := func(n int, apart time.Duration) func(*testing.T) *load {
		return func(t *testing.T) *load {
			m := new(majority)
			for i := range n {
				start := redistest.Start
				if apart != 0 { // Fences follow real time if servers with clocks that differ do not lose them.
					start = func(t testing.TB, args ...string) *redistest.Server {
						return redistest.StartAhead(t, time.Duration(i-n/2)*apart, "--appendonly", "yes", "--appendfsync", "always")
					}
				}
				s := start(t)
				p, err := faultproxy.New(s.Addr())
				require.NoError(t, err)
				t.Cleanup(p.Close)
				m.servers, m.proxies = append(m.servers, s), append(m.proxies, p)
			}
			l := newLoad(t, m)
			m.served = func() { l.awaitHolds(20) }
			for _, lib := range clients.All { // each like a process
				l.start(byMajority, m.open(lib))
			}
			l.awaitHolds(1)
			return l
		}
	}
	onBeds(t, "majority", map[string]func(*testing.T) *load{"3": on(3, 0), "5": on(5, 0), "5, clocks apart": on(5, time.Hour)})
}

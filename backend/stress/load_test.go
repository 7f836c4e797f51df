package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	loadTTL    = 2 * time.Second
	loadPace   = 5 * time.Second // from one fault to the next, at least
	shortHold  = 60 * time.Millisecond
	longHold   = 2 * loadTTL      // of leases that are renewed
	loadCrowd  = 8                // workers of each process, for locks that are held shortly
	retryLimit = 20 * time.Second // for clients and waiters to find the new master, on a busy machine

	masterName = "mymaster"
	byMajority = "redlock"   // in place of a library's name: all work on the same keys
	durable    = "+replicas" // is added to the name of a library that works with WithReplicas
)

// exact reports whether a library promises that no certain holds overlap, whatever the fault.
func exact(library string) bool { return library == byMajority || strings.HasSuffix(library, durable) }

// TestTopology strikes Sentinel and a cluster with faults under load. Each library works with WithReplicas and without, on
// different keys. Certain holds may overlap only without: Redis acknowledges writes that a failover loses, and a former master
// grants locks until it knows. For the same reason a grant that takes long to arrive may have a lower fence than one that
// another master made later.
func TestTopology(t *testing.T) {
	onBeds(t, "topology", map[string]func(*testing.T) *load{
		"Sentinel": func(t *testing.T) *load {
			return topology(t, redistest.StartSentinels(t, masterName), clients.Settings{Master: masterName}, 2)
		},
		"Cluster": func(t *testing.T) *load {
			return topology(t, redistest.StartCluster(t, 3, 1), clients.Settings{Cluster: true}, 1)
		},
	})
}

// topology has as many clients as two processes for each library would have, with WithReplicas and without.
func topology(t *testing.T, bed redistest.Bed, s clients.Settings, replicas int) *load {
	l := newLoad(t, bed)
	s.Addrs = bed.Addrs()
	for _, lib := range clients.Topologies {
		for range 2 {
			l.start(lib.Name, openWith(lib, s))
			l.start(lib.Name+durable, openWith(lib, s, rediscore.WithReplicas(replicas, patience)))
		}
	}
	return l
}

// onBeds runs a load on each bed, for as long as a part of DLOCK_LONG says, side by side.
func onBeds(t *testing.T, part string, beds map[string]func(*testing.T) *load) {
	d := lasts(t, part, 0)
	if d == 0 {
		t.Skipf("set DLOCK_LONG=%s=2m", part)
	}
	awaitGoroutines := watchGoroutines(t)
	t.Run("Beds", func(t *testing.T) {
		for name, start := range beds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				l := start(t)
				l.strike(d)
				l.settle()
				l.closeAll()
				l.report(func(v *history.Violation) bool {
					library, _, _ := strings.Cut(v.Key, "/")
					return twoMasters(v) && !exact(library)
				})
			})
		}
	})
	awaitGoroutines()
}

// A load is a round in which workers use locks on a bed.
type load struct {
	*round
	bed     redistest.Bed
	clients []*dlock.Client // those with WithReplicas
}

func newLoad(t *testing.T, bed redistest.Bed) *load {
	l := &load{round: newRound(t, func() []*redistest.Server { return bed.Masters(t) }), bed: bed}
	l.workers.ttls, l.workers.lossy = []time.Duration{loadTTL}, true
	return l
}

// start starts the workers of one process: some take one of a few locks for a short time, one takes a set of them, and one
// keeps a lock for longer.
func (l *load) start(library string, open opener) {
	var keys []string
	for i := range 6 {
		keys = append(keys, fmt.Sprint(library, "/", i))
	}
	c, err := l.workers.start(library, open, loadCrowd+2, func(w *worker, i int) {
		key, below := keys[rand.IntN(len(keys))], shortHold
		switch i {
		case loadCrowd:
			w.set(keys)
			return
		case loadCrowd + 1:
			key, below = library+"/long", longHold
		}
		if lease := w.acquire(w.limit, w.client, key); lease != nil {
			w.holdBelow(below)(lease)
		}
	})
	require.NoError(l.t, err)
	if strings.HasSuffix(library, durable) {
		l.clients = append(l.clients, c)
	}
}

// strike strikes the bed with all faults, in any order, until d has passed.
func (l *load) strike(d time.Duration) {
	end := time.Now().Add(d)
	sleep(l.limit, time.Second)
	for !l.t.Failed() {
		faults := l.bed.Faults()
		rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			if time.Now().After(end) {
				return
			}
			begun := l.Now()
			l.fault("%s", f.Name)
			checkJob := func() {}
			if f.Name == "killed" {
				checkJob = l.startNightly()
			}
			failover := f.Strike(l.t)
			l.fault("all is well")
			l.t.Logf("at %v, %s: %v until a replica was master, %v until all was well", begun, f.Name, failover, l.Now()-begun)
			checkJob()
			l.awaitServed(l.Now())
			sleep(l.limit, loadPace-(l.Now()-begun))
		}
	}
}

// awaitServed waits until nobody waits any more for a lock that is held shortly and was asked for before
// an instant, at most for a TTL and what clients need. So no wait is struck by two faults.
func (l *load) awaitServed(at time.Duration) {
	awaitNil(l.t, "all to be served", loadTTL+retryLimit, func() error {
		if left := l.waiting(func(w *wait) bool { return w.from < at && !strings.HasSuffix(w.key, "/long") }); len(left) > 0 {
			return errors.New(left[0])
		}
		return nil
	})
}

// awaitHolds waits until n more holds have begun.
func (l *load) awaitHolds(n int) {
	before := l.count("holds")
	awaitNil(l.t, "holds while a minority is away", calmLimit, func() error {
		if now := l.count("holds"); now < before+n {
			return fmt.Errorf("%d, and before %d", now, before)
		}
		return nil
	})
}

// twoMasters reports whether two masters at the same time explain a violation: both grant the lock, and the fences
// follow the clock.
func twoMasters(v *history.Violation) bool {
	first, second := v.Holds[0], v.Holds[len(v.Holds)-1]
	return second.Asked <= first.Start || first.Fence < second.Fence
}

// startNightly starts a job on all Clients with WithReplicas, as the replicas of a service do, before and after a master is
// killed. The function that it returns checks that the job has run once, and that nobody failed: the others find the key held,
// because of its minimum hold.
func (l *load) startNightly() (check func()) {
	key := fmt.Sprint("nightly", l.Now())
	ctx, cancel := context.WithCancel(l.limit)
	var runs atomic.Int64
	ended := make(chan error, len(l.clients))
	for _, c := range l.clients {
		c = c.With(dlock.WithOutage(time.Minute), dlock.WithTTL(dlock.DefaultTTL), dlock.WithMinHold(10*time.Minute))
		go func() {
			sleep(ctx, rand.N(2*time.Second))
			ended <- c.Do(ctx, key, func(context.Context, *dlock.Lease) error { runs.Add(1); return nil })
		}()
	}
	return func() {
		awaitNil(l.t, "the job to run, and the others to wait", calmLimit, func() error {
			s, err := l.clients[0].Inspect(ctx, key)
			if err != nil || s.Waiting+len(ended) < len(l.clients) {
				return fmt.Errorf("%d have ended, %d wait, %v", len(ended), s.Waiting, err)
			}
			return nil
		})
		cancel()
		for range l.clients {
			if err := <-ended; err != nil && !errors.Is(err, dlock.ErrHeld) {
				l.t.Errorf("the nightly job: %v", err)
			}
		}
		if n := runs.Load(); n != 1 {
			l.t.Errorf("the nightly job ran %d times", n)
		}
		s, err := l.clients[0].Inspect(l.limit, key)
		require.NoError(l.t, err)
		require.NoError(l.t, l.clients[0].Break(l.limit, s))
	}
}

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
				p := adaptertest.Proxy(t, s.Addr())
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

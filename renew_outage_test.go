package dlock_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/long"
)

// How many RenewBatch calls a Client has in flight, and how many leases each has.
const (
	parallel = 32
	perBatch = 1000
)

// An outage of a store on which a Client has leases.
type outage struct {
	ttl    time.Duration
	leases int
	rtt    time.Duration
	fault  fault
	begun  string // how the leases were acquired
	length time.Duration
	phase  int // when the outage begins, in tenths of the renewal period after the last acquisition
}

// How the leases were acquired.
const (
	together = "together" // at one instant
	spread   = "spread"   // over a renewal period, so that deadlines differ
	mixed    = "mixed"    // at one instant, with TTLs of one, two and three thirds
)

func (o outage) String() string {
	return fmt.Sprintf("%s,length=%v,phase=%d", o.group(), o.length, o.phase)
}

func (o outage) group() string {
	return fmt.Sprintf("ttl=%v,leases=%d,rtt=%v,%s,%s", o.ttl, o.leases, o.rtt, o.fault, o.begun)
}

// needed is how long the store must be back until all leases are renewed: the round trips of
// the batches, and one for a call in flight. Calls that ignore their ctx occupy all workers
// until they return.
func (o outage) needed() time.Duration {
	batches := (o.leases + perBatch - 1) / perBatch
	needed := time.Duration((batches+parallel-1)/parallel+1)*o.rtt + 2*time.Millisecond
	if o.fault == ignore {
		needed += ignored
	}
	return needed
}

// everyOutage returns the whole sweep.
func everyOutage() (all []outage) {
	const first, step = 500 * time.Millisecond, 100 * time.Millisecond
	for _, ttl := range []time.Duration{5 * time.Second, 30 * time.Second} {
		for _, leases := range []int{1000, 30_000} {
			for _, rtt := range []time.Duration{1, 25, 100} {
				for _, f := range []fault{refuse, hang, ignore, lose} {
					for _, begun := range []string{together, spread, mixed} {
						for length := first; length <= ttl-first; length += step {
							for phase := range 10 {
								all = append(all, outage{ttl, leases, rtt * time.Millisecond, f, begun, length, phase})
							}
						}
					}
				}
			}
		}
	}
	return all
}

// sampleOutages returns some outages of the sweep, and those that once lost leases.
func sampleOutages() []outage {
	some := []outage{
		{30 * time.Second, 30_000 / israce.Slower, 25 * time.Millisecond, refuse, together, 6 * time.Second, 6},
		{30 * time.Second, 30_000 / israce.Slower, 25 * time.Millisecond, refuse, together, 6 * time.Second, 9},
		{5 * time.Second, 5000 / israce.Slower, 25 * time.Millisecond, refuse, together, 2700 * time.Millisecond, 5},
	}
	small := slices.DeleteFunc(everyOutage(), func(o outage) bool { return o.leases > 1000 })
	const stride = 1202*israce.Slower - 1 // has no factor in common with the sizes of the sweep
	for i := 0; i < len(small); i += stride {
		some = append(some, small[i])
	}
	return some
}

// No lease is lost in an outage that leaves it the time to be renewed.
//
// By default it is a fixed sample. The sweep, in random order:
// DLOCK_LONG=outages=all go test -run TestOutages -timeout 0 .
// As much of it as a time allows: DLOCK_LONG=outages=1h. One of its outages:
// DLOCK_LONG=outages=all go test -run 'TestOutages/^ttl=…$' .
func TestOutages(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	outages, end := sampleOutages(), time.Time{}
	if text := long.Of("outages"); text != "" {
		outages = everyOutage()
		rand.Shuffle(len(outages), func(i, j int) { outages[i], outages[j] = outages[j], outages[i] })
		if text != "all" {
			d, err := time.ParseDuration(text)
			require.NoError(t, err)
			end = time.Now().Add(d)
		}
	}
	var s sweep
	next := make(chan outage)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for o := range next {
				t.Run(o.String(), func(t *testing.T) { s.run(t, o) })
			}
		})
	}
	for _, o := range outages {
		if !end.IsZero() && time.Now().After(end) {
			break
		}
		next <- o
	}
	close(next)
	workers.Wait()
	s.log(t)
}

// A sweep counts lost leases by group of outages.
type sweep struct {
	mu     sync.Mutex
	groups map[string]*tally
}

type tally struct{ outages, bad, lost int }

func (s *sweep) run(t *testing.T, o outage) {
	lost := 0
	bubble.Test(t, func(t *testing.T) { lost = o.lost(t) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups == nil {
		s.groups = make(map[string]*tally)
	}
	g := s.groups[o.group()]
	if g == nil {
		g = new(tally)
		s.groups[o.group()] = g
	}
	g.outages++
	g.lost += lost
	if lost > 0 {
		g.bad++
		t.Errorf("%d leases lost that had %v or more left when the store was back, want 0", lost, o.needed())
	}
}

func (s *sweep) log(t *testing.T) {
	names := make([]string, 0, len(s.groups))
	var all tally
	for name, g := range s.groups {
		names = append(names, name)
		all.outages, all.bad, all.lost = all.outages+g.outages, all.bad+g.bad, all.lost+g.lost
	}
	slices.Sort(names)
	for _, name := range names {
		if g := s.groups[name]; g.bad > 0 {
			t.Logf("%-50s %6d outages, %6d of them lost %8d leases", name, g.outages, g.bad, g.lost)
		}
	}
	t.Logf("%d outages, %d of them lost %d leases that had time left", all.outages, all.bad, all.lost)
}

// lost makes the outage happen. It returns how many leases were lost although they had enough
// time when it was over.
func (o outage) lost(t *testing.T) (lost int) {
	_, n := overWire(t)
	c := dlock.New(n, dlock.WithTTL(o.ttl))
	leases := o.acquire(t, c)
	n.setRTT(o.rtt)
	time.Sleep(o.ttl / 30 * time.Duration(o.phase))
	back := n.fail(o.fault, o.length)

	deadlines := make([]time.Time, len(leases))
	for i, l := range leases {
		deadlines[i] = l.Deadline()
	}
	for i, l := range leases {
		for l.Err() == nil && !l.Deadline().After(deadlines[i]) {
			if time.Since(back) > o.ttl {
				t.Fatalf("lease %d is neither renewed nor lost %v after the return of the store", i, time.Since(back))
			}
			time.Sleep(o.ttl / 20)
		}
		if l.Err() != nil && !deadlines[i].Before(back.Add(o.needed())) {
			lost++
		}
	}
	n.setRTT(0)
	if err := c.Close(); err != nil {
		t.Log(err)
	}
	return lost
}

// acquire acquires the leases in no time, or in one renewal period.
func (o outage) acquire(t *testing.T, c *dlock.Client) []*dlock.Lease {
	const steps = 100
	clients := []*dlock.Client{c}
	if o.begun == mixed {
		clients = append(clients, c.With(dlock.WithTTL(o.ttl*2/3)), c.With(dlock.WithTTL(o.ttl/3)))
	}
	leases := make([]*dlock.Lease, o.leases)
	for i := range leases {
		if o.begun == spread && i%(o.leases/steps) == 0 {
			time.Sleep(o.ttl / 3 / steps)
		}
		leases[i] = acquire(t, clients[i%len(clients)], strconv.Itoa(i))
	}
	return leases
}

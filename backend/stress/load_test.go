package stress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	loadTTL    = 2 * time.Second
	loadPace   = 5 * time.Second // from one fault to the next, at least
	shortHold  = 60 * time.Millisecond
	longHold   = 2 * loadTTL      // of leases that are renewed
	loadKeys   = 6                // of each library, for short holds
	loadCrowd  = 8                // workers of each process, for these keys
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
	s.Addrs, s.Patience, s.Caches = bed.Addrs(), patience, true
	for _, lib := range clients.Topologies {
		for range 2 {
			l.start(lib.Name, func() (closer, func(), error) { return lib.Open(s) })
			l.start(lib.Name+durable, func() (closer, func(), error) { return lib.Open(s, rediscore.WithReplicas(replicas, patience)) })
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
				l.report()
			})
		}
	})
	awaitGoroutines()
}

// A load is a round in which workers use locks on a bed while faults strike it.
type load struct {
	*journal
	t       *testing.T
	bed     redistest.Bed
	workers *workerGroup
	endWork context.CancelFunc
	giveUp  context.CancelFunc // of what they have begun
	clients []*dlock.Client
	struck  []struck
}

// A struck is a fault that has struck.
type struck struct {
	name     string
	at       time.Duration // of the journal
	failover time.Duration // until a replica was master
	whole    time.Duration // until all servers were in their places again
}

func newLoad(t *testing.T, bed redistest.Bed) *load {
	l := &load{journal: newJournal(), t: t, bed: bed}
	l.workers = &workerGroup{seed: rand.Uint64(), ttls: []time.Duration{loadTTL}, note: l.by(""), lossy: true}
	l.workers.limit, l.giveUp = context.WithCancel(t.Context())
	l.workers.stop, l.endWork = context.WithCancel(l.workers.limit)
	l.look()
	return l
}

// start starts the workers of one process: some take one of a few locks for a short time, and one keeps a lock for longer.
func (l *load) start(library string, open opener) {
	c, err := l.workers.connect(library, open)
	require.NoError(l.t, err)
	l.clients = append(l.clients, c)
	for i := range loadCrowd + 1 {
		w := l.workers.worker(library, i, c)
		w.rng = rand.New(rand.NewPCG(rand.Uint64(), 0)) // processes of one name differ
		l.workers.wg.Go(func() {
			for w.stop.Err() == nil {
				if i == loadCrowd {
					w.acquireAndHold(library+"/long", longHold)
				} else {
					w.acquireAndHold(fmt.Sprintf("%s/%d", library, w.rng.IntN(loadKeys)), shortHold)
				}
			}
		})
	}
}

// strike strikes the bed with all faults, in any order, until d has passed.
func (l *load) strike(d time.Duration) {
	end := time.Now().Add(d)
	sleep(l.workers.limit, time.Second)
	for !l.t.Failed() {
		faults := l.bed.Faults()
		rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			if time.Now().After(end) {
				return
			}
			if only := strings.ReplaceAll(long.Of("topology-fault"), "_", " "); only != "" && only != f.Name {
				continue
			}
			begun := time.Now()
			l.fault("%s", f.Name)
			s := struck{name: f.Name, at: l.Now()}
			checkJob := func() {}
			if f.Name == "killed" {
				checkJob = l.startNightly()
			}
			s.failover = f.Strike(l.t)
			s.whole = time.Since(begun)
			l.struck = append(l.struck, s)
			l.fault("all is well")
			checkJob()
			l.awaitServed(l.Now())
			sleep(l.workers.limit, loadPace-time.Since(begun))
			l.look()
		}
	}
}

// settle ends the workers and all that they have left.
func (l *load) settle() {
	l.endWork()
	late := time.AfterFunc(calmLimit, func() { l.t.Errorf("not served:\n%s", strings.Join(l.waiting(), "\n")); l.giveUp() })
	l.workers.wg.Wait()
	late.Stop()
	l.giveUp()
	l.workers.close()
	for _, args := range [][]string{{"KEYS", "*"}, {"PUBSUB", "CHANNELS", "*dlock1*"}, {"PUBSUB", "SHARDCHANNELS", "*dlock1*"}} {
		awaitNil(l.t, strings.Join(args, " ")+" to be empty", func() error {
			for _, m := range l.bed.Masters(l.t) {
				var reply redistest.Error
				if err := left(m, args...); err != nil && !errors.As(err, &reply) { // before Redis 7 there are no shard channels
					return err
				}
			}
			return nil
		})
	}
}

// awaitServed waits until nobody waits any more for a lock that is held shortly and was asked for before
// an instant, so that no wait is struck by two faults.
func (l *load) awaitServed(at time.Duration) {
	awaitNil(l.t, "all to be served", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, w := range l.waits {
			if w.from < at && !isLong(w.key) {
				return errors.New(w.String())
			}
		}
		return nil
	})
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

func isLong(key string) bool { return strings.HasSuffix(key, "/long") }

// during returns the last fault before an instant.
func (l *load) during(at time.Duration) (last struck) {
	last.name = "no fault"
	for _, s := range l.struck {
		if s.at <= at {
			last = s
		}
	}
	return last
}

// report logs what the faults have done, and fails the test for what must not be.
func (l *load) report() {
	if l.inconclusive(l.t) {
		return
	}
	overlaps, waits, failovers := make(map[string]int), make(map[string]time.Duration), make(map[string][]string)
	h, violations := l.judged(1)
	library := func(v *history.Violation) string { before, _, _ := strings.Cut(v.Key, "/"); return before }
	for _, v := range h.Overlaps() {
		overlaps[l.during(v.Holds[1].Start).name+", "+library(v)]++
	}
	for _, v := range violations {
		fault := l.during(v.Holds[len(v.Holds)-1].Start).name
		if twoMasters(v) && !exact(library(v)) {
			l.t.Logf("after %s, %v", fault, v)
		} else {
			l.t.Errorf("after %s, %v\n%s", fault, v, l.around(v.Key, v.Holds[0].End))
		}
	}
	for _, e := range l.errors {
		l.t.Error(e)
	}
	for _, w := range l.waited {
		if isLong(w.key) {
			continue
		}
		fault, took := l.during(w.to), w.to-w.from
		what, outage := fault.name+", "+w.who, fault.failover
		if exact(w.who) {
			outage = fault.whole
		}
		waits[what] = max(waits[what], took-outage)
		if took > outage+loadTTL+retryLimit {
			l.t.Errorf("after %s, %v long: %s waited %v for %q", fault.name, outage, w.who, took, w.key)
		}
	}
	for _, s := range l.struck {
		failovers[s.name] = append(failovers[s.name], s.failover.Round(10*time.Millisecond).String())
	}
	l.t.Log(l.summary())
	for _, name := range slices.Sorted(maps.Keys(failovers)) {
		l.t.Logf("%s %d times; failovers took %s", name, len(failovers[name]), strings.Join(failovers[name], ", "))
	}
	for _, what := range slices.Sorted(maps.Keys(waits)) {
		l.t.Logf("after %s: longest wait %v beyond the outage, %d overlaps of certain holds", what, waits[what].Round(10*time.Millisecond), overlaps[what])
	}
	for _, text := range slices.SortedFunc(maps.Keys(l.failures), func(a, b string) int { return cmp.Compare(l.failures[b], l.failures[a]) }) {
		l.t.Logf("%d calls failed: %s", l.failures[text], text)
	}
}

// twoMasters reports whether two masters at the same time explain a violation: both grant the lock, and the fences
// follow the clock.
func twoMasters(v *history.Violation) bool {
	first, second := v.Holds[0], v.Holds[len(v.Holds)-1]
	return second.Asked <= first.Start || first.Fence < second.Fence
}

// startNightly starts a job, as the replicas of a service all do, on all Clients of the load as soon as a master is down, with a
// key of that master. The function that it returns checks that the job has run once, and that nobody failed: the
// others find the key held, because of its minimum hold.
func (l *load) startNightly() (check func()) {
	masters := l.bed.Masters(l.t)
	keys := make(map[*redistest.Server]string)
	for i := 0; len(keys) < len(masters); i++ {
		key := fmt.Sprintf("nightly%d/%d", l.workers.ids.Add(1), i)
		keys[l.bed.MasterOf(l.t, key)] = key
	}
	ctx, cancel := context.WithCancel(l.workers.limit)
	var runs atomic.Int64
	var mu sync.Mutex
	var errs []error // of the replicas that did not run it
	began, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		key := keys[awaitDown(ctx, masters)]
		began <- key
		var replicas sync.WaitGroup
		for _, c := range l.clients {
			c = c.With(dlock.WithOutage(30*time.Second), dlock.WithTTL(dlock.DefaultTTL), dlock.WithMinHold(10*time.Minute))
			replicas.Go(func() {
				sleep(ctx, rand.N(time.Second))
				err := c.Do(ctx, key, func(context.Context, *dlock.Lease) error { runs.Add(1); return nil })
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				}
			})
		}
		replicas.Wait()
	}()
	return func() {
		key := <-began
		awaitNil(l.t, "the job to run, and the others to wait", func() error {
			select {
			case <-ended:
				return nil
			default:
			}
			s, err := l.clients[0].Inspect(ctx, key)
			if runs := runs.Load(); err != nil || s.Waiting+int(runs) < len(l.clients) {
				return fmt.Errorf("%d runs, %d wait, %v", runs, s.Waiting, err)
			}
			return nil
		})
		cancel()
		<-ended
		if runs := runs.Load(); runs != 1 {
			l.t.Errorf("the nightly job ran %d times", runs)
		}
		for _, err := range errs {
			if !errors.Is(err, dlock.ErrHeld) {
				l.t.Errorf("the nightly job: %v", err)
			}
		}
		s, err := l.clients[0].Inspect(l.workers.limit, key)
		if err == nil {
			err = l.clients[0].Break(l.workers.limit, s)
		}
		if err != nil {
			l.t.Errorf("Break(%q): %v", key, err)
		}
	}
}

// awaitDown returns the first of the servers that refuses connections, or nil when ctx ends.
func awaitDown(ctx context.Context, servers []*redistest.Server) *redistest.Server {
	for ctx.Err() == nil {
		for _, s := range servers {
			if _, err := s.Do("PING"); errors.Is(err, syscall.ECONNREFUSED) {
				return s
			}
		}
		time.Sleep(pause)
	}
	return nil
}

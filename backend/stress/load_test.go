package stress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
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
)

// A load is a round in which workers use locks on a bed while faults strike it.
type load struct {
	*journal
	t       *testing.T
	begun   time.Time
	bed     redistest.Bed
	stop    context.Context // for the workers: they finish what they have begun
	endWork context.CancelFunc
	limit   context.Context // for what they have begun
	giveUp  context.CancelFunc
	workers sync.WaitGroup
	closers []func()
	clients []*dlock.Client
	struck  []struck

	answers sync.Mutex
	waited  []wait         // all waits that have ended
	failed  map[string]int // calls of Acquire, by fault and error
}

// A struck is a fault that has struck.
type struck struct {
	name     string
	at       time.Duration // of the journal
	failover time.Duration // until a replica was master
	whole    time.Duration // until all servers were in their places again
}

func newLoad(t *testing.T, bed redistest.Bed) *load {
	l := &load{journal: newJournal(), t: t, begun: time.Now(), bed: bed, failed: make(map[string]int)}
	l.limit, l.giveUp = context.WithCancel(t.Context())
	l.stop, l.endWork = context.WithCancel(l.limit)
	l.look(l.begun)
	return l
}

// A closer is a backend with goroutines of its own.
type closer interface {
	dlock.Locker
	Close() error
}

// start starts the workers of one process.
func (l *load) start(library string, locker closer, closeClient func()) {
	c := dlock.New(locker, dlock.WithTTL(loadTTL), dlock.WithFence(true), dlock.WithOwner(library))
	l.clients = append(l.clients, c)
	l.closers = append(l.closers, func() {
		c.Close()
		locker.Close()
		closeClient()
	})
	for range loadCrowd {
		l.workers.Go(func() {
			for l.stop.Err() == nil {
				l.cycle(c, library, fmt.Sprintf("%s/%d", library, rand.IntN(loadKeys)), shortHold)
			}
		})
	}
	l.workers.Go(func() {
		for l.stop.Err() == nil {
			l.cycle(c, library, library+"/long", longHold)
		}
	})
}

// cycle acquires a lock, holds it for at most d, and releases it.
func (l *load) cycle(c *dlock.Client, library, key string, d time.Duration) {
	wait := wait{who: library, key: key, from: l.Now()}
	id := ids.Add(1)
	l.note("", event{Kind: waitBegins, ID: id, Who: library, Key: key, At: now()})
	asked := now()
	lease, err := c.Acquire(l.limit, key)
	for err != nil {
		if l.limit.Err() != nil {
			return
		}
		l.answer(func() { l.failed[address.ReplaceAllString(err.Error(), "…")]++ })
		sleep(l.limit, 10*time.Millisecond)
		asked = now()
		lease, err = c.Acquire(l.limit, key)
	}
	wait.to = l.Now()
	l.note("", event{Kind: waitEnds, ID: id})
	l.answer(func() { l.waited = append(l.waited, wait) })
	id = ids.Add(1)
	l.note("", event{Kind: holdBegins, ID: id, Who: library, Key: key, Asked: asked, At: now(), Until: lease.Deadline().UnixNano(), Fence: lease.Fence()})
	held := time.NewTimer(rand.N(d))
	defer held.Stop()
	select {
	case <-held.C:
	case <-lease.Done():
	}
	l.note("", event{Kind: holdEnds, ID: id, At: min(now(), lease.Deadline().UnixNano())})
	if err := lease.Release(); errors.Is(err, dlock.ErrLost) {
		l.add("lost", 1)
	}
}

func (l *load) answer(f func()) {
	l.answers.Lock()
	defer l.answers.Unlock()
	f()
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
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
			sleep(l.limit, loadPace-time.Since(begun))
			l.look(l.begun)
		}
	}
}

// settle ends the workers and all that they have left.
func (l *load) settle() {
	l.endWork()
	late := time.AfterFunc(calmLimit, func() {
		l.t.Errorf("not served:\n%s", strings.Join(l.waiting(), "\n"))
		l.giveUp()
	})
	l.workers.Wait()
	late.Stop()
	l.giveUp()
	var closing sync.WaitGroup
	for _, f := range l.closers {
		closing.Go(f)
	}
	closing.Wait()
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
	l.look(l.begun)
	if l.stepped {
		l.t.Log("inconclusive: the clock of this machine was set during the round")
		return
	}
	overlaps, waits, failovers := make(map[string]int), make(map[string]time.Duration), make(map[string][]string)
	h, violations := l.judged()
	for _, v := range h.Overlaps() {
		library, _, _ := strings.Cut(v.Key, "/")
		overlaps[l.during(v.Holds[1].Start).name+", "+library]++
	}
	for _, v := range violations {
		fault := l.during(v.Holds[len(v.Holds)-1].Start).name
		if library, _, _ := strings.Cut(v.Key, "/"); twoMasters(v) && !exact(library) {
			l.t.Logf("after %s, %v", fault, v)
		} else {
			l.t.Errorf("after %s, %v\n%s", fault, v, l.around(v.Key, v.Holds[0].End))
		}
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
	l.t.Logf("%v: %s", time.Since(l.begun).Round(time.Second), l.summary())
	for _, name := range slices.Sorted(maps.Keys(failovers)) {
		l.t.Logf("%s %d times; failovers took %s", name, len(failovers[name]), strings.Join(failovers[name], ", "))
	}
	for _, what := range slices.Sorted(maps.Keys(waits)) {
		l.t.Logf("after %s: longest wait %v beyond the outage, %d overlaps of certain holds", what, waits[what].Round(10*time.Millisecond), overlaps[what])
	}
	for _, text := range slices.SortedFunc(maps.Keys(l.failed), func(a, b string) int { return cmp.Compare(l.failed[b], l.failed[a]) }) {
		l.t.Logf("%d calls failed: %s", l.failed[text], text)
	}
}

// twoMasters reports whether two masters at the same time explain a violation: both grant the lock, and the fences
// follow the clock.
func twoMasters(v *history.Violation) bool {
	first, second := v.Holds[0], v.Holds[len(v.Holds)-1]
	return second.Asked <= first.Start || first.Fence < second.Fence
}

// exact reports whether a library promises that no certain holds overlap, whatever the fault.
func exact(library string) bool { return library == byMajority || strings.HasSuffix(library, durable) }

var address = regexp.MustCompile(`127\.0\.0\.1:\d+|"[^"]*"|\b\d[\d.]*[nµm]?s\b|: node \d+: .*`)

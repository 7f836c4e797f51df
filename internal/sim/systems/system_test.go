package systems

import (
	"fmt"
	"hash"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/sim"
)

// A system is what a plan is carried out with, in a bubble.
type system struct {
	*plan
	servers  []*sim.Server // masters
	recorder *history.Recorder
	start    time.Time
	mishap   map[string]mishap // that have happened

	mu        sync.Mutex
	journal   hash.Hash64 // nil if nobody wants it
	lines     []string    // of the journal at one instant, which have no order
	noted     time.Duration
	log       func(string)           // called with each line of the journal
	taken     map[time.Time]struct{} // instants at which something happens
	clients   []*client              // that live
	lives     map[string]int         // tokens, by how many calls and holds rely on them
	of        map[string]*client     // whose tokens they are
	restarted time.Duration          // when a server last lost its data; 0 if none has
	failing   sync.Mutex
	behind    time.Duration // how many promotions there were, each to a clock that is a second behind; guarded by failing
	promoted  time.Time     // the last replica; releases may be lost then
	failures  []failure
}

// A failure is something that is wrong with a system.
type failure struct {
	kind, text string
	violation  *history.Violation
}

// A result is what a plan has led to.
type result struct {
	failures []failure
	plan     *plan  // the plan, with all mishaps
	journal  uint64 // a hash of all that has happened
	history  *history.History
	holds    int
	scripts  int
}

// run carries a plan out. It calls log, if it is not nil, with all that happens.
func (p *plan) run(t *testing.T, log func(line string)) (r result) {
	defer chance.Seed(p.seed)()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	r.plan = p
	defer func() {
		if broken := recover(); broken != nil {
			r.failures = append(r.failures, failure{kind: "stuck", text: fmt.Sprint(broken)})
		}
	}()
	synctest.Test(t, func(*testing.T) {
		s := newSystem(p)
		if s.log = log; log != nil {
			s.journal = fnv.New64a()
		}
		s.run()
		r = s.result()
	})
	return r
}

func newSystem(p *plan) *system {
	s := &system{
		plan: p, start: time.Now(), mishap: make(map[string]mishap),
		taken: make(map[time.Time]struct{}), lives: make(map[string]int), of: make(map[string]*client),
	}
	for range p.kind.stores() {
		s.servers = append(s.servers, sim.NewServer())
	}
	for range p.kind.replicas() {
		s.servers[0].NewReplica().SetLink(sim.Link{Delay: p.lag})
	}
	if p.kind == majority { // whose servers have to be old enough
		s.start = s.start.Add(p.ttl + 2*time.Second)
	}
	s.recorder = history.NewRecorder(s.start)
	for i := range p.turns {
		s.clients = append(s.clients, s.newClient(i, 0))
	}
	return s
}

func (s *system) run() {
	time.Sleep(time.Until(s.start))
	var faults, work, watch sync.WaitGroup
	for _, f := range s.faults {
		faults.Go(func() {
			s.sleep(f.at)
			s.strike(f)
		})
	}
	for _, j := range s.jobs {
		work.Go(func() {
			s.sleep(j.at)
			s.client(j.client).work(j)
		})
	}
	over := make(chan struct{})
	watch.Go(func() { s.watch(over) })
	s.sleep(s.end())
	faults.Wait()
	s.settle()
	work.Wait()
	close(over)
	watch.Wait()
	s.clean()
	s.judge()
}

func (s *system) result() result {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := *s.plan
	full.mishaps = s.mishap
	r := result{failures: s.failures, plan: &full, history: s.recorder.History()}
	if s.journal != nil {
		s.flushLocked()
		r.journal = s.journal.Sum64()
	}
	r.holds = len(r.history.Holds)
	for _, server := range s.servers {
		r.scripts += server.Cost().Scripts
	}
	return r
}

// now is the time since the servers were ready.
func (s *system) now() time.Duration { return time.Since(s.start) }

// client returns the living client of a number.
func (s *system) client(i int) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[i]
}

// moment returns an instant after d, at which nothing else happens that the plan or the network does:
// what happens at the same instant would happen in any order.
func (s *system) moment(d time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.momentLocked(d)
}

func (s *system) momentLocked(d time.Duration) time.Time {
	for t := time.Now().Add(d); ; t = t.Add(1) {
		if _, ok := s.taken[t]; !ok {
			s.taken[t] = struct{}{}
			return t
		}
	}
}

// before returns an instant after d, or when the last storm is over, if that is sooner: the work ends then.
func (s *system) before(d time.Duration) time.Time { return s.moment(max(0, min(d, s.end()-s.now()))) }

// sleep sleeps until a time of the plan.
func (s *system) sleep(until time.Duration) { time.Sleep(time.Until(s.moment(until - s.now()))) }

// note writes a line of the journal.
func (s *system) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteLocked(format, args...)
}

func (s *system) noteLocked(format string, args ...any) {
	if s.journal == nil {
		return
	}
	if now := s.now(); now != s.noted {
		s.flushLocked()
		s.noted = now
	}
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *system) flushLocked() {
	slices.Sort(s.lines)
	for _, line := range s.lines {
		line = fmt.Sprintf("%14.6fms  %s\n", float64(s.noted)/1e6, line)
		s.journal.Write([]byte(line))
		s.log(line)
	}
	s.lines = s.lines[:0]
}

// fail notes that something is wrong.
func (s *system) fail(kind, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(failure{kind: kind, text: fmt.Sprintf(format, args...)})
}

func (s *system) failLocked(f failure) {
	s.failures = append(s.failures, f)
	s.noteLocked("%s: %s", f.kind, f.text)
}

// strike lets a fault happen, which is over when it returns.
func (s *system) strike(f fault) {
	s.note("%v", f)
	c, server := s.client(f.client), s.server(f.store)
	switch f.what {
	case kills:
		s.replace(c)
	case cuts:
		c.conns[f.store].Cut()
	case cutsOff:
		s.mu.Lock()
		c.away[f.store] = s.start.Add(f.at + f.lasts)
		s.mu.Unlock()
		s.sleep(f.at + f.lasts)
		c.conns[f.store].Cut()
	case restarts:
		wipe := func() {
			server.Restart()
			server.SetFaults(sim.Faults{Calls: "LOADING Redis is loading the dataset in memory"})
			s.sleep(f.at + min(f.lasts, time.Second))
			server.SetFaults(sim.Faults{})
		}
		s.mu.Lock()
		s.restarted = s.recorder.Now()
		s.mu.Unlock()
		if s.kind == majority { // the others have the data
			wipe()
		} else {
			s.recorder.Wipe(wipe)
		}
	case fails:
		if s.kind == replicas {
			s.promote(f)
		} else {
			s.recorder.Wipe(func() { s.promote(f) }) // some of the data
		}
	default:
		server.SetFaults(map[what]sim.Faults{
			loads:    {Calls: "LOADING Redis is loading the dataset in memory"},
			readOnly: {Writes: "READONLY You can't write against a read only replica."},
			full:     {Full: true},
		}[f.what])
		s.sleep(f.at + f.lasts)
		server.SetFaults(sim.Faults{})
	}
}

// promote lets a replica take the place of its master, which follows it when it is back.
func (s *system) promote(f fault) {
	if !s.failing.TryLock() { // the former master is not back yet
		return
	}
	defer s.failing.Unlock()
	old, all := s.server(0), s.server(0).Replicas()
	old.SetFaults(sim.Faults{Calls: "LOADING Redis is loading the dataset in memory"})
	next := all[0]
	if s.behind++; s.kind == replicas { // which have all that counts, also if their clocks are behind
		next.SetClock(-s.behind * time.Second)
	}
	next.Promote()
	for _, r := range all[1:] {
		r.Follow(next)
	}
	s.mu.Lock()
	s.servers[0], s.promoted = next, time.Now()
	s.mu.Unlock()
	for i := range s.turns {
		s.sleep(s.now() + f.lasts/10) // until the client hears of it
		c := s.client(i)
		c.conns[0].Follow(next)
		c.conns[0].Cut()
	}
	s.sleep(f.at + f.lasts)
	old.Follow(next)
	old.SetFaults(sim.Faults{})
}

// server is a master.
func (s *system) server(i int) *sim.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servers[i]
}

// replace kills a process, and lets another take its place.
func (s *system) replace(c *client) {
	if c.isDead() {
		return
	}
	s.mu.Lock()
	s.clients[c.number] = s.newClient(c.number, c.life+1)
	s.mu.Unlock()
	c.kill()
}

// draws returns random numbers that follow from the seed and a name.
func (p *plan) draws(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(p.seed, h.Sum64()))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package world

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/sim"
)

// A setup says which servers and Clients there are.
type setup struct {
	seed   uint64 // of what the Clients draw
	kind   kind
	ttl    time.Duration
	turns  []int         // of each process: WithLocalTurns, or 0
	lag    time.Duration // of replicas
	outage time.Duration
	only   property // that is looked at; "" for all
	brief  bool     // it ends with the last storm
	board
}

// A kind is what the Clients use.
type kind string

const (
	queues   kind = "queues"
	polls    kind = "polls"    // WithQueue(false)
	majority kind = "redlock"  // on three servers
	replicas kind = "replicas" // WithReplicas(2): a promotion loses no lease
	failover kind = "failover" // with a replica that may be promoted without the last writes
)

// replicas is how many a master has.
func (k kind) replicas() int { return map[kind]int{replicas: 2, failover: 1}[k] }

func (k kind) stores() int {
	if k == majority {
		return 3
	}
	return 1
}

// A driver decides when things happen.
type driver interface {
	sent(*leg)                     // is on its way now
	pause(p *process, name string) // lets what goes on at one instant go on at different ones, in an order that follows from names
	drops(*process) bool           // whether the next release is dropped
}

// A world is some servers, the processes that use them, and what is in flight between them. Whatever happens
// from outside happens alone: all is quiet again before the next.
type world struct {
	*setup
	driver   driver
	start    time.Time // when the servers are ready
	recorder *history.Recorder

	mu        sync.Mutex
	servers   []*sim.Server       // masters
	processes []*process          // that live
	names     map[string]string   // of tokens
	relied    map[string]int      // tokens, by how many calls and holds rely on them
	of        map[string]*process // whose tokens they are
	held      []*hold
	resources map[string]*resource // by key
	lost      time.Duration        // when a server last lost leases; 0 if none has
	failures  []failure
	forgot    map[int]time.Time // when a server of a majority has lost data
	journal   *journal          // nil if nobody wants it
}

func newWorld(s *setup, d driver) *world {
	w := &world{
		setup: s, driver: d, start: time.Now(),
		names: make(map[string]string), relied: make(map[string]int), of: make(map[string]*process),
		resources: make(map[string]*resource), forgot: make(map[int]time.Time),
	}
	for range s.stores() {
		w.servers = append(w.servers, sim.NewServer())
	}
	for range s.kind.replicas() {
		w.servers[0].NewReplica().SetLink(sim.Link{Delay: s.lag})
	}
	if s.kind == majority { // whose servers have to be old enough
		w.start = w.start.Add(s.ttl + 2*time.Second)
		w.setClocksLocked()
	}
	w.recorder = history.NewRecorder(w.start)
	return w
}

// letter is the name of a process.
func letter(number int) string { return string(rune('A' + number)) }

// begin starts the processes.
func (w *world) begin() {
	for i := range w.turns {
		w.processes = append(w.processes, w.newProcess(i, 0))
	}
}

// now is the time since the servers were ready.
func (w *world) now() time.Duration { return time.Since(w.start) }

// process returns the living process of a number.
func (w *world) process(i int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[i]
}

// server is a master.
func (w *world) server(i int) *sim.Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[i]
}

// holder is the token that holds a key, on a majority of the servers, and for how long on the last of them.
func (w *world) holder(key string) (token string, rest time.Duration) {
	votes := make(map[string]int)
	for _, server := range w.servers {
		reply, _ := server.Do("GET", key)
		if token, _ := reply.(string); token != "" {
			if votes[token]++; votes[token] > len(w.servers)/2 {
				ttl, _ := server.Do("PTTL", key)
				return token, time.Duration(ttl.(int64)) * time.Millisecond
			}
		}
	}
	return "", 0
}

// promote makes a replica the master, whose clock is behind the process's. The other replicas follow it, but the former master
// does not yet.
func (w *world) promote(behind time.Duration) (former, next *sim.Server) {
	former = w.server(0)
	all := former.Replicas()
	next = all[0]
	next.SetClock(-behind)
	next.Promote()
	for _, r := range all[1:] {
		r.Follow(next)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[0] = next
	return former, next
}

// rely notes that something relies on a token until end is called.
func (p *process) rely(token string) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nameLocked(token)
	p.relied[token]++
	p.of[token] = p
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.relied[token]--
	}
}

// nameLocked is a short name for a token.
func (p *process) nameLocked(token string) string {
	if p.names[token] == "" {
		p.tokens++
		p.names[token] = fmt.Sprint(p.name, p.tokens)
	}
	return p.names[token]
}

// collect puts the messages on their way that were published, and the news of subscriptions that servers have ended.
func (w *world) collect() {
	w.mu.Lock()
	all := slices.Clone(w.processes)
	w.mu.Unlock()
	for _, p := range all {
		for _, c := range p.conns {
			c.collect()
		}
	}
}

// A journal has a line for everything that happens.
type journal struct {
	at    time.Duration
	lines []string // at one instant: they have no order
	text  strings.Builder
}

// note writes a line of the journal.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(format, args...)
}

func (w *world) noteLocked(format string, args ...any) {
	if w.journal == nil {
		return
	}
	if now := w.now(); now != w.journal.at {
		w.journal.flush()
		w.journal.at = now
	}
	w.journal.lines = append(w.journal.lines, fmt.Sprintf(format, args...))
}

func (j *journal) flush() {
	slices.Sort(j.lines)
	for _, line := range j.lines {
		fmt.Fprintf(&j.text, "%14.6fms  %s\n", float64(j.at)/1e6, line)
	}
	j.lines = j.lines[:0]
}

// draws returns random numbers that follow from the seed and a name.
func (s *setup) draws(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

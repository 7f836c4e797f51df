package world

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

// A config says who does what, and what may go wrong.
type config struct {
	setup
	actors []int // the process of each: actors of one process share a Client
	rounds int   // how many times each acquires the key
	tick   time.Duration
	faults map[wrong]int // how many of each may happen
	begin  []string      // the first choices: how their texts begin
	depth  int           // in how many choices a schedule differs from the usual one
}

// A wrong is something that goes wrong in a schedule.
type wrong int

const (
	cut     wrong = iota // a call fails; its request arrives later, or never
	drop                 // a message is lost
	cancel               // a caller does not want the key any more
	subLoss              // a subscription is lost
	forget               // a Client owes too many releases, and drops one
	ahead                // a replica that has all data and a clock that is ahead becomes the server
	pause                // a wait stands still
	detach               // a lease is passed to another process, which never releases it
	wipe                 // the server loses all data
	lag                  // the replicas fall behind
	split                // a replica becomes the server, and the former one goes on
	setBack              // the clock of the server is
)

const key = "k"

// A schedule is the driver of a world in which a search chooses what happens next.
type schedule struct {
	*world
	config  *config
	actors  []*actor
	choices int // that were made
	passed  int // times that nothing was left to do but to wait, in a row
	before  string
	text    []string
	widths  []uint8 // between how many there was the choice, each time

	// Guarded by the world's mutex.
	legs []*leg
	back int // the last place of what was put back
	left map[wrong]int
	lags bool // the replicas do
}

func newSchedule(c *config) *schedule {
	s := &schedule{config: c, left: map[wrong]int{}}
	for f, n := range c.faults {
		s.left[f] = n
	}
	c.turns = slices.Repeat([]int{c.turns[0]}, slices.Max(c.actors)+1)
	s.world = newWorld(&c.setup, s)
	s.begin()
	for i, n := range c.actors {
		a := &actor{process: s.processes[n], name: letter(n), left: c.rounds}
		if j := slices.Index(c.actors, n); j < i {
			a.name += strings.Repeat("'", i-j)
		}
		s.actors = append(s.actors, a)
	}
	return s
}

// close ends everything.
func (s *schedule) close() {
	for _, p := range s.processes {
		close(p.dead)
		p.goOn()
	}
	for _, a := range s.actors {
		s.mu.Lock()
		doing, end := a.doing, a.end
		s.mu.Unlock()
		if doing == asking {
			end()
		}
	}
	for _, p := range s.processes {
		p.client.Close()
		p.close()
	}
	synctest.Wait()
}

func (*schedule) pause(*process, string) {}

// sent puts a leg on its way.
func (s *schedule) sent(l *leg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case l.call != nil:
		texts := make([]string, len(l.call.Calls))
		for i, c := range l.call.Calls {
			texts[i] = scriptName(c.Script) + " " + l.nameLocked(c.Args[0])
		}
		l.text = strings.Join(texts, ", ")
	case l.stage == write && s.kind != failover: // whose masters both grant
		return
	case l.token != "":
		l.text = l.nameLocked(l.token)
	case l.text == "":
		l.text = "subscribe " + l.name
	}
	if l.text = fmt.Sprint(l.stage, ": ", l.text); s.kind == majority {
		l.text = fmt.Sprintf("%d: %s", l.store, l.text)
	}
	l.born, l.at = s.choices, time.Now()
	s.legs = append(s.legs, l)
}

func (s *schedule) remove(l *leg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.legs = slices.DeleteFunc(s.legs, func(other *leg) bool { return other == l })
}

// drops reports whether a release is dropped: one that no request in flight needs, which only it could undo.
func (s *schedule) drops(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	needed := slices.ContainsFunc(s.legs, func(l *leg) bool {
		return l.process == p && l.call != nil && l.stage == request && scriptName(l.call.Calls[0].Script) != "release"
	})
	drops := p.drops && !needed
	p.drops = p.drops && needed
	return drops
}

// An actor acquires the key and releases it.
type actor struct {
	*process
	name string
	back int

	// Guarded by the world's mutex.
	left   int // how many times it still acquires
	doing  doing
	end    func() // ends what it does, if it asks or holds
	detach bool
}

type doing int

const (
	idle doing = iota
	asking
	holding
	releasing
)

func (a *actor) acquires() {
	ctx, cancel := context.WithCancel(context.Background())
	asked := a.recorder.Now()
	a.does(asking, cancel)
	defer a.does(idle, nil)
	lease, err := a.client.Acquire(ctx, key)
	cancel()
	if err != nil {
		return
	}
	over := make(chan struct{})
	a.does(holding, func() { close(over) })
	a.certain(over, lease, asked)
	if until := lease.Deadline(); a.detach {
		end := a.holds(lease, asked, func() time.Time { return until })
		a.does(releasing, nil)
		if _, err = lease.Detach(); err != nil { // the lease is over
			end()
		}
	}
	if a.does(releasing, nil); !a.detach || err != nil {
		_ = lease.Release()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left--
}

func (a *actor) does(d doing, end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.doing, a.end, a.back = d, end, 0
}

// A choice is something that may happen next.
type choice struct {
	text string
	do   func()
	back *int // where its place is noted when it is put back; nil if it never is the usual choice
	rank [3]int
}

// The ranks of choices: the usual choice is the first.
const (
	arrival = iota
	begins
	releases
	putBack
	passes
	deviates
)

// next returns what may happen next, the usual choice first.
func (s *schedule) next() []choice {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []choice
	add := func(c choice, rank ...int) {
		copy(c.rank[:], rank)
		if c.back != nil && *c.back > 0 {
			c.rank = [3]int{putBack, *c.back}
		}
		all = append(all, c)
	}
	fault := func(w wrong, text string, do func()) {
		if s.left[w] > 0 {
			add(choice{text: text, do: func() { s.left[w]--; do() }}, deviates)
		}
	}
	s.arrivalsLocked(add, fault)
	for _, a := range s.actors {
		switch {
		case a.doing == idle && a.left > 0:
			add(choice{text: a.name + " begins", back: &a.back, do: func() { go a.acquires() }}, begins)
		case a.doing == holding:
			add(choice{text: a.name + " releases", back: &a.back, do: a.end}, releases)
			fault(detach, a.name+" detaches", func() { a.detach = true; a.end() })
		case a.doing == asking:
			fault(cancel, a.name+" cancels", func() { a.left--; a.end() })
		}
	}
	for _, p := range s.processes {
		if p.paused != nil {
			add(choice{text: p.name + " goes on", back: new(int), do: p.goOn}, putBack, 1<<30)
		}
	}
	if s.lags {
		add(choice{text: "the replicas catch up", back: new(int), do: func() { s.link(false) }}, putBack, 1<<30)
	}
	add(choice{text: "time passes", do: func() { s.passes(1) }}, passes)
	add(choice{text: "much time passes", do: func() { s.passes(3) }}, deviates)
	s.faultsLocked(fault)
	slices.SortStableFunc(all, func(a, b choice) int {
		return cmp.Or(slices.Compare(a.rank[:], b.rank[:]), cmp.Compare(a.text, b.text))
	})
	return all
}

// arrivalsLocked adds what may arrive, and what may go wrong with it.
func (s *schedule) arrivalsLocked(add func(choice, ...int), fault func(wrong, string, func())) {
	s.legs = slices.DeleteFunc(s.legs, func(l *leg) bool { // which nobody waits for
		return l.stage == reply && l.call != nil && !l.call.wanted || l.sub != nil && l.sub.done
	})
	heard := map[*subscription]bool{} // messages arrive in order
	alike := map[string]bool{}        // of calls that are the same, the oldest arrives first
	for _, l := range s.legs {
		wanted := l.call != nil && l.call.wanted
		same := fmt.Sprint(l.text, wanted)
		if l.sub == nil && !alike[same] || l.sub != nil && !heard[l.sub] && !alike[same] {
			heard[l.sub], alike[same] = true, true
			add(choice{text: l.text, back: &l.back, do: func() { s.remove(l); go l.arrive() }}, arrival, l.born) // which may wait for replicas
		}
		if l.stage == message {
			fault(drop, "lost: "+l.text, func() { s.remove(l) })
		}
		if wanted {
			fault(cut, "fails and is lost: "+l.text, func() { s.remove(l); l.call.fail() })
		}
		if wanted && l.stage == request {
			fault(cut, "fails: "+l.text, l.call.fail)
		}
	}
}

// faultsLocked adds what may go wrong with processes and servers.
func (s *schedule) faultsLocked(fault func(wrong, string, func())) {
	for _, p := range s.processes {
		if len(p.subscribed()) > 0 {
			fault(subLoss, "the server loses the subscription of "+p.name, p.loseAll)
		}
		if !p.drops {
			fault(forget, p.name+" will drop the next release", func() { p.drops = true })
		}
		if p.paused == nil {
			fault(pause, p.name+" will pause", func() { p.pauses = true })
		}
	}
	fault(ahead, "another server, whose clock is ahead", func() {
		s.setClock(s.config.tick / 2)
		for _, p := range s.processes {
			p.loseAll()
		}
	})
	fault(wipe, "the server loses all data", func() {
		s.lost = s.recorder.Now()
		s.recorder.Wipe(s.servers[0].FlushAll)
	})
	if !s.lags {
		fault(lag, "the replicas fall behind", func() { s.link(true) })
	}
	fault(split, "a replica becomes the server", s.split)
	fault(setBack, "the clock is set back", func() { s.setClock(-time.Hour) })
}

// link cuts the links of the replicas, or makes them whole again.
func (s *schedule) link(cut bool) {
	for _, r := range s.server(0).Replicas() {
		r.SetLink(sim.Link{Cut: cut})
	}
	s.lags = cut
}

// split lets a replica become the server, whose clock is behind. The processes and the former server go on until they hear of it.
func (s *schedule) split() {
	former, next := s.promote(s.config.tick / 2)
	s.link(false)
	for _, p := range s.processes {
		s.sent(&leg{conn: p.conns[0], stage: news, text: p.name + " hears of the new server", arrive: func() { p.conns[0].cut(next) }})
	}
	s.sent(&leg{conn: s.processes[0].conns[0], stage: news, text: "the former server hears of the new one", arrive: func() { former.Follow(next) }})
}

// subscribed are the subscriptions that the server has.
func (p *process) subscribed() []*subscription {
	return slices.DeleteFunc(slices.Clone(p.conns[0].subs), func(s *subscription) bool { return s.Subscription == nil })
}

func (p *process) loseAll() {
	for _, s := range p.subscribed() {
		p.conns[0].lose(s)
	}
}

// setClock sets the server's clock, and leaves the rest of all TTLs as it is.
func (s *schedule) setClock(d time.Duration) {
	rest, server := map[string]int64{}, s.servers[0]
	for _, key := range server.Keys() {
		ttl, _ := server.Do("PTTL", key)
		rest[key] = ttl.(int64)
		server.Do("PERSIST", key)
	}
	server.SetClock(d)
	for key, ttl := range rest {
		server.Do("PEXPIRE", key, fmt.Sprint(ttl))
	}
}

// passes lets some ticks pass. Requests that nobody waits for, and that were sent more than a TTL ago, or two to a majority, are
// lost.
func (s *schedule) passes(ticks int) {
	time.Sleep(time.Duration(ticks) * s.config.tick)
	latest := s.ttl
	if s.kind == majority {
		latest *= 2
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.legs = slices.DeleteFunc(s.legs, func(l *leg) bool { return l.call != nil && !l.call.wanted && time.Since(l.at) >= latest })
}

// choose makes a choice. Those before it, which would have been the usual ones, are put back.
func (s *schedule) choose(all []choice, n int) {
	s.mu.Lock()
	for _, c := range all[:n] {
		if c.back != nil && *c.back == 0 {
			s.back++
			*c.back = s.back
		}
	}
	s.choices++
	s.mu.Unlock()
	s.text = append(s.text, all[n].text)
	all[n].do()
	time.Sleep(time.Millisecond) // no two things happen at one instant
	synctest.Wait()
	s.check()
}

// maxPasses is how many times time passes without a deviation, at most.
const maxPasses = 40

// run runs a schedule until nothing is left to do, or something is wrong.
func (s *schedule) run(d []deviation) {
	for _, text := range s.config.begin {
		all := s.next()
		n := slices.IndexFunc(all, func(c choice) bool { return strings.HasPrefix(c.text, text) })
		if n < 0 { // without the fault it takes another course
			break
		}
		s.choose(all, n)
	}
	for s.passed < maxPasses && !s.failed() {
		all, n := s.next(), 0
		if len(d) > 0 && d[0].At == len(s.widths) {
			n, d = d[0].N, d[1:]
			if n >= len(all) {
				return // it has taken another course
			}
			s.passed, s.before = 0, ""
		}
		s.widths = append(s.widths, uint8(len(all)))
		if len(d) == 0 && all[0].rank[0] == passes && s.waits() {
			return
		}
		s.choose(all, n)
	}
	s.fail(left, "a waiter is not served, or the lock is not free in the end")
}

// waits notes that nothing is left to do but to wait. It reports whether all is over.
func (s *schedule) waits() (over bool) {
	s.passed++
	token, _ := s.holder(key)
	switch {
	case s.finished() && token == "":
		s.judge(false, s.answered())
		return true
	case token != "" && token == s.before && s.relied[token] == 0 && s.kind.replicas() == 0: // which may forget a release
		s.fail(left, "the lock stays with a token that nobody uses: %s", s.names[token])
		return true
	}
	s.before = token
	return false
}

// finished reports whether all have what they wanted.
func (s *schedule) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(s.actors, func(a *actor) bool { return a.doing != idle || a.left > 0 }) &&
		!slices.ContainsFunc(s.processes, func(p *process) bool { return p.client.Stats().ReleasesOwed > 0 })
}

// answered reports whether the answers count: no call arrives late, and no server forgets what it has done.
func (s *schedule) answered() bool {
	return s.kind.replicas() == 0 && s.config.faults[cut]+s.config.faults[cancel]+s.config.faults[wipe] == 0
}

// A deviation is a choice that is not the usual one.
type deviation struct{ At, N int }

// A found is what a search has found.
type found struct {
	schedules int
	took      time.Duration
	failures  []failure // of the first schedule that has any
	at        []deviation
	text      []string
}

func (f found) String() string {
	text := fmt.Sprintf("%d schedules in %v", f.schedules, f.took.Round(10*time.Millisecond))
	if len(f.failures) > 0 {
		text += fmt.Sprintf(" until %v: %s: %s\n  %s", f.at, f.failures[0].property, f.failures[0].text, strings.Join(f.text, "\n  "))
	}
	return text
}

// A branch is a schedule that was run, and between how many choices there were.
type branch struct {
	at     []deviation
	widths []uint8
}

// followers yields the schedules with one deviation more than those of a level.
func followers(level []branch) iter.Seq[[]deviation] {
	return func(yield func([]deviation) bool) {
		for _, b := range level {
			first := 0
			if len(b.at) > 0 {
				first = b.at[len(b.at)-1].At + 1
			}
			for at := first; at < len(b.widths); at++ {
				for n := 1; n < int(b.widths[at]); n++ {
					if !yield(append(slices.Clone(b.at), deviation{at, n})) {
						return
					}
				}
			}
		}
	}
}

// explore runs a schedule that is known, if there is one, and then all schedules with at most so many deviations, those with
// the fewest first, until a property is broken: schedules with bounded delays, as Emmi, Qadeer and Rakamaric have them
// ("Delay-Bounded Scheduling", 2011). Of those with two, it runs every eighth, unless large is set. Those with the most
// are not kept: they are millions.
func explore(t *testing.T, c *config, known []deviation) (f found) {
	defer chance.Seed(1)()
	begun := time.Now()
	try := func(d []deviation) (b branch) {
		bubble.Test(t, func(*testing.T) {
			s := newSchedule(c)
			synctest.Wait()
			s.run(d)
			f.failures, f.text, b = s.failures, s.text, branch{d, s.widths}
			s.close()
		})
		f.schedules, f.at, f.took = f.schedules+1, d, time.Since(begun)
		return b
	}
	if known != nil {
		if try(known); len(f.failures) > 0 {
			return f
		}
	}
	level := []branch{try(nil)}
	for depth := 1; depth <= c.depth && len(f.failures) == 0; depth++ {
		var next []branch
		n := 0
		for d := range followers(level) {
			if n++; depth == 2 && !*large && n%8 != 1 {
				continue
			}
			b := try(d)
			if len(f.failures) > 0 {
				return f
			}
			if depth < c.depth {
				next = append(next, b)
			}
		}
		level = next
	}
	return f
}

// TestSchedules demands that nothing breaks. Schedules that deviate from a history of a rule, or that have
// more than two deviations, are run with -large, and so are most of those with two. The race detector sees one deviation.
func TestSchedules(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	seen := make(map[string]bool)
	for _, r := range rows() {
		c := r.config
		if c == nil {
			continue
		}
		switch {
		case israce.Enabled:
			c.depth = 1
		case !*large:
			c.depth = min(c.depth, 2)
		}
		name := fmt.Sprint(c.faults, c.ttl, c.rounds, c.turns, c.begin, c.depth)
		if seen[name] || !*large && len(c.begin) > 3 && c.depth > 0 {
			continue
		}
		seen[name] = true
		t.Run(r.text, func(t *testing.T) {
			if f := explore(t, c, nil); len(f.failures) > 0 {
				t.Error(f)
			} else {
				t.Log(f)
			}
		})
	}
}

package world

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/sim"
)

// seeds is the driver of a world whose plan a seed has drawn. Each thing happens at an instant of its own.
type seeds struct {
	plan *plan // in the end, with all mishaps
	*world

	// Guarded by the world's mutex.
	taken  map[time.Time]struct{} // instants at which something happens
	trips  map[string]int         // by what they are for
	mishap map[string]mishap      // that have happened
	away   map[*conn]time.Time    // until then, nothing passes
	behind time.Duration          // how many promotions there were, each to a clock that is a second behind
	fails  bool                   // a failover is under way
	last   time.Time              // of the last promotion
	kept   []kept
	slowed map[int]fault // servers of a majority
}

// A kept is a lease whose key is kept for a MinHold.
type kept struct {
	*process
	token   string
	minHold time.Duration
}

// run carries a plan out. If log is set, there is a journal.
func (p *plan) run(t *testing.T, log bool) (s *seeds) {
	defer chance.Seed(p.seed)()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC() // a collection that is under way would end at some time, and interrupt a goroutine
	s = &seeds{
		plan: p, taken: make(map[time.Time]struct{}), trips: make(map[string]int),
		mishap: make(map[string]mishap), away: make(map[*conn]time.Time), slowed: make(map[int]fault),
	}
	defer func() {
		if broken := recover(); broken != nil {
			s.failures = append(s.failures, failure{property: stuck, text: fmt.Sprint(broken)})
		}
	}()
	bubble.Run(t, func(*testing.T) {
		s.world = newWorld(&p.setup, s)
		if log {
			s.journal = &journal{}
		}
		s.begin()
		s.run()
		full := *p
		full.mishaps = s.mishap
		if s.plan = &full; log {
			s.journal.flush()
		}
	})
	return s
}

func (s *seeds) run() {
	time.Sleep(time.Until(s.start))
	var faults, work, watch sync.WaitGroup
	for _, f := range s.plan.faults {
		faults.Go(func() {
			s.sleep(f.At)
			s.strike(f)
		})
	}
	for _, j := range s.plan.jobs {
		work.Go(func() {
			s.sleep(j.At)
			s.process(j.Process).work(s, j)
		})
	}
	over := make(chan struct{})
	watch.Go(func() { s.watch(over) })
	s.sleep(s.plan.end())
	faults.Wait()
	if s.brief {
		for _, p := range s.processes {
			p.kill(s.plan.keys())
		}
		time.Sleep(10 * time.Second) // what has begun ends
	} else {
		s.settle()
	}
	work.Wait()
	close(over)
	watch.Wait()
	if !s.brief {
		s.clean()
	}
	s.judgeAll()
}

// moment returns an instant after d, at which nothing else happens: what happens at the same instant would happen
// in any order.
func (s *seeds) moment(d time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.momentLocked(d)
}

func (s *seeds) momentLocked(d time.Duration) time.Time {
	for t := time.Now().Add(d); ; t = t.Add(1) {
		if _, ok := s.taken[t]; !ok {
			s.taken[t] = struct{}{}
			return t
		}
	}
}

// after returns an instant after d, or when the last storm is over, if that is sooner: the work ends then.
func (s *seeds) after(d time.Duration) time.Time {
	return s.moment(max(0, min(d, s.plan.end()-s.now())))
}

// over is closed then.
func (s *seeds) over(d time.Duration) <-chan struct{} {
	ctx, cancel := context.WithDeadline(context.Background(), s.after(d))
	context.AfterFunc(ctx, cancel)
	return ctx.Done()
}

// sleep sleeps until a time of the plan.
func (s *seeds) sleep(until time.Duration) { time.Sleep(time.Until(s.moment(until - s.now()))) }

func (s *seeds) pause(p *process, name string) {
	if p.isDead() { // nothing of it counts
		return
	}
	time.Sleep(time.Until(s.moment(upTo(s.draws(p.name+name), 100*time.Microsecond))))
}

func (*seeds) drops(*process) bool { return false }

// A trip is what a request, its reply or a message has before it.
type trip struct {
	name   string
	reply  time.Duration
	mishap mishap
}

// sent draws when a leg arrives, and whether it does.
func (s *seeds) sent(l *leg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, arrives := s.fateLocked(l)
	if again := l.trip.mishap.Again; again > 0 && l.stage == request {
		s.arriveLocked(l, again, false)
	}
	if arrives {
		s.arriveLocked(l, d, l.stage == message)
	}
}

// arriveLocked lets a leg arrive after d, and after the messages before it.
func (s *seeds) arriveLocked(l *leg, d time.Duration, inOrder bool) {
	if inOrder {
		d = max(d, time.Until(l.sub.last))
	}
	at := s.momentLocked(d)
	if inOrder {
		l.sub.last = at
	}
	time.AfterFunc(time.Until(at), func() {
		if !l.isDead() {
			l.arrive()
		}
	})
}

// fateLocked draws how long a leg takes, and whether it arrives. A request draws for its reply, too.
func (s *seeds) fateLocked(l *leg) (d time.Duration, arrives bool) {
	cutOff := time.Now().Before(s.away[l.conn])
	if l.stage == reply {
		return l.trip.reply, !l.trip.mishap.LostReply
	}
	l.trip.name = s.tripName(l)
	r := s.draws(l.trip.name)
	if l.stage == news {
		return upTo(r, time.Millisecond), true
	}
	d, l.trip.reply = s.plan.leg(r), s.plan.leg(r)
	if f := s.slowed[l.store]; s.now() < f.At+f.Lasts {
		d += upTo(s.draws(fmt.Sprint(f)), 600*time.Millisecond)
	}
	m, listed := s.plan.mishaps[l.trip.name]
	if s.plan.mishaps == nil && s.plan.stormy(s.now()) {
		m = s.plan.mishap(r)
		listed = m != mishap{}
	}
	if listed {
		s.mishap[l.trip.name], l.trip.mishap = m, m
	}
	s.noteLocked("%s %v %v: %+v", l.trip.name, d, l.trip.reply, m)
	l.trip.reply += m.LateReply
	if l.stage == message {
		return d + m.LateReply, !m.LostReply && !cutOff
	}
	if cutOff {
		l.trip.mishap.LostReply, l.trip.mishap.Again = true, 0
	}
	return d + m.LateRequest, !m.LostRequest && !cutOff
}

// tripName names a trip by its process, its server, what it is for, and how many such trips were before it.
func (s *seeds) tripName(l *leg) string {
	what := string(l.stage)
	switch {
	case l.call != nil:
		call := l.call.Calls[0]
		what = fmt.Sprintf("%s of %s", scriptName(call.Script), call.Keys()[0])
	case l.stage == request:
		what = "subscription"
	}
	if l.stage == news {
		what = "news of " + what
	}
	name := fmt.Sprint(l.name, ", ", what)
	if len(s.servers) > 1 {
		name += fmt.Sprint(" to server ", l.store)
	}
	s.trips[name]++
	return fmt.Sprint(name, " #", s.trips[name])
}

// strike lets a fault happen, which is over when it returns.
func (s *seeds) strike(f fault) {
	s.note("%+v", f)
	p, server := s.process(f.Process), s.server(f.Store)
	switch f.What {
	case kills:
		s.replace(p)
	case cuts:
		p.conns[f.Store].cut(nil)
	case cutsOff, hangs:
		s.mu.Lock()
		for _, other := range s.processes {
			if other == p || f.What == hangs {
				s.away[other.conns[f.Store]] = s.start.Add(f.At + f.Lasts)
			}
		}
		s.mu.Unlock()
		if s.sleep(f.At + f.Lasts); f.What == cutsOff {
			p.conns[f.Store].cut(nil)
		}
	case slows:
		s.mu.Lock()
		s.slowed[f.Store] = f
		s.mu.Unlock()
		s.sleep(f.At + f.Lasts)
	case returns:
		s.comeBack(f)
	case restarts:
		wipe := func() {
			server.Restart()
			s.collect()
			server.SetFaults(sim.Faults{Calls: loading})
			s.sleep(f.At + min(f.Lasts, time.Second))
			server.SetFaults(sim.Faults{})
		}
		s.forgets(f.Store)
		if s.kind == majority { // the others have the data
			wipe()
		} else {
			s.recorder.Wipe(wipe)
		}
	case fails:
		if s.kind == replicas {
			s.failOver(f)
		} else {
			s.recorder.Wipe(func() { s.forgets(f.Store); s.failOver(f) }) // some of the data
		}
	default:
		server.SetFaults(map[what]sim.Faults{
			loads:    {Calls: loading},
			readOnly: {Writes: "READONLY You can't write against a read only replica."},
			full:     {Full: true},
		}[f.What])
		s.sleep(f.At + f.Lasts)
		server.SetFaults(sim.Faults{})
	}
}

const loading = "LOADING Redis is loading the dataset in memory"

// forgets notes that a server has lost data.
func (s *seeds) forgets(store int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost, s.forgot[store] = s.recorder.Now(), time.Now()
}

// comeBack lets a server restart with data that it had some time ago.
func (s *seeds) comeBack(f fault) {
	old := s.server(f.Store)
	next := old.NewReplica()
	next.SetLink(sim.Link{Delay: upTo(s.draws(fmt.Sprint(f)), time.Second)})
	s.sleep(f.At + f.Lasts/2)
	s.forgets(f.Store)
	old.SetFaults(sim.Faults{Calls: loading})
	next.Promote()
	s.mu.Lock()
	s.servers[f.Store] = next
	s.setClocksLocked()
	processes := slices.Clone(s.processes)
	s.mu.Unlock()
	for _, p := range processes {
		for address, c := range p.conns {
			if s.store(p.name, address) == f.Store {
				c.cut(next)
			}
		}
	}
}

// failOver lets a replica take the place of its master, which follows it when it is back. Where grants wait for all
// replicas, which have all that counts, also if their clocks are behind, some masters have not gone, but answer until then.
func (s *seeds) failOver(f fault) {
	s.mu.Lock()
	under := s.fails
	s.fails = true
	s.mu.Unlock()
	if under { // the former master is not back yet
		return
	}
	behind := time.Duration(0)
	if s.behind++; s.kind == replicas {
		behind = s.behind * time.Second
	}
	if s.kind != replicas || s.behind%2 == 0 {
		s.server(0).SetFaults(sim.Faults{Calls: loading})
	}
	former, next := s.promote(behind)
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
	for i := range s.turns {
		s.sleep(s.now() + f.Lasts/10) // until the process hears of it
		s.process(i).conns[0].cut(next)
	}
	s.sleep(f.At + f.Lasts)
	former.Follow(next)
	former.SetFaults(sim.Faults{})
	s.mu.Lock()
	s.fails = false
	s.mu.Unlock()
}

// replace kills a process, and lets another take its place.
func (s *seeds) replace(p *process) {
	if p.isDead() {
		return
	}
	s.mu.Lock()
	s.processes[p.number] = s.newProcess(p.number, p.life+1)
	s.mu.Unlock()
	p.kill(s.plan.keys())
}

// work does a job.
func (p *process) work(s *seeds, j job) {
	asked := p.recorder.Now()
	ctx, cancel := context.WithDeadline(context.Background(), s.after(j.Patience))
	defer cancel()
	client := p.client.With(j.options()...)
	if j.Set {
		p.workOnAll(ctx, s, client, j, asked)
		return
	}
	acquire := client.Acquire
	if j.Once {
		acquire = client.TryAcquire
	}
	lease, err := acquire(ctx, j.Key)
	p.say("%s: %v", j.Key, err)
	if err != nil {
		return
	}
	if j.Detaches {
		p.handOn(s, j, lease, asked)
	} else {
		s.hold(p, s.over(j.Hold), lease, asked, j)
	}
}

// workOnAll does a job with all keys.
func (p *process) workOnAll(ctx context.Context, s *seeds, client *dlock.Client, j job, asked time.Duration) {
	leases, err := p.acquireAll(ctx, client, s.plan.keys())
	p.say("all keys for %s: %v", j.Key, err)
	if err != nil {
		return
	}
	var work sync.WaitGroup
	for _, lease := range leases.All() {
		work.Go(func() { s.hold(p, nil, lease, asked, j) })
	}
	select {
	case <-s.over(j.Hold):
	case <-leases.Done():
	case <-p.dead:
	}
	_ = leases.Release()
	work.Wait()
}

// hold holds a lease until over is closed, and releases it. The key is kept until its MinHold has passed.
func (s *seeds) hold(p *process, over <-chan struct{}, lease *dlock.Lease, asked time.Duration, j job) {
	if j.MinHold > 0 {
		s.mu.Lock()
		s.kept = append(s.kept, kept{p, lease.Token(), j.MinHold})
		s.mu.Unlock()
		time.AfterFunc(time.Until(s.moment(j.MinHold+time.Second)), p.rely(lease.Token()))
	}
	if j.Repeats && over != nil {
		over = p.repeat(s, over, lease)
	}
	begun := time.Now()
	p.hold(over, lease, asked)
	if held := alarm.Earlier(time.Now(), lease.Deadline()).Sub(begun); j.MaxHold > 0 && held > j.MaxHold+s.ttl {
		s.fail(overheld, "%s has held %s for %v; want %v and a TTL at most", p.name, lease.Key(), held, j.MaxHold)
	}
}

// handOn holds a lease for a while, and hands it on to another process.
func (p *process) handOn(s *seeds, j job, lease *dlock.Lease, asked time.Duration) {
	p.certain(s.over(j.Hold/2), lease, asked)
	end := p.rely(lease.Token())
	detached, err := lease.Detach()
	if err != nil {
		end()
		_ = lease.Release()
		return
	}
	if j.Late {
		s.sleep(s.now() + 2*s.ttl)
	}
	other := p.process((p.number + 1) % len(p.turns))
	asked = p.recorder.Now()
	ctx, cancel := context.WithDeadline(context.Background(), s.after(p.ttl))
	defer cancel()
	adopted, err := other.client.Adopt(ctx, detached)
	end()
	other.say("%s from %s: %v", j.Key, p.name, err)
	if err != nil {
		p.rely(lease.Token()) // the lease ends with its TTL
	} else {
		s.hold(other, s.over(j.Hold/2), adopted, asked, job{})
	}
}

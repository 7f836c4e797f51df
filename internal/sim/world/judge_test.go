package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/history"
)

// keys are those that jobs want.
func (p *plan) keys() (keys []string) {
	for _, j := range p.jobs {
		if !slices.Contains(keys, j.key) {
			keys = append(keys, j.key)
		}
	}
	return keys
}

// watch looks who holds the keys. While there is no storm, no key is held by a token that nobody relies on,
// and no dead process is granted one.
func (s *seeds) watch(over <-chan struct{}) {
	const soon = 6 * time.Second // a release gets no answer for 5 s, and is repeated
	since := make(map[string]time.Time)
	keys := s.plan.keys()
	for {
		timer := time.NewTimer(time.Until(s.moment(100 * time.Millisecond)))
		select {
		case <-over:
			timer.Stop()
			return
		case <-timer.C:
		}
		s.mu.Lock()
		calm := !s.plan.stormy(s.now())
		for _, key := range keys {
			token, _ := s.holder(key)
			c := s.of[token]
			waits := c != nil && c.sets > 0 && !c.isDead()
			if token == "" || s.relied[token] > 0 || waits || !calm || time.Since(s.last) < s.ttl {
				delete(since, token)
				continue
			}
			if since[token].IsZero() {
				since[token] = time.Now()
			}
			ended := c.isDead()
			if gone := time.Since(since[token]); ended || gone > soon && !s.plan.late {
				kind := unwant
				if ended {
					kind = deadHolder
				}
				s.failLocked(failure{property: kind, text: c.name + ": nobody relies on " + token + ", which holds " + key})
				s.relied[token]++ // once is enough
			}
		}
		s.mu.Unlock()
	}
}

// settle demands that everybody gets each key soon, now that there are no faults: at once when they have
// just ended; at the pace of handovers some time later; and while a minority is away.
func (s *seeds) settle() {
	most := s.ttl + 5*time.Second
	first := most
	if s.kind == majority {
		first += s.ttl // a server that has restarted does not count for a TTL
	}
	first += s.plan.keeps
	if s.plan.late {
		first += 3 * s.ttl // each late request may take a key for a TTL
	}
	s.round("after the storm", s.processes, 1, first)
	time.Sleep(10 * time.Second) // waiters that died are forgotten, and inboxes closed
	if s.plan.late {
		time.Sleep(4 * s.ttl) // the latest request has arrived, and what it took is free again
	}
	times := 3
	if s.kind == majority { // which makes a thousand calls where votes are split
		times = 1
	}
	s.round("in calm weather", s.processes, times, s.quick())
	s.roundOfSets(time.Duration(len(s.plan.keys())) * s.quick())

	lonely, others := s.processes[0], s.processes[1:]
	s.cutOff(lonely, time.Now().Add(time.Hour))
	var last sync.WaitGroup
	last.Go(func() { s.round("after it was cut off", []*process{lonely}, 1, 10*time.Minute) })
	time.Sleep(time.Millisecond)
	away := most
	if s.kind == majority { // it takes the vote of the only server that it reaches again and again
		away *= 4
	}
	s.round("while another is cut off", others, 2, away)
	s.cutOff(lonely, time.Time{})
	s.round("since another is back", others, 1, most)
	last.Wait()
}

// quick is how long all take at most to hand a key on in calm weather.
func (s *seeds) quick() time.Duration {
	turns := time.Duration(3 * len(s.processes) * len(s.plan.keys()))
	switch s.kind {
	case polls:
		return turns * 300 * time.Millisecond // nobody is sure to be the next
	case majority:
		return time.Second + turns*40*s.plan.trip
	}
	return 500*time.Millisecond + turns*(8*s.plan.trip+2*s.lag)
}

// cutOff lets nothing pass between a client and its server, or all but one of three, of which another
// is away for everybody.
func (s *seeds) cutOff(c *process, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for store := range s.servers {
		if store > 0 || s.kind != majority {
			s.away[c.conns[store]] = until
		}
	}
	for _, c := range s.processes {
		if last := len(s.servers) - 1; last > 0 {
			s.away[c.conns[last]] = until
		}
	}
}

// round lets clients acquire each key a number of times, which must take no longer than soon each.
func (s *seeds) round(when string, clients []*process, times int, soon time.Duration) {
	var all sync.WaitGroup
	for _, c := range clients {
		for _, key := range s.plan.keys() {
			all.Go(func() {
				c.pause(when + key)
				for range times {
					begun := time.Now()
					ctx, cancel := context.WithDeadline(context.Background(), s.moment(soon+time.Minute))
					lease, err := c.client.Acquire(ctx, key)
					cancel()
					if err != nil {
						s.fail(slow, "%s does not get %s %s: %v", c.name, key, when, err)
						return
					}
					s.note("%s got %s %s", c.name, key, when)
					if waited := time.Since(begun); waited > soon {
						s.fail(slow, "%s got %s %s after %v; want %v at most", c.name, key, when, waited, soon)
					}
					_ = lease.Release()
				}
			})
		}
	}
	all.Wait()
}

// roundOfSets lets all clients acquire all keys together, which must take no longer than soon.
func (s *seeds) roundOfSets(soon time.Duration) {
	var all sync.WaitGroup
	for _, c := range s.processes {
		all.Go(func() {
			c.pause("set")
			ctx, cancel := context.WithDeadline(context.Background(), s.moment(soon))
			defer cancel()
			leases, err := c.acquireAll(ctx, c.client, s.plan.keys())
			if err != nil {
				s.fail(slow, "%s does not get all keys within %v: %v", c.name, soon, err)
				return
			}
			s.note("%s got all keys", c.name)
			_ = leases.Release()
		})
	}
	all.Wait()
}

// clean demands that nothing is left in the end.
func (s *seeds) clean() {
	time.Sleep(3*s.ttl + time.Minute) // what is owed is repeated for a TTL, and records of waiters last for a minute
	for _, c := range s.processes {
		if owed := c.client.Stats().ReleasesOwed; owed > 0 {
			s.fail(owes, "%s owes %d releases", c.name, owed)
		}
		if err := c.client.Close(); err != nil {
			s.fail(owes, "%s: Close: %v", c.name, err)
		}
		c.checkEvents()
		c.close()
	}
	for i, server := range s.servers {
		for _, key := range server.Keys() {
			if !strings.HasSuffix(key, "dlock1:fence") && !strings.HasSuffix(key, "dlock1:birth") {
				s.fail(left, "%s is left on server %d", key, i)
			}
		}
	}
}

// judge looks at what the recorder has. A request that arrives late may take the key for a TTL, though
// the call that it belongs to was answered long ago; a promotion may undo what was answered, but for grants
// and renewals on all replicas; and a server that restarts takes a vote with it, of which there may be just
// enough. So the answers say nothing then.
func (s *seeds) judge() {
	h := s.recorder.History()
	s.judgeKept(h)
	if s.plan.late || s.kind.replicas() > 0 || s.kind == majority && s.restarted > 0 {
		h.Operations = slices.DeleteFunc(h.Operations, func(o *history.Operation) bool { return o.Method != history.Wipe })
	}
	step := int64(8)
	if slices.Max(s.turns) > 0 || slices.ContainsFunc(s.plan.jobs, func(j job) bool { return j.detaches }) {
		step = 1 // several holds of a lease share its 8 numbers
	}
	late := func(ttl time.Duration) time.Duration { return history.Drift(ttl) + 2*time.Millisecond }
	v, err := history.Model{FenceStep: step, Late: late, Contenders: s.kind == majority}.Check(h)
	if v != nil {
		s.mu.Lock()
		s.failLocked(failure{property: answers, text: v.String(), violation: v})
		s.mu.Unlock()
	}
	if err != nil && !errors.Is(err, history.ErrTooConcurrent) {
		s.fail(answers, "%v", err)
	}
}

// judgeKept demands that no key was granted to another before the MinHold of a lease had passed, if there was no storm
// until then, and the holder lives. A request that arrives late may take a lease away.
func (s *seeds) judgeKept(h *history.History) {
	for _, k := range s.kept {
		grants := func(o *history.Operation) bool { return o.Outcome == history.Granted && o.Token == k.token }
		n := slices.IndexFunc(h.Operations, grants)
		if n < 0 || k.isDead() || s.plan.late {
			continue
		}
		from, until := h.Operations[n].Since, h.Operations[n].Since+k.minHold-history.Drift(k.minHold)
		for _, o := range h.Operations {
			if o.Outcome == history.Granted && o.Key == h.Operations[n].Key && o.Token != k.token && o.Since > from && o.Returned < until && s.plan.calm(from, until) {
				s.fail(unkept, "%s holds %s at %v; %s has a MinHold until %v", o.Client, o.Key, o.Returned, k.name, until)
			}
		}
	}
}

// An acquisition is what an Observer has heard of one.
type heard struct {
	key         string
	done, ended int
	granted     bool
}

type heardKey struct{}

// observer demands that each acquisition has one start and one end, and each lease one end after that.
func (p *process) observer() *dlock.Observer {
	note := func(ctx context.Context, event string, key string, change func(*heard) (wrong bool)) {
		p.mu.Lock()
		defer p.mu.Unlock()
		h, ok := ctx.Value(heardKey{}).(*heard)
		if !ok || change(h) {
			p.failLocked(failure{property: events, text: fmt.Sprintf("%s: %s of %s: %+v", p.name, event, key, h)})
		}
	}
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, i dlock.AcquireStartInfo) context.Context {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.heard = append(p.heard, &heard{key: i.Key})
			return context.WithValue(ctx, heardKey{}, p.heard[len(p.heard)-1])
		},
		AcquireDone: func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context {
			note(ctx, "AcquireDone", i.Key, func(h *heard) bool {
				h.done, h.granted = h.done+1, i.Err == nil
				return h.done > 1
			})
			return ctx
		},
		LeaseDone: func(ctx context.Context, i dlock.LeaseDoneInfo) {
			note(ctx, "LeaseDone", i.Key, func(h *heard) bool {
				h.ended++
				return !h.granted || h.ended > 1
			})
		},
	}
}

// checkEvents looks whether an event is missing, when all is over.
func (p *process) checkEvents() {
	if p.client.Stats().EventsDropped > 0 {
		return
	}
	for _, h := range p.heard {
		if h.done != 1 || h.granted && h.ended != 1 {
			p.fail(events, "%s has heard of an acquisition of %s: %+v", p.name, h.key, *h)
		}
	}
}

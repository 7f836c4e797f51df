package world

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/history"
)

// keys are those that jobs want.
func (p *plan) keys() (keys []string) {
	for _, j := range p.jobs {
		if !slices.Contains(keys, j.Key) {
			keys = append(keys, j.Key)
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
		s.setClocksLocked()
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
				s.failLocked(kind, nil, "%s: nobody relies on %s, which holds %s", c.name, token, key)
				s.relied[token]++ // once is enough
			}
		}
		s.mu.Unlock()
		s.check()
	}
}

// settle demands that everybody gets each key soon, now that there are no faults: at once when they have
// just ended; at the pace of handovers some time later; and while a minority is away.
func (s *seeds) settle() {
	s.mend()
	keys, most := s.plan.keys(), s.ttl+5*time.Second
	each := slices.Collect(slices.Chunk(keys, 1))
	first, times, away := most+s.plan.keeps, 3, most
	if s.kind == majority { // a server that has restarted does not count for a TTL; split votes take a thousand calls
		first, times, away = first+s.ttl, 1, 4*most // the only server that is reached votes again and again for one that is cut off
	}
	if s.plan.late {
		first += 3 * s.ttl // each late request may take a key for a TTL
	}
	s.round("after the storm", s.processes, 1, first, each)
	time.Sleep(10 * time.Second) // waiters that died are forgotten, and inboxes closed
	if s.plan.late {
		time.Sleep(4 * s.ttl) // the latest request has arrived, and what it took is free again
	}
	s.round("in calm weather", s.processes, times, s.quick(), each)
	s.round("together", s.processes, 1, time.Duration(len(keys))*s.quick(), [][]string{keys})

	lonely, others := s.processes[0], s.processes[1:]
	s.cutOff(lonely, time.Now().Add(time.Hour))
	var last sync.WaitGroup
	last.Go(func() { s.round("after it was cut off", []*process{lonely}, 1, 10*time.Minute, each) })
	time.Sleep(time.Millisecond)
	s.round("while another is cut off", others, 2, away, each)
	s.cutOff(lonely, time.Time{})
	s.round("since another is back", others, 1, most, each)
	last.Wait()
	if s.kind == majority {
		s.cutOffWaiter()
	}
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

// round lets clients acquire sets of keys a number of times, which must take no longer than soon each.
func (s *seeds) round(when string, clients []*process, times int, soon time.Duration, sets [][]string) {
	var all sync.WaitGroup
	for _, c := range clients {
		for _, keys := range sets {
			all.Go(func() {
				name := strings.Join(keys, " and ")
				c.pause(when + name)
				for range times {
					begun := time.Now()
					ctx, cancel := context.WithDeadline(context.Background(), s.moment(soon+time.Minute))
					var lease interface{ Release() error }
					var err error
					if when == "together" {
						lease, err = c.acquireAll(ctx, c.client, keys)
					} else {
						lease, err = c.client.Acquire(ctx, keys[0])
					}
					cancel()
					waited := time.Since(begun)
					if s.note("%s got %s %s: %v", c.name, name, when, err); err != nil || waited > soon {
						s.fail(slow, "%s got %s %s after %v, %v; want %v at most", c.name, name, when, waited, err, soon)
					}
					if err != nil {
						return
					}
					_ = lease.Release()
				}
			})
		}
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

// judgeAll looks at the whole history. A request that arrives late may take the key for a TTL, though
// the call that it belongs to was answered long ago; a promotion may undo what was answered, but for grants
// and renewals on all replicas; and a server that restarts takes a vote with it, of which there may be just
// enough. So the answers say nothing then.
func (s *seeds) judgeAll() {
	s.judgeKept(s.recorder.History())
	adopted := slices.ContainsFunc(s.plan.jobs, func(j job) bool { return j.Detaches })
	repeated := slices.ContainsFunc(s.plan.jobs, func(j job) bool { return j.Repeats }) // votes that come late may name a token that was released
	s.judge(adopted, !s.brief && !repeated && !s.plan.late && s.kind.replicas() == 0 && (s.kind != majority || s.lost == 0))
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

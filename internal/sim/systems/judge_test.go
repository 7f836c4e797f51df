package systems

import (
	"context"
	"errors"
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

// holder is the token that holds a key, on a majority of the servers.
func (s *system) holder(key string) string {
	votes := make(map[string]int)
	for _, server := range s.servers {
		reply, _ := server.Do("GET", key)
		if token, _ := reply.(string); token != "" {
			if votes[token]++; votes[token] > len(s.servers)/2 {
				return token
			}
		}
	}
	return ""
}

// watch looks who holds the keys. While there is no storm, no key is held by a token that nobody relies on,
// and no dead process is granted one.
func (s *system) watch(over <-chan struct{}) {
	const soon = 6 * time.Second // a release gets no answer for 5 s, and is repeated
	since := make(map[string]time.Time)
	keys := s.keys()
	for {
		timer := time.NewTimer(time.Until(s.moment(100 * time.Millisecond)))
		select {
		case <-over:
			timer.Stop()
			return
		case <-timer.C:
		}
		s.mu.Lock()
		calm := !s.stormy(s.now())
		for _, key := range keys {
			token := s.holder(key)
			c := s.of[token]
			waits := c != nil && c.sets > 0 && !c.isDead()
			if token == "" || s.lives[token] > 0 || waits || !calm || time.Since(s.promoted) < s.ttl {
				delete(since, token)
				continue
			}
			if since[token].IsZero() {
				since[token] = time.Now()
			}
			dead := c.isDead()
			if gone := time.Since(since[token]); dead || gone > soon && !s.late {
				kind := "unwanted"
				if dead {
					kind = "dead holder"
				}
				s.failLocked(failure{kind: kind, text: c.name + ": nobody relies on " + token + ", which holds " + key})
				s.lives[token]++ // once is enough
			}
		}
		s.mu.Unlock()
	}
}

// settle demands that everybody gets each key soon, now that there are no faults: at once when they have
// just ended; at the pace of handovers some time later; and while a minority is away.
func (s *system) settle() {
	most := s.ttl + 5*time.Second
	first := most
	if s.kind == majority {
		first += s.ttl // a server that has restarted does not count for a TTL
	}
	if s.late {
		first += 3 * s.ttl // each late request may take a key for a TTL
	}
	s.round("after the storm", s.clients, 1, first)
	time.Sleep(10 * time.Second) // waiters that died are forgotten, and inboxes closed
	if s.late {
		time.Sleep(4 * s.ttl) // the latest request has arrived, and what it took is free again
	}
	times := 3
	if s.kind == majority { // which makes a thousand calls where votes are split
		times = 1
	}
	s.round("in calm weather", s.clients, times, s.quick())
	s.roundOfSets(time.Duration(len(s.keys())) * s.quick())

	lonely, others := s.clients[0], s.clients[1:]
	s.cutOff(lonely, time.Now().Add(time.Hour))
	var last sync.WaitGroup
	last.Go(func() { s.round("after it was cut off", []*client{lonely}, 1, 10*time.Minute) })
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
func (s *system) quick() time.Duration {
	turns := time.Duration(3 * len(s.clients) * len(s.keys()))
	switch s.kind {
	case polls:
		return turns * 300 * time.Millisecond // nobody is sure to be the next
	case majority:
		return time.Second + turns*40*s.trip
	}
	return 500*time.Millisecond + turns*(8*s.trip+2*s.lag)
}

// cutOff lets nothing pass between a client and its server, or all but one of three, of which another
// is away for everybody.
func (s *system) cutOff(c *client, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for store := range s.servers {
		if store > 0 || s.kind != majority {
			c.away[store] = until
		}
	}
	for _, c := range s.clients {
		if last := len(s.servers) - 1; last > 0 {
			c.away[last] = until
		}
	}
}

// round lets clients acquire each key a number of times, which must take no longer than soon each.
func (s *system) round(when string, clients []*client, times int, soon time.Duration) {
	var all sync.WaitGroup
	for _, c := range clients {
		for _, key := range s.keys() {
			all.Go(func() {
				c.jitter(when + key)
				for range times {
					begun := time.Now()
					ctx, cancel := context.WithDeadline(context.Background(), s.moment(soon+time.Minute))
					lease, err := c.lock.Acquire(ctx, key)
					cancel()
					if err != nil {
						s.fail("slow", "%s does not get %s %s: %v", c.name, key, when, err)
						return
					}
					s.note("%s got %s %s", c.name, key, when)
					if waited := time.Since(begun); waited > soon {
						s.fail("slow", "%s got %s %s after %v; want %v at most", c.name, key, when, waited, soon)
					}
					_ = lease.Release()
				}
			})
		}
	}
	all.Wait()
}

// roundOfSets lets all clients acquire all keys together, which must take no longer than soon.
func (s *system) roundOfSets(soon time.Duration) {
	var all sync.WaitGroup
	for _, c := range s.clients {
		all.Go(func() {
			c.jitter("set")
			ctx, cancel := context.WithDeadline(context.Background(), s.moment(soon))
			defer cancel()
			leases, err := c.acquireAll(ctx, c.lock)
			if err != nil {
				s.fail("slow", "%s does not get all keys within %v: %v", c.name, soon, err)
				return
			}
			s.note("%s got all keys", c.name)
			_ = leases.Release()
		})
	}
	all.Wait()
}

// clean demands that nothing is left in the end.
func (s *system) clean() {
	time.Sleep(3*s.ttl + time.Minute) // what is owed is repeated for a TTL, and records of waiters last for a minute
	for _, c := range s.clients {
		if owed := c.lock.Stats().ReleasesOwed; owed > 0 {
			s.fail("owed", "%s owes %d releases", c.name, owed)
		}
		if err := c.lock.Close(); err != nil {
			s.fail("owed", "%s: Close: %v", c.name, err)
		}
		c.close()
	}
	for i, server := range s.servers {
		for _, key := range server.Keys() {
			if !strings.HasSuffix(key, "dlock1:fence") && !strings.HasSuffix(key, "dlock1:birth") {
				s.fail("left", "%s is left on server %d", key, i)
			}
		}
	}
}

// judge looks at what the recorder has. A request that arrives late may take the key for a TTL, though
// the call that it belongs to was answered long ago; a promotion may undo what was answered, but for grants
// and renewals on all replicas; and a server that restarts takes a vote with it, of which there may be just
// enough. So the answers say nothing then.
func (s *system) judge() {
	h := s.recorder.History()
	if s.late || s.kind.replicas() > 0 || s.kind == majority && s.restarted > 0 {
		h.Operations = slices.DeleteFunc(h.Operations, func(o *history.Operation) bool { return o.Method != history.Wipe })
	}
	step := int64(8)
	if slices.Max(s.turns) > 0 || slices.ContainsFunc(s.jobs, func(j job) bool { return j.detaches }) {
		step = 1 // several holds of a lease share its 8 numbers
	}
	late := func(ttl time.Duration) time.Duration { return history.Drift(ttl) + 2*time.Millisecond }
	v, err := history.Model{FenceStep: step, Late: late, Contenders: s.kind == majority}.Check(h)
	if v != nil {
		s.mu.Lock()
		s.failLocked(failure{kind: "safety", text: v.String(), violation: v})
		s.mu.Unlock()
	}
	if err != nil && !errors.Is(err, history.ErrTooConcurrent) {
		s.fail("history", "%v", err)
	}
}

var _ dlock.Locker = (*watched)(nil)

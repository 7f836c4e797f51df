package sim

import (
	"fmt"
	"sync"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// A Cluster is a Redis Cluster: masters that share the slots, and their replicas.
type Cluster struct {
	// Nodes has the masters in the order of their slots, followed by the replicas: with m masters,
	// Nodes[m+i] replicates Nodes[i%m]. Failovers do not change the order.
	Nodes []*Server

	slots slots
}

// slots has the number of the master of each slot.
type slots [16384]uint8

// A node is what a server of a cluster knows of it.
type node struct {
	cluster   *Cluster // nil outside a cluster
	number    uint8
	slots     slots
	apart     bool            // it was replaced, and has not heard of it
	migrating map[int]*Server // where slots are being moved to
	importing map[int]bool    // slots that are being moved here
	asking    bool            // ASKING came before the script that runs
}

// NewCluster returns a cluster whose masters share the slots evenly.
func NewCluster(masters, replicasPerMaster int) *Cluster {
	c, mu := new(Cluster), new(sync.Mutex)
	for slot := range c.slots {
		c.slots[slot] = uint8(slot * masters / len(c.slots))
	}
	for i := range masters * (1 + replicasPerMaster) {
		s := NewServer()
		s.mu = mu
		s.node = node{cluster: c, number: uint8(i), slots: c.slots, migrating: make(map[int]*Server), importing: make(map[int]bool)}
		c.Nodes = append(c.Nodes, s)
		if i >= masters {
			s.Follow(c.Nodes[i%masters])
		}
	}
	return c
}

// MasterOf returns the master that has the slot of a key or a channel.
func (c *Cluster) MasterOf(key string) *Server {
	mu := c.Nodes[0].mu
	mu.Lock()
	defer mu.Unlock()
	return c.Nodes[c.slots[rediscore.Slot(key)]]
}

// Masters returns the masters that have slots, each once.
func (c *Cluster) Masters() (masters []*Server) {
	mu := c.Nodes[0].mu
	mu.Lock()
	defer mu.Unlock()
	var has [256]bool
	for _, number := range c.slots {
		has[number] = true
	}
	for i, s := range c.Nodes {
		if has[i] {
			masters = append(masters, s)
		}
	}
	return masters
}

// replace gives the slots of a master to its successor, whose subscriptions stay. The old master does not
// hear of it.
func (c *Cluster) replace(old, successor *Server) {
	old.apart = true
	for slot, number := range c.slots {
		if number == old.number {
			c.slots[slot] = successor.number
		}
	}
	successor.slots = c.slots
	c.spread()
}

func (c *Cluster) spread() {
	for _, s := range c.Nodes {
		if !s.apart {
			s.learn(&c.slots)
		}
	}
}

// learn takes note of who has the slots. Subscriptions to shard channels of slots that have another
// master now end.
func (s *Server) learn(all *slots) {
	s.endInboxes(func(c channel) bool {
		slot := rediscore.Slot(c.name)
		return c.shard && s.slots[slot] != all[slot]
	})
	s.slots = *all
}

// known returns who has the slots, as far as the server knows.
func (s *Server) known() slots {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots
}

func (s *Server) addr() string { return fmt.Sprintf("node%d:6379", s.number) }

// at returns the node with an address, or nil.
func (c *Cluster) at(address string) *Server {
	for _, s := range c.Nodes {
		if s.addr() == address {
			return s
		}
	}
	return nil
}

const (
	errCrossSlot = Error("CROSSSLOT Keys in request don't hash to the same slot")
	errTryAgain  = Error("TRYAGAIN Multiple keys request during rehashing of slot")
	errNotLocal  = Error("ERR Script attempted to access a non local key in a cluster node")
)

// redirects returns the error of a call that this server does not serve, or nil.
func (s *Server) redirects(keys []string, asking bool) error {
	if s.cluster == nil {
		return nil
	}
	slot, missing, several := rediscore.Slot(keys[0]), 0, false
	for _, key := range keys {
		if rediscore.Slot(key) != slot {
			return errCrossSlot
		}
		if s.get(key) == nil {
			missing++
		}
		several = several || key != keys[0]
	}
	owner, to := s.cluster.Nodes[s.slots[slot]], s.migrating[slot]
	switch {
	case owner == s && to != nil && missing == len(keys):
		return Error(fmt.Sprintf("ASK %d %s", slot, to.addr()))
	case owner == s && to != nil && missing > 0, asking && s.importing[slot] && missing > 0 && several:
		return errTryAgain
	case owner == s, asking && s.importing[slot]:
		return nil
	}
	return moved(slot, owner)
}

// local reports whether the node serves what a command in a script names. A slot that moves matters there
// too: the script may have removed a key. It has its shard channels until it has moved.
func (s *Server) local(name string, args []string) bool {
	switch name {
	case "TIME", "INFO", "PUBLISH", "PUBSUB":
		return true
	case "SPUBLISH":
		slot := rediscore.Slot(args[0])
		return s.cluster.Nodes[s.slots[slot]] == s || s.asking && s.importing[slot]
	case "DEL", "EXISTS":
	case "RENAMENX":
		args = args[:2]
	default:
		args = args[:1]
	}
	return s.redirects(args, s.asking) == nil
}

func moved(slot int, to *Server) error { return Error(fmt.Sprintf("MOVED %d %s", slot, to.addr())) }

// refuses returns the error of a subscription to a shard channel. Replicas have those of their master.
func (s *Server) refuses(name string) error {
	if s.cluster == nil {
		return nil
	}
	slot := rediscore.Slot(name)
	owner := s.cluster.Nodes[s.slots[slot]]
	if owner == s || owner == s.master {
		return nil
	}
	return moved(slot, owner)
}

// A Migration moves a slot from one master to another, as redis-cli does.
type Migration struct {
	From, To *Server
	slot     int
}

// Migrate begins to move the slot of key. From then asks for what it no longer has.
func (c *Cluster) Migrate(key string, to *Server) *Migration {
	m := &Migration{c.MasterOf(key), to, rediscore.Slot(key)}
	to.lock()
	defer to.unlock()
	m.From.migrating[m.slot], m.To.importing[m.slot] = to, true
	return m
}

// MoveKeys moves these keys, or all of the slot if there are none.
func (m *Migration) MoveKeys(keys ...string) {
	m.From.lock()
	defer m.From.unlock()
	if len(keys) == 0 {
		for key := range m.From.data {
			if rediscore.Slot(key) == m.slot {
				keys = append(keys, key)
			}
		}
	}
	for _, key := range keys {
		e := m.From.get(key)
		if e == nil {
			continue
		}
		if e.expires != never {
			e.expires += m.To.now().Sub(m.From.now()).Milliseconds()
		}
		m.From.put(key, nil)
		m.To.put(key, e)
	}
	m.To.commit()
}

// Finish moves the keys that are left, and all nodes hear who has the slot now.
func (m *Migration) Finish() {
	m.MoveKeys()
	m.From.lock()
	defer m.From.unlock()
	delete(m.From.migrating, m.slot)
	delete(m.To.importing, m.slot)
	c := m.From.cluster
	c.slots[m.slot] = m.To.number
	c.spread()
}

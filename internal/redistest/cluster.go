package redistest

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
)

const slots = 16384

// A Cluster is a Redis Cluster.
type Cluster struct {
	// Nodes has the masters in the order of their slots, followed by the replicas: with m
	// masters, Nodes[m+i] replicates Nodes[i%m]. Failovers do not change the order.
	Nodes []*Server

	masters int
}

// StartCluster starts a Redis Cluster whose masters share the slots evenly. It waits until every
// node knows all others and all slots are served, which takes about two seconds. A node counts as
// failed 3 s after its last answer. With -short the test is skipped.
func StartCluster(t testing.TB, masters, replicasPerMaster int) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("redistest: clusters are left out with -short")
	}
	c := &Cluster{masters: masters}
	for range masters * (1 + replicasPerMaster) {
		c.Nodes = append(c.Nodes, Start(t,
			"--cluster-enabled", "yes",
			"--cluster-announce-ip", host,
			"--cluster-node-timeout", "3000",
			// CLUSTER SLOTS hides a replica until its master's first ping or write.
			"--repl-ping-replica-period", "1",
		))
	}
	for i, n := range c.Nodes[:masters] {
		must[string](t, n, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		must[string](t, n, addSlots(i*slots/masters, (i+1)*slots/masters)...)
	}
	c.meet(t)
	for i, n := range c.Nodes[masters:] {
		id := must[string](t, c.Nodes[i%masters], "CLUSTER", "MYID")
		await(t, func() error { _, err := n.Do("CLUSTER", "REPLICATE", id); return err })
	}
	c.awaitComplete(t)
	return c
}

func (c *Cluster) awaitComplete(t testing.TB) {
	t.Helper()
	for _, n := range c.Nodes {
		await(t, func() error { return c.complete(n) })
	}
}

// addSlots is the command for the slots from first to before end. The newer
// ADDSLOTSRANGE would be shorter.
func addSlots(first, end int) []string {
	args := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot < end; slot++ {
		args = append(args, strconv.Itoa(slot))
	}
	return args
}

// meet introduces each node to each other. Gossip would do so too, but more slowly.
func (c *Cluster) meet(t testing.TB) {
	t.Helper()
	for i, n := range c.Nodes {
		for _, other := range c.Nodes[:i] {
			must[string](t, n, "CLUSTER", "MEET", host, strconv.Itoa(other.port))
		}
	}
}

// complete returns nil if n sees all slots served, each by a master with its
// replicas, and is in sync if it is a replica.
func (c *Cluster) complete(n *Server) error {
	reply, err := n.Do("CLUSTER", "INFO")
	if state := fields(reply)["cluster_state"]; err != nil || state != "ok" {
		return fmt.Errorf("node %s: cluster_state is %q, %v, want ok", n.Addr(), state, err)
	}
	ranges, err := n.ranges()
	masters := make(map[int64]bool)
	for _, r := range ranges {
		if want := len(c.Nodes) / c.masters; len(r.ports) != want {
			return fmt.Errorf("node %s: got %d nodes for slot %d, want %d", n.Addr(), len(r.ports), r.first, want)
		}
		masters[r.ports[0]] = true
	}
	if err != nil || len(masters) != c.masters {
		return fmt.Errorf("node %s: got %d masters, %v, want %d", n.Addr(), len(masters), err, c.masters)
	}
	return n.inSync()
}

// Addrs returns the addresses of the Nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		addrs[i] = n.Addr()
	}
	return addrs
}

// Masters returns the nodes that are masters now, in the order of Nodes.
func (c *Cluster) Masters(testing.TB) (masters []*Server) {
	for _, n := range c.Nodes {
		if n.alive() && n.isMaster() {
			masters = append(masters, n)
		}
	}
	return masters
}

// MasterOf returns the node that serves key, according to the first node that is running.
func (c *Cluster) MasterOf(t testing.TB, key string) *Server {
	t.Helper()
	s, err := c.masterOf(t, key)
	if err != nil {
		t.Fatalf("redistest: who serves %q: %v", key, err)
	}
	return s
}

func (c *Cluster) masterOf(t testing.TB, key string) (*Server, error) {
	t.Helper()
	for _, n := range c.Nodes {
		if !n.alive() {
			continue
		}
		ranges, err := n.ranges()
		if err != nil {
			return nil, err
		}
		port := portOf(ranges, int64(n.Slot(t, key)))
		for _, m := range c.Nodes {
			if int64(m.port) == port {
				return m, nil
			}
		}
		return nil, fmt.Errorf("none of ours, but the one on port %d", port)
	}
	return nil, errors.New("no node is running")
}

// A slotRange is an element of CLUSTER SLOTS.
type slotRange struct {
	first, last int64
	ports       []int64 // the master's, then its replicas'
}

func (s *Server) ranges() ([]slotRange, error) {
	reply, err := s.Do("CLUSTER", "SLOTS")
	if err != nil {
		return nil, err
	}
	var ranges []slotRange
	for _, e := range reply.([]any) {
		e := e.([]any)
		r := slotRange{first: e[0].(int64), last: e[1].(int64)}
		for _, node := range e[2:] {
			r.ports = append(r.ports, node.([]any)[1].(int64))
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// portOf returns the port of the master that serves slot, or 0.
func portOf(ranges []slotRange, slot int64) int64 {
	for _, r := range ranges {
		if r.first <= slot && slot <= r.last {
			return r.ports[0]
		}
	}
	return 0
}

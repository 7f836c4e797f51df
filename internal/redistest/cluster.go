package redistest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const slots = 16384

// A Cluster is a Redis Cluster.
type Cluster struct{ replicated }

var _ Bed = (*Cluster)(nil)

// StartCluster starts a Redis Cluster whose masters share the slots evenly. It waits until every
// node knows all others and all slots are served, which takes about two seconds. A node counts as
// failed 3 s after its last answer. With -short the test is skipped.
func StartCluster(t testing.TB, masters, replicasPerMaster int) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("redistest: clusters are left out with -short")
	}
	c := &Cluster{replicated{masters: masters}}
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
	c.awaitWhole(t)
	return c
}

// Addrs returns the addresses of the nodes.
func (c *Cluster) Addrs() []string { return addrs(c.Nodes) }

// Faults returns what can happen to a master: what can happen with Sentinels, too; it is replaced with
// CLUSTER FAILOVER TAKEOVER, which neither asks nor tells it; and slots move to another master, with
// keys in them.
func (c *Cluster) Faults() []Fault {
	return append(failovers(c),
		failover(c, "taken over", func(t testing.TB, master *Server) (undo func()) {
			t.Helper()
			must[string](t, c.others(master)[0], "CLUSTER", "FAILOVER", "TAKEOVER")
			return nil
		}),
		Fault{"slots moved", func(t testing.TB) time.Duration {
			t.Helper()
			c.moveSlots(t, 8)
			return 0
		}},
	)
}

// StepDown replaces a master by one of its replicas in an orderly way, with CLUSTER FAILOVER. All nodes
// must be running. StepDown first waits until they know each other, because a master ignores a replica
// that it does not know. It asks again if the replica gives up, as it does on a busy machine.
func (c *Cluster) StepDown(t testing.TB, master *Server) {
	t.Helper()
	c.awaitWhole(t)
	const givenUp = 6 * time.Second // by the replica, whose time-out is 5 s
	replica, asked := c.others(master)[0], time.Time{}
	await(t, func() error {
		if replica.isMaster() {
			return nil
		}
		if time.Since(asked) > givenUp {
			asked = time.Now()
			if _, err := replica.Do("CLUSTER", "FAILOVER"); err != nil {
				return err
			}
		}
		return fmt.Errorf("%s has not taken the place of %s", replica.Addr(), master.Addr())
	})
}

func (c *Cluster) comeBack(_ testing.TB, killed *Server) { killed.Restart() }

func (c *Cluster) awaitWhole(t testing.TB) {
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

// MasterOf returns the node that serves key, according to the first node that is running.
func (c *Cluster) MasterOf(t testing.TB, key string) *Server {
	t.Helper()
	alive := slices.IndexFunc(c.Nodes, (*Server).alive)
	if alive < 0 {
		t.Fatalf("redistest: who serves %q: no node is running", key)
	}
	n := c.Nodes[alive]
	ranges, err := n.ranges()
	port := portOf(ranges, int64(n.Slot(t, key)))
	master := slices.IndexFunc(c.Nodes, func(m *Server) bool { return int64(m.port) == port })
	if err != nil || master < 0 {
		t.Fatalf("redistest: who serves %q: none of ours, but the one on port %d, %v", key, port, err)
	}
	return c.Nodes[master]
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

// A Migration moves a slot of a Cluster from one master to another, as redis-cli does.
type Migration struct {
	From, To *Server

	cluster *Cluster
	slot    string
}

// StartMigration begins to move the slot of key to another master.
func (c *Cluster) StartMigration(t testing.TB, key string) *Migration {
	t.Helper()
	to := c.Masters(t)[0]
	if to == c.MasterOf(t, key) {
		to = c.Masters(t)[1]
	}
	return c.StartMigrationTo(t, key, to)
}

// StartMigrationTo begins to move the slot of key to a master.
func (c *Cluster) StartMigrationTo(t testing.TB, key string, to *Server) *Migration {
	t.Helper()
	await(t, c.agreed)
	from := c.MasterOf(t, key)
	m := &Migration{from, to, c, strconv.Itoa(from.Slot(t, key))}
	must[string](t, to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", from.id(t))
	must[string](t, from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", to.id(t))
	return m
}

// MoveKeys moves the keys of the slot. Until Finish, From answers with ASK.
func (m *Migration) MoveKeys(t testing.TB) {
	t.Helper()
	await(t, func() error {
		for {
			keys := must[[]any](t, m.From, "CLUSTER", "GETKEYSINSLOT", m.slot, "100")
			if len(keys) == 0 {
				return nil
			}
			args := []string{"MIGRATE", host, strconv.Itoa(m.To.port), "", "0", "4000", "REPLACE", "KEYS"}
			for _, key := range keys {
				args = append(args, key.(string))
			}
			if _, err := m.From.Do(args...); err != nil {
				return err // on a busy machine, the other master may be late
			}
		}
	})
}

// Finish makes all nodes answer with MOVED.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	id := m.To.id(t)
	must[string](t, m.To, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	for _, n := range m.cluster.Masters(t) {
		must[string](t, n, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	}
	slot, _ := strconv.ParseInt(m.slot, 10, 64)
	for _, n := range m.cluster.Nodes {
		await(t, func() error {
			ranges, err := n.ranges()
			if port := portOf(ranges, slot); err != nil || port != int64(m.To.port) {
				return fmt.Errorf("node %s: slot %d is on port %d, %v, want %d", n.Addr(), slot, port, err, m.To.port)
			}
			return nil
		})
	}
}

// moveSlots moves up to n slots that have keys.
func (c *Cluster) moveSlots(t testing.TB, n int) {
	t.Helper()
	masters := c.Masters(t)
	keys := masters[rand.IntN(len(masters))].Keys(t)
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:min(n, len(keys))] {
		m := c.StartMigration(t, key)
		m.MoveKeys(t)
		m.Finish(t)
	}
}

// agreed returns nil if all nodes know the configuration epoch of each master. Each move raises one, and the
// new owner loses the slot again to a node with a larger epoch that it had not heard of.
func (c *Cluster) agreed() error {
	epochs := make(map[string]string) // by master
	for _, n := range c.Nodes {
		reply, err := n.Do("CLUSTER", "NODES")
		if err != nil {
			return err
		}
		for line := range strings.Lines(reply.(string)) {
			f := strings.Fields(line) // ID, address, flags, master, ping, pong, epoch
			if !strings.Contains(f[2], "master") {
				continue
			}
			if known, ok := epochs[f[0]]; ok && known != f[6] {
				return fmt.Errorf("node %s: master %s has epoch %s, and %s to another node", n.Addr(), f[0], f[6], known)
			}
			epochs[f[0]] = f[6]
		}
	}
	return nil
}

// id is that of a node of a Cluster.
func (s *Server) id(t testing.TB) string {
	t.Helper()
	return must[string](t, s, "CLUSTER", "MYID")
}

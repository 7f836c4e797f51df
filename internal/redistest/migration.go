package redistest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

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

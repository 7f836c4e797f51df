package redistest

import (
	"fmt"
	"testing"
)

// StepDown has a replica of master take its place in an orderly way, with CLUSTER
// FAILOVER, and returns it when it has. All nodes must be running: it first waits until
// they know of each other, as a master ignores a replica that it does not know.
func (c *Cluster) StepDown(t testing.TB, master *Server) (successor *Server) {
	t.Helper()
	for _, n := range c.Nodes {
		await(t, func() error { return c.complete(n) })
	}
	must[string](t, c.others(master)[0], "CLUSTER", "FAILOVER")
	return c.AwaitFailover(t, master)
}

// AwaitFailover waits until a replica has taken the place of a master that was killed
// or suspended, or has stepped down, and returns it. That takes about 5 s if the master
// does not answer: the others notice after 3 s.
func (c *Cluster) AwaitFailover(t testing.TB, master *Server) (successor *Server) {
	t.Helper()
	await(t, func() error {
		for _, n := range c.others(master) {
			if n.alive() && n.isMaster() {
				successor = n
				return nil
			}
		}
		return fmt.Errorf("no replica has taken the place of %s", master.Addr())
	})
	return successor
}

// Others are the nodes with the same data as s.
func (c *Cluster) others(s *Server) (others []*Server) {
	for i, n := range c.Nodes {
		if n == s {
			for j := i % c.masters; j < len(c.Nodes); j += c.masters {
				if j != i {
					others = append(others, c.Nodes[j])
				}
			}
		}
	}
	return others
}

func (s *Server) isMaster() bool {
	info, err := s.info("replication")
	return err == nil && info["role"] == "master"
}

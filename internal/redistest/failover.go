package redistest

import (
	"fmt"
	"testing"
	"time"
)

// StepDown replaces a master by one of its replicas in an orderly way, with CLUSTER FAILOVER, and
// returns the new master. All nodes must be running. StepDown first waits until they know each
// other, because a master ignores a replica that it does not know. It asks again if the replica
// gives up, as it does on a busy machine.
func (c *Cluster) StepDown(t testing.TB, master *Server) (successor *Server) {
	t.Helper()
	c.awaitComplete(t)
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
	return replica
}

// AwaitFailover waits until a replica has replaced a master that was killed or suspended, or has
// stepped down. It returns the new master. If the old one does not answer, that takes about 5 s:
// the other nodes notice after 3 s.
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

// others returns the nodes with the same data as s.
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

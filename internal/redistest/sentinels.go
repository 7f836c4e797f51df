package redistest

import (
	"fmt"
	"strconv"
	"testing"
)

// Sentinels are a master with two replicas, and three Sentinels that watch them. Two Sentinels must
// agree to replace the master.
type Sentinels struct {
	Name      string    // of the master
	Servers   []*Server // the first was the master at the start
	Sentinels []*Server
}

// StartSentinels starts the servers and the Sentinels. It waits until the Sentinels know all
// replicas and each other, which takes about three seconds. Where that can be set, Sentinels look at
// servers more often than usual, and tell a former master that it was replaced after 2 s, not 8 s.
func StartSentinels(t testing.TB, name string) *Sentinels {
	t.Helper()
	master := Start(t)
	s := &Sentinels{Name: name, Servers: []*Server{master, StartReplica(t, master), StartReplica(t, master)}}
	for range 3 {
		s.Sentinels = append(s.Sentinels, StartSentinel(t, master, name, 2))
	}
	for _, sentinel := range s.Sentinels {
		sentinel.Do("SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "PUBLISH-PERIOD", "500") // fails before Redis 7
	}
	for _, sentinel := range s.Sentinels {
		await(t, func() error {
			reply, err := sentinel.Do("SENTINEL", "SENTINELS", name)
			if known, _ := reply.([]any); len(known) != len(s.Sentinels)-1 {
				return fmt.Errorf("the Sentinel at %s knows %d others, %v, want %d", sentinel.Addr(), len(known), err, len(s.Sentinels)-1)
			}
			return nil
		})
	}
	return s
}

// Addrs returns the addresses of the Sentinels.
func (s *Sentinels) Addrs() []string {
	addrs := make([]string, len(s.Sentinels))
	for i, sentinel := range s.Sentinels {
		addrs[i] = sentinel.Addr()
	}
	return addrs
}

// Master returns the master according to most Sentinels, or nil.
func (s *Sentinels) Master() *Server {
	votes := make(map[string]int)
	for _, sentinel := range s.Sentinels {
		reply, _ := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name)
		if addr, _ := reply.([]any); len(addr) == 2 {
			votes[addr[1].(string)]++
		}
	}
	for _, server := range s.Servers {
		if votes[strconv.Itoa(server.port)] > len(s.Sentinels)/2 && server.alive() && server.isMaster() {
			return server
		}
	}
	return nil
}

// Masters returns the master, if there is one.
func (s *Sentinels) Masters(testing.TB) []*Server {
	if master := s.Master(); master != nil {
		return []*Server{master}
	}
	return nil
}

// MasterOf returns the master, whatever the key.
func (s *Sentinels) MasterOf(testing.TB, string) *Server { return s.Master() }

// StepDown replaces the master by a replica in an orderly way, and returns the new master.
func (s *Sentinels) StepDown(t testing.TB) (successor *Server) {
	t.Helper()
	master := s.Master()
	await(t, func() error {
		_, err := s.Sentinels[0].Do("SENTINEL", "FAILOVER", s.Name)
		return err
	})
	return s.AwaitFailover(t, master)
}

// AwaitFailover waits until a replica has replaced a master that was killed or suspended, or has
// stepped down. It returns the new master. If the old one does not answer, that takes about 3 s:
// the Sentinels notice after one.
func (s *Sentinels) AwaitFailover(t testing.TB, master *Server) (successor *Server) {
	t.Helper()
	await(t, func() error {
		if successor = s.Master(); successor == nil || successor == master {
			return fmt.Errorf("no replica has taken the place of %s", master.Addr())
		}
		return nil
	})
	return successor
}

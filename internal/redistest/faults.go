package redistest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Faults returns what can happen to the master: it is killed, and comes back as a replica; it is
// suspended, and resumed after it was replaced; it is cut off from the others, but not from clients
// that are connected, and is replaced; and SENTINEL FAILOVER replaces it. In the last three, it takes
// itself for a master until a Sentinel has told it otherwise.
func (s *Sentinels) Faults() []Fault {
	replaced := func(t testing.TB, strike, undo func(old *Server)) time.Duration {
		t.Helper()
		old, begun := s.Master(), time.Now()
		strike(old)
		s.AwaitFailover(t, old)
		took := time.Since(begun)
		undo(old)
		s.awaitWhole(t)
		return took
	}
	return []Fault{
		{"killed", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, (*Server).Kill, func(old *Server) { old.RestartAsReplica(s.Master()) })
		}},
		{"suspended", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, (*Server).Suspend, resumeLate)
		}},
		{"cut off", func(t testing.TB) time.Duration {
			t.Helper()
			var rejoin func()
			return replaced(t, func(old *Server) { rejoin = old.CutOff(t) }, func(*Server) {
				time.Sleep(lateness)
				rejoin()
			})
		}},
		{"stepped down", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, func(*Server) { s.StepDown(t) }, func(*Server) {})
		}},
	}
}

func resumeLate(s *Server) {
	time.Sleep(lateness)
	s.Resume()
}

// Faults returns what can happen to a master: it is killed, and comes back as a replica; it is
// suspended, and resumed after it was replaced; it is cut off from its replicas, but not from clients
// that are connected, and is killed a little later; it is replaced with CLUSTER FAILOVER; it is
// replaced with CLUSTER FAILOVER TAKEOVER, which neither asks nor tells it; and slots move to another
// master, with keys in them.
func (c *Cluster) Faults() []Fault {
	replaced := func(t testing.TB, strike, undo func(old *Server)) time.Duration {
		t.Helper()
		masters := c.Masters(t)
		old, begun := masters[rand.IntN(len(masters))], time.Now()
		strike(old)
		c.AwaitFailover(t, old)
		took := time.Since(begun)
		undo(old)
		c.awaitComplete(t)
		return took
	}
	return []Fault{
		{"killed", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, (*Server).Kill, (*Server).Restart)
		}},
		{"suspended", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, (*Server).Suspend, resumeLate)
		}},
		{"cut off", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, func(old *Server) {
				old.CutOff(t)
				time.Sleep(lateness)
				old.Kill()
			}, (*Server).Restart)
		}},
		{"stepped down", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, func(old *Server) { c.StepDown(t, old) }, func(*Server) {})
		}},
		{"taken over", func(t testing.TB) time.Duration {
			t.Helper()
			return replaced(t, func(old *Server) {
				must[string](t, c.others(old)[0], "CLUSTER", "FAILOVER", "TAKEOVER")
			}, func(*Server) {})
		}},
		{"slots moved", func(t testing.TB) time.Duration {
			t.Helper()
			c.moveSlots(t, 8)
			return 0
		}},
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

// awaitWhole waits until all servers run, the others are replicas of the master, and all Sentinels
// know that.
func (s *Sentinels) awaitWhole(t testing.TB) {
	t.Helper()
	await(t, func() error {
		master := s.Master()
		if master == nil {
			return fmt.Errorf("no master")
		}
		for _, server := range s.Servers {
			if err := server.follows(master); err != nil {
				return err
			}
		}
		for _, sentinel := range s.Sentinels {
			if err := s.knows(sentinel, master); err != nil {
				return err
			}
		}
		return nil
	})
}

// follows returns nil if the server is master, or a replica of it that is in sync.
func (s *Server) follows(master *Server) error {
	info, err := s.info("replication")
	if err != nil || s == master {
		return err
	}
	if info["master_port"] != strconv.Itoa(master.port) {
		return fmt.Errorf("%s is %s of port %q, not %d", s.Addr(), info["role"], info["master_port"], master.port)
	}
	return s.inSync()
}

// knows returns nil if a Sentinel watches master, and takes all other servers for replicas that could
// replace it.
func (s *Sentinels) knows(sentinel, master *Server) error {
	reply, err := sentinel.Do("SENTINEL", "MASTER", s.Name)
	if err != nil {
		return err
	}
	m := pairs(reply)
	if m["port"] != strconv.Itoa(master.port) || m["flags"] != "master" {
		return fmt.Errorf("the Sentinel at %s has %s for master, %s", sentinel.Addr(), m["port"], m["flags"])
	}
	reply, err = sentinel.Do("SENTINEL", "SLAVES", s.Name)
	if err != nil {
		return err
	}
	replicas := reply.([]any)
	fit := slices.IndexFunc(replicas, func(r any) bool {
		return pairs(r)["flags"] != "slave" || pairs(r)["master-link-status"] != "ok"
	}) < 0
	if len(replicas) != len(s.Servers)-1 || !fit {
		return fmt.Errorf("the Sentinel at %s has replicas that are not fit: %v", sentinel.Addr(), replicas)
	}
	return nil
}

// pairs reads a reply of alternating fields and values.
func pairs(reply any) map[string]string {
	list, m := reply.([]any), make(map[string]string)
	for i := 0; i+1 < len(list); i += 2 {
		m[list[i].(string)] = list[i+1].(string)
	}
	return m
}

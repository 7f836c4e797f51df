package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// Sentinels are a master with two replicas, and three Sentinels that watch them. Two Sentinels must
// agree to replace the master.
type Sentinels struct {
	replicated

	Name      string // of the master
	Sentinels []*Server
}

var _ Bed = (*Sentinels)(nil)

// StartSentinels starts the servers and the Sentinels. It waits until the Sentinels know all
// replicas and each other, which takes about three seconds. Where that can be set, Sentinels look at
// servers more often than usual, and tell a former master that it was replaced after 2 s, not 8 s.
func StartSentinels(t testing.TB, name string) *Sentinels {
	t.Helper()
	master := Start(t)
	s := &Sentinels{Name: name}
	s.replicated = replicated{[]*Server{master, StartReplica(t, master), StartReplica(t, master)}, 1, s.agree}
	for range 3 {
		s.Sentinels = append(s.Sentinels, StartSentinel(t, master, name, 2))
	}
	for _, sentinel := range s.Sentinels {
		sentinel.Do("SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "PUBLISH-PERIOD", "500") // fails before Redis 7
	}
	s.awaitWhole(t)
	return s
}

// StartSentinel starts a Redis Sentinel that watches master under a name, and waits until it knows
// the replicas of master. A master counts as down if it has not answered for a second, and is
// replaced if quorum Sentinels agree. The methods of the Server that read keys fail. With -short
// the test is skipped.
func StartSentinel(t testing.TB, master *Server, name string, quorum int) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("redistest: Sentinels are left out with -short")
	}
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]d %[4]d\n"+
		"sentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 5000\n", name, host, master.port, quorum)
	if master.password != "" {
		text += fmt.Sprintf("sentinel auth-pass %s %s\n", name, master.password)
	}
	config := filepath.Join(t.TempDir(), "sentinel.conf") // the Sentinel writes to it
	check(t, os.WriteFile(config, []byte(text), 0o600))
	s := start(t, config, []string{"--sentinel"})
	replicas := master.Info(t, "replication")["connected_slaves"]
	await(t, func() error { return s.watches(master, name, replicas) })
	return s
}

// watches returns nil if the Sentinel takes a server for the master, and knows how many replicas that
// could replace it.
func (s *Server) watches(master *Server, name, replicas string) error {
	reply, err := s.Do("SENTINEL", "MASTER", name)
	if err != nil {
		return err
	}
	if m := pairs(reply); m["port"] != strconv.Itoa(master.port) || m["flags"] != "master" {
		return fmt.Errorf("the Sentinel at %s has %s for master, %s", s.Addr(), m["port"], m["flags"])
	}
	if reply, err = s.Do("SENTINEL", "SLAVES", name); err != nil {
		return err
	}
	known := reply.([]any)
	unfit := slices.ContainsFunc(known, func(r any) bool {
		return pairs(r)["flags"] != "slave" || pairs(r)["master-link-status"] != "ok"
	})
	if strconv.Itoa(len(known)) != replicas || unfit {
		return fmt.Errorf("the Sentinel at %s has replicas that are not fit, or not %s: %v", s.Addr(), replicas, known)
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

// Addrs returns the addresses of the Sentinels.
func (s *Sentinels) Addrs() []string { return addrs(s.Sentinels) }

// agree reports whether most Sentinels take a server for the master.
func (s *Sentinels) agree(master *Server) bool {
	votes := 0
	for _, sentinel := range s.Sentinels {
		reply, _ := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name)
		if addr, _ := reply.([]any); len(addr) == 2 && addr[1] == strconv.Itoa(master.port) {
			votes++
		}
	}
	return votes > len(s.Sentinels)/2
}

// MasterOf returns the master, whatever the key, or nil.
func (s *Sentinels) MasterOf(t testing.TB, _ string) *Server {
	for _, master := range s.Masters(t) {
		return master
	}
	return nil
}

// Faults returns what can happen to the master.
func (s *Sentinels) Faults() []Fault { return failovers(s) }

// StepDown makes the Sentinels replace the master by a replica in an orderly way.
func (s *Sentinels) StepDown(t testing.TB, _ *Server) {
	t.Helper()
	await(t, func() error {
		_, err := s.Sentinels[0].Do("SENTINEL", "FAILOVER", s.Name)
		return err
	})
}

// comeBack makes the server a replica from the beginning: nobody mistakes it for a master without data.
func (s *Sentinels) comeBack(t testing.TB, killed *Server) {
	killed.restartAsReplica(s.MasterOf(t, ""))
}

// awaitWhole waits until all servers run, the others are replicas of the master, and all Sentinels
// know that and each other.
func (s *Sentinels) awaitWhole(t testing.TB) {
	t.Helper()
	await(t, func() error {
		master := s.MasterOf(t, "")
		if master == nil {
			return fmt.Errorf("no master")
		}
		for _, server := range s.Nodes {
			if err := server.follows(master); err != nil {
				return err
			}
		}
		for _, sentinel := range s.Sentinels {
			if err := sentinel.watches(master, s.Name, strconv.Itoa(len(s.Nodes)-1)); err != nil {
				return err
			}
			reply, err := sentinel.Do("SENTINEL", "SENTINELS", s.Name)
			if known, _ := reply.([]any); len(known) != len(s.Sentinels)-1 {
				return fmt.Errorf("the Sentinel at %s knows %d others, %v, want %d", sentinel.Addr(), len(known), err, len(s.Sentinels)-1)
			}
		}
		return nil
	})
}

package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const settleLimit = 60 * time.Second // for several servers to agree

// StartReplica starts a replica of a server and waits until it is in sync. Its password is the
// master's.
func StartReplica(t testing.TB, of *Server) *Server {
	t.Helper()
	args := []string{"--replicaof", host, strconv.Itoa(of.port)}
	if of.password != "" {
		args = append(args, "--requirepass", of.password, "--masterauth", of.password)
	}
	s := Start(t, args...)
	await(t, s.inSync)
	return s
}

// inSync returns nil if the server is a master, or a replica that has a copy of
// its master and receives its writes.
func (s *Server) inSync() error {
	info, err := s.info("replication")
	if err != nil {
		return err
	}
	if link := info["master_link_status"]; info["role"] != "master" && link != "up" {
		return fmt.Errorf("%s: master_link_status is %q, not up", s.Addr(), link)
	}
	return nil
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
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatalf("redistest: %v", err)
	}
	s := start(t, config, []string{"--sentinel"})
	await(t, func() error { return s.watches(master, name) })
	return s
}

// watches returns nil if the Sentinel knows all replicas of master.
func (s *Server) watches(master *Server, name string) error {
	info, err := master.info("replication")
	if err != nil {
		return err
	}
	reply, err := s.Do("SENTINEL", "SLAVES", name)
	if err != nil {
		return err
	}
	known := strconv.Itoa(len(reply.([]any)))
	if want := info["connected_slaves"]; known != want {
		return fmt.Errorf("the Sentinel at %s knows %s replicas of %s, not %s", s.Addr(), known, master.Addr(), want)
	}
	return nil
}

// await waits until a function returns nil.
func await(t testing.TB, what func() error) {
	t.Helper()
	err := what()
	for limit := time.Now().Add(settleLimit); err != nil && time.Now().Before(limit); err = what() {
		time.Sleep(poll)
	}
	if err != nil {
		t.Fatalf("redistest: after %v: %v", settleLimit, err)
	}
}

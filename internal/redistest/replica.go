package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

const settleLimit = 60 * time.Second // for several servers to agree

// StartReplica starts a replica of a server and waits until it is in sync. Its password is the
// master's.
func StartReplica(t testing.TB, of *Server) *Server {
	t.Helper()
	args := replicaOf(of)
	if of.password != "" {
		args = append(args, "--requirepass", of.password, "--masterauth", of.password)
	}
	s := Start(t, args...)
	await(t, s.inSync)
	return s
}

func replicaOf(s *Server) []string { return []string{"--replicaof", host, strconv.Itoa(s.port)} }

// inSync returns nil if the server is a master, or a replica that has a copy of its master and
// receives its writes. For up to a second after a copy, a replica receives none though its link is up.
func (s *Server) inSync() error {
	info, err := s.info("replication")
	if err != nil || info["role"] == "master" {
		return err
	}
	if link := info["master_link_status"]; link != "up" {
		return fmt.Errorf("%s: master_link_status is %q, not up", s.Addr(), link)
	}
	port, err := strconv.Atoi(info["master_port"])
	if err != nil {
		return err
	}
	master := &Server{port: port, limit: s.limit, password: s.password}
	master.Do("WAIT", "9", "20") // writes to its replicas, which answer how much they had received before
	written, _, err := master.offsets(s.port)
	if err != nil {
		return err
	}
	master.Do("WAIT", "9", "20")
	if _, received, err := master.offsets(s.port); err != nil || received < written {
		return fmt.Errorf("%s has received %d bytes from its master, %v, want %d", s.Addr(), received, err, written)
	}
	return nil
}

var offset = regexp.MustCompile(`port=(\d+),state=online,offset=(\d+)`)

// offsets returns how much a master has written for its replicas, and how much of that the one on
// port says that it has received.
func (s *Server) offsets(port int) (written, received int64, err error) {
	info, err := s.info("replication")
	if err != nil {
		return 0, 0, err
	}
	written, err = strconv.ParseInt(info["master_repl_offset"], 10, 64)
	for _, value := range info {
		if m := offset.FindStringSubmatch(value); m != nil && m[1] == strconv.Itoa(port) {
			received, _ = strconv.ParseInt(m[2], 10, 64)
		}
	}
	return written, received, err
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

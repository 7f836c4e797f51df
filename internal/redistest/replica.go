package redistest

import (
	"fmt"
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

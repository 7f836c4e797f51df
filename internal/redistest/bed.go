package redistest

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// A Bed is a store on several servers: [Sentinels], a [Cluster], or servers of which a majority
// decides. A test that strikes it with all its Faults need not know which it is.
type Bed interface {
	// Addrs returns the addresses that a client is given.
	Addrs() []string

	// Masters returns the servers that are masters now.
	Masters(t testing.TB) []*Server

	// MasterOf returns the master that has key.
	MasterOf(t testing.TB, key string) *Server

	// Faults returns what can happen to the bed.
	Faults() []Fault
}

// A Fault is something that can happen to a Bed.
type Fault struct {
	Name string

	// Strike makes it happen, to a master at random, and puts it right again. When it returns, all
	// servers run, and each knows its place. It returns the time from the fault until a replica was
	// master, or 0 if that is not what happens.
	Strike func(t testing.TB) (failover time.Duration)
}

// A replicated store has masters, and replicas that take their places.
type replicated struct {
	// Nodes has the masters in the order of their slots, followed by the replicas: with m masters,
	// Nodes[m+i] replicates Nodes[i%m]. Failovers do not change the order.
	Nodes []*Server

	masters   int
	confirmed func(master *Server) bool // by whoever else must know; or nil
}

// Masters returns the nodes that are masters now, in the order of Nodes.
func (r *replicated) Masters(testing.TB) (masters []*Server) {
	for _, s := range r.Nodes {
		if s.alive() && s.isMaster() && (r.confirmed == nil || r.confirmed(s)) {
			masters = append(masters, s)
		}
	}
	return masters
}

func (s *Server) isMaster() bool {
	info, err := s.info("replication")
	return err == nil && info["role"] == "master"
}

// others returns the nodes with the same data as s.
func (r *replicated) others(s *Server) (others []*Server) {
	for i := slices.Index(r.Nodes, s) % r.masters; i < len(r.Nodes); i += r.masters {
		if r.Nodes[i] != s {
			others = append(others, r.Nodes[i])
		}
	}
	return others
}

// AwaitFailover waits until a replica has replaced a master that was killed or suspended, or has
// stepped down. It returns the new master. If the old one does not answer, that takes about 3 s with
// Sentinels, which notice after one, and 5 s in a Cluster, where the other nodes notice after 3 s.
func (r *replicated) AwaitFailover(t testing.TB, master *Server) (successor *Server) {
	t.Helper()
	await(t, func() error {
		for _, m := range r.Masters(t) {
			if slices.Contains(r.others(master), m) {
				successor = m
				return nil
			}
		}
		return fmt.Errorf("no replica has taken the place of %s", master.Addr())
	})
	return successor
}

// A failoverBed is a Bed that is replicated.
type failoverBed interface {
	Bed
	AwaitFailover(t testing.TB, master *Server) (successor *Server)
	StepDown(t testing.TB, master *Server)
	comeBack(t testing.TB, killed *Server) // as a replica
	awaitWhole(t testing.TB)               // all nodes run, and each knows its place
}

// failovers returns the faults after which a replica takes the place of a master: the master is killed,
// and comes back as a replica; it is suspended, and resumed after it was replaced; and it steps down. In the last two, it
// takes itself for a master until another has told it otherwise.
func failovers(b failoverBed) []Fault {
	return []Fault{
		failover(b, "killed", func(t testing.TB, master *Server) (undo func()) {
			t.Helper()
			master.Kill()
			return func() { b.comeBack(t, master) }
		}),
		failover(b, "suspended", func(t testing.TB, master *Server) (undo func()) {
			t.Helper()
			master.Suspend()
			return func() {
				time.Sleep(lateness)
				master.Resume()
			}
		}),
		failover(b, "stepped down", func(t testing.TB, master *Server) (undo func()) {
			t.Helper()
			b.StepDown(t, master)
			return nil
		}),
	}
}

// lateness is how long a master that was replaced goes on unreachable.
const lateness = 300 * time.Millisecond

// failover is a fault of the master that strike is given. If it returns a function, that puts it right
// again when a replica is master.
func failover(b failoverBed, name string, strike func(t testing.TB, master *Server) (undo func())) Fault {
	return Fault{name, func(t testing.TB) time.Duration {
		t.Helper()
		masters := b.Masters(t)
		old, begun := masters[rand.IntN(len(masters))], time.Now()
		undo := strike(t, old)
		b.AwaitFailover(t, old)
		took := time.Since(begun)
		if undo != nil {
			undo()
		}
		b.awaitWhole(t)
		return took
	}}
}

func addrs(servers []*Server) []string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

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

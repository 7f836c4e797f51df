package sim

import (
	"slices"
	"time"
)

// A Link carries writes from a master to a replica, and acknowledgements back.
type Link struct {
	Delay time.Duration // of each way
	Cut   bool          // nothing passes, and arrives when the link is no longer cut
}

// replication is what a server knows of its master and its replicas.
//
// A replica repeats the writes of its master, at the times that they had there. So it has what the
// master had some time ago, whatever its own clock says.
type replication struct {
	master    *Server // nil for a master
	replicas  []*Server
	replID    string
	replID2   string   // the replication ID before the promotion
	offset    int64    // of the last write that the server has
	effects   []effect // of what runs
	repeating time.Time
	changed   chan struct{} // closed when WAIT must look again; nil if nobody waits

	// Of a replica.
	link    Link
	pending []write
	acked   int64 // the offset that the master knows of; -1 until it has the first copy
}

// An effect is a command that has changed something, with its time.
type effect struct {
	at     time.Time
	repeat func(*Server)
}

// A write is all effects of a script. A replica has all of them or none.
type write struct {
	effects []effect
	offset  int64
	due     time.Time
}

// NewReplica returns a replica, which has a copy of all data.
func (s *Server) NewReplica() *Server {
	r := NewServer()
	r.mu = s.mu
	r.Follow(s)
	return r
}

// Replicas returns the servers that follow this one.
func (s *Server) Replicas() []*Server {
	s.lock()
	defer s.unlock()
	return slices.Clone(s.replicas)
}

// SetLink replaces the link between a replica and its master.
func (s *Server) SetLink(l Link) {
	s.lock()
	defer s.unlock()
	s.link = l
	s.pull()
}

// Promote makes a replica a master. The writes that have not reached it are lost. Its former master and
// the other replicas go on as before, until they are told with Follow.
func (s *Server) Promote() {
	s.lock()
	defer s.unlock()
	old := s.master
	if old == nil {
		return
	}
	s.leave()
	s.replID, s.replID2 = newID(), s.replID
	if s.cluster != nil {
		s.cluster.replace(old, s)
	}
}

// Follow makes the server a replica of a master of its topology: it loses what only it has. Its
// subscriptions stay, but for shard channels of slots that it no longer has.
func (s *Server) Follow(master *Server) {
	s.lock()
	defer s.unlock()
	s.leave()
	s.master = master
	master.replicas = append(master.replicas, s)
	master.copyTo(s)
	s.wake()
	if s.cluster != nil {
		s.apart = false
		s.learn(&s.cluster.slots)
	}
}

func (s *Server) leave() {
	if m := s.master; m != nil {
		m.replicas = slices.DeleteFunc(m.replicas, func(r *Server) bool { return r == s })
		s.master, s.pending = nil, nil
	}
}

// copyTo sends a replica all data.
func (s *Server) copyTo(r *Server) {
	data, id := cloned(s.data), s.replID
	r.acked, r.pending = -1, nil
	r.receive(write{offset: s.offset, effects: []effect{{s.now(), func(r *Server) {
		r.data, r.replID, r.replID2 = cloned(data), id, ""
	}}}})
}

// lock begins what happens at once: a script, or a command of a client.
func (s *Server) lock() { s.mu.Lock() }

func (s *Server) unlock() {
	s.commit()
	s.mu.Unlock()
}

// commit sends the replicas what has happened, and reports whether that is anything.
func (s *Server) commit() bool {
	if len(s.effects) == 0 {
		return false
	}
	s.offset++
	s.send(write{effects: s.effects, offset: s.offset})
	s.effects = nil
	return true
}

func (s *Server) send(w write) {
	for _, r := range s.replicas {
		r.receive(w)
	}
}

// record notes an effect, for the replicas.
func (s *Server) record(repeat func(*Server)) {
	if s.master == nil && len(s.replicas) > 0 {
		s.effects = append(s.effects, effect{s.now(), repeat})
	}
}

func (s *Server) receive(w write) {
	w.due = time.Now().Add(s.link.Delay)
	s.pending = append(s.pending, w)
	s.after(s.link.Delay, s.pull)
}

// after calls f, with the mutex locked.
func (s *Server) after(d time.Duration, f func()) {
	if d <= 0 {
		f()
		return
	}
	time.AfterFunc(d, func() {
		s.lock()
		defer s.unlock()
		f()
	})
}

// pull repeats the writes that have arrived, and acknowledges them.
func (s *Server) pull() {
	for len(s.pending) > 0 && !s.link.Cut && !s.pending[0].due.After(time.Now()) {
		w := s.pending[0]
		for _, e := range w.effects {
			s.repeating = e.at
			e.repeat(s)
		}
		s.repeating = time.Time{}
		s.pending, s.offset = s.pending[1:], w.offset
		s.send(w)
	}
	master, offset := s.master, s.offset
	s.after(s.link.Delay, func() {
		if s.master != nil && s.master == master && !s.link.Cut && offset > s.acked {
			s.acked = offset
			master.wake()
		}
	})
}

const (
	errReadOnly      = Error("READONLY You can't write against a read only replica.")
	errWaitOnReplica = Error("ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.")
	errUnblocked     = Error("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)")
)

// wait is WAIT of a client whose last write had an offset, 0 if it has written nothing. It returns how
// many replicas are known to have that write. It ends when end does. Before Redis 7.2, a client that only
// reads waits for the writes of others before.
func (s *Server) wait(offset int64, replicas int, timeout time.Duration, end <-chan struct{}) (n int, err error) {
	if refused := s.mayNot("WAIT"); refused != "" {
		return 0, Error(refused)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	err = errWaitOnReplica
	for over := false; ; err = errUnblocked {
		n, changed := s.acknowledged(offset)
		switch {
		case n < 0:
			return 0, err
		case n >= replicas || over:
			return n, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-end:
			over = true
		}
	}
}

func (s *Server) mayNot(command string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults.Commands[command]
}

// acknowledged returns how many replicas are known to have a write, or -1 if the server is a replica
// itself; and what is closed when that has changed.
func (s *Server) acknowledged(offset int64) (n int, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	if s.master != nil {
		return -1, s.changed
	}
	for _, r := range s.replicas {
		if r.acked >= offset {
			n++
		}
	}
	return n, s.changed
}

func (s *Server) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

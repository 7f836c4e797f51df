package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	lua "github.com/yuin/gopher-lua"

	"github.com/dlock-go/dlock/internal/chance"
)

// A Server is a master or a replica. Its methods can be called at any time, by any goroutine.
type Server struct {
	mu      *sync.Mutex // of all servers of a topology
	lua     *lua.LState
	scripts map[string]*lua.LFunction // by their SHA-1
	data    map[string]*entry
	inboxes map[channel][]*Subscription
	skew    time.Duration
	faults  Faults
	script  bool // a script runs
	wrote   bool // the script that runs, or the last command
	moved   bool // the last command has changed the score of a member
	cost    Cost
	replication
	node
}

// Faults are what a server refuses. An empty text refuses nothing.
type Faults struct {
	Calls  string // the error of each call, such as "LOADING …", "NOAUTH …" or "BUSY …"
	Writes string // the error of each command that writes, such as "READONLY …"
	Full   bool   // commands that take memory fail with OOM, unless the script has written before

	Commands map[string]string // the error of each command that the user may not use
}

// A Cost is what a server has done.
type Cost struct {
	Scripts, Commands int
	Calls             map[string]int // of each command
}

// NewServer returns an empty server.
func NewServer() *Server {
	s := &Server{mu: new(sync.Mutex), scripts: make(map[string]*lua.LFunction), inboxes: make(map[channel][]*Subscription)}
	s.cost.Calls = make(map[string]int)
	s.lua = s.newState()
	s.restart()
	return s
}

// Restart is the end of all data, scripts and subscriptions, and a new replication ID.
func (s *Server) Restart() {
	s.lock()
	defer s.unlock()
	s.restart()
	clear(s.scripts)
	s.endInboxes(func(channel) bool { return true })
	for _, r := range s.replicas {
		s.copyTo(r)
	}
	if s.master != nil {
		s.master.copyTo(s)
	}
}

func (s *Server) restart() {
	s.data = make(map[string]*entry)
	s.replID, s.replID2 = newID(), ""
}

// newID returns a new replication ID.
func newID() string { return fmt.Sprintf("%x%x", chance.Bits(), chance.Bits())[:40] }

// endInboxes ends the subscriptions to some channels, in the order of their names.
func (s *Server) endInboxes(of func(channel) bool) {
	byName := func(a, b channel) int { return strings.Compare(a.name, b.name) }
	for _, c := range slices.SortedFunc(maps.Keys(s.inboxes), byName) {
		if of(c) {
			for _, sub := range s.inboxes[c] {
				close(sub.Ended)
			}
			delete(s.inboxes, c)
		}
	}
}

// FlushAll removes all keys.
func (s *Server) FlushAll() {
	s.lock()
	defer s.unlock()
	clear(s.data)
	s.record(func(r *Server) { clear(r.data) })
}

// SetClock sets the server's clock to d after the process's.
func (s *Server) SetClock(d time.Duration) {
	s.lock()
	defer s.unlock()
	s.skew = d
}

// SetFaults replaces what the server refuses.
func (s *Server) SetFaults(f Faults) {
	s.lock()
	defer s.unlock()
	s.faults = f
}

// Cost returns what the server has done since it was made.
func (s *Server) Cost() Cost {
	s.lock()
	defer s.unlock()
	cost := s.cost
	cost.Calls = maps.Clone(cost.Calls)
	return cost
}

// Keys returns the names of all keys, sorted.
func (s *Server) Keys() (keys []string) {
	s.lock()
	defer s.unlock()
	for key := range s.data {
		if s.get(key) != nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Do executes a command as a client, and returns its reply as [Conn.Eval] does.
func (s *Server) Do(args ...string) (any, error) {
	s.lock()
	defer s.unlock()
	s.wrote = false
	reply, err := s.execute(args)
	if status, ok := reply.(status); ok {
		reply = string(status)
	}
	return reply, err
}

// Eval runs a script, which is compiled once. Nothing else happens meanwhile.
func (s *Server) Eval(source, sha string, keys, args []string) (any, error) {
	reply, _, err := s.eval(source, sha, keys, args, false)
	return reply, err
}

// eval also returns the offset of what the script wrote, or 0. In a cluster, ASKING comes before it if
// asking is set.
func (s *Server) eval(source, sha string, keys, args []string, asking bool) (reply any, offset int64, err error) {
	s.lock()
	defer s.unlock()
	if s.faults.Calls != "" {
		return nil, 0, Error(s.faults.Calls)
	}
	if err := s.redirects(keys, asking); err != nil {
		return nil, 0, err
	}
	if s.scripts[sha] == nil {
		f, err := compile(s.lua, source)
		if err != nil {
			return nil, 0, Error(fmt.Sprintf("ERR Error compiling script (new function): %v", err))
		}
		s.scripts[sha] = f
	}
	s.asking = asking
	reply, err = s.run(s.scripts[sha], keys, args)
	if s.commit() {
		offset = s.offset
	}
	return reply, offset, err
}

// An Error is an error reply.
type Error string

func (e Error) Error() string { return string(e) }

// now is the time of the server's clock, which does not move while a script runs in a bubble. What is
// repeated has the time that it had on the master.
func (s *Server) now() time.Time {
	if !s.repeating.IsZero() {
		return s.repeating
	}
	return time.Now().Add(s.skew)
}

// A channel is one of two kinds, which do not meet.
type channel struct {
	name  string
	shard bool
}

// A Subscription collects the messages of a channel, in order.
type Subscription struct {
	Ended chan struct{} // closed when the server has ended it
	Came  chan struct{} // has one element if Take may return messages

	mu       sync.Mutex
	messages []Message
}

// A Message was published at a certain time of the process's clock.
type Message struct {
	Text string
	At   time.Time
}

// Subscribe begins a Subscription. Unsubscribe ends it.
func (s *Server) Subscribe(name string, shard bool) (*Subscription, error) {
	s.lock()
	defer s.unlock()
	if s.faults.Calls != "" {
		return nil, Error(s.faults.Calls)
	}
	if shard {
		if err := s.refuses(name); err != nil {
			return nil, err
		}
	}
	sub := &Subscription{Ended: make(chan struct{}), Came: make(chan struct{}, 1)}
	c := channel{name, shard}
	s.inboxes[c] = append(s.inboxes[c], sub)
	return sub, nil
}

// Unsubscribe ends a Subscription.
func (s *Server) Unsubscribe(name string, shard bool, sub *Subscription) {
	s.lock()
	defer s.unlock()
	c := channel{name, shard}
	if s.inboxes[c] = slices.DeleteFunc(s.inboxes[c], func(other *Subscription) bool { return other == sub }); len(s.inboxes[c]) == 0 {
		delete(s.inboxes, c)
	}
}

// Take returns the messages that have come since the last call.
func (b *Subscription) Take() []Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.messages
	b.messages = nil
	return taken
}

func (b *Subscription) add(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, Message{text, time.Now()})
	select {
	case b.Came <- struct{}{}:
	default:
	}
}

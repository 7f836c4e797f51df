package sim

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// A Server is one master. Its methods can be called at any time, by any goroutine.
type Server struct {
	mu      sync.Mutex
	lua     *lua.LState
	scripts map[string]*lua.LFunction // by their SHA-1
	data    map[string]*entry
	inboxes map[channel][]*Subscription
	replID  string
	skew    time.Duration
	faults  Faults
	wrote   bool // the script that runs, or the last command
	cost    Cost
}

// Faults are what a server refuses. An empty text refuses nothing.
type Faults struct {
	Calls    string // the error of each call, such as "LOADING …", "NOAUTH …" or "BUSY …"
	Writes   string // the error of each command that writes, such as "READONLY …"
	Publish  string // the error of PUBLISH and SPUBLISH, such as "NOPERM …"
	Full     bool   // commands that take memory fail with OOM, unless the script has written before
	NoShards bool   // there are no shard channels, as before Redis 7
}

// A Cost is what a server has done.
type Cost struct{ Scripts, Commands int }

// NewServer returns an empty server.
func NewServer() *Server {
	s := &Server{scripts: make(map[string]*lua.LFunction), inboxes: make(map[channel][]*Subscription)}
	s.lua = s.newState()
	s.restart()
	return s
}

// Restart is the end of all data, scripts and subscriptions, and a new replication ID.
func (s *Server) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restart()
	clear(s.scripts)
	for _, all := range s.inboxes {
		for _, sub := range all {
			sub.end()
		}
	}
	clear(s.inboxes)
}

func (s *Server) restart() {
	s.data = make(map[string]*entry)
	id := make([]byte, 20)
	rand.Read(id)
	s.replID = hex.EncodeToString(id)
}

// FlushAll removes all keys.
func (s *Server) FlushAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.data)
}

// SetClock sets the server's clock to d after the process's.
func (s *Server) SetClock(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = d
}

// SetFaults replaces what the server refuses.
func (s *Server) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// Cost returns what the server has done since it was made.
func (s *Server) Cost() Cost {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cost
}

// Keys returns the names of all keys, sorted.
func (s *Server) Keys() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrote = false
	reply, err := s.execute(args)
	if status, ok := reply.(status); ok {
		reply = string(status)
	}
	return reply, err
}

// EvalSHA runs a script that the server knows, and Eval any script. Nothing else happens meanwhile.
func (s *Server) EvalSHA(sha string, keys, args []string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.Calls != "" {
		return nil, Error(s.faults.Calls)
	}
	f := s.scripts[sha]
	if f == nil {
		return nil, Error("NOSCRIPT No matching script. Please use EVAL.")
	}
	return s.run(f, keys, args)
}

// Eval compiles and runs a script.
func (s *Server) Eval(source, sha string, keys, args []string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.Calls != "" {
		return nil, Error(s.faults.Calls)
	}
	if s.scripts[sha] == nil {
		f, err := compile(s.lua, source)
		if err != nil {
			return nil, Error(fmt.Sprintf("ERR Error compiling script (new function): %v", err))
		}
		s.scripts[sha] = f
	}
	return s.run(s.scripts[sha], keys, args)
}

// An Error is an error reply.
type Error string

func (e Error) Error() string { return string(e) }

// now is the time of the server's clock, which does not move while a script runs in a bubble.
func (s *Server) now() time.Time { return time.Now().Add(s.skew) }

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
	ended    bool
}

// A Message was published at a certain time of the process's clock.
type Message struct {
	Text string
	At   time.Time
}

// Subscribe begins a Subscription. Unsubscribe ends it.
func (s *Server) Subscribe(name string, shard bool) (*Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.Calls != "" {
		return nil, Error(s.faults.Calls)
	}
	if shard && s.faults.NoShards {
		return nil, unknown("SSUBSCRIBE")
	}
	sub := &Subscription{Ended: make(chan struct{}), Came: make(chan struct{}, 1)}
	c := channel{name, shard}
	s.inboxes[c] = append(s.inboxes[c], sub)
	return sub, nil
}

// Unsubscribe ends a Subscription.
func (s *Server) Unsubscribe(name string, shard bool, sub *Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

func (b *Subscription) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ended = true
		close(b.Ended)
	}
}

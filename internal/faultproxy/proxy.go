package faultproxy

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/freeport"
)

// A Direction is a direction in which bytes flow, or both.
type Direction int

// The directions.
const (
	ToStore  Direction = 1 << iota // requests
	ToClient                       // replies
	Both     = ToStore | ToClient
)

// A Proxy passes on what its clients and the store send to each other, except for the faults that
// its methods set. All methods are safe for concurrent use.
type Proxy struct {
	addr  string
	claim net.PacketConn  // of its port
	over  context.Context // ends with Close
	end   context.CancelFunc
	all   sync.WaitGroup

	mu       sync.Mutex
	store    string
	listener net.Listener  // nil while connections are refused
	changed  chan struct{} // closed, and replaced, when blocked changes
	blocked  Direction
	paces    map[Direction]Pace
	faults   []*Fault // those that have not struck yet
	rejects  func(Request) string
	links    map[*link]struct{}
}

// New starts a Proxy for the store at the address store, on a loopback port of its own. At first
// it passes everything on. The caller must Close it.
func New(store string) (*Proxy, error) {
	claim, port, err := freeport.Claim()
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	listener, err := net.Listen("tcp4", freeport.Addr(port))
	if err != nil { // a process that does not claim its ports was faster
		claim.Close()
		return New(store)
	}
	p := &Proxy{
		store:   store,
		addr:    freeport.Addr(port),
		claim:   claim,
		changed: make(chan struct{}),
		paces:   make(map[Direction]Pace),
		links:   make(map[*link]struct{}),
	}
	p.over, p.end = context.WithCancel(context.Background())
	p.listenLocked(listener)
	return p, nil
}

// Addr returns the host and port that clients connect to. They never change.
func (p *Proxy) Addr() string { return p.addr }

// Close closes all connections, and drops what is held back. It returns when all goroutines of the Proxy have ended.
func (p *Proxy) Close() {
	p.end()
	p.refuse((*link).close)
	p.all.Wait()
	p.claim.Close()
}

// Block stops everything in direction d, on present and new connections. The connections stay
// open. Only what is being written at this moment may still pass. What is sent later waits, like
// data that TCP retransmits, and passes after Heal, even if its sender has closed the connection.
func (p *Proxy) Block(d Direction) { p.locked(func() { p.blockLocked(p.blocked | d) }) }

func (p *Proxy) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Refuse closes all connections like Cut, and refuses new ones until Heal.
func (p *Proxy) Refuse() { p.refuse((*link).cut) }

// Cut closes all connections on both sides, and drops what is in flight. Only requests that Hold
// holds back can still be delivered.
func (p *Proxy) Cut() {
	for _, l := range p.present() {
		l.cut()
	}
}

// Move makes new connections lead to the store at another address. Present ones stay as they are.
func (p *Proxy) Move(store string) { p.locked(func() { p.store = store }) }

// Reject makes the Proxy answer commands of RESP itself, from now on: those for which text returns the text of an error. A
// proxy in front of a service does so that does not allow everything. The store gets a script that returns the error in
// place of the command, so it must be one that runs Lua.
func (p *Proxy) Reject(text func(Request) string) { p.locked(func() { p.rejects = text }) }

// Slow sets the pace of everything that passes in direction d from now on.
func (p *Proxy) Slow(d Direction, pace Pace) {
	for _, one := range []Direction{ToStore, ToClient} {
		if d&one != 0 {
			p.locked(func() { p.paces[one] = pace })
		}
	}
}

// healLimit is for processes that are being started, on a busy machine.
const healLimit = 5 * time.Second

// Heal undoes Block, Refuse and Slow. It fails only if another process has taken the Proxy's port. A
// process that this one is starting has it for a moment: a copy of the listener that Refuse has closed.
func (p *Proxy) Heal() error {
	for limit := time.Now().Add(healLimit); ; time.Sleep(time.Millisecond) {
		if err := p.heal(); err == nil || time.Now().After(limit) {
			return err
		}
	}
}

func (p *Proxy) heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blockLocked(0)
	clear(p.paces)
	if p.listener != nil || p.over.Err() != nil {
		return nil
	}
	l, err := net.Listen("tcp4", p.addr)
	if err != nil {
		return fmt.Errorf("faultproxy: %w", err)
	}
	p.listenLocked(l)
	return nil
}

// blockLocked sets what is blocked.
func (p *Proxy) blockLocked(d Direction) {
	p.blocked = d
	close(p.changed)
	p.changed = make(chan struct{})
}

// refuse stops listening, and calls end for all connections.
func (p *Proxy) refuse(end func(*link)) {
	p.locked(func() {
		if p.listener != nil {
			p.listener.Close()
			p.listener = nil
		}
	})
	for _, l := range p.present() {
		end(l)
	}
}

func (p *Proxy) present() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.links))
}

// listenLocked serves the connections of a listener until the listener is closed.
func (p *Proxy) listenLocked(l net.Listener) {
	p.listener = l
	p.all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.serve(client, l) })
		}
	})
}

func (p *Proxy) serve(client net.Conn, by net.Listener) {
	var address string
	p.locked(func() { address = p.store })
	store, err := new(net.Dialer).DialContext(p.over, "tcp", address)
	if err != nil {
		reset(client)
		return
	}
	l := &link{
		p: p, client: client.(*net.TCPConn), store: store.(*net.TCPConn),
		requests: make(chan message, queued), replies: make(chan message, queued),
	}
	l.over, l.end = context.WithCancel(p.over)
	welcome := false
	p.locked(func() {
		if welcome = p.listener == by; welcome {
			p.links[l] = struct{}{}
		}
	})
	if !welcome {
		l.close()
		return
	}
	l.serve()
	p.locked(func() { delete(p.links, l) })
}

// reset closes a connection so that the other side gets an error, and not an end of file.
func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0) // fails if the connection has ended, which does as well
	conn.Close()
}

// blocks reports whether direction d is blocked, and returns a channel that is closed when that may have changed.
func (p *Proxy) blocks(d Direction) (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocked&d != 0, p.changed
}

// admit returns what the store gets in place of a request.
func (p *Proxy) admit(m message) message {
	var rejects func(Request) string
	p.locked(func() { rejects = p.rejects })
	if rejects == nil || len(m.args) == 0 {
		return m
	}
	if text := rejects(Request{m.raw, m.args}); text != "" {
		m.args = []string{"EVAL", "return {err = ARGV[1]}", "0", text}
		m.raw = command(m.args)
	}
	return m
}

func (p *Proxy) pace(d Direction) Pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paces[d]
}

// due returns when what is read now may be passed on in direction d.
func (p *Proxy) due(d Direction) time.Time { return time.Now().Add(p.pace(d).delay()) }

// A Pace says how slow a network is in one direction. A zero field has no effect.
type Pace struct {
	Latency time.Duration // of everything
	Jitter  time.Duration // a random extra latency, up to this; the order is kept
}

func (p Pace) delay() time.Duration {
	if p.Jitter <= 0 {
		return p.Latency
	}
	return p.Latency + rand.N(p.Jitter)
}

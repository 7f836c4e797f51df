package faultproxy

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// A Direction is one of the two in which bytes flow, or both.
type Direction int

// The directions.
const (
	ToStore  Direction = 1 << iota // requests
	ToClient                       // replies
	Both     = ToStore | ToClient
)

// A Proxy passes on what clients that connect to it and the store say to each other,
// except for what it is told to spoil. All its methods may be called by any number of
// goroutines.
type Proxy struct {
	store string
	port  *port
	over  context.Context // ends with Close
	end   context.CancelFunc
	all   sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener  // nil while connections are refused
	changed  chan struct{} // closed, and made anew, when blocked changes
	blocked  Direction
	paces    map[Direction]Pace
	faults   []*Fault // those that have not struck yet
	links    map[*link]struct{}
}

// New returns a Proxy for the store at the address store, on a loopback port of its
// own. It passes everything on. Close it.
func New(store string) (*Proxy, error) {
	port, err := claimPort()
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{
		store:   store,
		port:    port,
		changed: make(chan struct{}),
		paces:   make(map[Direction]Pace),
		links:   make(map[*link]struct{}),
	}
	p.over, p.end = context.WithCancel(context.Background())
	p.listen(port.listener)
	return p, nil
}

// Addr is where clients connect to: host and port. It never changes.
func (p *Proxy) Addr() string { return p.port.addr }

// Close ends all connections, drops what is held back, and returns when nothing of
// the Proxy is left.
func (p *Proxy) Close() {
	p.end()
	p.refuse((*link).close)
	p.all.Wait()
	p.port.free()
}

// Block makes a black hole: from now on nothing passes in direction d, on present and
// new connections, though all stay open; only what is being written at this moment may
// still pass. What is sent meanwhile waits, as it does when TCP sends again and again,
// and passes after Heal, even if whoever sent it has closed the connection.
func (p *Proxy) Block(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.block(p.blocked | d)
}

// Refuse cuts all connections like Cut, and refuses new ones until Heal.
func (p *Proxy) Refuse() { p.refuse((*link).cut) }

// Cut closes all connections on both sides, and drops what is on its way in them. Only
// requests that a Hold keeps back can still be delivered.
func (p *Proxy) Cut() {
	for _, l := range p.present() {
		l.cut()
	}
}

// Slow makes what passes in direction d, from now on, as slow as pace says.
func (p *Proxy) Slow(d Direction, pace Pace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range []Direction{ToStore, ToClient} {
		if d&one != 0 {
			p.paces[one] = pace
		}
	}
}

// Heal undoes Block, Refuse and Slow. It fails only if something else has taken the
// Proxy's port meanwhile.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.block(0)
	clear(p.paces)
	if p.listener != nil || p.over.Err() != nil {
		return nil
	}
	l, err := net.Listen("tcp4", p.port.addr)
	if err != nil {
		return fmt.Errorf("faultproxy: %w", err)
	}
	p.listen(l)
	return nil
}

// block sets what is blocked. p.mu is held.
func (p *Proxy) block(d Direction) {
	p.blocked = d
	close(p.changed)
	p.changed = make(chan struct{})
}

// refuse stops listening, and has end done to all connections.
func (p *Proxy) refuse(end func(*link)) {
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	for _, l := range p.present() {
		end(l)
	}
}

func (p *Proxy) present() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.links))
}

// listen serves the connections of a listener until that is closed. p.mu is held, or
// nobody else knows p.
func (p *Proxy) listen(l net.Listener) {
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
	store, err := new(net.Dialer).DialContext(p.over, "tcp", p.store)
	if err != nil {
		reset(client)
		return
	}
	l := newLink(p, client.(*net.TCPConn), store.(*net.TCPConn))
	p.mu.Lock()
	welcome := p.listener == by
	if welcome {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if !welcome {
		l.close()
		return
	}
	l.serve()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// reset closes a connection such that the other side finds an error, not an end.
func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0) // fails on a connection that has ended: as good
	conn.Close()
}

// blocks reports whether nothing may pass in direction d, and returns a channel that
// is closed when that may have changed.
func (p *Proxy) blocks(d Direction) (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocked&d != 0, p.changed
}

func (p *Proxy) pace(d Direction) Pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paces[d]
}

// due is when what is read now may be passed on in direction d.
func (p *Proxy) due(d Direction) time.Time { return time.Now().Add(p.pace(d).delay()) }

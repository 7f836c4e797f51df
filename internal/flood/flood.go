// Package flood keeps events that come in great numbers from being reported one by one.
package flood

import (
	"sync"
	"time"
)

// How many events of one kind pass within span, and for how long the others are gathered.
const (
	most = 10
	span = time.Second
)

// A Gate lets the first ten events of a kind in a second pass, and gathers those of the next second. Its
// methods are safe for concurrent use.
type Gate struct {
	gathered func(kind string, n int)
	mu       sync.Mutex
	floods   map[string]*flood // by kind
}

type flood struct {
	began time.Time
	count int // of events since then
}

// NewGate returns a Gate that calls gathered when events of a kind were gathered, in a goroutine of its own. A
// panic of gathered is recovered.
func NewGate(gathered func(kind string, n int)) *Gate {
	return &Gate{gathered: gathered, floods: make(map[string]*flood)}
}

// Passes reports whether the next event of a kind passes. Otherwise it is gathered.
func (g *Gate) Passes(kind string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, now := g.floods[kind], time.Now()
	if f == nil || f.count <= most && now.Sub(f.began) >= span {
		f = &flood{began: now}
		g.floods[kind] = f
	}
	f.count++
	if f.count == most+1 {
		time.AfterFunc(span, func() { g.end(kind) })
	}
	return f.count <= most
}

// end reports how many events were gathered.
func (g *Gate) end(kind string) {
	g.mu.Lock()
	n := g.floods[kind].count - most
	delete(g.floods, kind)
	g.mu.Unlock()
	defer func() { _ = recover() }()
	g.gathered(kind, n)
}

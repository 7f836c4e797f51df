// Package logwatch decides what a log shows of many events: it gathers those of one kind, and tells which failures are
// one outage.
package logwatch

import (
	"sync"
	"time"
)

// most is how many events of one kind pass within a span.
const most = 10

// A Gate lets the first ten events of a kind in a span pass, and gathers those of the next span. Its methods are safe
// for concurrent use.
type Gate struct {
	span     time.Duration
	gathered func(kind string, n int, last error)
	mu       sync.Mutex
	floods   map[string]*flood // by kind
}

type flood struct {
	began time.Time
	count int   // of events since then
	last  error // of the last one
}

// NewGate returns a Gate that calls gathered when events of a kind were gathered, with the error of the last one, in a
// goroutine of its own. A panic of gathered is recovered.
func NewGate(span time.Duration, gathered func(kind string, n int, last error)) *Gate {
	return &Gate{span: span, gathered: gathered, floods: make(map[string]*flood)}
}

// Passes reports whether the next event of a kind passes. Otherwise it is gathered.
func (g *Gate) Passes(kind string, err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, now := g.floods[kind], time.Now()
	if f == nil || f.count <= most && now.Sub(f.began) >= g.span {
		f = &flood{began: now}
		g.floods[kind] = f
	}
	f.count++
	f.last = err
	if f.count == most+1 {
		time.AfterFunc(g.span, func() { g.end(kind) })
	}
	return f.count <= most
}

// end reports how many events were gathered.
func (g *Gate) end(kind string) {
	g.mu.Lock()
	n, last := g.floods[kind].count-most, g.floods[kind].last
	delete(g.floods, kind)
	g.mu.Unlock()
	defer func() { _ = recover() }()
	g.gathered(kind, n, last)
}

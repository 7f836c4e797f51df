package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
)

// A Request is what a client asks of its store; the package documentation tells what
// that is in which protocol.
type Request struct {
	Raw  []byte   // as it was sent
	Args []string // of a connection that speaks RESP: the name of the command and its arguments
}

// A Match chooses requests. It may be called by several goroutines at once, and
// changes nothing.
type Match func(Request) bool

// Any chooses all requests.
func Any(Request) bool { return true }

// Contains chooses the requests in which text occurs literally, in any protocol.
func Contains(text string) Match {
	return func(r Request) bool { return bytes.Contains(r.Raw, []byte(text)) }
}

// Command chooses the commands of RESP that have the given name, in any case, and all
// of args among their arguments.
func Command(name string, args ...string) Match {
	return func(r Request) bool {
		if len(r.Args) == 0 || !strings.EqualFold(r.Args[0], name) {
			return false
		}
		for _, arg := range args {
			if !slices.Contains(r.Args[1:], arg) {
				return false
			}
		}
		return true
	}
}

// An Ending is what becomes of the client's connection when a fault strikes.
type Ending int

const (
	// Cut closes the client's connection.
	Cut Ending = iota
	// Stall leaves the client waiting: its connection stays open, and the client
	// gets nothing more on it.
	Stall
)

// A Fault strikes one request: the first that matches, of all connections. Of several
// faults that match, the one strikes that was asked for first.
type Fault struct {
	match  Match
	kind   kind
	ending Ending

	struck   chan struct{}
	once     sync.Once     // guards the closing of go on
	goOn     chan struct{} // a request that is held may go on
	answered chan struct{} // the store has begun to reply
	link     *link         // after struck
}

type kind int

const (
	watch kind = iota
	dropRequest
	dropReply
	cutReply
	hold
)

// Watch does nothing to the request. It strikes when the request is passed on to the
// store, and Answered tells of the reply.
func (p *Proxy) Watch(m Match) *Fault { return p.fault(watch, m, Stall) }

// DropRequest has a request not reach the store, nor anything after it on the same
// connection.
func (p *Proxy) DropRequest(m Match, e Ending) *Fault { return p.fault(dropRequest, m, e) }

// DropReply has the reply to a request not reach the client, nor anything after it on
// the same connection. It strikes when the reply has come. With Stall, requests still
// reach the store.
func (p *Proxy) DropReply(m Match, e Ending) *Fault { return p.fault(dropReply, m, e) }

// CutReply closes the connection in the middle of the reply to a request. It strikes
// when the reply has come.
func (p *Proxy) CutReply(m Match) *Fault { return p.fault(cutReply, m, Cut) }

// Hold keeps a request back, with what the client sends after it on the same
// connection, until Deliver is called: also when the client has closed its connection
// by then, as it must with Cut.
func (p *Proxy) Hold(m Match, e Ending) *Fault { return p.fault(hold, m, e) }

func (p *Proxy) fault(k kind, m Match, e Ending) *Fault {
	f := &Fault{
		match: m, kind: k, ending: e,
		struck:   make(chan struct{}),
		goOn:     make(chan struct{}),
		answered: make(chan struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// find returns the fault that is to strike r, or nil, and will not do so again.
func (p *Proxy) find(r Request) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.faults, func(f *Fault) bool { return f.match(r) })
	if i < 0 {
		return nil
	}
	f := p.faults[i]
	p.faults = slices.Delete(p.faults, i, i+1)
	return f
}

// Lift calls off a fault that no request has met yet, and reports whether that was so.
func (p *Proxy) Lift(f *Fault) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.faults)
	p.faults = slices.DeleteFunc(p.faults, func(other *Fault) bool { return other == f })
	return len(p.faults) < before
}

// Struck is closed when the fault has struck.
func (f *Fault) Struck() <-chan struct{} { return f.struck }

// Answered is closed when the store has begun to reply to the request: it has been
// carried out, if it was one that is carried out at one instant.
func (f *Fault) Answered() <-chan struct{} { return f.answered }

var (
	errNotHeld = errors.New("faultproxy: no request is held back")
	errEnded   = errors.New("faultproxy: the connection to the store has ended without a reply")
)

// Deliver passes on a request that a Hold keeps back, and waits for the store to reply.
// The reply goes to the client, if that is still there. An error says that no request
// has come, that the store has closed the connection without a reply, or that ctx has
// ended.
func (f *Fault) Deliver(ctx context.Context) error {
	select {
	case <-f.struck:
	default:
		return errNotHeld
	}
	if f.kind != hold {
		return errNotHeld
	}
	f.once.Do(func() { close(f.goOn) })
	select {
	case <-f.answered:
		return nil
	case <-f.link.over.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	select { // whichever was first
	case <-f.answered:
		return nil
	default:
		return errEnded
	}
}

// strike says that the fault has struck a request on l.
func (f *Fault) strike(l *link) {
	f.link = l
	close(f.struck)
}

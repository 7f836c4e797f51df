package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
)

// A Request is one request of a client to the store. The package documentation says how requests
// are found in different protocols.
type Request struct {
	Raw  []byte   // as it was sent
	Args []string // the name of the command and its arguments; nil if the connection does not speak RESP
}

// A Match selects requests. It must be safe for concurrent use, and must not change the request.
type Match func(Request) bool

// Any selects all requests.
func Any(Request) bool { return true }

// Contains selects the requests that contain text literally, in any protocol.
func Contains(text string) Match {
	return func(r Request) bool { return bytes.Contains(r.Raw, []byte(text)) }
}

// Command selects the RESP commands with a name, in upper or lower case, whose arguments include all of args.
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

// An Ending says what happens to the client's connection when a fault strikes.
type Ending int

const (
	// Cut closes the client's connection.
	Cut Ending = iota
	// Stall leaves the client's connection open, but the client receives nothing more on it.
	Stall
)

// A Fault strikes one request: the first that matches, on any connection. If several faults match
// a request, the oldest strikes.
type Fault struct {
	match  Match
	kind   kind
	ending Ending

	struck   chan struct{}
	once     sync.Once     // closes goOn
	goOn     chan struct{} // closed when a held request may go on
	answered chan struct{} // closed when the store has begun to reply
	link     *link         // set when struck is closed
}

type kind int

const (
	watch kind = iota
	dropRequest
	dropReply
	cutReply
	hold
)

// Watch does not affect the request. Struck is closed when the request is passed on to the store,
// and Answered when the reply comes.
func (p *Proxy) Watch(m Match) *Fault { return p.fault(watch, m, Stall) }

// DropRequest drops a request, and everything after it on the same connection. The store does not receive it.
func (p *Proxy) DropRequest(m Match, e Ending) *Fault { return p.fault(dropRequest, m, e) }

// DropReply drops the reply to a request, and everything after it on the same connection. It
// strikes when the reply comes from the store. With Stall, later requests still reach the store.
func (p *Proxy) DropReply(m Match, e Ending) *Fault { return p.fault(dropReply, m, e) }

// CutReply closes the connection in the middle of the reply to a request: in another protocol than RESP, after its first
// byte. It strikes when the reply comes from the store.
func (p *Proxy) CutReply(m Match) *Fault { return p.fault(cutReply, m, Cut) }

// Hold holds a request back, and what the client sends after it on the same connection, until Deliver is called. The
// request can be delivered although the client's connection is closed, which it always is with Cut.
func (p *Proxy) Hold(m Match, e Ending) *Fault { return p.fault(hold, m, e) }

func (p *Proxy) fault(k kind, m Match, e Ending) *Fault {
	f := &Fault{
		match: m, kind: k, ending: e,
		struck:   make(chan struct{}),
		goOn:     make(chan struct{}),
		answered: make(chan struct{}),
	}
	p.locked(func() { p.faults = append(p.faults, f) })
	return f
}

// find removes and returns the fault that strikes r, or returns nil.
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

// Lift cancels a fault. It returns false if the fault has already struck.
func (p *Proxy) Lift(f *Fault) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.faults)
	p.faults = slices.DeleteFunc(p.faults, func(other *Fault) bool { return other == f })
	return len(p.faults) < before
}

// Struck is closed when the fault has struck.
func (f *Fault) Struck() <-chan struct{} { return f.struck }

// Answered is closed when the store has begun to reply to the request. A request that takes effect
// at one instant has done so by then.
func (f *Fault) Answered() <-chan struct{} { return f.answered }

var (
	errNotHeld = errors.New("faultproxy: no request is held back")
	errEnded   = errors.New("faultproxy: the connection to the store has ended without a reply")
)

// Deliver passes on a request that Hold holds back, and waits for the store to reply. The reply
// goes to the client, if its connection is still open. Deliver returns an error if no request has
// come, if the store closed the connection without a reply, or if ctx ends.
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
	select { // the one that came first
	case <-f.answered:
		return nil
	default:
		return errEnded
	}
}

// strike notes that the fault has struck a request on l.
func (f *Fault) strike(l *link) {
	f.link = l
	close(f.struck)
}

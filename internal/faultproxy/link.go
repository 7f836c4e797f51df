package faultproxy

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A link is a client's connection with its own connection to the store. In each direction one
// goroutine reads, and another writes what may pass.
type link struct {
	p        *Proxy
	client   *net.TCPConn
	store    *net.TCPConn
	over     context.Context // ends with the link
	end      context.CancelFunc
	requests chan message
	replies  chan message
	holding  atomic.Bool // whether a held request can still be delivered

	mu      sync.Mutex
	pending pending
}

// A message is a request or a reply in flight.
type message struct {
	raw   []byte
	args  []string // of a request in RESP
	due   time.Time
	fault *Fault // of a reply: that of the request
	whole bool   // one reply in RESP
}

const queued = 256 // messages in flight, in each direction

// serve returns when both connections have ended.
func (l *link) serve() {
	var loops sync.WaitGroup
	loops.Go(l.readRequests)
	loops.Go(l.writeRequests)
	loops.Go(l.readReplies)
	loops.Go(l.writeReplies)
	loops.Wait()
}

func (l *link) close() {
	l.end()
	l.client.Close()
	l.store.Close()
}

// cut closes the link, except for the connection to the store if a request is held.
func (l *link) cut() {
	if l.holding.Load() {
		l.client.Close()
	} else {
		l.close()
	}
}

func (l *link) readRequests() {
	defer close(l.requests)
	in := bufio.NewReaderSize(l.client, chunk)
	first, err := in.Peek(1)
	if err != nil {
		return
	}
	resp := first[0] == '*'
	l.paired(func(q *pending) { q.resp = resp })
	l.read(in, l.requests, ToStore, func(r *respReader) (m message, err error) {
		m.args, err = r.command()
		return m, err
	})
}

func (l *link) readReplies() {
	defer close(l.replies)
	in := bufio.NewReaderSize(l.store, chunk)
	if _, err := in.Peek(1); err != nil { // the client has shown its protocol now
		return
	}
	l.read(in, l.replies, ToClient, func(r *respReader) (m message, err error) {
		reply, err := r.reply()
		if err == nil {
			l.paired(func(q *pending) { m.fault = q.answer(reply) })
		}
		return m, err
	})
}

const chunk = 32 << 10

// read reads messages until there are no more, as RESP while they are valid RESP.
func (l *link) read(in *bufio.Reader, to chan<- message, d Direction, value func(*respReader) (message, error)) {
	r := &respReader{in: in}
	for {
		var m message
		var err error
		resp := false
		l.paired(func(q *pending) { resp = q.resp })
		if resp {
			m, err = value(r)
			m.raw, m.whole = r.take(), true
			if errors.Is(err, errNotRESP) {
				l.paired(func(q *pending) { *q = pending{} })
				err = nil
			}
		} else {
			m.raw = make([]byte, chunk)
			var n int
			n, err = in.Read(m.raw)
			m.raw = m.raw[:n]
			if d == ToClient && n > 0 {
				l.paired(func(q *pending) { m.fault = q.pop() })
			}
		}
		if m.fault != nil {
			close(m.fault.answered)
		}
		m.due = l.p.due(d)
		if len(m.raw) > 0 && !l.send(to, m) || err != nil {
			return
		}
	}
}

func (l *link) send(to chan<- message, m message) bool {
	select {
	case to <- m:
		return true
	case <-l.over.Done():
		return false
	}
}

// paired calls f with the unanswered requests.
func (l *link) paired(f func(*pending)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.pending)
}

// writeRequests passes requests on. When the client sends no more and all is passed on, it closes
// the store's connection for writing.
func (l *link) writeRequests() {
	defer l.store.CloseWrite()
	stalled := false // the store gets nothing more
	for m := range l.requests {
		if !stalled && l.passes(m, ToStore) {
			stalled = !l.writeRequest(l.p.admit(m))
		}
	}
}

// writeRequest reports whether later requests may be passed on.
func (l *link) writeRequest(m message) bool {
	f := l.p.find(Request{m.raw, m.args})
	if f == nil {
		l.paired(func(q *pending) { q.push(m.args, nil) })
		return write(l.store, m.raw)
	}
	if f.kind == hold && !l.hold(f) {
		return false
	}
	if f.kind == dropRequest {
		l.strike(f)
		return false
	}
	l.paired(func(q *pending) { q.push(m.args, f) })
	ok := write(l.store, m.raw)
	if f.kind == hold {
		l.holding.Store(false)
	}
	if f.kind == watch {
		f.strike(l)
	}
	return ok
}

// hold holds a request back, and reports whether it may be passed on then.
func (l *link) hold(f *Fault) bool {
	l.holding.Store(true)
	f.strike(l)
	if f.ending == Cut {
		l.client.Close()
	}
	select {
	case <-f.goOn:
		return true
	case <-l.over.Done():
		return false
	}
}

// strike ends the connection as the fault's Ending says.
func (l *link) strike(f *Fault) {
	if f.ending == Cut {
		l.close()
	}
	f.strike(l)
}

// writeReplies passes replies on. It reads them to the end even if the client is gone, because
// requests may still be held back.
func (l *link) writeReplies() {
	defer l.close()
	mute := false
	for m := range l.replies {
		if !mute && l.passes(m, ToClient) {
			mute = !l.writeReply(m)
		}
	}
}

// writeReply reports whether later replies may be passed on.
func (l *link) writeReply(m message) bool {
	if f := m.fault; f != nil && (f.kind == dropReply || f.kind == cutReply) {
		if f.kind == cutReply {
			half := min(1, len(m.raw)) // in another protocol than RESP, more may be whole answers to other requests
			if m.whole {
				half = len(m.raw) / 2
			}
			write(l.client, m.raw[:half])
		}
		l.strike(f)
		return false
	}
	return write(l.client, m.raw)
}

// passes waits until m may be passed on in direction d. It returns false if the link ends before.
func (l *link) passes(m message, d Direction) bool {
	if !l.sleep(time.Until(m.due)) {
		return false
	}
	for {
		blocked, changed := l.p.blocks(d)
		if !blocked {
			return l.over.Err() == nil
		}
		select {
		case <-changed:
		case <-l.over.Done():
			return false
		}
	}
}

// sleep returns false if the link ends before d has passed.
func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return l.over.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.over.Done():
		return false
	}
}

func write(to net.Conn, b []byte) bool {
	_, err := to.Write(b)
	return err == nil
}

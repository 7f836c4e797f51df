package rediscore

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	messageLag = time.Second // how much later than the answer to a check-in a message may come
	callLimit  = 5 * time.Second
)

// A post delivers grants to the waiters of a Locker, through one inbox or, in Redis Cluster, one
// for each slot.
type post struct {
	locker  *Locker
	used    atomic.Bool
	open    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	inboxes map[string]*inbox  // by the prefixes of their names
	rooms   map[string]*room   // by key
	tokens  map[string]*record // that wait, or have waited
	order   []string           // of tokens, the oldest first
	told    bool               // why there is no inbox, since one was open
	without error              // why an inbox could not be opened, since one was open; or nil
	failed  time.Time          // when that was
	joined  int                // how many waits have
	left    time.Time          // when a connection was last left for one that leads to another server
	foundAt time.Time          // when that server was found
}

// A handover is a grant by whoever released the lock.
type handover struct {
	fence int64
	time  int64 // of the server, in microseconds
}

func newPost(l *Locker) *post {
	p := &post{
		locker:  l,
		inboxes: make(map[string]*inbox),
		rooms:   make(map[string]*room),
		tokens:  make(map[string]*record),
	}
	p.open, p.end = context.WithCancel(context.Background())
	return p
}

// close ends all inboxes, and waits for all that is under way.
func (p *post) close() {
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.running.Wait()
}

// join gives a wait its inbox, which is that of a slot. It reports false if the post is closed; else leave
// must follow.
func (p *post) join(w *wait, slot int) bool {
	sharded := p.locker.conn.cluster()
	p.used.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open.Err() != nil {
		return false
	}
	p.running.Add(1)
	p.joined++
	w.joined, w.inbox = p.joined, p.inboxLocked(slot, sharded)
	w.inbox.waits[w] = struct{}{}
	p.rememberLocked(w)
	return true
}

// leave ends a wait.
func (p *post) leave(w *wait, granted bool) {
	defer p.running.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(w, granted)
	delete(w.inbox.waits, w)
	w.inbox.lingerLocked()
}

// deliver passes a message on. A grant for a token that is used no more, or whose wait was given up, is
// released; but while a release is in flight it is most likely the one that this ends, and must not be
// released first, or the release would find nothing and call the lease lost. A grant for a token whose
// wait was granted is no news, and one for a token that is not known may be of a lease that somebody holds.
func (p *post) deliver(message string) {
	h, token, ok := parseHandover(message)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.tokens[token]
	if r == nil {
		return
	}
	r.due = nil
	switch {
	case r.releases > 0:
		r.again = true
	case r.released, r.given:
		p.giveBackLocked(r, token)
	case r.wait != nil:
		if r.wait.mail.granted == (handover{}) { // else it has one to read, which makes it check in
			r.wait.mail.granted = h
		}
		r.wait.ring()
	}
}

// take takes the mail of a wait.
func (p *post) take(w *wait) mail {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := w.mail
	w.mail = mail{}
	return m
}

// hasChanged reports whether the mail of a wait says that its inbox has changed, which it does not say again then.
func (p *post) hasChanged(w *wait) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := w.mail.changed
	w.mail.changed = false
	return changed
}

// ring tells a wait that it has mail.
func (w *wait) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// parseHandover reads "fence time token".
func parseHandover(message string) (h handover, token string, ok bool) {
	fence, rest, _ := strings.Cut(message, " ")
	time, token, found := strings.Cut(rest, " ")
	var err1, err2 error
	h.fence, err1 = strconv.ParseInt(fence, 10, 64)
	h.time, err2 = strconv.ParseInt(time, 10, 64)
	return h, token, found && err1 == nil && err2 == nil
}

// passedOver notes that a waiter was taken for dead again though its inbox was known: it is not
// heard of where the lock is.
func (p *post) passedOver(w *wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.inbox.doubtLocked()
}

// missing notes why an inbox could not be opened, unless that was reported since one was last open.
func (p *post) missing(err error) {
	p.mu.Lock()
	told := p.told
	p.told, p.without, p.failed = true, err, time.Now()
	p.mu.Unlock()
	if f := p.locker.inboxErr; f != nil && !told {
		f(err)
	}
}

// recovery is how long after an outage an inbox may be late.
const recovery = 3 * time.Second

// missingSince returns why an inbox cannot be opened, although the store has answered since a given time: the user lacks a
// right, the inbox is on another server, or opening it failed again some time later.
func (p *post) missingSince(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if forbidden(p.without) || p.without == errDeaf || !p.failed.Before(t.Add(recovery)) {
		return p.without
	}
	return nil
}

// address returns the name of the inbox for scripts, or "" if nobody listens to it, and the epoch of the inbox. If the
// inbox was deaf, only a check-in names it, which learns whether it is, and not for a while after one that did.
func (b *inbox) address(ofCheckIn bool) (address string, epoch int) {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	switch {
	case b.deaf && (!ofCheckIn || time.Since(b.unheard) < doubtPause):
		return "", b.epoch
	case !b.live:
		return "", b.epoch
	case b.sharded:
		return "s" + b.channel, b.epoch
	}
	return "p" + b.channel, b.epoch
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock"
)

const (
	alivePeriod = 2 * time.Second // it counts as dead after 5 s without a word
	aliveLimit  = 5 * time.Second
	idleAfter   = 10 * time.Second // without a wait, the connection is closed
	helloLimit  = 2 * time.Second  // for a notification to itself
	goneFor     = 10 * time.Second
	deafPause   = time.Minute // before the next try if notifications do not arrive
)

// A post has the waits of a Locker, and the connection that listens for them, which is open while there are any.
type post struct {
	l    *Locker
	open context.Context // until Close
	end  context.CancelFunc
	work sync.WaitGroup

	mu        sync.Mutex
	numbers   int64
	waits     map[int64]*wait
	tokens    map[hold]*wait // the same
	left      map[int64]gone // without a grant; one that comes is given back
	flights   map[hold]*flight
	sweepAt   int
	inbox     int64 // 0 while nobody listens
	listening bool  // there is a goroutine for it
	failure   error // why nobody listens
	failed    time.Time
}

func (p *post) init(l *Locker) {
	p.l, p.waits, p.left = l, make(map[int64]*wait), make(map[int64]gone)
	p.tokens, p.flights = make(map[hold]*wait), make(map[hold]*flight)
	p.open, p.end = context.WithCancel(context.Background())
}

func (p *post) closed() bool { return p.open.Err() != nil }

func (p *post) close() {
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	p.work.Wait()
}

// join adds a wait. It reports false after close.
func (p *post) join(w *wait) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed() {
		return false
	}
	p.work.Add(1)
	p.numbers++
	w.number = p.numbers
	p.waits[w.number], p.tokens[hold{w.key, w.token}] = w, w
	if !p.listening {
		p.listening = true
		p.work.Go(p.listen)
	}
	return true
}

// A gone wait is over. It is remembered for as long as a grant can come: while it counts as alive.
type gone struct {
	hold
	at time.Time
}

type hold struct{ key, token string }

// leave ends a wait.
func (p *post) leave(w *wait, granted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work.Done()
	delete(p.waits, w.number)
	if h := (hold{w.key, w.token}); p.tokens[h] == w {
		delete(p.tokens, h)
	}
	now := time.Now()
	if len(p.left) >= p.sweepAt {
		maps.DeleteFunc(p.left, func(_ int64, g gone) bool { return now.Sub(g.at) > goneFor })
		p.sweepAt = 2*len(p.left) + 64
	}
	if !granted && w.asked {
		p.left[w.number] = gone{hold{w.key, w.token}, now}
	}
}

// box returns the inbox for a call.
func (p *post) box() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inbox
}

// A flight is a call of a wait that is over. A release of the token waits for its answer: it might overtake it.
type flight struct {
	landed chan struct{}
	r      result
}

// outlived notes that a wait ends before the answer to its call. It returns what calls a function with that answer.
func (p *post) outlived(w *wait) (late func(func(dlock.Attempt, error))) {
	f, of := &flight{landed: make(chan struct{})}, hold{w.key, w.token}
	p.mu.Lock()
	p.flights[of] = f
	p.mu.Unlock()
	p.work.Go(func() {
		f.r = <-w.answers
		p.mu.Lock()
		if p.flights[of] == f {
			delete(p.flights, of)
		}
		p.mu.Unlock()
		close(f.landed)
	})
	return func(tell func(dlock.Attempt, error)) {
		go func() {
			<-f.landed
			a := f.r.attempt()
			a.Acquired = a.Acquired || f.r.verdict == waiting // there is something to release: its place
			tell(a, f.r.err)
		}()
	}
}

// take returns what a wait has yet to read.
func (p *post) take(w *wait) (m mail) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, w.mail = w.mail, mail{}
	return m
}

func (w *wait) ringLocked() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// release ends the waits of a token that is being released, and waits for the answer to a call of one that is over.
func (p *post) release(ctx context.Context, key, token string) error {
	p.mu.Lock()
	if w := p.tokens[hold{key, token}]; w != nil {
		w.released = true
		w.ringLocked()
	}
	f := p.flights[hold{key, token}]
	p.mu.Unlock()
	if f != nil {
		select {
		case <-f.landed:
		case <-ctx.Done():
			return &dlock.NoEffectError{Err: ctx.Err()}
		}
	}
	return nil
}

// change notes that the inbox has opened, or was lost, with the reason.
func (p *post) change(inbox int64, err error) {
	p.mu.Lock()
	p.inbox = inbox
	for _, w := range p.waits {
		w.changed = true
		w.ringLocked()
	}
	said := fmt.Sprint(p.failure) == fmt.Sprint(err)
	p.failure, p.failed = err, time.Now()
	p.mu.Unlock()
	if !said {
		p.l.onInbox(err)
	}
}

// missingSince returns why an inbox cannot be opened, although the server has answered since a given time: it hears
// nothing, a right or the schema is missing, or opening it failed again some time later.
func (p *post) missingSince(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := code(p.failure)
	if errors.Is(p.failure, errDeaf) || strings.HasPrefix(state, "28") || strings.HasPrefix(state, "42") || p.failed.After(t.Add(recovery)) {
		return p.failure
	}
	return nil
}

// deliver gives a wait its message.
func (p *post) deliver(payload string) {
	var n [4]int64
	fields := strings.Fields(payload)
	if len(fields) != len(n) {
		return
	}
	for i, f := range fields {
		n[i], _ = strconv.ParseInt(f, 10, 64)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.waits[n[0]]; w != nil {
		w.grant = &message{fence: n[1], since: n[2], made: n[3]}
		w.ringLocked()
	} else if g, ok := p.left[n[0]]; ok {
		delete(p.left, n[0])
		c := call{op: release, key: g.key, token: g.token, ttl: time.Second}
		p.l.lanes.Put(context.Background(), c, func(time.Time, result) {})
	}
}

// idle reports whether nobody has waited since the last call, and then ends the listening.
func (p *post) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waits) > 0 {
		return false
	}
	p.listening, p.inbox = false, 0
	return true
}

// listen keeps a connection open that listens, until nobody waits for a while.
func (p *post) listen() {
	for pause := retryPause; ; pause = min(2*pause, 5*time.Second) {
		err := p.hear(func() { pause = retryPause })
		if err == nil || p.closed() {
			return
		}
		if errors.Is(err, errDeaf) {
			pause = deafPause
		}
		p.change(0, err)
		select {
		case <-p.open.Done():
			return
		case <-time.After(pause):
		}
		if p.idle() {
			return
		}
	}
}

var errDeaf = errors.New("LISTEN hears nothing: a pooler in transaction mode is probably in between")

// hear opens an inbox, and delivers what comes, until nobody waits or the connection is lost.
func (p *post) hear(opened func()) error {
	c, inbox, err := p.openInbox()
	if err != nil {
		return err
	}
	defer hangUp(c)
	listens := p.l.rename("SELECT dlock_listen($1, $2)")
	for first, busy := true, time.Now(); ; first = false {
		said := time.Now()
		ctx, cancel := context.WithTimeout(p.open, aliveLimit)
		_, err := c.Exec(ctx, listens, inbox, first)
		cancel()
		if err != nil {
			return err
		}
		if first {
			opened()
			p.change(inbox, nil)
		}
		if err := p.read(c, channel(inbox), said.Add(alivePeriod)); err != nil {
			return err
		}
		if p.waiting() {
			busy = said
		} else if time.Since(busy) > idleAfter && p.idle() {
			return nil
		}
	}
}

func channel(inbox int64) string { return fmt.Sprint("dlock_", inbox) }

// openInbox opens a connection that hears the messages to an inbox, and holds its advisory lock.
func (p *post) openInbox() (c *pgx.Conn, inbox int64, err error) {
	ctx, cancel := context.WithTimeout(p.open, callLimit) // else a server that is silent now is waited for after it is back
	defer cancel()
	if c, err = p.l.db.dial(ctx); err != nil {
		return nil, 0, err
	}
	inbox = rand.Int64N(1<<62) + 1
	if err = p.greet(ctx, c, channel(inbox)); err == nil {
		_, err = c.Exec(ctx, "SELECT pg_advisory_lock($1)", inbox)
	}
	if err != nil {
		hangUp(c)
		return nil, 0, err
	}
	return c, inbox, nil
}

// greet has a connection listen, and finds out whether it hears.
func (p *post) greet(ctx context.Context, c *pgx.Conn, channel string) error {
	if _, err := c.Exec(ctx, "LISTEN "+channel, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	err := p.l.db.with(ctx, func(other *pgx.Conn) error {
		_, err := other.Exec(ctx, "SELECT pg_notify($1, 'hello')", pgx.QueryExecModeExec, channel)
		return err
	})
	if err != nil {
		return err
	}
	hello, cancel := context.WithTimeout(p.open, helloLimit)
	defer cancel()
	_, err = c.WaitForNotification(hello)
	if err != nil && hello.Err() != nil && !p.closed() {
		return errDeaf
	}
	return err
}

// hangUp ends a session. If the server does not hear it, it ends the session itself.
func hangUp(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// read delivers what comes until a time.
func (p *post) read(c *pgx.Conn, channel string, until time.Time) error {
	ctx, cancel := context.WithDeadline(p.open, until)
	defer cancel()
	for {
		n, err := c.WaitForNotification(ctx)
		switch {
		case err == nil && n.Channel == channel: // a user's AfterConnect may listen to others
			p.deliver(n.Payload)
		case err == nil:
		case ctx.Err() != nil && p.open.Err() == nil && !c.IsClosed():
			return nil
		default:
			return err
		}
	}
}

func (p *post) waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waits) > 0
}

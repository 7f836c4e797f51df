package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/chance"
)

const (
	alivePeriod = 2 * time.Second  // it counts as dead after 5 s without a word
	idleAfter   = 10 * time.Second // without a wait, the connection is closed
	helloLimit  = 2 * time.Second  // for a notification to itself
	deafPause   = time.Minute      // before the next try if notifications do not arrive; otherwise up to 5 s
	maxLeft     = 16384            // waits that are over are remembered
)

// A post has the waits of a Locker, and the connection that listens for them, which is open while there are any.
type post struct {
	l    *Locker
	open context.Context // until Close
	end  context.CancelCauseFunc
	work sync.WaitGroup

	inbox atomic.Int64 // 0 while nobody listens

	mu        sync.Mutex
	waits     map[int64]*wait // by their numbers
	tokens    map[hold]*wait  // the same, and those whose last call is in flight
	left      map[int64]hold  // waits that are over without a grant: one that comes is given back
	numbers   int64
	busy      time.Time // when a wait has last ended
	listening bool      // there is a goroutine for it
	failure   error     // why nobody listens
	failed    time.Time
	bare      time.Time // since when the server answers waits without an inbox
}

type hold struct{ key, token string }

func (p *post) init(l *Locker) {
	p.l, p.waits, p.tokens, p.left = l, make(map[int64]*wait), make(map[hold]*wait), make(map[int64]hold)
	p.open, p.end = context.WithCancelCause(context.Background())
}

func (p *post) closed() bool { return p.open.Err() != nil }

func (p *post) close() {
	p.mu.Lock()
	p.end(dlock.ErrClosed)
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
	w.stop, w.quit = context.WithCancelCause(p.open)
	p.waits[w.number], p.tokens[hold{w.key, w.token}] = w, w
	if !p.listening {
		p.listening = true
		p.work.Go(p.listen)
	}
	return true
}

// leave ends a wait. If a call of it is in flight, its answer is awaited: a release of the token might overtake it.
func (p *post) leave(w *wait, granted bool) {
	h := hold{w.key, w.token}
	w.quit(nil)
	p.mu.Lock()
	delete(p.waits, w.number)
	p.busy = time.Now()
	if len(p.left) == maxLeft {
		clear(p.left)
	}
	if !granted {
		p.left[w.number] = h
	}
	p.mu.Unlock()
	land := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.tokens[h] == w {
			delete(p.tokens, h)
		}
		close(w.over)
		p.work.Done()
	}
	if granted || !w.calling {
		land()
		return
	}
	go func() {
		w.last = <-w.answers
		land()
	}()
}

// release ends the wait of a token that is being released, and returns when that is over.
func (p *post) release(ctx context.Context, key, token string) error {
	p.mu.Lock()
	w := p.tokens[hold{key, token}]
	p.mu.Unlock()
	if w == nil {
		return nil
	}
	w.quit(dlock.ErrReleased)
	select {
	case <-w.over:
		return nil
	case <-ctx.Done():
		return &dlock.NoEffectError{Err: ctx.Err()}
	}
}

// change notes that the inbox has opened, or cannot be, with the reason. It reports whether there was one.
func (p *post) change(inbox int64, err error) (was bool) {
	p.mu.Lock()
	before := p.inbox.Swap(inbox)
	if inbox != before {
		p.bare = time.Time{}
		for _, w := range p.waits {
			w.tell(message{})
		}
	}
	said := fmt.Sprint(p.failure) == fmt.Sprint(err)
	p.failure, p.failed = err, time.Now()
	p.mu.Unlock()
	if !said && p.l.onInbox != nil {
		p.l.onInbox(err)
	}
	return before != 0
}

// missing is called when the server has answered a call that named an inbox, or none. It returns why none can be opened:
// it hears nothing, a right or the schema is missing, or opening it has failed some time after the first such answer.
func (p *post) missing(box int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if box == 0 && p.bare.IsZero() {
		p.bare = time.Now()
	}
	state := code(p.failure)
	lasts := errors.Is(p.failure, errDeaf) || strings.HasPrefix(state, "28") || strings.HasPrefix(state, "42")
	if box == 0 && (lasts || p.failed.After(p.bare.Add(recovery))) {
		return p.failure
	}
	return nil
}

// deliver gives a wait its message. A user's AfterConnect may listen to other channels.
func (p *post) deliver(inbox int64, to, payload string) {
	var number int64
	m := message{box: inbox}
	if _, err := fmt.Sscan(payload, &number, &m.fence, &m.since, &m.made); err != nil || to != channel(inbox) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.waits[number]; w != nil {
		w.tell(m)
	} else if h, ok := p.left[number]; ok {
		delete(p.left, number)
		c := call{op: release, key: h.key, token: h.token, ttl: time.Second}
		p.l.lanes.Put(context.Background(), c, func(time.Time, result) {})
	}
}

// idle reports whether nobody has waited for a while, and then ends the listening.
func (p *post) idle(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waits) > 0 || time.Since(p.busy) < d {
		return false
	}
	p.inbox.Store(0)
	p.listening, p.bare = false, time.Time{}
	return true
}

// listen keeps a connection open that listens, until nobody waits.
func (p *post) listen() {
	for pause := retryPause; ; pause = min(2*pause, 5*time.Second) {
		err := p.hear()
		if err == nil || p.closed() {
			return
		}
		if p.change(0, err) {
			pause = retryPause
		} else if errors.Is(err, errDeaf) {
			pause = deafPause
		}
		ctx, cancel := context.WithTimeout(p.open, pause/2+chance.N(pause)) // not all processes at once
		<-ctx.Done()
		if cancel(); p.closed() || p.idle(0) {
			return
		}
	}
}

var errDeaf = errors.New("LISTEN hears nothing: a pooler in transaction mode is probably in between")

// hear opens an inbox, and delivers what comes, until nobody has waited for a while or the connection is lost.
func (p *post) hear() error {
	ctx, cancel := context.WithTimeout(p.open, callLimit) // else a server that is silent now is waited for after it is back
	defer cancel()
	c, err := p.l.db.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close(ctx) // by then, ctx may have ended: the server sees the end of the connection
	inbox := int64(chance.N(1<<62)) + 1
	if err = p.greet(ctx, c, channel(inbox)); err == nil {
		// at another level, what says that it is alive would fail at times, as other sessions say the same
		_, err = c.Exec(ctx, "SET default_transaction_isolation = 'read committed'")
	}
	if err != nil {
		return err
	}
	for first := true; !p.idle(idleAfter); first = false {
		said := time.Now()
		ctx, cancel := context.WithTimeout(p.open, 5*time.Second)
		_, err := c.Exec(ctx, p.l.rename("SELECT dlock_listen($1, $2), $2 AND pg_try_advisory_lock($1)"), inbox, first)
		cancel()
		if err != nil {
			return err
		}
		if first {
			p.change(inbox, nil)
		}
		if err := p.read(c, inbox, said.Add(alivePeriod)); err != nil {
			return err
		}
	}
	return nil
}

func channel(inbox int64) string { return fmt.Sprint("dlock_", inbox) }

// greet has a connection listen, and finds out whether it hears.
func (p *post) greet(ctx context.Context, c *pgx.Conn, channel string) error {
	if _, err := c.Exec(ctx, "LISTEN "+channel, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	if _, err := p.l.query(ctx, "SELECT 0 FROM pg_notify($1, 'hello')", channel); err != nil { // over another connection
		return err
	}
	hello, cancel := context.WithTimeoutCause(p.open, helloLimit, errDeaf)
	defer cancel()
	for heard := false; !heard; { // a pooler may pass on what is for another: one whose LISTEN it has sent to the same session
		n, err := c.WaitForNotification(hello)
		if err != nil {
			return cmp.Or(context.Cause(hello), err)
		}
		heard = n.Channel == channel
	}
	return nil
}

// read delivers what comes until a time.
func (p *post) read(c *pgx.Conn, inbox int64, until time.Time) error {
	ctx, cancel := context.WithDeadline(p.open, until)
	defer cancel()
	for {
		n, err := c.WaitForNotification(ctx)
		switch {
		case err == nil:
			p.deliver(inbox, n.Channel, n.Payload)
		case ctx.Err() != nil && !p.closed() && !c.IsClosed():
			return nil
		default:
			return err
		}
	}
}

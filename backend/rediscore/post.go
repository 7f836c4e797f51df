package rediscore

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

const (
	lingering  = time.Second            // how long an inbox stays when nobody waits
	minPause   = 100 * time.Millisecond // before an inbox that was lost is opened again
	maxPause   = 5 * time.Second
	lasting    = time.Second      // how long a subscription is there that was no failure
	messageLag = time.Second      // how much later than the answer to an ask a message may come
	doubtPause = 10 * time.Second // before an inbox that is doubted again is opened anew
	maxInboxes = 32               // of one Locker: in Redis Cluster there is one for each slot
	maxTokens  = 16384            // that are remembered
	callLimit  = 5 * time.Second
)

// A post delivers grants to the waiters of a Locker, through one inbox or, in Redis
// Cluster, one for each slot. An inbox is a channel with a name that nobody else
// has. It is opened when somebody begins to wait, and closed some time after the
// last one has ended.
type post struct {
	locker  *Locker
	name    string // of the inboxes
	used    atomic.Bool
	open    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	inboxes map[string]*inbox  // by channel
	tokens  map[string]*record // that wait, or have waited
	order   []string           // of tokens, the oldest first
	told    bool               // why there is no inbox, since one was open
}

// A record is what a post knows of a token that was taken into a queue. While it is
// kept, a grant is never taken for that of somebody else.
type record struct {
	key      string
	waiter   *waiter // nil if the wait is over
	gone     bool    // the wait was cancelled or the lease released: a grant comes too late
	missed   bool    // a release has found nothing, or failed
	releases int     // that are on their way
	heard    bool    // that there may be a grant again, was heard meanwhile
	unread   bool    // an ask has found a grant whose message is still to come

	answered <-chan struct{} // closed when the last call of the wait is; nil if none outlived it
}

// A waiter is where a wait hears of its inbox.
type waiter struct {
	inbox   *inbox        // nil if there is none for it
	changed chan struct{} // of capacity 1: the inbox has been opened or lost
	granted chan handover // of capacity 1
}

// A handover is a grant by whoever released the lock.
type handover struct {
	fence int64
	time  int64 // of the server, in microseconds
}

// An inbox is guarded by the mutex of its post.
type inbox struct {
	post    *post
	channel string
	sharded bool
	waiters map[*waiter]struct{}
	live    bool
	doubted time.Time // when it was last opened anew
	close   context.CancelFunc
	reopen  context.CancelFunc
	idle    *time.Timer
}

func newPost(l *Locker) *post {
	p := &post{
		locker:  l,
		name:    rand.Text(),
		inboxes: make(map[string]*inbox),
		tokens:  make(map[string]*record),
	}
	p.open, p.end = context.WithCancel(context.Background())
	return p
}

// close ends all inboxes, and waits for all that is under way.
func (p *post) close() {
	p.mu.Lock()
	p.end()
	for _, b := range p.inboxes {
		b.idle.Stop()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// start calls f in a goroutine, unless the post is closed, and reports whether it does.
func (p *post) start(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startLocked(f)
}

func (p *post) startLocked(f func()) bool {
	if p.open.Err() != nil {
		return false
	}
	p.running.Go(f)
	return true
}

// join makes a waiter for a token, whose messages come through the inbox of a slot. If
// it is not nil, which it is if the post is closed, leave must follow.
func (p *post) join(key, token string, slot int) *waiter {
	cluster := p.locker.conn.Cluster()
	p.used.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open.Err() != nil {
		return nil
	}
	p.running.Add(1)
	w := &waiter{
		changed: make(chan struct{}, 1),
		granted: make(chan handover, 1),
		inbox:   p.inboxOf(slot, cluster),
	}
	if b := w.inbox; b != nil {
		b.idle.Stop()
		b.waiters[w] = struct{}{}
	}
	p.remember(key, token, w)
	return w
}

// inboxOf returns the inbox of a slot, which it opens if necessary, or nil if there
// are too many. p.mu is held, as it is for all below that do not lock it.
func (p *post) inboxOf(slot int, cluster bool) *inbox {
	channel := p.locker.prefix + inboxSuffix + p.name
	if cluster {
		channel = companion(p.locker.prefix, slot, inboxSuffix+p.name)
	}
	b := p.inboxes[channel]
	if b != nil || len(p.inboxes) >= maxInboxes {
		return b
	}
	b = &inbox{post: p, channel: channel, sharded: cluster, waiters: make(map[*waiter]struct{})}
	b.idle = time.AfterFunc(math.MaxInt64, b.closeIfIdle)
	var ctx context.Context
	ctx, b.close = context.WithCancel(p.open)
	b.reopen = func() {}
	p.inboxes[channel] = b
	p.startLocked(func() { b.run(ctx) })
	return b
}

func (p *post) remember(key, token string, w *waiter) {
	if r := p.tokens[token]; r != nil {
		r.key, r.waiter, r.gone, r.missed = key, w, false, false
		return
	}
	p.tokens[token] = &record{key: key, waiter: w}
	p.order = append(p.order, token)
	for range min(2, max(0, len(p.order)-maxTokens)) { // two, since more may have waited at once
		oldest := p.order[0]
		p.order = p.order[1:]
		if p.tokens[oldest].waiter != nil {
			p.order = append(p.order, oldest)
		} else {
			delete(p.tokens, oldest)
		}
	}
}

// leave ends the wait of a token, which was granted the lock or not.
func (p *post) leave(token string, w *waiter, granted bool) {
	defer p.running.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.tokens[token]; r != nil && r.waiter == w {
		r.waiter, r.gone = nil, !granted
	}
	if b := w.inbox; b != nil {
		delete(b.waiters, w)
		b.lingerLocked()
	}
}

// releasing notes that a token is about to be released; released must follow.
func (p *post) releasing(token string) {
	if !p.used.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.tokens[token]; r != nil {
		r.releases++
	}
}

// released notes that a token is used no more, and whether a release has ended its
// lease. If it has not, and there may be one again, the release is repeated.
func (p *post) released(token string, held bool) {
	if !p.used.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.tokens[token]
	if r == nil {
		return
	}
	r.gone, r.missed = true, !held
	r.releases = max(0, r.releases-1) // the record may be younger than the release
	if r.releases == 0 && r.heard {
		r.heard = false
		if !held {
			p.giveBack(r.key, token)
		}
	}
}

// reuse notes that a token is used again, by an attempt: what is heard of it from now on
// is no reason to release it.
func (p *post) reuse(token string) {
	if !p.used.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.tokens[token]; r != nil && r.waiter == nil {
		r.gone, r.missed, r.heard = false, false, false
	}
}

// outlived notes that a call of a wait is still on its way when that ends; late must
// follow when it is answered, and then answered be closed.
func (p *post) outlived(token string, w *waiter, answered <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.tokens[token]; r != nil && r.waiter == w {
		r.answered = answered
	}
}

// settle waits for the answer to a call that has outlived its wait, as long as ctx lasts.
// It reports whether there may be a grant again since the token was released, which the
// caller has to release then.
func (p *post) settle(ctx context.Context, token string) bool {
	if !p.used.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.tokens[token]
	if r == nil {
		return false
	}
	if answered := r.answered; answered != nil {
		p.mu.Unlock()
		select {
		case <-answered:
		case <-ctx.Done():
		case <-p.open.Done():
		}
		p.mu.Lock()
	}
	heard := r.heard
	r.heard = false
	return heard
}

// late notes that a call that outlived its wait was answered, and reports whether its
// token has to be released again: a release has missed it.
func (p *post) late(token string, answered <-chan struct{}) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.tokens[token]
	if r == nil {
		return false
	}
	if r.answered == answered {
		r.answered = nil
	}
	if r.releases > 0 { // which may miss it
		r.heard = true
		return false
	}
	return r.missed
}

// isReleased reports whether a token that is not in the queue any more was taken out of
// it by a release, and not because it seemed dead.
func (p *post) isReleased(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.tokens[token]
	return r != nil && (r.gone || r.releases > 0)
}

// deliver passes a message on. A grant for a token that is used no more is released; but
// while a release is on its way it is most likely the one that this ends, and must not
// be released first, or the release would find nothing and call the lease lost. A grant
// for a token that has got its answer by asking is no news, and one for a token that is
// not known may be of a lease that somebody holds.
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
	r.unread = false
	switch {
	case r.releases > 0:
		r.heard = true
	case r.gone:
		p.giveBack(r.key, token)
	case r.waiter != nil:
		select {
		case r.waiter.granted <- h:
		default: // it has one to read, which makes it ask
		}
	}
}

func (p *post) giveBack(key, token string) {
	p.startLocked(func() { _ = p.locker.giveBack(context.Background(), key, token) })
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

// found notes that an ask has found a grant whose message ought to have come. If it
// does not come, the inbox is deaf, and is opened anew.
func (p *post) found(token string, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.tokens[token]
	if b := w.inbox; r != nil && b != nil && b.live && len(w.granted) == 0 {
		r.unread = true
		time.AfterFunc(messageLag, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if r.unread {
				b.doubt()
			}
		})
	}
}

// passedOver notes that a waiter was taken for dead again though its inbox was known:
// it is not heard of where the lock is.
func (p *post) passedOver(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.inbox != nil {
		w.inbox.doubt()
	}
}

// doubt opens an inbox anew that seems not to hear what it listens for. Where that does
// not help, it is not done at each handover.
func (b *inbox) doubt() {
	if b.live && time.Since(b.doubted) >= doubtPause {
		b.doubted = time.Now()
		b.reopen()
	}
}

// address returns how scripts are told of the inbox, or "" if nobody listens to it.
func (w *waiter) address() string {
	b := w.inbox
	if b == nil {
		return ""
	}
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	switch {
	case !b.live:
		return ""
	case b.sharded:
		return "s" + b.channel
	}
	return "p" + b.channel
}

// run listens until ctx ends, or the library's client is closed. A subscription that did
// not last is no reason to hurry.
func (b *inbox) run(ctx context.Context) {
	for pause := minPause; ctx.Err() == nil; {
		begun := time.Now()
		err := b.listen(ctx)
		was := b.set(false)
		switch {
		case ctx.Err() != nil, errors.Is(err, dlock.ErrClosed): // waits find out when they ask
			return
		case !was:
			b.post.missing(err)
		case time.Since(begun) >= lasting:
			pause = minPause
		}
		sleep(ctx, pause+mathrand.N(pause))
		pause = min(2*pause, maxPause)
	}
}

func (b *inbox) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.post.mu.Lock()
	b.reopen = cancel
	b.post.mu.Unlock()
	return b.post.locker.conn.Listen(ctx, b.channel, b.sharded, func(e Event) {
		switch e.Kind {
		case Subscribed:
			b.set(true)
		case Message:
			b.post.deliver(e.Payload)
			b.linger()
		}
	})
}

// missing tells why an inbox could not be opened, unless that was told since one was open.
func (p *post) missing(err error) {
	p.mu.Lock()
	told := p.told
	p.told = true
	p.mu.Unlock()
	if f := p.locker.inboxErr; f != nil && !told {
		f(err)
	}
}

// set notes whether somebody listens, tells the waiters of a change, and returns
// how it was before.
func (b *inbox) set(live bool) (was bool) {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	was, b.live = b.live, live
	b.post.told = b.post.told && !live
	if was == live {
		return was
	}
	for w := range b.waiters {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	return was
}

// linger keeps an inbox open for a while after a message, though nobody waits: grants
// for those who went away together come one after the other.
func (b *inbox) linger() {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	b.lingerLocked()
}

func (b *inbox) lingerLocked() {
	if len(b.waiters) == 0 && b.post.open.Err() == nil {
		b.idle.Reset(lingering)
	}
}

func (b *inbox) closeIfIdle() {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	if len(b.waiters) == 0 && b.post.inboxes[b.channel] == b {
		b.close()
		delete(b.post.inboxes, b.channel)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

package rediscore

import (
	"context"
	"errors"
	"math"
	mathrand "math/rand/v2"
	"time"

	"github.com/dlock-go/dlock"
)

const (
	lingering  = time.Second            // how long an inbox stays when nobody waits
	minPause   = 100 * time.Millisecond // before an inbox that was lost is opened again
	maxPause   = time.Second            // waiters that begin after a failover would be passed over for so long
	lasting    = time.Second            // how long a subscription is there that was no failure
	doubtPause = 10 * time.Second       // before an inbox that is doubted again is opened anew
)

// An inbox is a channel with a name that nobody else has. It is opened when somebody begins to
// wait, and closed some time after the last one has ended. The mutex of its post guards it.
type inbox struct {
	post    *post
	channel string
	sharded bool
	waiters map[*waiter]struct{}
	needed  context.Context // ends when nobody has waited for a while
	close   context.CancelFunc
	live    bool
	reopen  context.CancelFunc
	doubted time.Time // when it was last opened anew
	idle    *time.Timer
}

// inboxLocked returns the inbox of a slot. It opens the inbox if necessary.
func (p *post) inboxLocked(slot int, sharded bool) *inbox {
	channel := p.locker.prefix + inboxSuffix + p.name
	if sharded {
		channel = companion(p.locker.prefix, slot, inboxSuffix+p.name)
	}
	if b := p.inboxes[channel]; b != nil {
		return b
	}
	b := &inbox{post: p, channel: channel, sharded: sharded, waiters: make(map[*waiter]struct{})}
	b.idle = time.AfterFunc(math.MaxInt64, b.closeIfIdle)
	b.needed, b.close = context.WithCancel(p.open)
	b.reopen = func() {}
	p.inboxes[channel] = b
	p.startLocked(b.run)
	return b
}

// run keeps the inbox open while it is needed. A waiter that comes while the inbox is being closed
// has it opened again afterwards: two subscriptions to one channel never cross.
func (b *inbox) run() {
	for ctx := b.needed; ctx != nil; ctx = b.again() {
		b.keepOpen(ctx)
	}
}

// again returns nil if the inbox is not needed any more. It is gone then.
func (b *inbox) again() context.Context {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	if len(b.waiters) == 0 || b.post.open.Err() != nil {
		delete(b.post.inboxes, b.channel)
		return nil
	}
	b.needed, b.close = context.WithCancel(b.post.open)
	return b.needed
}

// keepOpen listens until ctx ends. A subscription that did not last is no reason to hurry.
func (b *inbox) keepOpen(ctx context.Context) {
	for pause := minPause; ctx.Err() == nil; {
		begun := time.Now()
		err := b.listen(ctx)
		was := b.set(false)
		switch {
		case errors.Is(err, dlock.ErrClosed): // waits find out when they check in
			<-ctx.Done()
		case ctx.Err() != nil:
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

// set notes whether somebody listens, tells the waiters of a change, and returns how it was
// before.
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

// doubtLocked opens an inbox anew that seems not to hear what it listens for. Where that does not
// help, it is not done at each handover.
func (b *inbox) doubtLocked() {
	if b.live && time.Since(b.doubted) >= doubtPause {
		b.doubted = time.Now()
		b.reopen()
	}
}

// linger keeps an inbox open for a while after a message, though nobody waits: grants for those
// who went away together come one after the other.
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
	if len(b.waiters) == 0 {
		b.close()
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

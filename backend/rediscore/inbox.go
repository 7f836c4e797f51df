package rediscore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/chance"
)

const (
	lingering  = time.Second            // how long an inbox stays when nobody waits
	minPause   = 100 * time.Millisecond // before an inbox that was lost is opened again
	maxPause   = time.Second            // waiters that begin after a failover would be passed over for so long
	lasting    = time.Second            // how long a subscription is there that was no failure
	doubtPause = 10 * time.Second       // until an inbox that is doubted once more is opened again
	minFollow  = 250 * time.Millisecond // between two looks at which master has the slot of an inbox
	maxFollow  = 10 * time.Second
)

// An inbox is a channel with a name that nobody else has. It is opened when somebody begins to
// wait, and closed some time after the last one has ended. The mutex of its post guards it.
type inbox struct {
	post    *post
	prefix  string // of the channel's name
	channel string
	left    bool // a release has failed: a wait that is over may have a place in a queue, as one of this channel
	sharded bool
	waits   map[*wait]struct{}
	needed  context.Context // ends when nobody has waited for a while
	close   context.CancelFunc
	live    bool
	epoch   int // how many times it was opened or lost
	reopen  context.CancelFunc
	opened  time.Time   // when the present subscription was begun
	doubted time.Time   // when it was last opened again
	unheard time.Time   // when a server said that nobody listens to it; zero if it was opened since
	deaf    bool        // a server said so, and no message has come since
	idle    *time.Timer // which may also fire while somebody waits
}

// inboxLocked returns the inbox of a slot. It opens the inbox if necessary.
func (p *post) inboxLocked(slot int, sharded bool) *inbox {
	prefix := p.locker.prefix + inboxSuffix
	if sharded {
		prefix = companion(p.locker.prefix, slot, inboxSuffix)
	}
	if b := p.inboxes[prefix]; b != nil {
		return b
	}
	b := &inbox{post: p, prefix: prefix, channel: prefix + chance.Text(), sharded: sharded, waits: make(map[*wait]struct{})}
	b.idle = time.AfterFunc(lingering, b.closeIfIdle)
	b.needed, b.close = context.WithCancel(p.open)
	b.reopen = func() {}
	p.inboxes[prefix] = b
	p.running.Go(b.run)
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
	if len(b.waits) == 0 || b.post.open.Err() != nil {
		delete(b.post.inboxes, b.prefix)
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
		sleep(ctx, pause+chance.N(pause))
		pause = min(2*pause, maxPause)
	}
}

// listen subscribes once. It returns why that has ended.
func (b *inbox) listen(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	b.post.mu.Lock()
	if b.left { // these count as dead from now on
		b.channel, b.left = b.prefix+chance.Text(), false
	}
	b.reopen, b.opened = func() { end(nil) }, time.Now()
	b.post.mu.Unlock()
	conn := b.post.locker.conn
	var following sync.WaitGroup
	if master := conn.locate(ctx, b.channel); master != nil {
		following.Go(func() { b.follow(ctx, master, end) })
	}
	end(conn.listen(ctx, b.channel, b.sharded, func(e Event) {
		switch e.Kind {
		case Subscribed:
			b.set(true)
		case Message:
			b.post.deliver(e.Payload)
			b.linger()
		}
	}))
	following.Wait()
	return context.Cause(ctx)
}

// follow ends a subscription when another master than the one at its beginning turns out to have the
// slot. A library may try for long to reach one that is dead. And a master that was replaced, and is
// back as a replica, says for a while that it has the slot, and confirms subscriptions of which the
// scripts of the new master do not know.
func (b *inbox) follow(ctx context.Context, master any, end context.CancelCauseFunc) {
	for period := minFollow; ; {
		if sleep(ctx, period); ctx.Err() != nil {
			return
		}
		if now := b.post.locker.conn.locate(ctx, b.channel); now != nil && now != master {
			end(errReplaced)
			return
		}
		if b.isLive() {
			period = min(2*period, maxFollow)
		}
	}
}

var errReplaced = errors.New("another master has the slot")

func (b *inbox) isLive() bool {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	return b.live
}

// set notes whether somebody listens, tells the waits of a change, the oldest first, and returns how
// it was before.
func (b *inbox) set(live bool) (was bool) {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	was, b.live = b.live, live
	if b.post.told = b.post.told && (!live || b.deaf); live && !b.deaf {
		b.post.without = nil
	}
	if was != live {
		b.unheard = time.Time{}
		b.changedLocked()
	}
	return was
}

// changedLocked begins an epoch.
func (b *inbox) changedLocked() {
	b.epoch++
	inOrder := slices.SortedFunc(maps.Keys(b.waits), func(a, b *wait) int { return cmp.Compare(a.joined, b.joined) })
	for _, w := range inOrder {
		w.mail.changed = true
		w.ring()
	}
}

// isDeaf notes that the server that runs the scripts knows no subscriber of an inbox, which was open in a given epoch.
// All its waits go on without it for a while, and it is opened again.
func (b *inbox) isDeaf(epoch int) {
	b.post.mu.Lock()
	current := b.live && b.epoch == epoch
	if current {
		b.unheard, b.deaf = time.Now(), true
		b.changedLocked()
		b.doubtLocked()
	}
	b.post.mu.Unlock()
	if current {
		b.post.missing(errDeaf)
	}
}

var errDeaf = errors.New("the Redis client subscribes on another server than the one that runs its scripts, such as a replica")

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
	if b.deaf {
		b.deaf, b.post.told, b.post.without = false, false, nil
	}
	b.lingerLocked()
}

func (b *inbox) lingerLocked() {
	if len(b.waits) == 0 && b.post.open.Err() == nil {
		b.idle.Reset(lingering)
	}
}

func (b *inbox) closeIfIdle() {
	b.post.mu.Lock()
	defer b.post.mu.Unlock()
	if len(b.waits) == 0 {
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

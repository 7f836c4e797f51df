package dlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/errs"
	"github.com/dlock-go/dlock/internal/logwatch"
	"github.com/dlock-go/dlock/internal/storewait"
)

// NewLogObserver returns an Observer that logs to l, or to [slog.Default] if l is nil. The message
// of a line is what happened:
//
//   - [slog.LevelWarn]: a lease was lost; work went on for more than 50 ms after the loss (overrun);
//     a renewal failed, the first of an outage; an operator called Break; an acquisition failed, or waits for
//     the store; the store cannot send messages to a waiter ([InboxMissingInfo]).
//   - [slog.LevelInfo]: renewals succeed again after an outage; an acquisition no longer waits for the store.
//   - [slog.LevelDebug]: the rest, such as the further failures of an outage.
//
// The warning of a failed renewal shows how much time is left of the lease ("left") and of how much
// ("ttl"): unless a later renewal succeeds, the lease is lost when that time has passed. An outage begins
// with a failed renewal. It is over when each lease whose renewal has failed in the last minute was renewed
// or has ended, and the store answers: it renews a lease, or answers an acquisition or an owed release.
// "after" is the time from the first failure to the first such answer after the last failure. A renewal
// that its caller or Close has cancelled, and one that finds its lease lost, begin no outage.
//
// An acquisition waits for the store when its last request has failed and it goes on (see [StoreWaitInfo]). Its
// first failure is logged at once. While any acquisition waits for the store, a line each minute shows the one that
// has waited longest ("for"), and how many do ("waiting"). When the wait for the store is over, a line shows how long
// it was ("after").
//
// A failed acquisition is one whose error matches neither [ErrHeld] nor that of a ctx, or matches
// [ErrUnavailable].
//
// Clients that share the Observer share the outage, even if they have different stores. To see when
// each store is back, make an Observer for each.
//
// More than ten warnings of one kind in a second, as after FLUSHALL, are gathered: the first ten are logged
// one by one, and the others, for a second, as one line with the attribute "count" and without a key. For
// lines about acquisitions the time is a minute, and that line shows the last error. Each gathered one is
// logged at [slog.LevelDebug], with its key. A process that ends before the count is due does not log it.
//
// Tokens are never logged. Keys are, as the attribute "key", and nowhere else. If keys are
// personal data, let the handler of l replace that attribute: see
// [slog.HandlerOptions.ReplaceAttr]. The attribute "error" may show what the store has said, and
// the cause of the caller's ctx if that is not an error of this package.
func NewLogObserver(l *slog.Logger) *Observer {
	if l == nil {
		l = slog.Default()
	}
	o := &logObserver{Logger: l, waits: make(map[*storewait.Call]StoreWaitInfo)}
	o.second, o.minute = logwatch.NewGate(time.Second, o.gathered), logwatch.NewGate(time.Minute, o.gathered)
	return &Observer{
		WaitStart:    o.waitStart,
		StoreWait:    o.storeWait,
		InboxMissing: o.inboxMissing,
		AcquireDone:  o.acquireDone,
		RenewDone:    o.renewDone,
		LeaseDone:    o.leaseDone,
		ReleaseDone:  o.releaseDone,
		OwedDone:     o.owedDone,
		BreakDone:    o.breakDone,
	}
}

// A logObserver logs. Things that fail are leases, by key and fence, which tells apart those of one key in several
// stores, too.
type logObserver struct {
	*slog.Logger
	outage         logwatch.Watch // of renewals
	second, minute *logwatch.Gate // by message

	mu    sync.Mutex
	waits map[*storewait.Call]StoreWaitInfo // the last of each acquisition that waits for the store
	timer *time.Timer                       // of the next line about them; nil if there are none
}

// The lines about waits for the store.
const (
	forStore  = "waiting for the store"
	served    = "the store answers again"
	unserved  = "stopped waiting for the store"
	eachWhile = time.Minute + 50*time.Millisecond // no two in a minute
)

// gathered logs how many events were gathered.
func (l *logObserver) gathered(message string, n int, last error) {
	level := slog.LevelWarn
	if message == served || message == unserved {
		level = slog.LevelInfo
	}
	attrs := []slog.Attr{slog.Int("count", n)}
	if last != nil {
		attrs = append(attrs, slog.String("error", last.Error()))
	}
	l.LogAttrs(context.Background(), level, "dlock: "+message, attrs...)
}

func (l *logObserver) waitStart(ctx context.Context, i WaitStartInfo) {
	if l.Enabled(ctx, slog.LevelDebug) {
		l.log(ctx, slog.LevelDebug, "waiting for a lock", i.Key, nil,
			slog.String("owner", i.Owner), slog.Duration("remaining", i.Remaining))
	}
}

func (l *logObserver) acquireDone(ctx context.Context, i AcquireDoneInfo) context.Context {
	held := errs.InChain(i.Err, func(err error) bool { _, held := err.(*HeldError); return held })
	if i.Attempts > 0 && (i.Err == nil && !i.Degraded || held) {
		l.alive(ctx, i.Key)
	}
	level, message := slog.LevelDebug, "lock acquired"
	if i.Err != nil {
		message = "lock not acquired"
	}
	if acquireFailed(i.Err) {
		level = gated(l.minute, slog.LevelWarn, message, i.Err)
	}
	if !l.Enabled(ctx, level) {
		return ctx
	}
	l.log(ctx, level, message, i.Key, i.Err,
		slog.String("op", string(i.Op)), took(i.Took), slog.Duration("waited", i.Waited), slog.Bool("contended", i.Contended),
		slog.Int("attempts", i.Attempts), slog.Int64("fence", i.Fence), slog.Bool("degraded", i.Degraded))
	return ctx
}

// acquireFailed reports whether an acquisition has failed: it was neither granted, nor held by another, nor ended by
// the caller's context.
func acquireFailed(err error) bool {
	switch {
	case err == nil, errors.Is(err, ErrHeld):
		return false
	case errors.Is(err, ErrUnavailable):
		return true
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// alive notes an answer of the store to something else than a renewal.
func (l *logObserver) alive(ctx context.Context, key string) {
	if after, over := l.outage.Alive(); over {
		l.logOver(ctx, key, after)
	}
}

func (l *logObserver) logOver(ctx context.Context, key string, after time.Duration) {
	if l.Enabled(ctx, slog.LevelInfo) {
		l.log(ctx, slog.LevelInfo, "renewals succeed again", key, nil, slog.Duration("after", after))
	}
}

func (l *logObserver) storeWait(ctx context.Context, i StoreWaitInfo) {
	level, message, took := slog.LevelDebug, forStore, "for"
	switch first := l.noteWait(i); {
	case i.Over && i.Err == nil:
		level, message, took = gated(l.minute, slog.LevelInfo, served, nil), served, "after"
		l.alive(ctx, i.Key)
	case i.Over:
		level, message, took = gated(l.minute, slog.LevelInfo, unserved, i.Err), unserved, "after"
	case first:
		level = gated(l.minute, slog.LevelWarn, forStore, i.Err)
	}
	if l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err, slog.Duration(took, i.Took))
	}
}

// noteWait notes an event of an acquisition that waits for the store, and reports whether it is the first.
func (l *logObserver) noteWait(i StoreWaitInfo) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.waits[i.call]
	if i.Over {
		delete(l.waits, i.call)
		return false
	}
	l.waits[i.call] = i
	if l.timer == nil {
		l.timer = time.AfterFunc(eachWhile, l.stillWaiting)
	}
	return !known
}

// stillWaiting logs, each minute, that acquisitions wait for the store.
func (l *logObserver) stillWaiting() {
	longest, n := l.longestWait()
	if n == 0 {
		return
	}
	defer func() { _ = recover() }()
	l.log(context.Background(), slog.LevelWarn, forStore, longest.Key, longest.Err,
		slog.Duration("for", time.Since(longest.Since)), slog.Int("waiting", n))
}

// longestWait returns the last event of the acquisition that has waited longest for the store, and how many wait. An
// event that was dropped may have been the last of its acquisition.
func (l *logObserver) longestWait() (longest StoreWaitInfo, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for call, i := range l.waits {
		if !call.Failing() {
			delete(l.waits, call)
		} else if longest.Since.IsZero() || i.Since.Before(longest.Since) {
			longest = i
		}
	}
	if n = len(l.waits); n == 0 {
		l.timer = nil
	} else {
		l.timer.Reset(eachWhile)
	}
	return longest, n
}

func (l *logObserver) inboxMissing(ctx context.Context, i InboxMissingInfo) {
	const message = "no inbox: the wait is served more slowly"
	if level := gated(l.minute, slog.LevelWarn, message, i.Err); l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err)
	}
}

func (l *logObserver) renewDone(ctx context.Context, i RenewDoneInfo) {
	level, message := slog.LevelDebug, "lease renewed"
	if i.Err != nil {
		message = "renewal failed"
		if !errors.Is(i.Err, ErrLost) && !errors.Is(i.Err, context.Canceled) && l.outage.Failed(logwatch.ID{Key: i.Key, Number: i.Fence}, i.Margin) {
			level = l.warning(message)
		}
	} else if after, over := l.outage.Succeeded(logwatch.ID{Key: i.Key, Number: i.Fence}); over {
		l.logOver(ctx, i.Key, after)
	}
	if l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err,
			took(i.Took), slog.Duration("left", i.Margin), slog.Duration("ttl", i.TTL), slog.Int("batch", i.Batch))
	}
}

func (l *logObserver) leaseDone(ctx context.Context, i LeaseDoneInfo) {
	l.outage.Gone(logwatch.ID{Key: i.Key, Number: i.Fence})
	if i.End == EndRemoved { // which the store has said
		l.alive(ctx, i.Key)
	}
	level, message := slog.LevelDebug, "lease ended"
	if errors.Is(i.Err, ErrLost) {
		message = "lease lost"
		level = l.warning(message)
	}
	if l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err,
			slog.String("end", string(i.End)), slog.Time("at", i.At), slog.Duration("held", i.Held), slog.Int64("fence", i.Fence))
	}
}

// shortOverrun is no warning: work that stops with its context takes a moment for that.
const shortOverrun = 50 * time.Millisecond

func (l *logObserver) releaseDone(ctx context.Context, i ReleaseDoneInfo) {
	level, message := slog.LevelDebug, "lock released"
	switch {
	case i.Overrun > shortOverrun:
		message = "work went on after its lease was lost"
		level = l.warning(message)
	case i.Err != nil:
		message = "release failed"
	case i.Owed:
		message = "lock released, and kept for its MinHold"
	}
	if l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err,
			slog.Duration("held", i.Held), took(i.Took), slog.Duration("overrun", i.Overrun), slog.Bool("owed", i.Owed))
	}
}

func (l *logObserver) owedDone(ctx context.Context, i OwedDoneInfo) {
	if i.Err == nil {
		l.alive(ctx, i.Key)
	}
	if !l.Enabled(ctx, slog.LevelDebug) {
		return
	}
	message := "owed release done"
	if i.Err != nil {
		message = "owed release given up"
	}
	l.log(ctx, slog.LevelDebug, message, i.Key, i.Err, took(i.Took))
}

func (l *logObserver) breakDone(ctx context.Context, i BreakDoneInfo) {
	message := "lock broken by an operator"
	if i.Err != nil {
		message = "Break failed" // if the store did not answer, the lock may be broken all the same
	}
	if level := l.warning(message); l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err, slog.String("owner", i.Owner), took(i.Took))
	}
}

func (l *logObserver) log(ctx context.Context, level slog.Level, message, key string, err error, attrs ...slog.Attr) {
	attrs = append(attrs, slog.String("key", key))
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	l.LogAttrs(ctx, level, "dlock: "+message, attrs...)
}

func took(d time.Duration) slog.Attr { return slog.Duration("took", d) }

// warning returns the level of the next warning with a message.
func (l *logObserver) warning(message string) slog.Level {
	return gated(l.second, slog.LevelWarn, message, nil)
}

// gated returns the level of the next line with a message: Debug if it is gathered.
func gated(g *logwatch.Gate, level slog.Level, message string, err error) slog.Level {
	if g.Passes(message, err) {
		return level
	}
	return slog.LevelDebug
}

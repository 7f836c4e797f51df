package dlock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dlock-go/dlock/internal/flood"
	"github.com/dlock-go/dlock/internal/outage"
)

// NewLogObserver returns an Observer that logs to l, or to [slog.Default] if l is nil. The message
// of a line is what happened:
//
//   - [slog.LevelWarn]: a lease was lost; work went on for more than 50 ms after the loss (overrun);
//     a renewal failed, the first of an outage; an operator called Break.
//   - [slog.LevelInfo]: renewals succeed again after an outage.
//   - [slog.LevelDebug]: the rest, such as the further failures of an outage.
//
// The warning of a failed renewal shows how much time is left of the lease ("left") and of how much
// ("ttl"): unless a later renewal succeeds, the lease is lost when that time has passed. An outage
// begins with a failed renewal. It is over when each lease whose renewal has failed in the last
// minute was renewed or has ended, and a renewal succeeds. If all these leases have ended, and a
// lock was acquired since, the next failed renewal begins another outage. A renewal that its caller
// or Close has cancelled, and one that finds its lease lost, begin none.
//
// Clients that share the Observer share the outage, also if they have different stores. To see when
// each store is back, make an Observer for each.
//
// More than ten warnings of one kind in a second, as after FLUSHALL, are gathered: the first ten are
// logged one by one, and those of the next second as one line with the attribute "count" and without
// a key. Each of these is logged at [slog.LevelDebug] too, with its key. A process that ends within
// that second does not log the count.
//
// Tokens are never logged. Keys are, as the attribute "key", and nowhere else. If keys are
// personal data, let the handler of l replace that attribute: see
// [slog.HandlerOptions.ReplaceAttr]. The attribute "error" may show what the store has said, and
// the cause of the caller's ctx if that is not an error of this package.
func NewLogObserver(l *slog.Logger) *Observer {
	if l == nil {
		l = slog.Default()
	}
	o := &logObserver{Logger: l}
	o.warnings = flood.NewGate(func(message string, n int) {
		l.LogAttrs(context.Background(), slog.LevelWarn, "dlock: "+message, slog.Int("count", n))
	})
	return &Observer{
		WaitStart:   o.waitStart,
		AcquireDone: o.acquireDone,
		RenewDone:   o.renewDone,
		LeaseDone:   o.leaseDone,
		ReleaseDone: o.releaseDone,
		OwedDone:    o.owedDone,
		BreakDone:   o.breakDone,
	}
}

// A logObserver logs. Things that fail are leases, by key and fence, which tells apart those of one key in several
// stores, too.
type logObserver struct {
	*slog.Logger
	outage   outage.Watch // of renewals
	warnings *flood.Gate  // by message
}

func (l *logObserver) waitStart(ctx context.Context, i WaitStartInfo) {
	if l.Enabled(ctx, slog.LevelDebug) {
		l.log(ctx, slog.LevelDebug, "waiting for a lock", i.Key, nil,
			slog.String("owner", i.Owner), slog.Duration("remaining", i.Remaining))
	}
}

func (l *logObserver) acquireDone(ctx context.Context, i AcquireDoneInfo) context.Context {
	if i.Err == nil && !i.Degraded {
		l.outage.Alive() // the store has answered
	}
	if !l.Enabled(ctx, slog.LevelDebug) {
		return ctx
	}
	message := "lock acquired"
	if i.Err != nil {
		message = "lock not acquired"
	}
	l.log(ctx, slog.LevelDebug, message, i.Key, i.Err,
		slog.String("op", string(i.Op)), took(i.Took), slog.Duration("waited", i.Waited), slog.Bool("contended", i.Contended),
		slog.Int("attempts", i.Attempts), slog.Int64("fence", i.Fence), slog.Bool("degraded", i.Degraded))
	return ctx
}

func (l *logObserver) renewDone(ctx context.Context, i RenewDoneInfo) {
	level, message := slog.LevelDebug, "lease renewed"
	if i.Err != nil {
		message = "renewal failed"
		if !errors.Is(i.Err, ErrLost) && !errors.Is(i.Err, context.Canceled) && l.outage.Failed(outage.ID{Key: i.Key, Number: i.Fence}, i.Margin) {
			level = l.warning(message)
		}
	} else if after, over := l.outage.Succeeded(outage.ID{Key: i.Key, Number: i.Fence}); over && l.Enabled(ctx, slog.LevelInfo) {
		l.log(ctx, slog.LevelInfo, "renewals succeed again", i.Key, nil, slog.Duration("after", after))
	}
	if l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err,
			took(i.Took), slog.Duration("left", i.Margin), slog.Duration("ttl", i.TTL), slog.Int("batch", i.Batch))
	}
}

func (l *logObserver) leaseDone(ctx context.Context, i LeaseDoneInfo) {
	l.outage.Gone(outage.ID{Key: i.Key, Number: i.Fence})
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

// warning returns the level of the next warning with a message: Debug if it is gathered.
func (l *logObserver) warning(message string) slog.Level {
	if l.warnings.Passes(message) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

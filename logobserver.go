package dlock

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// NewLogObserver returns an Observer that logs to l, or to [slog.Default] if l is nil. Lost leases, and work that went on after the
// loss (overrun), are logged at [slog.LevelWarn], the rest at [slog.LevelDebug].
//
// Tokens are never logged. Keys are, as the attribute "key", and nowhere else. If keys are
// personal data, let the handler of l replace that attribute: see
// [slog.HandlerOptions.ReplaceAttr]. The attribute "error" may show what the store has said, and
// the cause of the caller's ctx if that is not an error of this package.
func NewLogObserver(l *slog.Logger) *Observer {
	if l == nil {
		l = slog.Default()
	}
	o := logObserver{l}
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

type logObserver struct{ *slog.Logger }

func (l logObserver) waitStart(ctx context.Context, i WaitStartInfo) {
	if l.Enabled(ctx, slog.LevelDebug) {
		l.log(ctx, slog.LevelDebug, "waiting for a lock", i.Key, nil,
			slog.String("owner", i.Owner), slog.Duration("remaining", i.Remaining))
	}
}

func (l logObserver) acquireDone(ctx context.Context, i AcquireDoneInfo) context.Context {
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

func (l logObserver) renewDone(ctx context.Context, i RenewDoneInfo) {
	if l.Enabled(ctx, slog.LevelDebug) {
		l.log(ctx, slog.LevelDebug, "lease renewed", i.Key, i.Err,
			took(i.Took), slog.Duration("margin", i.Margin), slog.Duration("ttl", i.TTL), slog.Int("batch", i.Batch))
	}
}

func (l logObserver) leaseDone(ctx context.Context, i LeaseDoneInfo) {
	level, message := slog.LevelDebug, "lease ended"
	if errors.Is(i.Err, ErrLost) {
		level, message = slog.LevelWarn, "lease lost"
	}
	if l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err,
			slog.String("end", string(i.End)), slog.Time("at", i.At), slog.Duration("held", i.Held), slog.Int64("fence", i.Fence))
	}
}

func (l logObserver) releaseDone(ctx context.Context, i ReleaseDoneInfo) {
	level, message := slog.LevelDebug, "lock released"
	switch {
	case i.Overrun > 0:
		level, message = slog.LevelWarn, "work went on after its lease was lost"
	case i.Err != nil:
		message = "lock not released"
	}
	if l.Enabled(ctx, level) {
		l.log(ctx, level, message, i.Key, i.Err,
			slog.Duration("held", i.Held), took(i.Took), slog.Duration("overrun", i.Overrun), slog.Bool("owed", i.Owed))
	}
}

func (l logObserver) owedDone(ctx context.Context, i OwedDoneInfo) {
	if l.Enabled(ctx, slog.LevelDebug) {
		l.log(ctx, slog.LevelDebug, "owed release ended", i.Key, i.Err, took(i.Took))
	}
}

func (l logObserver) breakDone(ctx context.Context, i BreakDoneInfo) {
	if l.Enabled(ctx, slog.LevelDebug) {
		l.log(ctx, slog.LevelDebug, "lock broken by an operator", i.Key, i.Err, slog.String("owner", i.Owner), took(i.Took))
	}
}

func (l logObserver) log(ctx context.Context, level slog.Level, message, key string, err error, attrs ...slog.Attr) {
	attrs = append(attrs, slog.String("key", key))
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	l.LogAttrs(ctx, level, "dlock: "+message, attrs...)
}

func took(d time.Duration) slog.Attr { return slog.Duration("took", d) }

package election

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var (
	// ErrNotLeader says that this process does not lead. [Election.IsLeader] returns it.
	ErrNotLeader = errors.New("election: this process does not lead")

	// ErrResigned is the cause with which lead's ctx ends after [Election.Resign].
	ErrResigned = errors.New("election: resigned")
)

const (
	early  = time.Second            // from the end of lead's ctx to the deadline
	resign = 300 * time.Millisecond // the pause of a process that has resigned: longer than that of a poll
	repeat = time.Second            // the pause after a refusal
)

// An Election makes one of several processes the leader. Its methods are safe for concurrent use.
type Election struct {
	client  *dlock.Client
	key     string
	running atomic.Bool
	term    atomic.Pointer[term] // the latest; nil before the first
}

// New returns the election between all processes that use key in the store of c. It sends nothing.
//
// TTL, owner, fence, Observers, backoff and local turns are those of c: see [dlock.Client.With].
// Its other options have no effect. The lease is always renewed, without a MaxHold or MinHold.
// There is no limit on waits and outages.
func New(c *dlock.Client, key string) *Election {
	return &Election{key: key, client: c.With(
		dlock.WithMaxWait(dlock.NoLimit), dlock.WithOutage(dlock.NoLimit),
		dlock.WithRenewal(true), dlock.WithTTLFrom(nil), dlock.WithMaxHold(0), dlock.WithMinHold(0),
	)}
}

// Run stands for election, and calls lead when this process leads. When that term is over and lead
// has returned, Run stands again. When ctx has ended and lead has returned, Run returns nil.
//
// lead's ctx ends:
//
//   - with ctx;
//   - after [Election.Resign], with the cause [ErrResigned];
//   - if the lease is not renewed: a second before its deadline, or a quarter of the TTL if that is
//     shorter. The cause matches [dlock.ErrLost]. The term stays over if a renewal succeeds later;
//   - if the store no longer knows the lease, with a cause that matches [dlock.ErrLost];
//   - if lead releases or detaches the lease, with the cause [dlock.ErrReleased].
//
// If lead returns before its ctx has ended, Run returns what [dlock.Client.Do] returns: the error
// of lead, which may be nil. The error also matches [dlock.ErrLost] if the lease was lost before
// lead returned. What lead returns after the end of its ctx is ignored.
//
// The lease is renewed until lead returns, and is then released. If lead panics, the lease is
// released, and the panic goes on to the caller of Run.
//
// Run waits for the end of an outage, and while the store refuses because of its own state, such as
// a lack of memory. If the store refuses Run's first request for another reason, such as a wrong
// password, Run returns the error at once. Once this process has waited in the queue or led, Run
// waits while the store refuses for such a reason, too: it asks again about once a second. Run always returns
// errors that would come again: they match [dlock.ErrInvalid], [errors.ErrUnsupported],
// [dlock.ErrNested] or [dlock.ErrClosed]. A second Run before the first has returned fails with
// ErrInvalid.
func (e *Election) Run(ctx context.Context, lead func(context.Context, *dlock.Lease) error) error {
	if lead == nil {
		return fmt.Errorf("election: run %q: %w function: nil", e.key, dlock.ErrInvalid)
	}
	if !e.running.CompareAndSwap(false, true) {
		return fmt.Errorf("election: run %q: %w call: Run has not returned", e.key, dlock.ErrInvalid)
	}
	defer e.running.Store(false)
	for accepted := false; ctx.Err() == nil; {
		var t *term // nil if it has not begun
		err := e.client.Do(ctx, e.key, func(ctx context.Context, lease *dlock.Lease) error {
			t = newTerm(ctx, lease)
			defer t.timer.Stop()
			e.term.Store(t)
			err := lead(t.ctx, lease)
			t.finished = t.ctx.Err() == nil
			return err
		})
		accepted = accepted || t != nil || errors.Is(err, dlock.ErrLost)
		var pause time.Duration
		switch {
		case t != nil && t.finished:
			return err
		case t != nil && (context.Cause(t.ctx) == ErrResigned || context.Cause(t.ctx) == dlock.ErrReleased):
			pause = resign
		case t == nil && accepted && mayPass(err):
			pause = repeat
		case t == nil && ctx.Err() == nil && !errors.Is(err, dlock.ErrLost):
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// mayPass reports whether err is a refusal of the store that may end.
func mayPass(err error) bool {
	return dlock.Refused(err) && !errors.Is(err, dlock.ErrInvalid) && !errors.Is(err, dlock.ErrClosed) &&
		!errors.Is(err, errors.ErrUnsupported)
}

// IsLeader returns nil while this process leads, and [ErrNotLeader] otherwise. It fails from the end
// of lead's ctx until the next term begins. It looks at the clocks, and sends nothing. The answer may
// be outdated when the caller acts on it: do longer work in lead. It is the method of gocron's Elector.
func (e *Election) IsLeader(context.Context) error {
	if t := e.term.Load(); t != nil && t.check() {
		return nil
	}
	return ErrNotLeader
}

// Leader asks the store which process leads: see [dlock.Client.Inspect]. Status.Owner is the label
// that [dlock.WithOwner] has given it. The answer may be outdated on arrival: show it to people.
func (e *Election) Leader(ctx context.Context) (dlock.Status, error) {
	return e.client.Inspect(ctx, e.key)
}

// Resign ends the current term: lead's ctx ends with [ErrResigned]. When lead has returned, the next
// process in the queue leads. This process stands again 0.3 s later, at the end of the queue. If no
// other process stands, it leads again. Resign does not wait, and does nothing unless this process
// leads.
func (e *Election) Resign() {
	if t := e.term.Load(); t != nil {
		t.stop(ErrResigned)
	}
}

// A term is one call of lead. It is over when ctx has ended, which check sees to.
type term struct {
	ctx      context.Context
	stop     context.CancelCauseFunc
	lease    *dlock.Lease
	margin   atomic.Int64 // from the end of ctx to the deadline: a time.Duration, which grows with the lease
	timer    *time.Timer  // of the next check
	finished bool         // lead returned before the end of ctx
}

func newTerm(parent context.Context, lease *dlock.Lease) *term {
	t := &term{lease: lease}
	t.ctx, t.stop = context.WithCancelCause(parent)
	t.timer = time.AfterFunc(math.MaxInt64, func() { t.check() })
	t.check()
	return t
}

// check ends the term if the deadline is near, and reports whether the term goes on.
func (t *term) check() bool {
	rest := time.Until(t.lease.Deadline())
	margin := max(time.Duration(t.margin.Load()), min(early, rest/4))
	t.margin.Store(int64(margin))
	if rest -= margin; rest <= 0 {
		t.stop(&dlock.LostError{Key: t.lease.Key(), Reason: dlock.LossExpired})
	}
	if t.ctx.Err() != nil {
		return false
	}
	t.timer.Reset(rest)
	return true
}

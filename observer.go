package dlock

import (
	"context"
	"reflect"
	"time"
)

// An Observer is called when something happens in a Client: see [WithObserver]. Functions that
// are nil are not called, and a Client without an Observer pays nothing. [NewLogObserver] makes
// one that logs. More fields may be added: name those that you set.
//
// Each call of Acquire, TryAcquire, Do or Adopt has one AcquireStart and one AcquireDone,
// whatever happens. Each lease that such a call was granted has one LeaseDone, after that
// AcquireDone. Holders that pass a lease on (see [WithLocalTurns], [Lease.Detach]) have one each.
//
// Functions are called without a mutex. They may call methods of the Client:
//
//   - What a caller does is reported in its goroutine, before its call returns. These are the
//     functions for acquiring and releasing, the LeaseDone of Release, the RenewDone of
//     [Lease.Renew], and BreakDone.
//   - What happens in the background is reported in one goroutine, in order: losses, renewals
//     and owed releases. So is the LeaseDone of Detach, since the taker must not wait for it. If
//     the goroutine falls behind by 4,096 events (2,048 for renewals and owed releases), further
//     ones are dropped, and counted in [Stats]. Close and Shutdown wait for it for up to 5 s.
//
// A function that is slow delays its caller only. But the lock is held while AcquireDone runs, so
// whoever wants the key waits for it, too. An Acquire of the same key in AcquireDone waits for its
// own caller, and so does a Shutdown.
//
// A function may panic: the panic is recovered, and the first one is logged with [slog.Default].
// It must not call [runtime.Goexit].
//
// The ctx that a function returns lends its values, and nothing else: cancellation and deadline
// stay those of the caller, and a value that it does not have is the caller's. Leases in it are
// not lent: see [LeaseFromContext]. If it is nil, nothing changes. The ctx of AcquireStart is that
// of the acquisition. The ctx of AcquireDone is that of the lease: its renewals that are sent
// alone, its release, and its later events have these values, and no longer only those of the
// caller. So a tracer can keep them out of a span that has ended.
//
// If a lease was lost before AcquireDone returned, Acquire does not return it, but the loss.
// AcquireDone has reported the grant by then, and LeaseDone reports the loss.
//
// The errors of events do not show keys; the key of the call is beside them. The tokens of leases
// are never in an event.
type Observer struct {
	AcquireStart func(context.Context, AcquireStartInfo) context.Context
	WaitStart    func(context.Context, WaitStartInfo) // at most once for each acquisition
	AcquireDone  func(context.Context, AcquireDoneInfo) context.Context
	RenewDone    func(context.Context, RenewDoneInfo) // once for each lease of a batch
	LeaseDone    func(context.Context, LeaseDoneInfo)
	ReleaseDone  func(context.Context, ReleaseDoneInfo)
	OwedDone     func(context.Context, OwedDoneInfo)
	BreakDone    func(context.Context, BreakDoneInfo)
}

// WithObserver adds an Observer. If there are several, they are called in the order in which
// they were added. A Client made by [Client.With] has those of the Client that it was made from.
// o is copied: changing it later has no effect.
func WithObserver(o *Observer) Option {
	return func(options *options) {
		if o == nil {
			options.refuse("WithObserver: nil")
			return
		}
		if reflect.ValueOf(*o).IsZero() {
			return
		}
		all := options.observers
		options.observers = append(all[:len(all):len(all)], *o)
	}
}

// An AcquireOp is the method that acquires.
type AcquireOp string

// The methods that acquire.
const (
	OpAcquire AcquireOp = "acquire" // Acquire or Do
	OpTry     AcquireOp = "try"     // TryAcquire
	OpAdopt   AcquireOp = "adopt"   // Adopt
)

// An AcquireStartInfo describes an acquisition that begins.
type AcquireStartInfo struct {
	Op  AcquireOp
	Key string // empty if Adopt was called with an empty Detached
}

// A WaitStartInfo describes an acquisition that begins to wait.
type WaitStartInfo struct {
	Key string

	// Owner and Remaining are what the store has said about the holder, as in [HeldError]. They
	// are zero if the acquisition waits without having asked: the key was contended lately, or
	// the Client is making many attempts.
	Owner     string
	Remaining time.Duration
}

// An AcquireDoneInfo describes the end of an acquisition.
type AcquireDoneInfo struct {
	Op        AcquireOp
	Key       string
	Start     time.Time
	Took      time.Duration // until the lease was granted, or the acquisition has failed
	Waited    time.Duration // the part of it after WaitStart; 0 if there was none
	Contended bool          // another held the key, or the acquisition waited for at least 1 ms in the store's queue
	Attempts  int           // calls to the store; 0 if the lease was passed on inside the process
	Fence     int64         // of the lease
	Degraded  bool          // see [Lease.Degraded]
	Err       error         // nil if a lease was granted
}

// A RenewDoneInfo describes the end of one renewal of one lease. A renewal that was overtaken by
// the end of its lease is not reported.
type RenewDoneInfo struct {
	Key    string
	Fence  int64
	Took   time.Duration
	Margin time.Duration // of the lease before its deadline when the answer came; not positive if that was too late
	TTL    time.Duration // with which the lease was extended last; shorter than that of WithTTL at the first renewal after a wait
	Batch  int           // how many leases were renewed by the same call
	Err    error         // matches ErrLost if the lease was lost, and context.Canceled if Close has cut it off
}

// A LeaseEnd is how a lease ended, in a word.
type LeaseEnd string

// The ends of leases.
const (
	EndReleased LeaseEnd = "released"
	EndDetached LeaseEnd = "detached"
	EndShutdown LeaseEnd = "shutdown" // [Client.Shutdown] has given up on it
	EndExpired  LeaseEnd = "expired"  // lost: [LossExpired]
	EndRemoved  LeaseEnd = "removed"  // lost: [LossRemoved]
	EndMaxHold  LeaseEnd = "max_hold" // lost: [LossMaxHold]
	EndClock    LeaseEnd = "clock"    // lost: [LossClock]
)

// A LeaseDoneInfo describes the end of a lease.
type LeaseDoneInfo struct {
	Key   string
	Fence int64
	At    time.Time     // of its end; the deadline, if that has passed
	Held  time.Duration // by this holder, until At
	End   LeaseEnd
	Err   error // as that of [Lease.Err]. If its release found out that the lease was lost before, it matches ErrLost
}

// A ReleaseDoneInfo describes a call of [Lease.Release]. Calls that do nothing are not reported.
type ReleaseDoneInfo struct {
	Key  string
	Held time.Duration // as in [LeaseDoneInfo]
	Took time.Duration

	// Overrun is the time from the loss of the lease to the first call of Release: work that was
	// done without the lock. It is 0 if the lease was not lost, or if only its release has found
	// the loss, so that nobody knows when that was.
	Overrun time.Duration

	Owed bool // the Client completes the release in the background
	Err  error
}

// An OwedDoneInfo describes the end of an owed release: of a lease, or of an attempt with an
// unknown outcome.
type OwedDoneInfo struct {
	Key  string
	Took time.Duration // since it is owed

	// Err is nil if the store has answered the release, or kept the key for its MinHold. If the
	// lease has ended by itself before that, Err is that of the last call. Otherwise it says why the
	// Client has given the release up.
	Err error
}

// A BreakDoneInfo describes a call of [Client.Break].
type BreakDoneInfo struct {
	Key   string // empty if the Status shows no holder that Break accepts
	Owner string // of the lock, as in [Status]
	Took  time.Duration
	Err   error
}

package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// ours are the errors of a call itself. They must not come from the cause of its context,
// which is about another lease or Client.
var ours = []error{dlock.ErrHeld, dlock.ErrUnavailable, dlock.ErrNested, dlock.ErrLost, dlock.ErrReleased, dlock.ErrInvalid, dlock.ErrClosed}

// lostContext returns a context that ends with the loss of another lease at once, or at the next call to the store.
func lostContext(t *testing.T, s *spy, early bool) context.Context {
	store := memory.New()
	l := acquire(t, dlock.New(store), "other")
	lose := func() {
		store.Expire("other")
		require.ErrorIs(t, l.Renew(context.Background()), dlock.ErrLost)
	}
	if early {
		defer lose()
	} else {
		s.onCall(func(c *call) {
			s.onCall(nil)
			lose()
			c.hang()
		})
	}
	return l.Context(t.Context())
}

func TestLossOfAnotherLeaseIsNotOfThisCall(t *testing.T) {
	for _, shape := range shapes {
		for _, early := range []bool{true, false} {
			if shape.own {
				continue
			}
			run(t, fmt.Sprintf("%s/early=%v", shape.name, early), func(t *testing.T, store *memory.Locker, s *spy) {
				call := shape.prepare(t, dlock.New(single{s}))
				err := call(lostContext(t, s, early))
				require.ErrorIs(t, err, context.Canceled)
				for _, our := range ours {
					require.NotErrorIs(t, err, our)
				}
				if early {
					require.ErrorContains(t, err, `"other": lease lost`, "the cause is shown as text")
				}
				if shape.name == "Renew" {
					requireTaken(t, store, "k")
				} else if shape.name == "Adopt" {
					require.NoError(t, call(t.Context()), "it is good")
				}
			})
		}
	}
}

// The error of a wait that a context ends, also one that ends so, still matches ErrHeld, and shows the cause.
func TestWaitCutByTheLossOfAnotherLease(t *testing.T) {
	waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		defer acquire(t, dlock.New(store, dlock.WithOwner("web-7")), "k").Release()
		left := errors.New("shutting down")
		for _, of := range append(ours, left) {
			for _, cause := range []error{of, fmt.Errorf("of another: %w", of)} {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(cause) })
				start := time.Now()
				_, err := dlock.New(l).Acquire(ctx, "k")
				require.Equal(t, time.Second, time.Since(start))
				requireErr(t, err, context.Canceled, dlock.ErrHeld, cause.Error(), "web-7")
				require.Equal(t, of == dlock.ErrHeld || of == left, errors.Is(err, of))
			}
		}
	})
}

func TestErrorsOfContexts(t *testing.T) {
	inCases{
		"some client libraries return the cause of a context": func(t *testing.T, _ *memory.Locker, s *spy, c *dlock.Client) {
			d := detach(t, acquire(t, c, "k"))
			s.onCall(says(fmt.Errorf("client: %w", dlock.ErrLost)))
			_, err := c.Adopt(t.Context(), d)
			requireErr(t, err, not{dlock.ErrLost}, exactly(`dlock: adopt "k": store unavailable: no answer: client: lease lost`))
			s.onCall(nil)
			require.NoError(t, adopt(t, c, d).Release())
		},
		"Renew with a Locker that returns the cause of its ctx, which another lease ended": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(single{s}, dlock.WithTTL(30*time.Second))
			var n atomic.Int32
			other := acquire(t, c, "other")
			l := acquire(t, c, "k")
			s.onCall(func(c *call) {
				if c.op == "renew" && c.key == "k" && c.ctx.Done() != nil && n.Add(1) == 1 {
					<-c.ctx.Done()
					c.err = context.Cause(c.ctx)
				}
			})
			ctx := other.Context(t.Context())
			time.AfterFunc(time.Second, func() { store.Expire("other") })
			err := l.Renew(ctx)
			require.ErrorIs(t, other.Err(), dlock.ErrLost)
			require.Error(t, err)
			require.NotErrorIs(t, err, dlock.ErrLost)
			require.NoError(t, l.Err())
			require.NoError(t, c.Close())
		},
		"cancelled calls match the context error": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithRenewal(false))
			l := acquire(t, c, "k")
			h := detach(t, acquire(t, c, "h"))
			s.on("try renew", func(c *call) {
				<-c.ctx.Done()
				c.err = errStore // what a client library may say
			})
			requireErr(t, errOf(c.TryAcquire(within(t, time.Second), "other")), context.DeadlineExceeded, errStore)
			require.ErrorIs(t, l.Renew(within(t, time.Second)), context.DeadlineExceeded)
			require.ErrorIs(t, errOf(c.Adopt(within(t, time.Second), h)), context.DeadlineExceeded)
			require.NoError(t, l.Release())
		},
		"hidden context error shows the rest": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			store.Fail(storeError{context.DeadlineExceeded})
			_, err := c.TryAcquire(t.Context(), "k")
			requireErr(t, err, noContext, errStore)
			require.ErrorAs(t, err, new(storeError))
		},
		"a time limit of this package or a client is not taken for the end of the caller's ctx": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			start := time.Now()
			s.onCall(func(c *call) {
				c.attempt = &dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
				if time.Since(start) > 0 {
					c.err = context.DeadlineExceeded
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Second, cancel)
			_, err := dlock.New(plain{s}).Acquire(ctx, "k")
			requireErr(t, err, context.Canceled, not{context.DeadlineExceeded}, dlock.ErrUnavailable)
		},
		"a store has not failed whose last call was cut short by the end of the wait": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			start := time.Now()
			s.onCall(func(c *call) {
				c.attempt = &dlock.Attempt{Holder: "other", Remaining: time.Millisecond}
				if time.Since(start) >= 14*time.Second {
					c.hang()
				}
			})
			c := dlock.New(plain{s}, dlock.WithBackoff(func(int) time.Duration { return 700 * time.Millisecond }))
			_, err := c.Acquire(within(t, 14*time.Second+30*time.Millisecond), "k")
			require.EqualError(t, err, `dlock: acquire "k": context deadline exceeded: held by another, for 1ms unless renewed`)
		},
	}.run(t)
}

type storeError struct{ error }

func (e storeError) Unwrap() []error { return []error{e.error, errStore} }

// What the error of a call says: whether it had an effect, and whether the store has refused it.
func TestErrorsOfCalls(t *testing.T) {
	reset, wrongPass := errors.New("connection reset"), errors.New("WRONGPASS")
	dial, read := &net.OpError{Op: "dial", Err: reset}, &net.OpError{Op: "read", Err: reset}
	marked := func(err error) error { return &dlock.NoEffectError{Err: err} }
	for _, test := range []struct {
		err               error
		noEffect, refused bool
	}{
		{nil, false, false},
		{reset, false, false},
		{read, false, false},
		{context.Canceled, false, false},
		{dlock.ErrClosed, false, false},
		{dlock.ErrUnavailable, false, false},
		{dial, true, false},
		{fmt.Errorf("pool: %w", dial), true, false},
		{errors.ErrUnsupported, true, false},
		{fmt.Errorf("%w key: empty", dlock.ErrInvalid), true, false},
		{marked(wrongPass), true, true},
		{fmt.Errorf("call: %w", marked(wrongPass)), true, true},
		{marked(dial), true, false},
		{marked(context.DeadlineExceeded), true, false},
		{marked(fmt.Errorf("%w: open", dlock.ErrUnavailable)), true, false},
		{&dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true}, true, false},
		{&dlock.NoEffectError{Err: errors.New("OOM"), State: true}, true, true},
		// Each part of a joined error may be about another request.
		{fmt.Errorf("%w: %w", reset, marked(wrongPass)), false, false},
		{errors.Join(marked(wrongPass)), false, false},
		{errors.Join(dial, dial), false, false},
		{errors.Join(dlock.ErrInvalid), false, false},
		{marked(errors.Join(reset, wrongPass)), true, true},
		// A wait that its ctx has ended, and why the store was silent.
		{marked(fmt.Errorf("%w: %w", context.DeadlineExceeded, reset)), true, false},
		{marked(fmt.Errorf("%w: %w", context.Canceled, dial)), true, false},
		{marked(fmt.Errorf("%w: %w", context.Canceled, marked(wrongPass))), true, true},
		{fmt.Errorf("%w: %w", context.Canceled, marked(wrongPass)), false, false},
		// The error of several stores.
		{majority{answered: true}, false, false},
		{marked(majority{answered: true}), true, true},
		{marked(majority{answered: false}), true, false},
		{fmt.Errorf("call: %w", marked(majority{answered: false})), true, false},
	} {
		assert.Equal(t, test.noEffect, dlock.NoEffect(test.err), "NoEffect(%v)", test.err)
		assert.Equal(t, test.refused, dlock.Refused(test.err), "Refused(%v)", test.err)
	}
}

// A majority is an error about several stores.
type majority struct{ answered bool }

func (m majority) Error() string  { return "no majority" }
func (m majority) Answered() bool { return m.answered }

// waitEnds are the ways in which a wait can end.
var waitEnds = map[string]func(ctx context.Context, l dlock.Locker, d time.Duration) error{
	"ctx": func(ctx context.Context, l dlock.Locker, d time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		_, err := dlock.New(l).Acquire(ctx, "k")
		return err
	},
	"MaxWait": func(ctx context.Context, l dlock.Locker, d time.Duration) error {
		_, err := dlock.New(l, dlock.WithMaxWait(d)).Acquire(ctx, "k")
		return err
	},
}

// The store goes away during a wait. When the wait ends, the error depends on whether the
// last known lease can still be held.
func TestOutageDuringAWait(t *testing.T) {
	refuse, hang, full, fails := says(errStore), (*call).hang, says(errOOM), says(errReply)
	opens := says(&dlock.NoEffectError{Err: fmt.Errorf("%w: the breaker is open", dlock.ErrUnavailable)})
	for _, test := range []struct {
		name        string
		fail        func(c *call)
		after, wait time.Duration // when the store goes away, and for how long to wait
		holder      time.Duration // TTL; 0 if the store does not tell, negative if it never ends
		unavailable bool
		texts       []string
	}{
		{"refuses", refuse, time.Second, 15 * time.Second, 3 * time.Second, true, []string{"store unavailable: no answer for 1", "held by another", "connection refused"}},
		{"hangs", hang, time.Second, 15 * time.Second, 3 * time.Second, true, []string{"store unavailable: no answer for 1", "no answer within"}},
		{"refuses before the lease ends", refuse, time.Second, 2900 * time.Millisecond, 3 * time.Second, false, []string{"held by another", "the store last answered ", "connection refused"}},
		{"refuses, unknown rest", refuse, time.Second, 29 * time.Second, 0, false, []string{"the store last answered 28", "connection refused"}},
		{"refuses, unknown rest has passed", refuse, time.Second, 32 * time.Second, 0, true, []string{"no answer for 31"}},
		{"refuses, never ends", refuse, time.Second, time.Hour, -1, false, []string{"held by another; the store last answered 59m5", "connection refused"}},
		{"answers", nil, 0, 15 * time.Second, 3 * time.Second, false, []string{"held by another"}},
		{"refuses the call", full, time.Second, 15 * time.Second, time.Hour, false, []string{"held by another", "; the store refused: OOM"}},
		{"refuses the call for long", full, time.Second, 15 * time.Second, 3 * time.Second, true, []string{"store unavailable: only refusals for ", "held by another", ": OOM"}},
		{"fails", fails, time.Second, 15 * time.Second, time.Hour, false, []string{"held by another", "; the store failed: ERR upstream"}},
		{"fails for long", fails, time.Second, 15 * time.Second, 3 * time.Second, true, []string{"store unavailable: no success for ", "held by another", ": the store failed: ERR upstream"}},
		{"its breaker opens", opens, time.Second, 15 * time.Second, time.Hour, false, []string{"held by another", "the breaker is open"}},
		{"its breaker opens for long", opens, time.Second, 15 * time.Second, 3 * time.Second, true, []string{"no answer for ", "the breaker is open"}},
		{"is back", func(c *call) {
			if c.at.Second() < 9 {
				c.err = errStore
			}
		}, time.Second, 15 * time.Second, 3 * time.Second, false, []string{"held by another, for 3s unless renewed"}},
		{"hangs from the start", hang, 0, 2 * time.Second, 0, true, []string{"no answer within 2s"}},
	} {
		for name, end := range waitEnds {
			run(t, name+"/"+test.name, func(t *testing.T, _ *memory.Locker, s *spy) {
				start := time.Now()
				s.onCall(func(c *call) {
					c.attempt = &dlock.Attempt{Holder: "other", Remaining: test.holder}
					if test.fail != nil && time.Since(start) >= test.after {
						test.fail(c)
					}
				})
				err := end(t.Context(), plain{s}, test.wait)
				requireOutage(t, err, test.unavailable)
				require.Equal(t, name == "ctx", errors.Is(err, context.DeadlineExceeded))
				for _, text := range test.texts {
					require.ErrorContains(t, err, text)
				}
				if test.fail == nil || test.name == "is back" {
					require.NotContains(t, err.Error(), "last answered")
				}
				if !strings.Contains(strings.Join(test.texts, ""), "no answer") {
					require.NotContains(t, err.Error(), "no answer")
				}
			})
		}
	}
}

func requireOutage(t *testing.T, err error, unavailable bool) {
	t.Helper()
	var held *dlock.HeldError
	require.Equal(t, unavailable, errors.Is(err, dlock.ErrUnavailable), "%v", err)
	require.Equal(t, !unavailable, errors.Is(err, dlock.ErrHeld), "%v", err)
	require.Equal(t, !unavailable, errors.As(err, &held), "%v", err)
}

// When a wait ends, a queue reports when the store last answered, and why the last call failed.
func TestOutageDuringAWaitInTheQueue(t *testing.T) {
	held := dlock.Attempt{Holder: "other", Remaining: 3 * time.Second}
	for _, test := range []struct {
		name        string
		answered    time.Duration // before the end of the wait, -1 if unknown
		attempt     dlock.Attempt
		err         func(end error) error
		unavailable bool
		text        string // without the time that has passed
	}{
		{"answers", time.Second, held, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"answers rarely", time.Minute, held, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"no time of the answer", -1, held, nil, false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"no answer", -1, dlock.Attempt{}, nil, false, "deadline exceeded: held by another, for 30s unless renewed"},
		{"has failed", 5 * time.Second, held, failed, true, "deadline exceeded: store unavailable: no answer for 5s (the last: held by another, for 3s unless renewed): store: connection refused"},
		{"has just failed", 2 * time.Second, held, failed, false, "deadline exceeded: held by another, for 3s unless renewed; the store last answered 2s ago: store: connection refused"},
		{"has failed, and is marked", 5 * time.Second, held, marked(failed), true, "store unavailable: no answer for 5s"},
		{"its breaker is open", 5 * time.Second, held, open, true, "store unavailable: no answer for 5s (the last: held by another, for 3s unless renewed): store unavailable: the breaker is open"},
		{"its breaker has just opened", 2 * time.Second, held, open, false, "held by another, for 3s unless renewed; the store last answered 2s ago: store unavailable: the breaker is open"},
		{"is marked", 5 * time.Second, held, marked(nil), false, "deadline exceeded: held by another, for 3s unless renewed"},
		{"failed from the start", -1, dlock.Attempt{}, failed, true, "deadline exceeded: store unavailable: no answer for 1m0s (the last: held by another, for 30s unless renewed): store: connection refused"},
		{"answer in the future", -5 * time.Second, held, failed, false, "the store last answered 0s ago"},
	} {
		run(t, test.name, func(t *testing.T, _ *memory.Locker, s *spy) {
			s.onCall(func(c *call) {
				switch c.op {
				case "try":
					c.answers(dlock.Attempt{Holder: "other", Remaining: 30 * time.Second}, nil)
				case "acquire":
					c.hang()
					if test.answered != -1 {
						test.attempt.Since = time.Now().Add(-test.answered)
					}
					if test.err != nil {
						c.err = test.err(c.err)
					}
					c.answers(test.attempt, c.err)
				}
			})
			err := waitEnds["ctx"](t.Context(), s, time.Minute)
			requireOutage(t, err, test.unavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, test.text)
		})
	}
}

func open(end error) error {
	return &dlock.NoEffectError{Err: fmt.Errorf("%w: %w", end, fmt.Errorf("%w: the breaker is open", dlock.ErrUnavailable))}
}

func failed(end error) error { return fmt.Errorf("%w: %w", end, errStore) }

func marked(f func(error) error) func(error) error {
	return func(end error) error {
		if f != nil {
			end = f(end)
		}
		return &dlock.NoEffectError{Err: end}
	}
}

// So does memory, if its calls are delayed: a service can test what it answers in an outage.
func TestOutageOfMemory(t *testing.T) {
	for _, test := range []struct {
		name        string
		holder      time.Duration
		unavailable bool
	}{{"while the holder's lease lasts", time.Minute, false}, {"for longer than the holder's lease", 3 * time.Second, true}} {
		for name, end := range waitEnds {
			run(t, name+"/"+test.name, func(t *testing.T, store *memory.Locker, s *spy) {
				hold(t, store, test.holder)
				s.on("acquire", func(c *call) { store.Delay(time.Hour) }) // the attempt was the last call that was answered
				requireOutage(t, end(t.Context(), s, 15*time.Second), test.unavailable)
				store.Delay(0)
			})
		}
	}
}

// A shape is a way to call a Client or a Lease. It prepares the call while the store answers.
type shape struct {
	name    string
	prepare func(t *testing.T, c *dlock.Client) func(ctx context.Context) error
	own     bool // it takes no ctx
	keeps   bool // the lease of another lives on
}

func acquires(opts ...dlock.Option) func(*testing.T, *dlock.Client) func(context.Context) error {
	return func(_ *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error { return errOf(c.With(opts...).Acquire(ctx, "k")) }
	}
}

func contends(opts ...dlock.Option) func(*testing.T, *dlock.Client) func(context.Context) error {
	return func(t *testing.T, c *dlock.Client) func(context.Context) error {
		contend(t, c)
		return acquires(opts...)(t, c)
	}
}

func renews(opts ...dlock.Option) func(*testing.T, *dlock.Client) func(context.Context) error {
	return func(t *testing.T, c *dlock.Client) func(context.Context) error {
		return acquire(t, c.With(opts...), "k").Renew
	}
}

// shapes are all calls that end with the store's answer.
var shapes = []shape{
	{name: "Acquire", prepare: acquires()},
	{name: "Acquire, MaxWait 0", prepare: acquires(dlock.WithMaxWait(0))},
	{name: "Acquire, MaxWait 100ms", prepare: acquires(dlock.WithMaxWait(100 * time.Millisecond))},
	{name: "Acquire, MaxWait 2s", prepare: acquires(dlock.WithMaxWait(2 * time.Second))},
	{name: "Acquire, Outage 2s", prepare: acquires(dlock.WithOutage(2 * time.Second))},
	{name: "Acquire, contended", prepare: contends()},
	{name: "Acquire, turns", prepare: acquires(dlock.WithLocalTurns(8))},
	{name: "Acquire, turns, contended", prepare: contends(dlock.WithLocalTurns(8))},
	{name: "TryAcquire", prepare: func(_ *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error { return errOf(c.TryAcquire(ctx, "k")) }
	}},
	{name: "Do", prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error { return c.Do(ctx, "k", noWork) }
	}},
	{name: "Renew", keeps: true, prepare: renews(dlock.WithTTL(time.Minute))},
	{name: "Renew, until the deadline", keeps: true, prepare: renews(dlock.WithTTL(1600*time.Millisecond), dlock.WithRenewal(false))},
	{name: "Adopt", prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		d := detach(t, acquire(t, c, "k"))
		return func(ctx context.Context) error { return errOf(c.Adopt(ctx, d)) }
	}},
	{name: "Inspect", prepare: func(_ *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error { return errOf(c.Inspect(ctx, "k")) }
	}},
	{name: "Break", keeps: true, prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		acquire(t, c, "k")
		s := inspect(t, c)
		return func(ctx context.Context) error { return c.Break(ctx, s) }
	}},
	{name: "Release", own: true, prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		l := acquire(t, c, "k")
		return func(context.Context) error { return l.Release() }
	}},
	{name: "Release, again", own: true, prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		l := acquire(t, c, "k")
		return func(context.Context) error {
			_ = l.Release()
			return l.Release()
		}
	}},
	{name: "Close", own: true, prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		l := acquire(t, c, "k")
		return func(context.Context) error {
			require.ErrorIs(t, l.Release(), dlock.ErrUnavailable)
			return c.Close()
		}
	}},
}

// contend makes a key contended for a second.
func contend(t *testing.T, c *dlock.Client) {
	t.Helper()
	held := acquire(t, c, "k")
	time.AfterFunc(10*time.Millisecond, func() { held.Release() })
	require.NoError(t, acquire(t, c, "k").Release())
}

var (
	errOOM     = &dlock.NoEffectError{Err: errors.New("OOM command not allowed"), State: true}
	errNoRight = &dlock.NoEffectError{Err: errors.New("NOPERM no permissions")}

	errReply error = reply("ERR upstream failure")
)

// A reply is an error reply of unknown text.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) Failed() bool    { return true }

// faults are the ways in which a store gives no answer, or one that is no success: then text says what is said of it. The
// error is what the store's client said; nil if that says nothing but that a context has ended.
var faults = map[string]struct {
	fail func(c *call)
	err  error
	text string
}{
	"hangs":            {func(c *call) { c.failsAfter(3*time.Second, os.ErrDeadlineExceeded) }, nil, ""},
	"refuses":          {func(c *call) { c.err = errDial }, errDial, ""},
	"refuses in time":  {func(c *call) { c.failsAfter(300*time.Millisecond, errDial) }, nil, ""},
	"breaks":           {func(c *call) { c.failsAfter(10*time.Millisecond, io.ErrUnexpectedEOF) }, io.ErrUnexpectedEOF, ""},
	"client times out": {func(c *call) { c.failsAfter(200*time.Millisecond, context.DeadlineExceeded) }, nil, ""},
	"dialing times out": {func(c *call) {
		c.failsAfter(700*time.Millisecond, context.DeadlineExceeded)
		c.err = &net.OpError{Op: "dial", Err: c.err}
	}, new(net.OpError), ""},
	"few nodes answer":  {func(c *call) { c.err = majority{answered: false} }, majority{}, ""},
	"OOM":               {nil, errOOM, "the store refused: OOM"},
	"NOPERM":            {nil, errNoRight, "the store refused: NOPERM"},
	"wrapped OOM":       {nil, wrapped{errOOM}, "the store refused: client: OOM"},
	"majority answered": {nil, majority{answered: true}, "no majority"},
	"unknown reply":     {nil, errReply, "the store failed: ERR upstream failure"},
	"invalid":           {nil, wrapped{dlock.ErrInvalid}, "client: invalid"},
	"closed":            {nil, &dlock.NoEffectError{Err: dlock.ErrClosed}, "client closed"},
	"unsupported":       {nil, errors.ErrUnsupported, "unsupported"},
}

// failsAfter makes the call last for d, or until its ctx ends.
func (c *call) failsAfter(d time.Duration, err error) {
	c.take(d)
	c.failIf(c.err == nil, err)
}

// reportSilence does what a queue does when it had no reply for a second.
func (c *call) reportSilence() {
	if c.op == "acquire" && c.ctx.Err() != nil && time.Since(c.at) >= time.Second {
		c.err = fmt.Errorf("%w: %w", c.ctx.Err(), errors.New("no reply"))
	}
}

// ends are the ways in which the caller's ctx ends.
var ends = map[string]func(t *testing.T) (context.Context, error){
	"no end":         func(t *testing.T) (context.Context, error) { return t.Context(), nil },
	"before":         deadline(-time.Second),
	"deadline 0.25s": deadline(250 * time.Millisecond),
	"deadline 1.5s":  deadline(1500 * time.Millisecond),
	"cancel 0.25s":   cancels(250 * time.Millisecond),
	"cancel 1.5s":    cancels(1500 * time.Millisecond),
}

func deadline(d time.Duration) func(t *testing.T) (context.Context, error) {
	return func(t *testing.T) (context.Context, error) { return within(t, d), context.DeadlineExceeded }
}

func cancels(d time.Duration) func(t *testing.T) (context.Context, error) {
	return func(t *testing.T) (context.Context, error) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(d, cancel)
		return ctx, context.Canceled
	}
}

func TestSilence(t *testing.T) {
	inCases{
		"the time in a line counts as silence, too, if the store did not answer there": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithLocalTurns(8))
			contend(t, c)
			s.onCall(func(c *call) { c.failsAfter(2*time.Second, io.ErrUnexpectedEOF) })
			_, err := c.Acquire(t.Context(), "k")
			require.EqualError(t, err, `dlock: acquire "k": store unavailable: no answer for 4s: unexpected EOF`)
		},
		// The calls of the background tell Observers what a caller would be told. The error of a lease that is
		// lost does not match ErrUnavailable, since the work has run.
		"silence in the background": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s, dlock.WithTTL(6*time.Second))
			l := acquire(t, c, "k")
			store.Delay(time.Hour)
			<-l.Done()
			time.Sleep(time.Minute)
			store.Delay(0)
			require.NoError(t, c.Close()) // after which no Observer is called
			renewals, owed := of[dlock.RenewDoneInfo](seen), only[dlock.OwedDoneInfo](t, seen)
			for _, err := range []error{renewals[len(renewals)-1].Err, owed.Err} {
				requireErr(t, err, dlock.ErrUnavailable, "no answer within", noContext)
			}
			requireErr(t, l.Err(), dlock.ErrLost, not{dlock.ErrUnavailable}, "no answer for 3.")
		},
		"a loss says for how long there was no answer, also if only its holder has renewed the lease": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTL(6*time.Second), dlock.WithRenewal(false))
			l := acquire(t, c, "k")
			time.Sleep(time.Second)
			store.Delay(time.Hour)
			ctx := within(t, 2*time.Second)
			require.EqualError(t, l.Renew(ctx), `dlock: renew "k": context deadline exceeded: store unavailable: no answer within 2s`)
			<-l.Done()
			require.EqualError(t, l.Err(), `dlock: "k": lease lost: not renewed before its deadline (last renewal: no answer for 4.938s)`)
			store.Delay(0)
		},
		// An error reply that says nothing does not end the silence that a lease counts. The loss shows it.
		"loss after unknown replies": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTL(6*time.Second))
			l := acquire(t, c, "k")
			s.onCall(says(errReply))
			<-l.Done()
			require.ErrorIs(t, l.Err(), dlock.ErrLost)
			require.Regexp(t, `last renewal: no success for [3-6][0-9.]*s: the store failed: ERR upstream failure\)$`, l.Err())
		},
		"a caller that leaves early is told why it left": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			store.Delay(time.Hour)
			left := errors.New("the user has left")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(100*time.Millisecond, func() { cancel(left) })
			_, err := c.Acquire(ctx, "k")
			requireErr(t, err, exactly(`dlock: acquire "k": context canceled: the user has left`), context.Canceled, left)
			store.Delay(0)
		},
	}.run(t)
}

// A call that gets no answer fails with ErrUnavailable, and with the error of ctx if that has ended; but a caller that leaves
// within a second has given the store no time, and a call that is not sent finds no silence. An answer is no silence, and an
// error of the call itself is neither.
func TestFaultsOfTheStore(t *testing.T) {
	for _, shape := range shapes {
		for name, fault := range faults {
			for when, end := range ends {
				answers := fault.text != ""
				if shape.own && when != "no end" || answers && (when != "no end" || shape.name == "Close") { // which does not wait for a store that refuses
					continue
				}
				run(t, shape.name+"/"+name+"/"+when, func(t *testing.T, store *memory.Locker, s *spy) {
					var away atomic.Bool
					s.onCall(func(c *call) {
						if away.Load() && answers {
							c.err = fault.err
						} else if away.Load() {
							fault.fail(c)
							c.reportSilence()
						}
					})
					call := shape.prepare(t, dlock.New(s))
					ctx, ofCtx := end(t)
					away.Store(true)
					start := time.Now()
					err := call(ctx)
					took := time.Since(start)
					t.Logf("after %v: %v", took, err)
					away.Store(false)
					require.Error(t, err)
					require.Regexp(t, `^dlock: (`+regexp.QuoteMeta(verb(shape.name))+` )?`, err.Error())
					require.NotErrorIs(t, err, dlock.ErrHeld)
					if answers {
						require.ErrorIs(t, err, fault.err)
						// Patience has its own promise: after it, the store counts as away.
						mayPass := name == "majority answered" || name == "unknown reply" || errors.Is(fault.err, errOOM)
						require.Equal(t, mayPass && strings.Contains(shape.name, "Outage"), errors.Is(err, dlock.ErrUnavailable))
						require.ErrorContains(t, err, fault.text)
						require.NotContains(t, err.Error(), "no answer")
						require.Equal(t, strings.HasPrefix(fault.text, "the store refused"), strings.Contains(err.Error(), "the store refused"))
						return
					}
					if ctx.Err() == nil {
						ofCtx = nil
					}
					require.Equal(t, when != "before" && (ofCtx != context.Canceled || took >= time.Second), errors.Is(err, dlock.ErrUnavailable))
					for _, e := range []error{context.Canceled, context.DeadlineExceeded} {
						require.Equal(t, e == ofCtx, errors.Is(err, e), "%v", e)
						require.Equal(t, e == ofCtx, strings.Contains(err.Error(), e.Error()), "text: %v", e)
					}
					switch fault.err.(type) {
					case *net.OpError:
						if when != "before" && !strings.Contains(shape.name, "turns") { // where it was the errand's, and says only that its ctx has ended
							require.ErrorAs(t, err, new(*net.OpError))
						}
					case majority:
						require.True(t, when == "before" || errors.As(err, new(majority)))
					case error:
						require.True(t, when == "before" || errors.Is(err, fault.err))
					}
					if errors.Is(err, dlock.ErrUnavailable) {
						require.Regexp(t, `no answer( for [0-9.]+m?s| within [0-9.]+m?s|: )|[0-9]+ releases not answered`, err.Error())
					}
					if !shape.keeps {
						time.Sleep(time.Minute)
						requireFree(t, store, "k")
					}
				})
			}
		}
	}
}

// verb returns how an error names a call.
func verb(shape string) string {
	verb, _, _ := strings.Cut(shape, ",")
	verb = strings.ToLower(verb)
	if verb == "do" || verb == "tryacquire" {
		return "acquire"
	}
	return verb
}

type wrapped struct{ error }

func (w wrapped) Error() string { return "client: " + w.error.Error() }
func (w wrapped) Unwrap() error { return w.error }

// However short MaxWait is, the attempt has a second, and no more, or ends with ctx.
func TestShortMaxWaitGivesAStoreASecond(t *testing.T) {
	for _, d := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			store.Delay(time.Hour)
			start, c := time.Now(), dlock.New(s, dlock.WithMaxWait(d))
			_, err := c.Acquire(t.Context(), "k")
			require.Equal(t, time.Second, time.Since(start), "MaxWait %v", d)
			requireErr(t, err, dlock.ErrUnavailable, not{dlock.ErrHeld}, "no answer within 1s", noContext)
			require.ErrorIs(t, errOf(c.Acquire(within(t, 100*time.Millisecond), "k")), context.DeadlineExceeded)
			require.Equal(t, 1100*time.Millisecond, time.Since(start))
			store.Delay(900 * time.Millisecond)
			require.NoError(t, acquire(t, c, "other").Release())
			store.Delay(0)
		})
	}
}

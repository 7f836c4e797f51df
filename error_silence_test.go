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

// A shape is a way to call a Client or a Lease. It prepares the call while the store answers.
type shape struct {
	name    string
	prepare func(t *testing.T, c *dlock.Client) func(ctx context.Context) error
	own     bool // it takes no ctx
	keeps   bool // the lease of another lives on
}

func acquires(opts ...dlock.Option) func(*testing.T, *dlock.Client) func(context.Context) error {
	return func(_ *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.With(opts...).Acquire(ctx, "k")
			return err
		}
	}
}

// shapes are all calls that end with the store's answer.
var shapes = []shape{
	{name: "Acquire", prepare: acquires()},
	{name: "Acquire, MaxWait 0", prepare: acquires(dlock.WithMaxWait(0))},
	{name: "Acquire, MaxWait 100ms", prepare: acquires(dlock.WithMaxWait(100 * time.Millisecond))},
	{name: "Acquire, MaxWait 2s", prepare: acquires(dlock.WithMaxWait(2 * time.Second))},
	{name: "Acquire, Outage 2s", prepare: acquires(dlock.WithOutage(2 * time.Second))},
	{name: "Acquire, contended", prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		contend(t, c)
		return acquires()(t, c)
	}},
	{name: "Acquire, turns", prepare: acquires(dlock.WithLocalTurns(8))},
	{name: "Acquire, turns, contended", prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		contend(t, c)
		return acquires(dlock.WithLocalTurns(8))(t, c)
	}},
	{name: "TryAcquire", prepare: func(_ *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.TryAcquire(ctx, "k")
			return err
		}
	}},
	{name: "Do", prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			return c.Do(ctx, "k", func(context.Context, *dlock.Lease) error { return nil })
		}
	}},
	{name: "Renew", keeps: true, prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		l := acquire(t, c.With(dlock.WithTTL(time.Minute)), "k")
		return l.Renew
	}},
	{name: "Renew, until the deadline", keeps: true, prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		l := acquire(t, c.With(dlock.WithTTL(1600*time.Millisecond), dlock.WithRenewal(false)), "k")
		return l.Renew
	}},
	{name: "Adopt", prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		d := detach(t, acquire(t, c, "k"))
		return func(ctx context.Context) error {
			_, err := c.Adopt(ctx, d)
			return err
		}
	}},
	{name: "Inspect", prepare: func(_ *testing.T, c *dlock.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Inspect(ctx, "k")
			return err
		}
	}},
	{name: "Break", keeps: true, prepare: func(t *testing.T, c *dlock.Client) func(context.Context) error {
		acquire(t, c, "k")
		s, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
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

// silences are the ways in which a store gives no answer. The error is what the store's client said;
// nil if that says nothing but that a context has ended.
var silences = map[string]struct {
	fail func(c *call)
	err  error
}{
	"hangs":            {func(c *call) { c.take(3 * time.Second); c.failIfAlive(os.ErrDeadlineExceeded) }, nil},
	"refuses":          {func(c *call) { c.err = errDial }, errDial},
	"refuses in time":  {func(c *call) { c.take(300 * time.Millisecond); c.failIfAlive(errDial) }, nil},
	"breaks":           {func(c *call) { c.take(10 * time.Millisecond); c.failIfAlive(io.ErrUnexpectedEOF) }, io.ErrUnexpectedEOF},
	"client times out": {func(c *call) { c.take(200 * time.Millisecond); c.failIfAlive(context.DeadlineExceeded) }, nil},
	"dialing times out": {func(c *call) {
		c.take(700 * time.Millisecond)
		c.failIfAlive(context.DeadlineExceeded)
		c.err = &net.OpError{Op: "dial", Err: c.err}
	}, new(net.OpError)},
	"few nodes answer": {func(c *call) { c.err = majority{answered: false} }, majority{}},
}

// failIfAlive sets the error of a call whose ctx has not ended.
func (c *call) failIfAlive(err error) {
	if c.err == nil {
		c.err = err
	}
}

// reportSilence does what a queue does when it had no reply for a second.
func (c *call) reportSilence() {
	if c.op == "acquire" && c.ctx.Err() != nil && time.Since(c.at) >= time.Second {
		c.err = fmt.Errorf("%w: %w", c.ctx.Err(), errors.New("no reply"))
	}
}

// ends are the ways in which the caller's ctx ends.
var ends = map[string]func(t *testing.T) (context.Context, context.CancelFunc, error){
	"no end":         func(t *testing.T) (context.Context, context.CancelFunc, error) { return t.Context(), func() {}, nil },
	"deadline 0.25s": deadline(250 * time.Millisecond),
	"deadline 1.5s":  deadline(1500 * time.Millisecond),
	"cancel 0.25s":   cancels(250 * time.Millisecond),
	"cancel 1.5s":    cancels(1500 * time.Millisecond),
}

func deadline(d time.Duration) func(t *testing.T) (context.Context, context.CancelFunc, error) {
	return func(t *testing.T) (context.Context, context.CancelFunc, error) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		return ctx, cancel, context.DeadlineExceeded
	}
}

func cancels(d time.Duration) func(t *testing.T) (context.Context, context.CancelFunc, error) {
	return func(t *testing.T) (context.Context, context.CancelFunc, error) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(d, cancel)
		return ctx, cancel, context.Canceled
	}
}

// The time in a line counts as silence, too, if the store did not answer there.
func TestSilenceInALine(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithLocalTurns(8))
		contend(t, c)
		s.onCall(func(c *call) { c.take(2 * time.Second); c.failIfAlive(io.ErrUnexpectedEOF) })
		_, err := c.Acquire(t.Context(), "k")
		require.EqualError(t, err, `dlock: acquire "k": store unavailable: no answer for 4s: unexpected EOF`)
	})
}

// Each call that gets no answer fails with ErrUnavailable, and with the error of ctx if that has
// ended; but a caller that leaves within a second has given the store no time.
func TestSilenceOfTheStore(t *testing.T) {
	for _, shape := range shapes {
		for name, silent := range silences {
			for when, end := range ends {
				if shape.own && when != "no end" {
					continue
				}
				t.Run(shape.name+"/"+name+"/"+when, func(t *testing.T) {
					in(t, func(t *testing.T, store *memory.Locker, s *spy) {
						var away atomic.Bool
						s.onCall(func(c *call) {
							if away.Load() {
								silent.fail(c)
								c.reportSilence()
							}
						})
						call := shape.prepare(t, dlock.New(s))
						away.Store(true)
						ctx, cancel, ofCtx := end(t)
						defer cancel()
						start := time.Now()
						err := call(ctx)
						took := time.Since(start)
						t.Logf("after %v: %v", took, err)
						away.Store(false)
						require.Error(t, err)
						if ctx.Err() == nil {
							ofCtx = nil
						}
						require.Equal(t, ofCtx != context.Canceled || took >= time.Second, errors.Is(err, dlock.ErrUnavailable))
						for _, e := range []error{context.Canceled, context.DeadlineExceeded} {
							require.Equal(t, e == ofCtx, errors.Is(err, e), "%v", e)
							require.Equal(t, e == ofCtx, strings.Contains(err.Error(), e.Error()), "text: %v", e)
						}
						require.NotErrorIs(t, err, dlock.ErrHeld)
						switch silent.err.(type) {
						case *net.OpError:
							if !strings.Contains(shape.name, "turns") { // where it was the errand's, and says only that its ctx has ended
								require.ErrorAs(t, err, new(*net.OpError))
							}
						case majority:
							require.ErrorAs(t, err, new(majority))
						case error:
							require.ErrorIs(t, err, silent.err)
						}
						if errors.Is(err, dlock.ErrUnavailable) {
							require.Regexp(t, `no answer( for [0-9.]+m?s| within [0-9.]+m?s|: )|[0-9]+ releases not answered`, err.Error())
						}
						require.Regexp(t, `^dlock: (`+regexp.QuoteMeta(verb(shape.name))+` )?`, err.Error())
						if !shape.keeps {
							time.Sleep(time.Minute)
							requireFree(t, store, "k")
						}
					})
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

// An answer is no silence, and an error of the call itself is neither.
func TestAnswersAreNoSilence(t *testing.T) {
	answers := map[string]struct {
		err  error
		text string
	}{
		"OOM":               {errOOM, "the store refused: OOM"},
		"NOPERM":            {errNoRight, "the store refused: NOPERM"},
		"wrapped OOM":       {wrapped{errOOM}, "the store refused: client: OOM"},
		"majority answered": {majority{answered: true}, "no majority"},
		"unknown reply":     {errReply, "the store failed: ERR upstream failure"},
		"invalid":           {wrapped{dlock.ErrInvalid}, "client: invalid"},
		"closed":            {&dlock.NoEffectError{Err: dlock.ErrClosed}, "client closed"},
		"unsupported":       {errors.ErrUnsupported, "unsupported"},
	}
	for _, shape := range shapes {
		for name, answer := range answers {
			if shape.name == "Close" {
				continue // it does not wait for a store that refuses
			}
			t.Run(shape.name+"/"+name, func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					var refuses atomic.Bool
					s.onCall(func(c *call) {
						if refuses.Load() {
							c.err = answer.err
						}
					})
					call := shape.prepare(t, dlock.New(s))
					refuses.Store(true)
					err := call(t.Context())
					refuses.Store(false)
					t.Log(err)
					require.ErrorIs(t, err, answer.err)
					// Patience has its own promise: after it, the store counts as away.
					mayPass := name == "majority answered" || name == "unknown reply" || errors.Is(answer.err, errOOM)
					require.Equal(t, mayPass && strings.Contains(shape.name, "Outage"), errors.Is(err, dlock.ErrUnavailable))
					assert.ErrorContains(t, err, answer.text)
					assert.NotContains(t, err.Error(), "no answer")
					if !strings.HasPrefix(answer.text, "the store refused") {
						assert.NotContains(t, err.Error(), "the store refused")
					}
				})
			})
		}
	}
}

type wrapped struct{ error }

func (w wrapped) Error() string { return "client: " + w.error.Error() }
func (w wrapped) Unwrap() error { return w.error }

// A call that is not sent has no silence to report.
func TestCallThatIsNotSentFindsNoSilence(t *testing.T) {
	for _, shape := range shapes {
		if shape.own {
			continue
		}
		t.Run(shape.name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
				c := dlock.New(s)
				defer c.Close()
				call := shape.prepare(t, c)
				ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
				defer cancel()
				err := call(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, dlock.ErrUnavailable)
			})
		})
	}
}

// The calls of the background tell Observers what a caller would be told. The error of a lease that is
// lost does not match ErrUnavailable, since the work has run.
func TestSilenceInTheBackground(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var renewal, owed error
		c := dlock.New(s, dlock.WithTTL(6*time.Second), dlock.WithObserver(&dlock.Observer{
			RenewDone: func(_ context.Context, i dlock.RenewDoneInfo) { renewal = i.Err },
			OwedDone:  func(_ context.Context, i dlock.OwedDoneInfo) { owed = i.Err },
		}))
		l := acquire(t, c, "k")
		store.Delay(time.Hour)
		<-l.Done()
		time.Sleep(time.Minute)
		store.Delay(0)
		require.NoError(t, c.Close()) // after which no Observer is called
		for name, err := range map[string]error{"renewal": renewal, "owed release": owed} {
			require.ErrorIs(t, err, dlock.ErrUnavailable, name)
			require.ErrorContains(t, err, "no answer within", name)
			requireNoContextError(t, err)
		}
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.NotErrorIs(t, l.Err(), dlock.ErrUnavailable)
		require.ErrorContains(t, l.Err(), "no answer for 3.")
	})
}

// A loss says for how long there was no answer, also if only its holder has renewed the lease.
func TestLossAfterRenewalsByHand(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(6*time.Second), dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		time.Sleep(time.Second)
		store.Delay(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.EqualError(t, l.Renew(ctx), `dlock: renew "k": context deadline exceeded: store unavailable: no answer within 2s`)
		<-l.Done()
		require.EqualError(t, l.Err(), `dlock: "k": lease lost: not renewed before its deadline (last renewal: no answer for 4.938s)`)
		store.Delay(0)
	})
}

// An error reply that says nothing does not end the silence that a lease counts. The loss shows it.
func TestLossAfterUnknownReplies(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(6*time.Second))
		l := acquire(t, c, "k")
		s.onCall(func(c *call) { c.err = errReply })
		<-l.Done()
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.Regexp(t, `last renewal: no success for [3-6][0-9.]*s: the store failed: ERR upstream failure\)$`, l.Err())
	})
}

// During a wait, a refusal or another error reply is an answer, too: the error names it beside the holder.
func TestRefusalDuringAWait(t *testing.T) {
	for name, end := range waitEnds {
		for _, row := range []struct {
			rest  time.Duration
			err   error
			texts []string
		}{
			{time.Hour, errOOM, []string{"held by another", "; the store refused: OOM"}},
			{3 * time.Second, errOOM, []string{"store unavailable: only refusals for ", "held by another", ": OOM"}},
			{time.Hour, errReply, []string{"held by another", "; the store failed: ERR upstream"}},
			{3 * time.Second, errReply, []string{"store unavailable: no success for ", "held by another", ": the store failed: ERR upstream"}},
		} {
			rest := row.rest
			t.Run(fmt.Sprint(name, rest, row.err), func(t *testing.T) {
				in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
					start := time.Now()
					s.onCall(func(c *call) {
						c.attempt = &dlock.Attempt{Holder: "other", Remaining: rest}
						if time.Since(start) >= time.Second {
							c.err = row.err
						}
					})
					err := end(t.Context(), plain{s}, 15*time.Second)
					requireOutage(t, err, rest < time.Minute)
					for _, text := range row.texts {
						require.ErrorContains(t, err, text)
					}
					require.NotContains(t, err.Error(), "no answer")
				})
			})
		}
	}
}

// However short MaxWait is, the attempt has a second, and no more.
func TestShortMaxWaitGivesAStoreASecond(t *testing.T) {
	for _, d := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			store.Delay(time.Hour)
			start := time.Now()
			_, err := dlock.New(s, dlock.WithMaxWait(d)).Acquire(t.Context(), "k")
			require.Equal(t, time.Second, time.Since(start), "MaxWait %v", d)
			require.ErrorIs(t, err, dlock.ErrUnavailable)
			require.ErrorContains(t, err, "no answer within 1s")
			store.Delay(900 * time.Millisecond)
			require.NoError(t, acquire(t, dlock.New(s, dlock.WithMaxWait(d)), "other").Release())
			store.Delay(0)
		})
	}
}

// A caller that leaves early is told why it left.
func TestCauseOfAnEarlyEnd(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		store.Delay(time.Hour)
		left := errors.New("the user has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(left) })
		_, err := dlock.New(s).Acquire(ctx, "k")
		require.EqualError(t, err, `dlock: acquire "k": context canceled: the user has left`)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, left)
		store.Delay(0)
	})
}

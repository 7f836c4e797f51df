package breaker_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	var stores sync.Map
	store := func(t testing.TB) *memory.Locker {
		s, _ := stores.LoadOrStore(t, memory.New())
		return s.(*memory.Locker)
	}
	conformance.Run(t, conformance.Harness{
		New: func(t *testing.T) dlock.Locker {
			return breaker.New(store(t), breaker.WithDegradation(breaker.Degradation{After: 24 * time.Hour, Keys: all}))
		},
		Wipe:   func(t *testing.T) { store(t).Wipe() },
		TTL:    10 * time.Millisecond,
		Bubble: true,
	})
}

func all(string) bool { return true }

var (
	errStore = errors.New("i/o timeout")
	errDial  = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
)

// An away is a Locker that makes calls fail as the test says.
type away struct {
	dlock.Forward
	err   error        // of every call; nil: it is made
	hang  bool         // until ctx ends
	calls atomic.Int64 // of TryAcquire and Acquire
	end   error        // of every wait, when its ctx ends
	looks atomic.Int64 // of Inspect
	look  error        // of every Inspect; nil: as the other calls
	renew error        // of every Renew and RenewBatch
}

func (a *away) fail(ctx context.Context) error {
	if a.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return a.err
}

func (a *away) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a.calls.Add(1)
	if err := cmp.Or(ctx.Err(), a.fail(ctx)); err != nil {
		return dlock.Attempt{}, err
	}
	return a.Forward.TryAcquire(ctx, key, token, ttl)
}

func (a *away) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	a.calls.Add(1)
	if err := cmp.Or(ctx.Err(), a.fail(ctx)); err != nil {
		return nil, err
	}
	return a.Locker.(dlock.SetAcquirer).TryAcquireSet(ctx, set)
}

func (a *away) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a.calls.Add(1)
	if a.end != nil {
		<-ctx.Done()
		return dlock.Attempt{}, a.end
	}
	if err := a.fail(ctx); err != nil {
		return dlock.Attempt{}, err
	}
	return a.Forward.Acquire(ctx, key, token, ttl)
}

func (a *away) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if a.renew != nil {
		return false, a.renew
	}
	return a.Forward.Renew(ctx, key, token, ttl)
}

func (a *away) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if a.renew != nil {
		return nil, a.renew
	}
	return a.Forward.RenewBatch(ctx, batch)
}

func (a *away) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	a.looks.Add(1)
	if a.look != nil {
		return dlock.Hold{}, a.look
	}
	if err := a.fail(ctx); err != nil {
		return dlock.Hold{}, err
	}
	return a.Forward.Inspect(ctx, key)
}

// in runs a test in virtual time, with a store and a breaker around it that notes its changes.
func in(t *testing.T, f func(t *testing.T, s *away, b *breaker.Locker), opts ...breaker.Option) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := &away{Forward: dlock.Forward{Locker: memory.New()}}
		f(t, s, breaker.New(s, opts...))
		time.Sleep(time.Minute) // calls and probes that are cut off
	})
}

func try(ctx context.Context, b *breaker.Locker) error {
	_, err := b.TryAcquire(ctx, "k", "t", time.Minute)
	return err
}

func open(t *testing.T, s *away, b *breaker.Locker) {
	t.Helper()
	s.err = errStore
	for range 5 {
		require.ErrorIs(t, try(t.Context(), b), errStore)
	}
	require.True(t, b.State().Open)
}

func trySet(ctx context.Context, l dlock.SetAcquirer, token string, keys ...string) ([]dlock.Attempt, error) {
	var set []dlock.Acquisition
	for _, key := range keys {
		set = append(set, dlock.Acquisition{Key: key, Token: token, TTL: 10 * time.Second})
	}
	return l.TryAcquireSet(ctx, set)
}

// To the breaker a set is one attempt. That it is not supported is no answer and no failure.
func TestSets(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		attempts, err := trySet(t.Context(), b, "t", "a", "b")
		require.NoError(t, err)
		require.True(t, attempts[0].Acquired && attempts[1].Acquired)
		require.Greater(t, attempts[1].Fence, attempts[0].Fence)
		s.err = errors.ErrUnsupported
		for range 10 {
			_, err = trySet(t.Context(), b, "t", "a", "b")
			require.ErrorIs(t, err, errors.ErrUnsupported)
		}
		require.False(t, b.State().Open)
		s.hang = true
		for n := range 5 {
			require.False(t, b.State().Open, n)
			begun := time.Now()
			_, err = trySet(t.Context(), b, "t", "a", "b")
			require.ErrorContains(t, err, "no answer within 2s")
			require.Equal(t, 2*time.Second, time.Since(begun))
		}
		calls := s.calls.Load()
		_, err = trySet(t.Context(), b, "t", "a", "b")
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		require.True(t, dlock.NoEffect(err))
		require.Equal(t, calls, s.calls.Load())
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = trySet(ended, b, "t", "a", "b")
		require.ErrorIs(t, err, context.Canceled)

		s.hang, s.err = false, nil
		back(t, s, b)
		_, err = trySet(t.Context(), b, "t")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		_, err = trySet(t.Context(), breaker.New(s.Forward), "t", "a")
		require.ErrorIs(t, err, errors.ErrUnsupported, "the inner Locker has no sets")
		_, err = trySet(t.Context(), breaker.New(short{s}), "t", "a", "b")
		require.ErrorContains(t, err, "1 attempts for a set of 2")
	})
}

// A short Locker forgets the last answer of a set.
type short struct{ *away }

func (s short) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	return s.away.TryAcquireSet(ctx, set[1:])
}

// Failures in a row open it. Then nothing is sent, and nothing has to be released.
func TestOpens(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		require.Equal(t, breaker.State{}, b.State())
		open(t, s, b)
		require.Equal(t, breaker.State{Open: true, Since: time.Now(), Err: errStore}, b.State())
		time.Sleep(300 * time.Millisecond)
		for range 10 {
			var refusal *dlock.NoEffectError
			err := try(t.Context(), b)
			require.ErrorIs(t, err, dlock.ErrUnavailable)
			require.ErrorAs(t, err, &refusal)
			require.False(t, refusal.Temporary)
			require.ErrorContains(t, err, "open for 300ms: i/o timeout")
			_, err = b.Acquire(t.Context(), "k", "t", time.Minute)
			require.ErrorIs(t, err, dlock.ErrUnavailable)
		}
		require.EqualValues(t, 5, s.calls.Load())
		require.Zero(t, s.looks.Load())
	})
}

// The time-outs of others opened it. A refusal does not look like the end of the caller's ctx.
func TestRefusalShowsNoContextError(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, s *away, b *breaker.Locker) error{
		"attempt": func(ctx context.Context, s *away, b *breaker.Locker) error {
			s.hang = true
			return try(ctx, b)
		},
		"queue": func(ctx context.Context, s *away, b *breaker.Locker) error {
			s.end, s.err = fmt.Errorf("%w: %w", context.DeadlineExceeded, errStore), errStore
			_, err := b.Acquire(ctx, "k", "t", time.Minute)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, s *away, b *breaker.Locker) {
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					require.ErrorIs(t, call(ctx, s, b), context.DeadlineExceeded)
					cancel()
				}
				err := try(t.Context(), b)
				require.ErrorIs(t, err, dlock.ErrUnavailable)
				require.ErrorContains(t, err, "the breaker has been open for 0s: ")
				require.NotContains(t, err.Error(), "context")
			})
		})
	}
}

func mark(err error) error { return &dlock.NoEffectError{Err: err} }

// A majority is an error about several stores.
type majority struct{ answered bool }

func (m majority) Error() string  { return "no majority" }
func (m majority) Answered() bool { return m.answered }

// What counts as a failure.
func TestJudges(t *testing.T) {
	nOPERM := mark(errors.New("NOPERM"))
	for _, test := range []struct {
		err   error
		opens bool
	}{
		{errStore, true},
		{errDial, true},
		{mark(errDial), true},
		{&dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true}, true},
		{fmt.Errorf("read: %w", context.DeadlineExceeded), true}, // the client's own limit
		{nOPERM, false},
		{fmt.Errorf("%w: %w", errStore, nOPERM), true}, // each may be about another request
		{errors.Join(nOPERM, errDial), true},
		{majority{answered: true}, false},
		{majority{answered: false}, true},
		{mark(majority{answered: true}), false},
		{mark(majority{answered: false}), true},
		{mark(fmt.Errorf("%w: of another breaker", dlock.ErrUnavailable)), true},
		{mark(fmt.Errorf("%w key", dlock.ErrInvalid)), false},
		{errors.ErrUnsupported, false},
		{dlock.ErrClosed, false},
	} {
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			s.err = test.err
			for range 20 {
				require.Error(t, try(t.Context(), b))
			}
			require.Equal(t, test.opens, b.State().Open, "%v", test.err)
		})
	}
	for _, answer := range []error{nil, nOPERM, majority{answered: true}} { // failures that are not in a row
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			for range 5 {
				s.err = errStore
				for range 4 {
					require.Error(t, try(t.Context(), b))
				}
				s.err = answer
				require.Equal(t, answer, try(t.Context(), b))
			}
			require.False(t, b.State().Open, "an answer between them: %v", answer)
		})
	}
	for _, end := range []struct { // calls that end with their ctx
		after  time.Duration
		cancel bool
		opens  bool
	}{
		{time.Second, false, true},
		{200 * time.Millisecond, false, true},
		{199 * time.Millisecond, false, false}, // this may be no time for an answer
		{time.Second, true, false},             // the caller has left
	} {
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			s.hang = true
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), end.after)
				if end.cancel {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(end.after, cancel)
				}
				require.Error(t, try(ctx, b))
				cancel()
			}
			require.Equal(t, end.opens, b.State().Open, "%+v", end)
		})
	}
	in(t, func(t *testing.T, s *away, _ *breaker.Locker) { // a socket whose deadline is that of ctx times out first
		b := breaker.New(&slowTry{Forward: s.Forward, delay: 100 * time.Millisecond, reply: errStore})
		for range 20 {
			require.ErrorIs(t, try(late{t.Context(), time.Now().Add(100 * time.Millisecond)}, b), errStore)
		}
		require.False(t, b.State().Open)
	})
	in(t, func(t *testing.T, s *away, b *breaker.Locker) { // waits that ended while the store was silent
		silent := mark(fmt.Errorf("%w: %w", context.DeadlineExceeded, errStore))
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			s.end = silent
			_, err := b.Acquire(ctx, "k", "t", time.Minute)
			require.ErrorIs(t, err, errStore)
			cancel()
		}
		require.True(t, b.State().Open)
	})
	for _, reason := range []error{nil, nOPERM, majority{answered: true}, dlock.ErrReleased} { // other ends of waits
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			s.end = fmt.Errorf("%w: no second error", context.DeadlineExceeded)
			if reason != nil {
				s.end = mark(fmt.Errorf("%w: %w", context.DeadlineExceeded, reason))
			}
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := b.Acquire(ctx, "k", "t", time.Minute)
				require.Equal(t, s.end, err)
				cancel()
			}
			require.False(t, b.State().Open, "%v", reason)
		})
	}
}

// A late ctx has not noticed yet that its deadline has passed.
type late struct {
	context.Context
	deadline time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

// The Client's own time limits do not hide that the store hangs.
func TestImpatientClients(t *testing.T) {
	for name, call := range map[string]func(*dlock.Client) error{
		"WithMaxWait(300ms)": func(c *dlock.Client) error {
			_, err := c.With(dlock.WithMaxWait(300*time.Millisecond)).Acquire(context.Background(), "k")
			return err
		},
		"a request of 1 s": func(c *dlock.Client) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := c.Acquire(ctx, "k")
			return err
		},
	} {
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			s.hang = true
			locks := dlock.New(b)
			for range 20 {
				require.Error(t, call(locks))
			}
			require.True(t, b.State().Open, name)
			require.EqualValues(t, 5, s.calls.Load(), name)
		})
	}
}

// Callers with little time left do not open it, if the store answers.
func TestHurriedCallers(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		slow := breaker.New(&slowTry{Forward: s.Forward, delay: 20 * time.Millisecond})
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			_, err := slow.TryAcquire(ctx, "k", "t", time.Minute)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		require.False(t, slow.State().Open)
	})
}

// A store that hangs is noticed after WithSlow.
func TestHang(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		s.hang = true
		begun := time.Now()
		var running sync.WaitGroup
		for range 200 {
			running.Go(func() {
				for time.Since(begun) < 10*time.Second {
					called := time.Now()
					err := try(t.Context(), b)
					if !errors.Is(err, dlock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("after %v: %v", time.Since(called), err)
					}
					if took := time.Since(called); took > 2*time.Second || took > 0 && called.After(begun) {
						t.Errorf("a call took %v", took)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		running.Wait()
		require.EqualValues(t, 200, s.calls.Load())
		require.InDelta(t, 8, s.looks.Load(), 1, "probes")
	})
}

// Of many acquisitions of a Client, most join the store's queue without an attempt. They fail as the others do. A wait that
// began before the store fell silent goes on.
func TestHangOfACrowd(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		c := dlock.New(b)
		held, err := c.Acquire(t.Context(), "held")
		require.NoError(t, err)
		early := make(chan error, 1)
		go func() { _, err := c.Acquire(t.Context(), "held"); early <- err }()
		synctest.Wait()
		s.hang = true
		begun := time.Now()
		var running sync.WaitGroup
		for i := range 300 {
			running.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := c.Acquire(ctx, fmt.Sprint(i))
				if took := time.Since(begun); !errors.Is(err, dlock.ErrUnavailable) || took > 2*time.Second {
					t.Errorf("after %v: %v", took, err)
				}
			})
		}
		running.Wait()
		s.hang = false
		require.NoError(t, held.Release())
		require.NoError(t, <-early)
	})
}

// A call that was cut off before it was sent owes no release.
func TestHangBeforeSending(t *testing.T) {
	in(t, func(t *testing.T, s *away, _ *breaker.Locker) {
		b := breaker.New(&unsent{s.Forward})
		for range 5 {
			err := try(t.Context(), b)
			require.ErrorIs(t, err, dlock.ErrUnavailable)
			require.True(t, dlock.NoEffect(err))
		}
		require.True(t, b.State().Open)
	})
}

// An unsent Locker waits in vain for a connection.
type unsent struct{ dlock.Forward }

func (*unsent) TryAcquire(ctx context.Context, _, _ string, _ time.Duration) (dlock.Attempt, error) {
	<-ctx.Done()
	return dlock.Attempt{}, mark(ctx.Err())
}

// The answer to a call that was cut off is passed on when it comes.
func TestCutOffIsAnsweredLater(t *testing.T) {
	in(t, func(t *testing.T, s *away, _ *breaker.Locker) {
		store := memory.New()
		store.Delay(3 * time.Second)
		begun := time.Now()
		err := try(t.Context(), breaker.New(store))
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		unanswered, ok := errors.AsType[*dlock.UnansweredError](err)
		require.True(t, ok)
		answers := make(chan error)
		unanswered.Late(func(_ dlock.Attempt, err error) { answers <- err })
		require.True(t, dlock.NoEffect(<-answers))
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
}

// A joiner answers with the errors of two stores, of which one will answer.
type joiner struct{ unsent }

func (j *joiner) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	_, err := j.unsent.TryAcquire(ctx, key, token, ttl)
	return dlock.Attempt{}, errors.Join(errStore, &dlock.UnansweredError{Err: err})
}

// That one of several stores will answer is no answer of all.
func TestCutOffOfSeveralStores(t *testing.T) {
	in(t, func(t *testing.T, s *away, _ *breaker.Locker) {
		err := try(t.Context(), breaker.New(&joiner{unsent{s.Forward}}))
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		_, ok := errors.AsType[*dlock.UnansweredError](err)
		require.False(t, ok)
	})
}

// It closes within two probe intervals of the store's return, if anybody calls.
func TestCloses(t *testing.T) {
	for _, hang := range []bool{false, true} {
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			open(t, s, b)
			s.hang = hang
			for range 100 {
				require.ErrorIs(t, try(t.Context(), b), dlock.ErrUnavailable)
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
			s.err, s.hang = nil, false
			back := time.Now()
			for try(t.Context(), b) != nil {
				time.Sleep(100 * time.Millisecond)
			}
			require.LessOrEqual(t, time.Since(back), 2*time.Second)
			require.NoError(t, b.State().Err)
			require.False(t, b.State().Open)
			require.InDelta(t, 10, s.looks.Load(), 2)
		})
	}
}

// Nothing runs while nobody calls.
func TestIdle(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		open(t, s, b)
		time.Sleep(time.Hour)
		require.Zero(t, s.looks.Load())
		s.err = nil
		require.Error(t, try(t.Context(), b), "it starts the probe")
		synctest.Wait()
		require.NoError(t, try(t.Context(), b))
	})
}

// If the store cannot be inspected, the probe renews a lease that nobody holds.
func TestNoInspector(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		s.look, s.renew = errors.ErrUnsupported, errStore
		open(t, s, b)
		for range 20 {
			time.Sleep(time.Second)
			require.ErrorIs(t, try(t.Context(), b), dlock.ErrUnavailable)
			synctest.Wait()
			require.True(t, b.State().Open)
		}
		require.EqualValues(t, 5, s.calls.Load(), "attempts that were sent")
		s.err, s.renew = nil, nil
		time.Sleep(time.Second)
		require.ErrorIs(t, try(t.Context(), b), dlock.ErrUnavailable)
		synctest.Wait()
		require.False(t, b.State().Open)
		require.NoError(t, try(t.Context(), b))
	})
}

// A store that refuses the probe has answered it.
func TestRefusedProbe(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		s.look = mark(errors.New("NOPERM"))
		open(t, s, b)
		time.Sleep(time.Second)
		require.ErrorIs(t, try(t.Context(), b), dlock.ErrUnavailable)
		synctest.Wait()
		require.False(t, b.State().Open)
	})
}

// The store's answers to renewals and releases start probes, and count for nothing else.
func TestRenewalsStartProbes(t *testing.T) {
	for name, call := range map[string]func(*breaker.Locker) error{
		"Renew": func(b *breaker.Locker) error {
			_, err := b.Renew(context.Background(), "held", "t", time.Minute)
			return err
		},
		"RenewBatch": func(b *breaker.Locker) error {
			_, err := b.RenewBatch(context.Background(), []dlock.Renewal{{Key: "held", Token: "t", TTL: time.Minute}})
			return err
		},
		"Release": func(b *breaker.Locker) error {
			_, err := b.Release(context.Background(), "held", "t")
			return err
		},
	} {
		in(t, func(t *testing.T, s *away, b *breaker.Locker) {
			s.err = errStore
			for range 4 {
				require.Error(t, try(t.Context(), b))
			}
			require.NoError(t, call(b))
			require.Error(t, try(t.Context(), b))
			require.True(t, b.State().Open, "%s has reset the count", name)
			time.Sleep(time.Second)
			require.NoError(t, call(b))
			synctest.Wait()
			require.EqualValues(t, 1, s.looks.Load(), "probes after %s", name)
			require.True(t, b.State().Open, "after %s, although no attempt is answered", name)
			s.err = nil
			require.NoError(t, call(b))
			synctest.Wait()
			require.True(t, b.State().Open, "no probe is due")
			time.Sleep(time.Second)
			require.NoError(t, call(b))
			synctest.Wait()
			require.False(t, b.State().Open, name)
		})
	}
}

// A call that began before a change says nothing of the store after it.
func TestLateAnswers(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		s.hang = true
		for range 20 {
			go func() { _ = try(context.Background(), b) }()
		}
		synctest.Wait()
		s.hang = false
		open(t, s, b)
		s.err = nil
		time.Sleep(time.Second)
		require.Error(t, try(t.Context(), b))
		synctest.Wait()
		time.Sleep(2 * time.Second) // the first twenty are cut off
		require.False(t, b.State().Open)
	})
}

// Renewals and releases go through an open breaker: a lease outlives it.
func TestLeasesGoOn(t *testing.T) {
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		locks := dlock.New(b)
		lease, err := locks.Acquire(t.Context(), "held")
		require.NoError(t, err)
		open(t, s, b)
		time.Sleep(10 * time.Minute)
		require.NoError(t, lease.Err())
		_, err = locks.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		require.NoError(t, lease.Release())
		require.NoError(t, locks.Close())
	})
}

func TestOnChange(t *testing.T) {
	var changes []breaker.State
	in(t, func(t *testing.T, s *away, b *breaker.Locker) {
		open(t, s, b)
		opened := time.Now()
		s.err = nil
		time.Sleep(time.Second)
		require.Error(t, try(t.Context(), b))
		synctest.Wait()
		require.Equal(t, []breaker.State{{Open: true, Since: opened, Err: errStore}, {Since: time.Now()}}, changes)
	}, breaker.OnChange(func(s breaker.State) { changes = append(changes, s) }))
}

// A job with a MinHold that the store would not keep could run again too early.
func TestLongestTTL(t *testing.T) {
	in(t, func(t *testing.T, s *away, _ *breaker.Locker) {
		quorum := redlock.New([]dlock.Locker{memory.New(), memory.New(), memory.New()}, redlock.WithLongestTTL(20*time.Second))
		defer quorum.Close()
		_, err := dlock.New(breaker.New(quorum), dlock.WithTTL(20*time.Second), dlock.WithMinHold(10*time.Minute)).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "longer than 20s")
	})
}

func TestInvalid(t *testing.T) {
	for _, b := range []*breaker.Locker{
		breaker.New(nil),
		breaker.New(memory.New(), nil),
		breaker.New(memory.New(), breaker.WithFailures(0)),
		breaker.New(memory.New(), breaker.WithSlow(0)),
		breaker.New(memory.New(), breaker.WithProbe(-time.Second)),
		breaker.New(memory.New(), breaker.WithDegradation(breaker.Degradation{Keys: all})),
		breaker.New(memory.New(), breaker.WithDegradation(breaker.Degradation{After: time.Second})),
	} {
		_, err := dlock.New(b).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		_, err = b.Renew(t.Context(), "k", "t", time.Minute)
		require.ErrorIs(t, err, dlock.ErrInvalid)
	}
}

func Example() {
	store := breaker.New(memory.New(), breaker.OnChange(func(s breaker.State) {
		fmt.Println("open:", s.Open, s.Err)
	}))
	locks := dlock.New(store)
	defer locks.Close()
	lease, err := locks.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Release(), store.State().Open)
	// Output: <nil> false
}

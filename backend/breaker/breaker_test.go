package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
)

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

// A short Locker forgets the last answer of a set.
type short struct{ *away }

func (s short) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	return s.away.TryAcquireSet(ctx, set[1:])
}

func mark(err error) error { return &dlock.NoEffectError{Err: err} }

// A majority is an error about several stores.
type majority struct{ answered bool }

func (m majority) Error() string  { return "no majority" }
func (m majority) Answered() bool { return m.answered }

// What counts as a failure.
func TestJudges(t *testing.T) {
	judge := func(opens bool, why any, calls int, call func(w *bed)) {
		t.Helper()
		in(t, func(w *bed) {
			for range calls {
				call(w)
			}
			require.Equal(w, opens, w.State().Open, "%+v", why)
		})
	}
	nOPERM := mark(errors.New("NOPERM"))
	for _, c := range []struct {
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
		judge(c.opens, c.err, 20, func(w *bed) { w.s.err = c.err; require.Error(w, w.try()) })
	}
	for _, answer := range []error{nil, nOPERM, majority{answered: true}} {
		judge(false, "failures that are not in a row", 5, func(w *bed) {
			w.s.err = errStore
			for range 4 {
				require.Error(w, w.try())
			}
			w.s.err = answer
			require.Equal(w, answer, w.try())
		})
	}
	for _, end := range []struct { // calls that end with their ctx
		after         time.Duration
		cancel, opens bool
	}{
		{time.Second, false, true},
		{200 * time.Millisecond, false, true},
		{199 * time.Millisecond, false, false}, // this may be no time for an answer
		{time.Second, true, false},             // the caller has left
	} {
		judge(end.opens, end, 20, func(w *bed) {
			w.s.hang = hangs
			ctx, cancel := context.WithTimeout(w.Context(), end.after)
			if end.cancel {
				ctx, cancel = context.WithCancel(w.Context())
				time.AfterFunc(end.after, cancel)
			}
			require.Error(w, try(ctx, w.Locker))
			cancel()
		})
	}
	judge(false, "a socket whose deadline is that of ctx times out first", 20, func(w *bed) {
		w.s.slow(100*time.Millisecond, errStore)
		require.ErrorIs(w, try(late{w.Context(), time.Now().Add(100 * time.Millisecond)}, w.Locker), errStore)
	})
	judge(false, "callers with little time left, if the store answers", 100, func(w *bed) {
		w.s.slow(20*time.Millisecond, nil)
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Millisecond)
		defer cancel()
		require.ErrorIs(w, try(ctx, w.Locker), context.DeadlineExceeded)
	})
	wait := func(w *bed, end error) {
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.s.hang = func(error) error { return end }
		_, err := w.Acquire(ctx, "k", "t", time.Minute)
		require.Equal(w, end, err)
	}
	ended := fmt.Errorf("%w: no second error", context.DeadlineExceeded)
	judge(false, ended, 20, func(w *bed) { wait(w, ended) })
	for reason, opens := range map[error]bool{errStore: true, nOPERM: false, majority{answered: true}: false, dlock.ErrReleased: false} {
		calls := map[bool]int{true: 5, false: 20}[opens]
		judge(opens, reason, calls, func(w *bed) { wait(w, mark(fmt.Errorf("%w: %w", context.DeadlineExceeded, reason))) })
	}
}

// A late ctx has not noticed yet that its deadline has passed.
type late struct {
	context.Context
	deadline time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

func TestStates(t *testing.T) {
	scenes(t, map[string]func(*bed){
		// Then nothing is sent, and nothing has to be released.
		"failures in a row open it": func(w *bed) {
			require.Equal(w, breaker.State{}, w.State())
			w.open()
			require.Equal(w, breaker.State{Open: true, Since: time.Now(), Err: errStore}, w.State())
			time.Sleep(300 * time.Millisecond)
			for range 10 {
				var refusal *dlock.NoEffectError
				err := w.try()
				require.ErrorIs(w, err, dlock.ErrUnavailable)
				require.ErrorAs(w, err, &refusal)
				require.False(w, refusal.Temporary)
				require.ErrorContains(w, err, "open for 300ms: i/o timeout")
				_, err = w.Acquire(w.Context(), "k", "t", time.Minute)
				require.ErrorIs(w, err, dlock.ErrUnavailable)
			}
			require.EqualValues(w, 5, w.s.calls.Load())
			require.Zero(w, w.s.looks.Load())
		},
		// That it is not supported is no answer and no failure.
		"a set is one attempt": func(w *bed) {
			set := func() ([]dlock.Attempt, error) { return trySet(w.Context(), w, "t", "a", "b") }
			attempts, err := set()
			require.NoError(w, err)
			require.True(w, attempts[0].Acquired && attempts[1].Acquired)
			require.Greater(w, attempts[1].Fence, attempts[0].Fence)
			w.s.err = errors.ErrUnsupported
			for range 10 {
				_, err = set()
				require.ErrorIs(w, err, errors.ErrUnsupported)
			}
			require.False(w, w.State().Open)
			w.s.hang = hangs
			for n := range 5 {
				require.False(w, w.State().Open, n)
				begun := time.Now()
				_, err = set()
				require.ErrorContains(w, err, "no answer within 2s")
				require.Equal(w, 2*time.Second, time.Since(begun))
			}
			calls := w.s.calls.Load()
			_, err = set()
			require.ErrorIs(w, err, dlock.ErrUnavailable)
			require.True(w, dlock.NoEffect(err))
			require.Equal(w, calls, w.s.calls.Load())
			ended, cancel := context.WithCancel(w.Context())
			cancel()
			_, err = trySet(ended, w, "t", "a", "b")
			require.ErrorIs(w, err, context.Canceled)

			w.s.hang = nil
			w.back()
			_, err = trySet(w.Context(), w, "t")
			require.ErrorIs(w, err, dlock.ErrInvalid)
			_, err = trySet(w.Context(), breaker.New(w.s.Forward), "t", "a")
			require.ErrorIs(w, err, errors.ErrUnsupported, "the inner Locker has no sets")
			_, err = trySet(w.Context(), breaker.New(short{w.s}), "t", "a", "b")
			require.ErrorContains(w, err, "1 attempts for a set of 2")
		},
		"a store that hangs is noticed after WithSlow": func(w *bed) {
			w.s.hang = hangs
			begun := time.Now()
			var running sync.WaitGroup
			for range 200 {
				running.Go(func() {
					for time.Since(begun) < 10*time.Second {
						called := time.Now()
						err := w.try()
						if !errors.Is(err, dlock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
							w.Errorf("after %v: %v", time.Since(called), err)
						}
						if took := time.Since(called); took > 2*time.Second || took > 0 && called.After(begun) {
							w.Errorf("a call took %v", took)
						}
						time.Sleep(100 * time.Millisecond)
					}
				})
			}
			running.Wait()
			require.EqualValues(w, 200, w.s.calls.Load())
			require.InDelta(w, 8, w.s.looks.Load(), 1, "probes")
		},
		// Of many acquisitions of a Client, most join the store's queue without an attempt. They fail as the others do. A wait
		// that began before the store fell silent goes on.
		"a store hangs for a crowd": func(w *bed) {
			c := dlock.New(w.Locker)
			held, err := c.Acquire(w.Context(), "held")
			require.NoError(w, err)
			early := make(chan error, 1)
			go func() { _, err := c.Acquire(w.Context(), "held"); early <- err }()
			synctest.Wait()
			w.s.hang = hangs
			begun := time.Now()
			var running sync.WaitGroup
			for i := range 300 {
				running.Go(func() {
					ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
					defer cancel()
					_, err := c.Acquire(ctx, fmt.Sprint(i))
					if took := time.Since(begun); !errors.Is(err, dlock.ErrUnavailable) || took > 2*time.Second {
						w.Errorf("after %v: %v", took, err)
					}
				})
			}
			running.Wait()
			w.s.hang = nil
			require.NoError(w, held.Release())
			require.NoError(w, <-early)
		},
		"a call that was cut off before it was sent owes no release": func(w *bed) {
			w.s.hang = mark
			for range 5 {
				err := w.try()
				require.ErrorIs(w, err, dlock.ErrUnavailable)
				require.True(w, dlock.NoEffect(err))
			}
			require.True(w, w.State().Open)
		},
		// That one of several stores will answer is no answer of all.
		"the answer to a call that was cut off is passed on when it comes": func(w *bed) {
			w.store.Delay(3 * time.Second)
			begun := time.Now()
			err := w.try()
			require.ErrorIs(w, err, dlock.ErrUnavailable)
			unanswered, ok := errors.AsType[*dlock.UnansweredError](err)
			require.True(w, ok)
			answers := make(chan error)
			unanswered.Late(func(_ dlock.Attempt, err error) { answers <- err })
			require.True(w, dlock.NoEffect(<-answers))
			require.Equal(w, 3*time.Second, time.Since(begun))

			w.s.hang = func(err error) error { return errors.Join(errStore, &dlock.UnansweredError{Err: mark(err)}) }
			err = w.try()
			require.ErrorIs(w, err, dlock.ErrUnavailable)
			_, ok = errors.AsType[*dlock.UnansweredError](err)
			require.False(w, ok)
		},
		"nothing runs while nobody calls": func(w *bed) {
			w.open()
			time.Sleep(time.Hour)
			require.Zero(w, w.s.looks.Load())
			w.s.err = nil
			require.Error(w, w.try(), "it starts the probe")
			synctest.Wait()
			require.NoError(w, w.try())
		},
		// A store that refuses a probe has answered it.
		"if the store cannot be inspected, the probe renews a lease that nobody holds": func(w *bed) {
			probe := func(opens bool) {
				w.Helper()
				time.Sleep(time.Second)
				require.ErrorIs(w, w.try(), dlock.ErrUnavailable)
				synctest.Wait()
				require.Equal(w, opens, w.State().Open)
			}
			w.s.look, w.s.renew = errors.ErrUnsupported, errStore
			w.open()
			for range 20 {
				probe(true)
			}
			require.EqualValues(w, 5, w.s.calls.Load(), "attempts that were sent")
			w.s.err, w.s.renew = nil, nil
			probe(false)
			require.NoError(w, w.try())

			w.s.look = mark(errors.New("NOPERM"))
			w.open()
			probe(false)
		},
		"a call that began before a change says nothing of the store after it": func(w *bed) {
			w.s.hang = hangs
			for range 20 {
				go func() { _ = try(context.Background(), w.Locker) }()
			}
			synctest.Wait()
			w.s.hang = nil
			w.open()
			w.s.err = nil
			time.Sleep(time.Second)
			require.Error(w, w.try())
			synctest.Wait()
			time.Sleep(2 * time.Second) // the first twenty are cut off
			require.False(w, w.State().Open)
		},
		// It could run again too early.
		"a job with a MinHold that the store would not keep": func(w *bed) {
			quorum := redlock.New([]dlock.Locker{memory.New(), memory.New(), memory.New()}, redlock.WithLongestTTL(20*time.Second))
			defer quorum.Close()
			_, err := dlock.New(breaker.New(quorum), dlock.WithTTL(20*time.Second), dlock.WithMinHold(10*time.Minute)).TryAcquire(w.Context(), "k")
			require.ErrorIs(w, err, dlock.ErrInvalid)
			require.ErrorContains(w, err, "longer than 20s")
		},
	})
	for _, hang := range []func(error) error{nil, hangs} {
		in(t, func(w *bed) { // it closes within two probe intervals of the store's return, if anybody calls
			w.open()
			w.s.hang = hang
			for range 100 {
				require.ErrorIs(w, w.try(), dlock.ErrUnavailable)
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
			w.s.err, w.s.hang = nil, nil
			back := time.Now()
			for w.try() != nil {
				time.Sleep(100 * time.Millisecond)
			}
			require.LessOrEqual(w, time.Since(back), 2*time.Second)
			require.NoError(w, w.State().Err)
			require.False(w, w.State().Open)
			require.InDelta(w, 10, w.s.looks.Load(), 2)
		})
	}
}

// The time-outs of others opened it. A refusal does not look like the end of the caller's ctx.
func TestRefusalShowsNoContextError(t *testing.T) {
	for _, queued := range []bool{false, true} {
		in(t, func(w *bed) {
			for range 5 {
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				attempt := w.TryAcquire
				if w.s.hang = hangs; queued {
					w.s.hang, attempt = func(err error) error { return fmt.Errorf("%w: %w", err, errStore) }, w.Acquire
				}
				_, err := attempt(ctx, "k", "t", time.Minute)
				require.ErrorIs(w, err, context.DeadlineExceeded)
				cancel()
			}
			err := w.try()
			require.ErrorIs(w, err, dlock.ErrUnavailable)
			require.ErrorContains(w, err, "the breaker has been open for 0s: ")
			require.NotContains(w, err.Error(), "context")
		})
	}
}

// The Client's own time limits do not hide that the store hangs.
func TestImpatientClients(t *testing.T) {
	for _, request := range []bool{false, true} {
		in(t, func(w *bed) {
			w.s.hang = hangs
			locks := dlock.New(w.Locker)
			for range 20 {
				ctx, cancel := w.Context(), func() {}
				c := locks.With(dlock.WithMaxWait(300 * time.Millisecond))
				if request {
					c = locks
					ctx, cancel = context.WithTimeout(context.Background(), time.Second)
				}
				_, err := c.Acquire(ctx, "k")
				require.Error(w, err)
				cancel()
			}
			require.True(w, w.State().Open, "a request of 1 s: %v", request)
			require.EqualValues(w, 5, w.s.calls.Load(), "a request of 1 s: %v", request)
		})
	}
}

// The store's answers to renewals and releases start probes, and count for nothing else.
func TestRenewalsStartProbes(t *testing.T) {
	for name, call := range map[string]func(w *bed) error{
		"Renew": func(w *bed) error { _, err := w.Renew(w.Context(), "held", "t", time.Minute); return err },
		"RenewBatch": func(w *bed) error {
			_, err := w.RenewBatch(w.Context(), []dlock.Renewal{{Key: "held", Token: "t", TTL: time.Minute}})
			return err
		},
		"Release": func(w *bed) error { _, err := w.Release(w.Context(), "held", "t"); return err },
	} {
		in(t, func(w *bed) {
			w.s.err = errStore
			for range 4 {
				require.Error(w, w.try())
			}
			require.NoError(w, call(w))
			require.Error(w, w.try())
			require.True(w, w.State().Open, "%s has reset the count", name)
			time.Sleep(time.Second)
			require.NoError(w, call(w))
			synctest.Wait()
			require.EqualValues(w, 1, w.s.looks.Load(), "probes after %s", name)
			require.True(w, w.State().Open, "after %s, although no attempt is answered", name)
			w.s.err = nil
			require.NoError(w, call(w))
			synctest.Wait()
			require.True(w, w.State().Open, "no probe is due")
			time.Sleep(time.Second)
			require.NoError(w, call(w))
			synctest.Wait()
			require.False(w, w.State().Open, name)
		})
	}
}

func TestOnChange(t *testing.T) {
	var changes []breaker.State
	in(t, func(w *bed) {
		w.open()
		opened := time.Now()
		w.s.err = nil
		time.Sleep(time.Second)
		require.Error(w, w.try())
		synctest.Wait()
		require.Equal(w, []breaker.State{{Open: true, Since: opened, Err: errStore}, {Since: time.Now()}}, changes)
	}, breaker.OnChange(func(s breaker.State) { changes = append(changes, s) }))
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
	store := breaker.New(memory.New(), breaker.OnChange(func(s breaker.State) { fmt.Println("open:", s.Open, s.Err) }))
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

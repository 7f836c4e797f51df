package once

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/cast"
)

const ttl = 3 * time.Second

var (
	errBoom = errors.New("boom")
	errAway = errors.New("connection refused")
)

type function = func(context.Context, *dlock.Lease) error

func work(took time.Duration, err error) function {
	return func(context.Context, *dlock.Lease) error { time.Sleep(took); return err }
}

func does(f func()) function {
	return func(context.Context, *dlock.Lease) error { f(); return nil }
}

func counts(runs *int) function { return does(func() { *runs++ }) }

func never(t testing.TB) function { return does(func() { t.Error("fn was called") }) }

// A bed is a world with a job.
type bed struct {
	*cast.World
	every time.Duration
}

func inBubble(t *testing.T, every time.Duration, f func(*bed)) {
	t.Helper()
	cast.In(t, "memory", func(w *cast.World) { f(&bed{w, every}) })
}

// replica returns one more replica of the job.
func (b *bed) replica(opts ...Option) *Job {
	return New(b.Process(dlock.WithTTL(ttl)).Client, "job", b.every, opts...)
}

type result struct {
	ran bool
	err error
}

var (
	done    = result{true, nil}
	nothing result
)

// is demands whether fn ran, and what the error matches, or says.
func (r result) is(t testing.TB, ran bool, errs ...any) {
	t.Helper()
	require.Equal(t, ran, r.ran)
	for _, err := range errs {
		switch err := err.(type) {
		case error:
			require.ErrorIs(t, r.err, err)
		case string:
			require.ErrorContains(t, r.err, err)
		}
	}
}

// failed is the result of a run of the first period of virtual time, or of the minute after it.
func failed(minute int, err error) result {
	return result{true, fmt.Errorf("once: job@2000-01-01T00:%02d:00.000Z: %w", minute, err)}
}

func (b *bed) start(j *Job, due time.Time, fn function) <-chan result {
	done := make(chan result, 1)
	go func() { ran, err := j.Do(b.Context(), due, fn); done <- result{ran, err} }()
	return done
}

func (b *bed) do(j *Job, due time.Time, fn function) result { return <-b.start(j, due, fn) }

func TestFailureThenSuccess(t *testing.T) {
	inBubble(t, time.Minute, func(b *bed) {
		runs, due := 0, b.replica().Due(time.Now())
		var all []<-chan result
		for range 5 {
			all = append(all, b.start(b.replica(), due, func(context.Context, *dlock.Lease) error {
				time.Sleep(time.Second)
				if runs++; runs < 3 {
					return errBoom
				}
				return nil
			}))
			synctest.Wait()
		}
		for i, want := range []result{failed(0, errBoom), failed(0, errBoom), done, nothing, nothing} {
			require.Equal(b, want, <-all[i], "replica %d", i)
		}
		require.Equal(b, 3*time.Second, time.Since(due), "each begins when the one before has failed")
		for _, late := range []time.Duration{5 * time.Minute, 4*time.Minute + 59*time.Second} { // a clock that is late
			time.Sleep(late)
			require.Equal(b, nothing, b.do(b.replica(), due, never(b)))
		}
		require.Equal(b, done, b.do(b.replica(), due.Add(time.Minute), work(0, nil)), "the next period")

		client := dlock.New(b.Memory)
		mark, err := client.Inspect(b.Context(), "job@2000-01-01T00:01:00.000Z")
		require.NoError(b, err)
		require.NoError(b, client.Break(b.Context(), mark))
		require.Equal(b, done, b.do(b.replica(), due.Add(time.Minute), work(0, nil)), "a mark that was removed")
	})
}

func TestAnotherRunsWhatWasInterrupted(t *testing.T) {
	inBubble(t, time.Hour, func(b *bed) {
		due := time.Now()
		another := func(interrupted string, after time.Duration) {
			began := time.Now()
			require.Equal(b, done, b.do(b.replica(), due, work(0, nil)), interrupted)
			require.Equal(b, after, time.Since(began), interrupted)
			due = due.Add(b.every)
		}
		require.PanicsWithValue(b, "oops", func() {
			b.replica().Do(b.Context(), due, does(func() { panic("oops") }))
		})
		another("panic", 0)
		_, err := b.Memory.TryAcquire(b.Context(), "job", "killed", ttl)
		require.NoError(b, err)
		another("death", ttl)
		for _, returned := range []error{nil, errBoom} { // fn may have stopped because its ctx has ended
			time.AfterFunc(time.Second, func() { b.Memory.Expire("job") })
			got := b.do(b.replica(), due, func(ctx context.Context, _ *dlock.Lease) error { <-ctx.Done(); return returned })
			got.is(b, true, dlock.ErrLost)
			another("loss", 0)
		}
	})
}

// The job has succeeded, although the caller's ctx has ended.
func TestCancelledAfterSuccess(t *testing.T) {
	inBubble(t, time.Minute, func(b *bed) {
		due := time.Now()
		ctx, cancel := context.WithCancel(b.Context())
		ran, err := b.replica().Do(ctx, due, does(cancel))
		require.Equal(b, done, result{ran, err})
		ran, err = b.replica().Do(ctx, due.Add(time.Minute), never(b))
		result{ran, err}.is(b, false, context.Canceled)
		require.Equal(b, nothing, b.do(b.replica(), due, never(b)))
	})
}

func TestHeldUntilTheEndOfThePeriod(t *testing.T) {
	inBubble(t, 10*time.Second, func(b *bed) {
		due := time.Now()
		first := b.start(b.replica(), due, work(25*time.Second, nil))
		synctest.Wait()
		next := b.start(b.replica(), due.Add(b.every), never(b))
		for _, after := range []time.Duration{10 * time.Second, 20 * time.Second} { // the second is late, and makes a single attempt
			b.do(b.replica(), due, never(b)).is(b, false, dlock.ErrHeld, "job@2000-01-01T00:00:00.000Z: another run is not over")
			require.Equal(b, after, time.Since(due))
			if after == b.every {
				require.ErrorIs(b, (<-next).err, dlock.ErrHeld)
			}
		}
		require.Equal(b, done, <-first)
	})
}

// One replica runs a period early, and another hears of it late: the lock was held by a run of
// another period all the while.
func TestMarkOutlivesEachWait(t *testing.T) {
	inBubble(t, time.Hour, func(b *bed) {
		due := time.Now().Add(2 * b.every / 5)
		require.Equal(b, due, b.replica(Phase(2*b.every/5)).Due(time.Now()))
		require.Equal(b, done, b.do(b.replica(), due, work(0, nil)))
		before := b.start(b.replica(), due.Add(-b.every), work(85*time.Minute, nil))
		synctest.Wait()
		skewed := b.replica()
		skewed.now = func() time.Time { return time.Now().Add(-10 * time.Minute) }
		time.Sleep(45 * time.Minute)
		require.Equal(b, nothing, b.do(skewed, due, never(b)))
		require.Equal(b, done, <-before)
	})
}

func TestDue(t *testing.T) {
	for _, c := range []struct {
		every    time.Duration
		opt      Option
		now, due string
	}{
		{time.Minute, Phase(0), "2026-11-23T11:59:31Z", "2026-11-23T12:00:00Z"}, // a timer that fires early
		{time.Minute, Phase(0), "2026-11-23T12:00:29Z", "2026-11-23T12:00:00Z"},
		{time.Hour, Phase(30 * time.Minute), "2026-11-23T12:29:59Z", "2026-11-23T12:30:00Z"},
		{time.Hour, Phase(30 * time.Minute), "2026-11-23T12:30:01Z", "2026-11-23T12:30:00Z"},
		{time.Hour, Phase(-30 * time.Minute), "2026-11-23T12:30:01Z", "2026-11-23T12:30:00Z"},
		{24 * time.Hour, Phase(12 * time.Hour), "2026-11-23T11:59:59Z", "2026-11-23T12:00:00Z"},
		{24 * time.Hour, Phase(12 * time.Hour), "2026-11-23T12:00:01Z", "2026-11-23T12:00:00Z"},
		{24 * time.Hour, Phase(12 * time.Hour), "2026-11-24T12:00:01+01:00", "2026-11-24T12:00:00Z"},
	} {
		now, err := time.Parse(time.RFC3339, c.now)
		require.NoError(t, err)
		due := New(dlock.New(memory.New()), "job", c.every, c.opt).Due(now)
		require.Equal(t, c.due, due.UTC().Format(time.RFC3339), "every %v at %s", c.every, c.now)
	}
}

// Each day at 12:00 UTC: half of the replicas start a millisecond early, and half a millisecond late.
func TestMiddleBetweenTwoDues(t *testing.T) {
	for off, refused := range map[time.Duration]bool{-time.Millisecond: true, time.Millisecond: true,
		-2 * time.Hour: true, 2 * time.Hour: true, -3 * time.Hour: false, 3 * time.Hour: false} {
		inBubble(t, 24*time.Hour, func(b *bed) {
			time.Sleep(12*time.Hour + off)
			err := b.replica().Task(work(0, errBoom))(b.Context())
			if refused {
				require.ErrorIs(b, err, dlock.ErrInvalid)
				require.ErrorContains(b, err, "use Phase(1")
			} else {
				require.ErrorIs(b, err, errBoom)
			}
			var reported error
			b.replica().Func(b.Context(), work(0, errBoom), func(err error) { reported = err })()
			require.Equal(b, err, reported)
			b.replica().Func(b.Context(), work(0, errBoom), nil)()
			runs := 0
			for range 5 {
				require.NoError(b, b.replica(Phase(12*time.Hour)).Task(counts(&runs))(b.Context()))
			}
			require.Equal(b, 1, runs)
		})
	}
}

// An hourly store has leases of an hour at most.
type hourly struct{ dlock.Forward }

func (hourly) LongestTTL() time.Duration { return time.Hour }

func TestRefusals(t *testing.T) {
	long := strings.Repeat("x", 1000)
	day := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	for text, c := range map[string]struct {
		name  string
		every time.Duration
		due   time.Time
		fn    function
	}{
		"period 99ms: not between 100ms and 4380h0m0s": {"job", 99 * time.Millisecond, day, never(t)},
		"period -1h0m0s":                  {"job", -time.Hour, day, never(t)},
		"period 8760h0m0s":                {"job", 8760 * time.Hour, day, never(t)},
		"key: 1025 bytes, more than 1024": {long, time.Minute, day, never(t)},
		"key: empty":                      {"", time.Minute, day, never(t)},
		"function: nil":                   {"job", time.Minute, day, nil},
		"due: the zero time":              {"job", time.Minute, time.Time{}, never(t)},
		"WithMinHold(24h0m0s): longer than 1h0m0s, the": {"job", 12 * time.Hour, day, never(t)},
	} {
		inBubble(t, time.Hour, func(b *bed) {
			b.Memory.Delay(time.Hour)
			begun := time.Now()
			ran, err := New(dlock.New(hourly{dlock.Forward{Locker: b.Memory}}), c.name, c.every).Do(b.Context(), c.due, c.fn)
			result{ran, err}.is(b, false, dlock.ErrInvalid, text)
			require.Zero(b, time.Since(begun), "no requests: %s", text)
		})
	}
	_, err := New(dlock.New(memory.New()), "job", time.Hour, Phase(0), nil).Do(t.Context(), day, never(t))
	require.ErrorContains(t, err, "invalid Option 2 of 2: nil")
	plain := struct{ dlock.Locker }{memory.New()}
	ran, err := New(dlock.New(plain), "job", time.Minute).Do(t.Context(), time.Now(), never(t))
	result{ran, err}.is(t, false, errors.ErrUnsupported)
	refusing := memory.New()
	refusing.Fail(&dlock.NoEffectError{Err: errors.New("WRONGPASS")})
	_, err = New(dlock.New(refusing), "job", time.Hour).Do(t.Context(), time.Now(), never(t))
	require.ErrorContains(t, err, "WRONGPASS", "at once")
	for _, options := range [][]dlock.Option{{dlock.WithMinHold(time.Hour)}, {dlock.WithMaxHold(time.Minute)}, {dlock.WithFence(true)},
		{dlock.WithRenewal(false), dlock.WithTTLFrom(func(string) time.Duration { return time.Second })}} {
		store := memory.New()
		ran, err := New(dlock.New(store, options...), "job", time.Hour).Do(t.Context(), day, work(0, nil))
		require.NoError(t, err)
		require.True(t, ran)
		hold, _ := store.Inspect(t.Context(), "job@2026-11-23T00:00:00.000Z")
		require.InDelta(t, (2 * time.Hour).Seconds(), hold.Remaining.Seconds(), 1, "of a mark, whatever the Client's options are")
		hold, _ = store.Inspect(t.Context(), "job")
		require.False(t, hold.Held)
	}
}

var (
	errFull     = &dlock.NoEffectError{Err: errors.New("OOM"), State: true}
	errPassword = &dlock.NoEffectError{Err: errors.New("WRONGPASS")}
)

// The store is full for a while: when a period begins, or when its work is over. The lock is renewed
// meanwhile. A Job that the store has served waits also if it is refused for another reason.
func TestFullStore(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 40 * time.Second, 3 * time.Minute} {
		for n := range 4 {
			inWork, served, why := n%2 == 1, n > 1, errFull
			inBubble(t, time.Minute, func(b *bed) {
				runs, due := 0, time.Now()
				if served {
					why = errPassword
				}
				full, _ := b.maxmemory(why)
				fill := func() { full.Store(true); time.AfterFunc(length, func() { full.Store(false) }) }
				replicas := []*Job{b.replica(), b.replica()}
				for _, j := range replicas {
					if served {
						b.do(j, due, counts(&runs))
					}
				}
				if due = due.Add(b.every); !inWork {
					time.Sleep(b.every)
					fill()
				}
				var results []<-chan result
				for _, j := range replicas {
					results = append(results, b.start(j, due, func(ctx context.Context, _ *dlock.Lease) error {
						of, ok := DueFromContext(ctx)
						require.True(b, ok && due.Equal(of))
						if runs++; inWork {
							fill()
						}
						return nil
					}))
					synctest.Wait()
				}
				want := 2
				for n, r := range results {
					switch got := <-r; {
					case length < b.every:
						require.NoError(b, got.err)
					case !inWork:
						require.ErrorContains(b, got.err, "once: job@2000-01-01T00:01:00.000Z: ")
						require.Equal(b, served, dlock.Refused(got.err), got.err)
						require.Equal(b, !served, errors.Is(got.err, dlock.ErrUnavailable), got.err)
						want = 1
					case n == 0:
						require.ErrorContains(b, got.err, "the work has succeeded, but is not marked: ")
						require.Equal(b, !served, errors.Is(got.err, dlock.ErrUnavailable), got.err)
					}
				}
				if !served {
					want--
				}
				require.Equal(b, want, runs)
			})
		}
	}
}

// When a new Job asks for the mark of the period, the store is busy for a while, or wants another password.
func TestBusyStore(t *testing.T) {
	inBubble(t, time.Minute, func(b *bed) {
		for _, says := range []error{errFull, errPassword} {
			b.Inspect = func() {
				b.Inspect = nil
				b.Memory.Fail(says)
				time.AfterFunc(5*time.Second, func() { b.Memory.Fail(nil) })
			}
			got := b.do(b.replica(), time.Now(), work(0, nil))
			require.Equal(b, says == errFull, got == done, got.err)
			require.Equal(b, says == errPassword, dlock.Refused(got.err), got.err)
			time.Sleep(b.every)
		}
	})
}

// maxmemory makes the store refuse all attempts while it is full, and count them.
func (b *bed) maxmemory(why error) (full *atomic.Bool, refused *atomic.Int32) {
	full, refused = new(atomic.Bool), new(atomic.Int32)
	b.Try = func(_ context.Context, _ string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
		if full.Load() {
			refused.Add(1)
			return dlock.Attempt{}, why
		}
		return call()
	}
	return full, refused
}

// A mark that is refused is asked for once a second, until ctx ends. If a full store is restarted, patience
// begins then.
func TestRefusedMark(t *testing.T) {
	inBubble(t, 24*time.Hour, func(b *bed) {
		due := time.Now()
		full, refused := b.maxmemory(errFull)
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		ran, err := b.replica().Do(ctx, due, does(func() { full.Store(true) }))
		result{ran, err}.is(b, true, "is not marked: ")
		require.InDelta(b, 70, refused.Load(), 2)
		require.InDelta(b, 70, time.Since(due).Seconds(), 2, "a minute, and its patience")
		full.Store(false)
		require.Equal(b, done, b.do(b.replica(), due, does(func() {
			full.Store(true)
			time.AfterFunc(time.Minute, func() { full.Store(false); b.Memory.Fail(errAway) })
			time.AfterFunc(time.Minute+time.Second, func() { b.Memory.Fail(nil) })
		})))
		require.Equal(b, nothing, b.do(b.replica(), due, never(b)))
	})
}

// A job that has given its lock up has not marked its period.
func TestLockThatIsGivenUp(t *testing.T) {
	for _, giveUp := range map[string]func(*dlock.Client, *dlock.Lease){
		"Release": func(_ *dlock.Client, l *dlock.Lease) { l.Release() },
		"Detach":  func(_ *dlock.Client, l *dlock.Lease) { l.Detach() },
		"Shutdown": func(c *dlock.Client, _ *dlock.Lease) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			c.Shutdown(ctx)
		},
	} {
		inBubble(t, time.Minute, func(b *bed) {
			c := dlock.New(b.Memory, dlock.WithTTL(ttl))
			got := b.do(New(c, "job", b.every), time.Now(), func(_ context.Context, l *dlock.Lease) error { giveUp(c, l); return nil })
			got.is(b, true, "is not marked: ")
			require.NoError(b, c.Close())
		})
	}
}

// If ctx ends in the look at the mark, the error is that of ctx.
func TestCancelledLook(t *testing.T) {
	for _, late := range []time.Duration{0, time.Hour} {
		inBubble(t, time.Minute, func(b *bed) {
			ctx, cancel := context.WithCancelCause(b.Context())
			b.Inspect = func() {
				b.Memory.Delay(2 * time.Second)
				time.AfterFunc(time.Second, func() { cancel(&dlock.LostError{Key: "another"}) })
			}
			_, err := b.replica().Do(ctx, time.Now().Add(-late), never(b))
			b.Memory.Delay(0)
			require.ErrorIs(b, err, context.Canceled)
			require.NotErrorIs(b, err, dlock.ErrLost)
			require.NotErrorIs(b, err, dlock.ErrUnavailable)
			time.Sleep(time.Minute) // the release that is owed may still be under way
		})
	}
}

// The store is away when a period begins, for all replicas, or goes away after it has granted the lock,
// for longer than the lock lasts.
func TestOutageBeforeTheRun(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 3 * ttl, 50 * time.Second, 2 * time.Minute} {
		for _, granted := range []bool{false, true} {
			inBubble(t, time.Minute, func(b *bed) {
				outage := func() { b.Memory.Fail(errAway); time.AfterFunc(length, func() { b.Memory.Fail(nil) }) }
				if b.Inspect = sync.OnceFunc(outage); !granted {
					b.Inspect()
				}
				var results []<-chan result
				runs, due := 0, time.Now()
				for range 5 {
					results = append(results, b.start(b.replica(), due, counts(&runs)))
				}
				for _, r := range results {
					if err := (<-r).err; length < b.every {
						require.NoError(b, err)
					} else {
						require.ErrorIs(b, err, dlock.ErrUnavailable)
					}
				}
				require.Equal(b, length < b.every, runs == 1)
			})
		}
	}
}

// The answers to the mark are lost for a while, or the store is away.
func TestUnansweredMark(t *testing.T) {
	for _, fault := range []func(*memory.Locker, error){(*memory.Locker).Fail, (*memory.Locker).FailReplies} {
		for length, ttl := range map[time.Duration]time.Duration{time.Millisecond: ttl, 700 * time.Millisecond: ttl, 5 * time.Second: ttl,
			9900 * time.Millisecond: ttl, 15 * time.Second: dlock.DefaultTTL, time.Minute: ttl} {
			inBubble(t, 10*time.Minute, func(b *bed) {
				due := time.Now()
				overrun := dlock.WithObserver(&dlock.Observer{ReleaseDone: func(_ context.Context, i dlock.ReleaseDoneInfo) {
					require.Zero(b, i.Overrun, "the work was over")
				}})
				got := b.do(New(dlock.New(b.Memory, dlock.WithTTL(ttl), overrun), "job", b.every), due, does(func() {
					fault(b.Memory, errAway)
					time.AfterFunc(length, func() { fault(b.Memory, nil) })
				}))
				switch {
				case length == time.Minute: // longer than the patience
					got.is(b, true, dlock.ErrUnavailable, "is not marked")
					require.NotErrorIs(b, got.err, context.DeadlineExceeded)
					return
				case length < ttl:
					require.Equal(b, done, got)
				default: // another may have run it before the mark
					got.is(b, true, dlock.ErrLost, "is marked")
				}
				time.Sleep(15 * time.Minute) // what is owed has been released
				require.Equal(b, nothing, b.do(b.replica(), due, never(b)))
			})
		}
	}
}

// "Held" means that another has marked the period: at once if all attempts were answered, so that
// the next period need not wait, and else after a while.
func TestMarkedByAnother(t *testing.T) {
	for _, opts := range [][]Option{nil, {AtMostOnce()}} {
		for every, wait := range map[time.Duration]time.Duration{time.Minute: patience, time.Second: time.Second} {
			inBubble(t, every, func(b *bed) {
				unanswered := 0
				b.Try = func(_ context.Context, key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
					if key != "job" { // after the look at the mark
						_, err := b.Memory.TryAcquire(b.Context(), key, "another", time.Hour)
						require.NoError(b, err)
						if unanswered--; unanswered >= 0 {
							return dlock.Attempt{}, errAway
						}
					}
					return call()
				}
				due := time.Now().Add(every / 2)
				require.Equal(b, result{opts == nil, nil}, b.do(b.replica(opts...), due, work(0, nil)))
				require.Equal(b, every/2, time.Until(due), "at once")
				unanswered = 1
				require.Equal(b, result{opts == nil, nil}, b.do(b.replica(opts...), due.Add(every), work(0, nil)))
				require.Equal(b, every/2-pause-wait, time.Until(due))
			})
		}
	}
}

// A grant of a stand-in counts neither as the lock nor as the mark.
func TestStandIn(t *testing.T) {
	for _, where := range []string{"job", "job@2000-01-01T00:00:00.000Z"} {
		inBubble(t, time.Minute, func(b *bed) {
			grants, runs, due := 0, 0, time.Now()
			b.Try = func(_ context.Context, key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
				if key == where && grants < 3 {
					grants++
					return dlock.Attempt{Acquired: true, Degraded: true}, nil
				}
				return call()
			}
			require.Equal(b, done, b.do(b.replica(), due, counts(&runs)))
			require.Equal(b, nothing, b.do(b.replica(), due, never(b)))
			require.Equal(b, []int{3, 1}, []int{grants, runs})
		})
	}
}

func TestAtMostOnce(t *testing.T) {
	inBubble(t, time.Minute, func(b *bed) {
		due, lost := time.Now(), 0
		b.Try = func(_ context.Context, key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
			a, err := call()
			if key != "job" && lost > 0 {
				lost--
				return dlock.Attempt{}, errAway
			}
			return a, err
		}
		require.Equal(b, failed(0, errBoom), b.do(b.replica(AtMostOnce()), due, work(0, errBoom)))
		require.Equal(b, nothing, b.do(b.replica(AtMostOnce()), due, never(b)), "a failure loses the period")

		due, lost = due.Add(time.Minute), 3
		require.Equal(b, done, b.do(b.replica(AtMostOnce()), due, work(0, nil)), "the mark was granted at last")

		due, lost = due.Add(time.Minute), 1000
		b.do(b.replica(AtMostOnce()), due, never(b)).is(b, false, dlock.ErrUnavailable)
	})
}

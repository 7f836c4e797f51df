package once

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
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

func counts(runs *int) function {
	return func(context.Context, *dlock.Lease) error { *runs++; return nil }
}

func never(t *testing.T) function {
	return func(context.Context, *dlock.Lease) error { t.Error("fn was called"); return nil }
}

// inBubble runs a test in virtual time. replica makes one more replica of a job.
func inBubble(t *testing.T, every time.Duration, f func(t *testing.T, store *memory.Locker, replica func(...Option) *Job)) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		f(t, store, func(opts ...Option) *Job {
			return New(dlock.New(store, dlock.WithTTL(ttl)), "job", every, opts...)
		})
	})
}

type result struct {
	ran bool
	err error
}

func start(t *testing.T, j *Job, due time.Time, fn function) <-chan result {
	done := make(chan result, 1)
	go func() {
		ran, err := j.Do(t.Context(), due, fn)
		done <- result{ran, err}
	}()
	return done
}

// A store with a fault in the calls that concern a key.
type faulty struct {
	dlock.Forward
	try     func(key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error)
	inspect func()
	longest time.Duration
	calls   atomic.Int32
}

func (f *faulty) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	f.calls.Add(1)
	call := func() (dlock.Attempt, error) { return f.Forward.TryAcquire(ctx, key, token, ttl) }
	if f.try == nil {
		return call()
	}
	return f.try(key, call)
}

func (f *faulty) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	f.calls.Add(1)
	if f.inspect != nil {
		f.inspect()
	}
	return f.Forward.Inspect(ctx, key)
}

func (f *faulty) LongestTTL() time.Duration {
	if f.longest > 0 {
		return f.longest
	}
	return f.Forward.LongestTTL()
}

func TestFailureThenSuccess(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, store *memory.Locker, replica func(...Option) *Job) {
		due := replica().Due(time.Now())
		var runs int
		fn := func(context.Context, *dlock.Lease) error {
			time.Sleep(time.Second)
			if runs++; runs < 3 {
				return errBoom
			}
			return nil
		}
		began := time.Now()
		var all []<-chan result
		for range 5 {
			all = append(all, start(t, replica(), due, fn))
			synctest.Wait()
		}
		for i, want := range []result{{true, errBoom}, {true, errBoom}, {true, nil}, {false, nil}, {false, nil}} {
			require.Equal(t, want, <-all[i], "replica %d", i)
		}
		require.Equal(t, 3*time.Second, time.Since(began), "each begins when the one before has failed")
		for _, late := range []time.Duration{5 * time.Minute, 4*time.Minute + 59*time.Second} { // a clock that is late
			time.Sleep(late)
			require.Equal(t, result{}, <-start(t, replica(), due, never(t)))
		}
		require.Equal(t, result{true, nil}, <-start(t, replica(), due.Add(time.Minute), work(0, nil)), "the next period")

		client := dlock.New(store)
		mark, err := client.Inspect(t.Context(), "job@2000-01-01T00:01:00.000Z")
		require.NoError(t, err)
		require.NoError(t, client.Break(t.Context(), mark))
		require.Equal(t, result{true, nil}, <-start(t, replica(), due.Add(time.Minute), work(0, nil)), "a mark that was removed")
	})
}

func TestPanic(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, _ *memory.Locker, replica func(...Option) *Job) {
		require.PanicsWithValue(t, "oops", func() {
			replica().Do(t.Context(), time.Now(), func(context.Context, *dlock.Lease) error { panic("oops") })
		})
		require.Equal(t, result{true, nil}, <-start(t, replica(), time.Now(), work(0, nil)))
	})
}

func TestDeathCostsOneTTL(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, store *memory.Locker, replica func(...Option) *Job) {
		_, err := store.TryAcquire(t.Context(), "job", "killed", ttl)
		require.NoError(t, err)
		began := time.Now()
		require.Equal(t, result{true, nil}, <-start(t, replica(), began, work(0, nil)))
		require.Equal(t, ttl, time.Since(began))
	})
}

// What fn returns after a loss does not count: it may have stopped because its ctx has ended.
func TestLoss(t *testing.T) {
	for _, returned := range []error{nil, errBoom} {
		inBubble(t, time.Minute, func(t *testing.T, store *memory.Locker, replica func(...Option) *Job) {
			due := time.Now()
			first := start(t, replica(), due, func(ctx context.Context, _ *dlock.Lease) error {
				<-ctx.Done()
				return returned
			})
			time.Sleep(time.Second)
			store.Expire("job")
			got := <-first
			require.Equal(t, result{true, nil}, <-start(t, replica(), due, work(0, nil)))
			require.True(t, got.ran)
			require.ErrorIs(t, got.err, dlock.ErrLost)
		})
	}
}

// The job has succeeded, although the caller's ctx has ended.
func TestCancelledAfterSuccess(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, _ *memory.Locker, replica func(...Option) *Job) {
		due := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		ran, err := replica().Do(ctx, due, func(context.Context, *dlock.Lease) error { cancel(); return nil })
		require.Equal(t, result{true, nil}, result{ran, err})
		ran, err = replica().Do(ctx, due.Add(time.Minute), never(t))
		require.False(t, ran)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, result{}, <-start(t, replica(), due, never(t)))
	})
}

func TestHeldUntilTheEndOfThePeriod(t *testing.T) {
	inBubble(t, 10*time.Second, func(t *testing.T, _ *memory.Locker, replica func(...Option) *Job) {
		due := time.Now()
		first := start(t, replica(), due, work(25*time.Second, nil))
		synctest.Wait()
		next := start(t, replica(), due.Add(10*time.Second), work(0, nil))
		skipped := <-start(t, replica(), due, never(t))
		require.Equal(t, 10*time.Second, time.Since(due))
		require.False(t, skipped.ran)
		require.ErrorIs(t, skipped.err, dlock.ErrHeld)
		require.ErrorContains(t, skipped.err, "job@2000-01-01T00:00:00.000Z: another run is not over")
		require.ErrorIs(t, (<-next).err, dlock.ErrHeld)
		require.Equal(t, 20*time.Second, time.Since(due))
		late := <-start(t, replica(), due, never(t)) // due + every has passed
		require.ErrorIs(t, late.err, dlock.ErrHeld)
		require.Equal(t, 20*time.Second, time.Since(due))
		require.Equal(t, result{true, nil}, <-first)
	})
}

// One replica runs a period early, and another hears of it late: the lock was held by a run of
// another period all the while.
func TestMarkOutlivesEachWait(t *testing.T) {
	const every = time.Hour
	inBubble(t, every, func(t *testing.T, _ *memory.Locker, replica func(...Option) *Job) {
		due := time.Now().Add(2 * every / 5)
		require.Equal(t, due, replica(Phase(2*every/5)).Due(time.Now()))
		require.Equal(t, result{true, nil}, <-start(t, replica(), due, work(0, nil)))
		before := start(t, replica(), due.Add(-every), work(85*time.Minute, nil))
		synctest.Wait()
		skewed := replica()
		skewed.now = func() time.Time { return time.Now().Add(-10 * time.Minute) }
		time.Sleep(45 * time.Minute)
		require.Equal(t, result{}, <-start(t, skewed, due, never(t)))
		require.Equal(t, result{true, nil}, <-before)
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
	for _, off := range []time.Duration{-time.Millisecond, time.Millisecond, -2 * time.Hour, 2 * time.Hour} {
		inBubble(t, 24*time.Hour, func(t *testing.T, store *memory.Locker, replica func(...Option) *Job) {
			time.Sleep(12*time.Hour + off)
			err := replica().Task(never(t))(t.Context())
			require.ErrorIs(t, err, dlock.ErrInvalid)
			require.ErrorContains(t, err, "use Phase(1")
			runs := 0
			for range 5 {
				replica(Phase(12*time.Hour)).Func(t.Context(), counts(&runs),
					func(err error) { t.Error(err) })()
			}
			require.Equal(t, 1, runs)
		})
	}
	inBubble(t, 24*time.Hour, func(t *testing.T, _ *memory.Locker, replica func(...Option) *Job) {
		time.Sleep(12*time.Hour - 3*time.Hour) // far enough
		var got error
		replica().Func(t.Context(), work(0, errBoom), func(err error) { got = err })()
		require.Equal(t, errBoom, got)
		replica().Func(t.Context(), work(0, errBoom), nil)()
	})
}

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
		store := &faulty{Forward: dlock.Forward{Locker: memory.New()}, longest: time.Hour}
		ran, err := New(dlock.New(store), c.name, c.every).Do(t.Context(), c.due, c.fn)
		require.False(t, ran)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, text)
		require.Zero(t, store.calls.Load(), "requests: %s", text)
	}
	plain := struct{ dlock.Locker }{memory.New()}
	ran, err := New(dlock.New(plain), "job", time.Minute).Do(t.Context(), time.Now(), never(t))
	require.False(t, ran)
	require.ErrorIs(t, err, errors.ErrUnsupported)
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

// The store is away when a period begins, for all replicas, or goes away after it has granted the lock,
// for longer than the lock lasts.
func TestOutageBeforeTheRun(t *testing.T) {
	const every = time.Minute
	for _, length := range []time.Duration{time.Second, 3 * ttl, 50 * time.Second, 2 * every} {
		for _, granted := range []bool{false, true} {
			inBubble(t, every, func(t *testing.T, store *memory.Locker, _ func(...Option) *Job) {
				fail := func() {
					store.Fail(errAway)
					time.AfterFunc(length, func() { store.Fail(nil) })
				}
				locker := &faulty{Forward: dlock.Forward{Locker: store}}
				if granted {
					locker.inspect = sync.OnceFunc(fail)
				} else {
					fail()
				}
				var results []<-chan result
				runs, due := 0, time.Now()
				for range 5 {
					results = append(results, start(t, New(dlock.New(locker, dlock.WithTTL(ttl)), "job", every), due, counts(&runs)))
				}
				for _, r := range results {
					if err := (<-r).err; length < every {
						require.NoError(t, err)
					} else {
						require.ErrorIs(t, err, dlock.ErrUnavailable)
					}
				}
				require.Equal(t, length < every, runs == 1)
			})
		}
	}
}

// The answers to the mark are lost for a while, or the store is away.
func TestUnansweredMark(t *testing.T) {
	for _, fault := range []func(*memory.Locker, error){(*memory.Locker).Fail, (*memory.Locker).FailReplies} {
		for length, ttl := range map[time.Duration]time.Duration{time.Millisecond: ttl, 700 * time.Millisecond: ttl, 5 * time.Second: ttl,
			9900 * time.Millisecond: ttl, 15 * time.Second: dlock.DefaultTTL, time.Minute: ttl} {
			inBubble(t, 10*time.Minute, func(t *testing.T, store *memory.Locker, replica func(...Option) *Job) {
				due := time.Now()
				first := New(dlock.New(store, dlock.WithTTL(ttl)), "job", 10*time.Minute)
				got := <-start(t, first, due, func(context.Context, *dlock.Lease) error {
					fault(store, errAway)
					time.AfterFunc(length, func() { fault(store, nil) })
					return nil
				})
				require.True(t, got.ran)
				if length == time.Minute { // longer than the patience
					require.ErrorIs(t, got.err, dlock.ErrUnavailable)
					require.NotErrorIs(t, got.err, context.DeadlineExceeded)
					require.ErrorContains(t, got.err, "is not marked")
					return
				}
				if length < ttl {
					require.NoError(t, got.err)
				} else {
					require.ErrorIs(t, got.err, dlock.ErrLost, "another may have run it before the mark")
				}
				time.Sleep(15 * time.Minute) // what is owed has been released
				require.Equal(t, result{}, <-start(t, replica(), due, never(t)))
			})
		}
	}
}

// "Held" means that another has marked the period: at once if all attempts were answered, so that
// the next period need not wait, and else after a while.
func TestMarkedByAnother(t *testing.T) {
	for _, opts := range [][]Option{nil, {AtMostOnce()}} {
		inBubble(t, time.Minute, func(t *testing.T, store *memory.Locker, _ func(...Option) *Job) {
			locker := &faulty{Forward: dlock.Forward{Locker: store}}
			unanswered := 0
			locker.try = func(key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
				if key != "job" { // after the look at the mark
					_, err := store.TryAcquire(t.Context(), key, "another", time.Hour)
					require.NoError(t, err)
					if unanswered--; unanswered >= 0 {
						return dlock.Attempt{}, errAway
					}
				}
				return call()
			}
			for every, wait := range map[time.Duration]time.Duration{time.Minute: patience, time.Second: time.Second} {
				j := New(dlock.New(locker, dlock.WithTTL(ttl)), "job", every, opts...)
				due := time.Now().Add(every / 2)
				require.Equal(t, result{opts == nil, nil}, <-start(t, j, due, work(0, nil)))
				require.Equal(t, every/2, time.Until(due), "at once")
				unanswered = 1
				require.Equal(t, result{opts == nil, nil}, <-start(t, j, due.Add(every), work(0, nil)))
				require.Equal(t, every/2-pause-wait, time.Until(due))
			}
		})
	}
}

// A grant of a stand-in counts neither as the lock nor as the mark.
func TestStandIn(t *testing.T) {
	for _, where := range []string{"job", "job@2000-01-01T00:00:00.000Z"} {
		inBubble(t, time.Minute, func(t *testing.T, store *memory.Locker, replica func(...Option) *Job) {
			grants, runs := 0, 0
			locker := &faulty{Forward: dlock.Forward{Locker: store}}
			locker.try = func(key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
				if key == where && grants < 3 {
					grants++
					return dlock.Attempt{Acquired: true, Degraded: true}, nil
				}
				return call()
			}
			j := New(dlock.New(locker, dlock.WithTTL(ttl)), "job", time.Minute)
			due := time.Now()
			got := <-start(t, j, due, counts(&runs))
			require.Equal(t, result{true, nil}, got)
			require.Equal(t, 3, grants)
			require.Equal(t, 1, runs)
			require.Equal(t, result{}, <-start(t, replica(), due, never(t)))
		})
	}
}

func TestAtMostOnce(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, store *memory.Locker, replica func(...Option) *Job) {
		due := time.Now()
		require.Equal(t, result{true, errBoom}, <-start(t, replica(AtMostOnce()), due, work(0, errBoom)))
		require.Equal(t, result{}, <-start(t, replica(AtMostOnce()), due, never(t)), "a failure loses the period")

		due = due.Add(time.Minute)
		locker := &faulty{Forward: dlock.Forward{Locker: store}}
		lost := 3
		locker.try = func(key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error) {
			a, err := call()
			if key != "job" && lost > 0 {
				lost--
				return dlock.Attempt{}, errAway
			}
			return a, err
		}
		j := New(dlock.New(locker, dlock.WithTTL(ttl)), "job", time.Minute, AtMostOnce())
		require.Equal(t, result{true, nil}, <-start(t, j, due, work(0, nil)), "the mark was granted at last")

		due, lost = due.Add(time.Minute), 1000
		got := <-start(t, j, due, never(t))
		require.False(t, got.ran)
		require.ErrorIs(t, got.err, dlock.ErrUnavailable)
	})
}

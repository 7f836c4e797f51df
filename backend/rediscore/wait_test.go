package rediscore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// checkIns returns the times between a waiter's check-ins in half a minute, if all have the same
// answer.
func checkIns(t *testing.T, subscribed bool, rank int64, holder string, rest int64) (between []time.Duration) {
	t.Helper()
	return checkInsFor(t, time.Minute, subscribed, rank, holder, rest)
}

func checkInsFor(t *testing.T, ttl time.Duration, subscribed bool, rank int64, holder string, rest int64) (between []time.Duration) {
	t.Helper()
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		f.eval = waitsAlways(rank, holder, rest)
		if !subscribed {
			f.listen = refuse
		}
		w := beginFor(t, l, "k", "t", ttl)
		n := len(f.evals(0)) - 1
		for start := time.Now(); time.Since(start) < 30*time.Second && len(f.evals(n)) < 100; {
			time.Sleep(10 * time.Millisecond)
		}
		for _, call := range f.evals(n + 1) {
			require.Equal(t, checkInScript, call.script)
			require.Equal(t, "t", call.args[0])
		}
		between = gaps(f.evals(n))
		w.cancel()
		require.True(t, w.isDone())
	})
	return between
}

// A waiter checks in about every two seconds, with jitter. It counts as alive even if one check-in
// is lost.
func TestCheckInPeriod(t *testing.T) {
	least, most := checkInPeriod-checkInJitter/2, checkInPeriod+checkInJitter/2
	require.Less(t, 2*most, 5*time.Second, "two periods, and the limit in queue.lua")
	for _, rest := range []int64{-1, 0, 1, 50_000} {
		gaps := checkIns(t, true, 2, "H", rest)
		require.GreaterOrEqual(t, slices.Min(gaps), least)
		require.LessOrEqual(t, slices.Max(gaps), most)
		require.Greater(t, slices.Max(gaps)-slices.Min(gaps), checkInJitter/4, "jitter")
	}
	for _, rank := range []int64{0, 1} {
		for _, rest := range []int64{-1, 50_000} {
			gaps := checkIns(t, true, rank, "H", rest)
			require.GreaterOrEqual(t, slices.Min(gaps), least)
			require.LessOrEqual(t, slices.Max(gaps), most)
		}
	}
}

// When a lease ends, the first waiter checks in, and then the second.
func TestCheckInAtExpiry(t *testing.T) {
	for _, c := range []struct {
		rank, rest int64
		want       time.Duration
	}{
		{0, 700, 701 * time.Millisecond},
		{0, 0, time.Millisecond},
		{1, 700, 701*time.Millisecond + expiryStagger},
	} {
		for _, gap := range checkIns(t, true, c.rank, "H", c.rest) {
			require.Equal(t, c.want, gap, "rank %d", c.rank)
		}
	}
}

// While the lock is reserved for a waiter without an inbox, the first two waiters check in more
// often.
func TestCheckInForFreeLock(t *testing.T) {
	for _, rank := range []int64{0, 1} {
		for _, gap := range checkIns(t, true, rank, "", -2) {
			require.Equal(t, reservePeriod, gap)
		}
	}
	require.GreaterOrEqual(t, slices.Min(checkIns(t, true, 2, "", -2)), checkInPeriod-checkInJitter/2)
}

// A waiter without an inbox checks in more often: the first waiter most often, and each often enough
// to count as alive.
func TestCheckInWithoutInbox(t *testing.T) {
	require.Less(t, 2*(maxUnsubscribed+unsubscribedPeriod), 3*time.Second)
	require.Less(t, maxUnsubscribed+unsubscribedPeriod, 2*time.Second, "the limit in queue.lua")
	for rank, least := range map[int64]time.Duration{0: unsubscribedPeriod, 1: 2 * unsubscribedPeriod, 4: 5 * unsubscribedPeriod, 9: maxUnsubscribed, 1000: maxUnsubscribed} {
		gaps := checkIns(t, false, rank, "H", 50_000)
		require.GreaterOrEqual(t, slices.Min(gaps), least, "rank %d", rank)
		require.Less(t, slices.Max(gaps), least+unsubscribedPeriod, "rank %d", rank)
		require.Greater(t, slices.Max(gaps), slices.Min(gaps), "jitter")
	}
	require.Equal(t, time.Millisecond, slices.Max(checkIns(t, false, 0, "H", 0)))
}

// The lock is reserved for a waiter without an inbox for at most its TTL. So the waiter checks in
// several times in its TTL, whatever its place, unless the TTL is extremely short.
func TestCheckInWithoutInboxForAShortTTL(t *testing.T) {
	for _, ttl := range []time.Duration{40 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		for _, rank := range []int64{0, 1, 9, 1000} {
			gaps := checkInsFor(t, ttl, false, rank, "H", 50_000)
			require.LessOrEqual(t, slices.Max(gaps), ttl/3, "TTL %v, rank %d", ttl, rank)
			require.Greater(t, slices.Max(gaps), slices.Min(gaps), "jitter")
		}
	}
	require.GreaterOrEqual(t, slices.Min(checkInsFor(t, time.Millisecond, false, 0, "H", 50_000)), minUnsubscribed)
	require.GreaterOrEqual(t, slices.Min(checkInsFor(t, 5*time.Second, false, 0, "H", 50_000)), unsubscribedPeriod)
}

// A waiter checks in at once when its inbox is opened or lost, with the address that it has then.
func TestCheckInWhenInboxChanges(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		open, lose := make(chan struct{}), make(chan struct{})
		f.listen = func(ctx context.Context, on func(Event)) error {
			select {
			case <-open:
			case <-ctx.Done():
				return ctx.Err()
			}
			on(Event{Kind: Subscribed})
			select {
			case <-lose:
			case <-ctx.Done():
			}
			return errDown
		}
		f.eval = waitsAlways(5, "H", -1)
		w := begin(t, l, "k", "t")
		address := "p" + f.listened()[0].channel
		require.Len(t, f.evals(0), 1)
		require.Equal(t, []string{"t", "60000", "", ""}, f.evals(0)[0].args)
		for range 3 {
			n := len(f.evals(0))
			open <- struct{}{}
			synctest.Wait()
			require.Len(t, f.evals(n), 1, "after the inbox was opened")
			require.Equal(t, []string{"t", address}, f.evals(n)[0].args)
			lose <- struct{}{}
			synctest.Wait()
			require.Len(t, f.evals(n), 2, "after the inbox was lost")
			require.Equal(t, []string{"t", ""}, f.evals(n)[1].args)
		}
		w.cancel()
		require.True(t, w.isDone())
	}, WithPrefix("p:"))
}

// The clock is forgotten when the inbox is lost: the next inbox may be on another server.
func TestClockEndsWithInbox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		answer := make(chan []any)
		f.set(func() { f.eval = answering(answer) })
		forceCheckIn(l, "t")
		synctest.Wait()
		f.grant(88, "t")
		require.False(t, w.isDone(), "a message before the answer")
		now := time.Now().UnixMicro()
		answer <- []any{int64(answerFound), int64(96), now - 1000, now}
		require.True(t, w.isDone())
		require.EqualValues(t, 96, w.attempt.Fence)
		require.WithinDuration(t, time.Now(), w.attempt.Since, 2*time.Millisecond)
	})
}

func answering(answers <-chan []any) func(context.Context, Call) (any, error) {
	return func(ctx context.Context, _ Call) (any, error) {
		select {
		case a := <-answers:
			return a, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// A message that overtakes an answer is dated by it, if the grant was made later. Any other message
// is of an earlier grant, or from another server, and only a hint to check in.
func TestMessageBeforeAnswer(t *testing.T) {
	const clock = 1_700_000_000_000_000
	for name, c := range map[string]struct {
		granted int64 // later than the answer, in microseconds
		before  bool  // the inbox changes before the message, while the call is on its way
		after   bool  // it changes after the message
		believe bool
	}{
		"later":                 {granted: 5000, believe: true},
		"just later":            {granted: 1, believe: true},
		"at the same time":      {granted: 0},
		"earlier":               {granted: -5000},
		"after a change":        {granted: 5000, before: true},
		"a change comes after":  {granted: 5000, after: true},
		"between two of these":  {granted: 5000, before: true, after: true},
		"earlier, and a change": {granted: -5000, after: true},
	} {
		for i := range 20 {
			noticed := i == 0 // else it may read first what came last
			bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
				answer := make(chan []any)
				w := begin(t, l, "k", "t")
				f.set(func() { f.eval = answering(answer) })
				forceCheckIn(l, "t")
				synctest.Wait()
				calls := f.evals(0)
				sent := calls[len(calls)-1].at
				time.Sleep(100 * time.Millisecond)
				change := func(is bool) {
					if is {
						forceCheckIn(l, "t")
					}
					if noticed {
						synctest.Wait()
					}
				}
				change(c.before)
				f.tell(fmt.Sprintf("88 %d t", clock+c.granted))
				synctest.Wait()
				require.False(t, w.isDone(), "%s: nothing is known of the server's clock", name)
				change(c.after)
				answer <- []any{int64(answerWaits), int64(fakeTicket), int64(0), int64(clock), "H", int64(60_000)}
				synctest.Wait()
				require.Equal(t, c.believe, w.isDone(), name)
				if !c.believe {
					require.Len(t, f.evals(len(calls)), 1, "%s: it checks in at once", name)
					w.cancel()
					return
				}
				since := sent.Add(time.Duration(c.granted)*time.Microsecond - time.Millisecond)
				require.Equal(t, dlock.Attempt{Acquired: true, Fence: 88, Since: since}, w.attempt, name)
				require.Len(t, f.evals(0), len(calls), "%s: no call more", name)
			})
		}
	}
}

// A message waits for the answer to the call in flight, not to the next one: the server's clock may
// be set back.
func TestMessageBeforeFailure(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		fails := make(chan struct{})
		f.set(func() {
			f.eval = func(context.Context, Call) (any, error) { <-fails; return nil, errDown }
		})
		forceCheckIn(l, "t")
		synctest.Wait()
		f.tell(fmt.Sprintf("88 %d t", time.Now().UnixMicro()))
		synctest.Wait()
		f.set(func() {
			f.eval = always(func() []any {
				return []any{int64(answerWaits), int64(fakeTicket), int64(0), time.Now().Add(-time.Hour).UnixMicro(), "H", int64(60_000)}
			})
		})
		close(fails)
		time.Sleep(time.Second)
		require.False(t, w.isDone())
		w.cancel()
		require.True(t, w.isDone())
	})
}

// A wait takes note of a change of its inbox before it dates a message.
func TestChangeBeforeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clock = 1_700_000_000_000_000
		for _, changed := range []bool{false, true} {
			w := &wait{
				addressee: &addressee{changed: make(chan struct{}, 1)},
				timer:     time.NewTimer(time.Hour),
				early:     handover{fence: 88, time: clock + 1},
				again:     true,
			}
			if changed {
				w.addressee.changed <- struct{}{}
			}
			attempt := w.stillQueued(answer{sent: time.Now()}, []int64{fakeTicket, 0, clock, 60_000}, "H")
			require.Equal(t, !changed, attempt.Acquired)
			w.timer.Stop()
		}
	})
}

// An answer that was in flight when the inbox changed does not date a message either.
func TestClockOfAnswerUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		answer := make(chan []any)
		f.set(func() { f.eval = answering(answer) })
		forceCheckIn(l, "t")
		synctest.Wait()
		forceCheckIn(l, "t")
		synctest.Wait()
		answer <- waits(0, "H", 60_000)
		synctest.Wait()
		f.grant(88, "t")
		require.False(t, w.isDone(), "dated by the clock of what may be another server")
		answer <- []any{int64(answerFound), int64(88), int64(1), int64(1)}
		require.True(t, w.isDone())
		require.NoError(t, w.err)
	})
}

// A message is dated by the last answer: the time of its call, plus what the server's clock has moved
// since, less a millisecond.
func TestMessageIsDated(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		const clock = 1_700_000_000_000_000 // any other than ours
		f.eval = func(context.Context, Call) (any, error) {
			time.Sleep(200 * time.Millisecond)
			return []any{int64(answerWaits), int64(fakeTicket), int64(0), int64(clock), "H", int64(60_000)}, nil
		}
		w := begin(t, l, "k", "t")
		time.Sleep(time.Second)
		calls := f.evals(0)
		sent := calls[len(calls)-1].at
		f.tell("88 1700000000700000 t")
		require.True(t, w.isDone())
		want := dlock.Attempt{Acquired: true, Fence: 88, Since: sent.Add(699 * time.Millisecond)}
		require.NoError(t, w.err)
		require.Equal(t, want, w.attempt)
		time.Sleep(200 * time.Millisecond)
	})
}

// A grant that a check-in finds is dated in the same way. A grant that is made in the answer is dated
// from the time of the call.
func TestAnswersAreDated(t *testing.T) {
	for _, c := range []struct {
		answer []any
		since  time.Duration
	}{
		{[]any{int64(answerFound), int64(88), int64(5_000_000), int64(5_300_000)}, -301 * time.Millisecond},
		{[]any{int64(answerGranted), int64(88)}, 0},
	} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			var called time.Time
			f.eval = func(_ context.Context, call Call) (any, error) {
				if call.Script == enqueueScript {
					return waits(0, "H", 60_000), nil
				}
				called = time.Now()
				time.Sleep(time.Second)
				return c.answer, nil
			}
			w := begin(t, l, "k", "t")
			time.Sleep(2 * time.Second)
			require.True(t, w.isDone())
			require.Equal(t, dlock.Attempt{Acquired: true, Fence: 88, Since: called.Add(c.since)}, w.attempt)
		})
	}
}

// A waiter that has lost its place goes back into the queue at once, with its ticket.
func TestBackIntoTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		n := len(f.evals(0))
		f.set(func() {
			f.eval = func(_ context.Context, call Call) (any, error) {
				if call.Script == checkInScript {
					return []any{int64(answerUnknown)}, nil
				}
				return waits(0, "H", 60_000), nil
			}
		})
		time.Sleep(checkInPeriod + checkInJitter)
		synctest.Wait()
		calls := f.evals(n)
		require.Len(t, calls, 2)
		require.Equal(t, checkInScript, calls[0].script)
		require.Equal(t, enqueueScript, calls[1].script)
		require.Equal(t, calls[0].at, calls[1].at)
		require.Equal(t, []string{"t", "60000", "p" + f.listened()[0].channel, "4800"}, calls[1].args)
		w.cancel()
		require.True(t, w.isDone())
	})
}

// A waiter whose token was released does not go back into the queue: it would be served before others
// in the place of a wait that is over.
func TestReleasedStaysOutOfTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		first, second := begin(t, l, "k", "t"), begin(t, l, "k", "t")
		f.set(func() {
			f.eval = func(_ context.Context, call Call) (any, error) {
				switch call.Script {
				case releaseScript:
					return int64(0), nil
				case checkInScript:
					return []any{int64(answerUnknown)}, nil
				}
				return waits(0, "H", 60_000), nil
			}
		})
		_, err := l.Release(t.Context(), "k", "t")
		require.NoError(t, err)
		n := len(f.evals(0))
		time.Sleep(checkInPeriod + checkInJitter)
		require.True(t, first.isDone())
		require.True(t, second.isDone())
		require.ErrorIs(t, first.err, dlock.ErrReleased)
		require.ErrorIs(t, second.err, dlock.ErrReleased)
		for _, call := range f.evals(n) {
			require.NotEqual(t, enqueueScript, call.script)
		}
	})
}

// While a waiter goes back into the queue, a message may be of an earlier grant. The answer counts.
func TestMessageOnTheWayBack(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		answer := make(chan []any)
		f.set(func() { f.eval = answering(answer) })
		time.Sleep(checkInPeriod + checkInJitter)
		answer <- []any{int64(answerUnknown)}
		synctest.Wait()
		f.grant(88, "t")
		require.False(t, w.isDone())
		answer <- []any{int64(answerGranted), int64(96)}
		require.True(t, w.isDone())
		require.EqualValues(t, 96, w.attempt.Fence)
	})
}

// Errors are returned until the store has answered once. After that the wait goes on, with growing
// pauses.
func TestWaitSurvivesFailures(t *testing.T) {
	down := func(context.Context, Call) (any, error) { return nil, errDown }
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		f.eval = down
		w := begin(t, l, "k", "t")
		require.True(t, w.isDone())
		require.ErrorIs(t, w.err, errDown)
		require.Len(t, f.evals(0), 1)
	})
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		for range 2 {
			jitter := false
			f.set(func() { f.eval = down })
			n := len(f.evals(0))
			time.Sleep(10 * time.Second)
			pauses := gaps(f.evals(n))
			want := []time.Duration{200, 400, 800, 1600, 1600}
			require.Greater(t, len(pauses), len(want))
			for i := range want {
				pause := want[i] * time.Millisecond
				require.True(t, pause/2 <= pauses[i] && pauses[i] <= pause, "pause %d: %v", i, pauses[i])
				jitter = jitter || pauses[i] != pause
			}
			require.True(t, jitter)
			f.set(func() { f.eval = waitsAlways(0, "H", 60_000) })
			time.Sleep(2 * time.Second)
		}
		require.False(t, w.isDone())
		f.grant(88, "t")
		require.True(t, w.isDone())
		require.NoError(t, w.err)
	})
}

// When ctx ends, the wait ends at once, even if a call hangs, and returns the last answer. The call
// is limited to five seconds.
func TestWaitEndsWithContext(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		answered := time.Now()
		w := begin(t, l, "k", "t")
		var took time.Duration
		f.set(func() {
			f.eval = func(ctx context.Context, _ Call) (any, error) {
				start := time.Now()
				<-ctx.Done()
				took = time.Since(start)
				return nil, ctx.Err()
			}
		})
		n := len(f.evals(0))
		time.Sleep(3 * time.Second)
		require.Len(t, f.evals(n), 1, "calls while one hangs")
		start := time.Now()
		w.cancel()
		require.True(t, w.isDone())
		require.Zero(t, time.Since(start))
		require.ErrorIs(t, w.err, context.Canceled)
		require.Equal(t, dlock.Attempt{Since: answered, Holder: "H", Remaining: time.Minute}, w.attempt)
		require.NoError(t, l.Close())
		require.Equal(t, callLimit, took)
	})
}

// When ctx ends, the wait returns when the server last answered, and why the last call failed or that
// it had no reply.
func TestWaitTellsWhatFailed(t *testing.T) {
	hang := func(ctx context.Context, _ Call) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
	refuse := func(context.Context, Call) (any, error) { return nil, io.ErrUnexpectedEOF }
	for _, c := range []struct {
		name string
		eval func(context.Context, Call) (any, error)
		wait time.Duration
		text string
		is   error
	}{
		{"nothing", nil, 10 * time.Second, "context canceled", context.Canceled},
		{"hangs a little", hang, checkInPeriod + 500*time.Millisecond, "context canceled", context.Canceled},
		{"hangs", hang, checkInPeriod + 1700*time.Millisecond, "context canceled: no reply for 1.", context.Canceled},
		{"refuses", refuse, 10 * time.Second, "context canceled: unexpected EOF", io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
				answered := time.Now()
				w := begin(t, l, "k", "t")
				if c.eval != nil {
					f.set(func() { f.eval = c.eval })
				}
				time.Sleep(c.wait)
				w.cancel()
				require.True(t, w.isDone())
				require.ErrorIs(t, w.err, context.Canceled)
				require.ErrorIs(t, w.err, c.is)
				require.True(t, strings.HasPrefix(w.err.Error(), c.text), w.err)
				require.NotEmpty(t, w.attempt.Holder)
				if c.eval != nil {
					require.Equal(t, answered, w.attempt.Since)
				} else {
					require.WithinDuration(t, time.Now(), w.attempt.Since, checkInPeriod+checkInJitter)
				}
			})
		})
	}
}

// Close ends waits and releases their tokens. Their callers will not, because ErrClosed tells them
// that nothing was sent.
func TestWaitEndsWithClose(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		n := len(f.evals(0))
		f.set(func() { f.eval = func(context.Context, Call) (any, error) { return int64(0), nil } })
		require.NoError(t, l.Close())
		require.True(t, w.isDone())
		require.ErrorIs(t, w.err, dlock.ErrClosed)
		require.Len(t, f.evals(n), 1)
		require.Equal(t, releaseScript, f.evals(n)[0].script)
		require.Equal(t, []string{"t"}, f.evals(n)[0].args)
		_, err := l.Acquire(t.Context(), "k", "t", time.Minute)
		require.ErrorIs(t, err, dlock.ErrClosed)
	})
}

// When Close returns, nothing is in flight, so that the client can be closed: what was queued or
// granted has been released.
func TestCloseGivesBackFirst(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		var queued, closed atomic.Bool
		f.eval = func(_ context.Context, call Call) (any, error) {
			time.Sleep(map[*Script]time.Duration{enqueueScript: 2 * time.Second, releaseScript: time.Second / 2}[call.Script])
			require.False(t, closed.Load(), "a call after Close")
			queued.Store(call.Script != releaseScript)
			return waits(0, "H", 60_000), nil
		}
		w := begin(t, l, "k", "t")
		time.Sleep(time.Second / 2) // the enqueue is on its way
		require.NoError(t, l.Close())
		closed.Store(true)
		require.False(t, queued.Load(), "the token is in the queue when Close has returned")
		require.True(t, w.isDone())
		require.ErrorIs(t, w.err, dlock.ErrClosed)
		time.Sleep(time.Hour)
	})
}

// A check-in found the grant, and its message comes during the release of the lease. The inbox must
// not release it too: the release in flight would find nothing, and the lease would count as lost.
// If the release in flight finds nothing, the message may be of a later grant, which is released.
func TestMessageDuringTheRelease(t *testing.T) {
	for held, want := range map[bool]int64{true: 1, false: 2} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			var checkIns, releases atomic.Int64
			f.eval = func(_ context.Context, call Call) (any, error) {
				switch call.Script {
				case checkInScript:
					if checkIns.Add(1) > 1 {
						return []any{int64(answerFound), int64(7), int64(1), int64(2)}, nil
					}
				case releaseScript:
					if releases.Add(1) == 1 {
						f.tell("7 1 t")
						time.Sleep(time.Second)
						return map[bool]int64{true: 1}[held], nil
					}
					return int64(0), nil
				}
				return waits(0, "H", 60_000), nil
			}
			_, err := l.Acquire(t.Context(), "k", "t", time.Minute)
			require.NoError(t, err)
			was, err := l.Release(t.Context(), "k", "t")
			require.NoError(t, err)
			require.Equal(t, held, was, "the answer of the release")
			synctest.Wait()
			require.Equal(t, want, releases.Load())
		})
	}
}

func TestWaitRefusesNonsense(t *testing.T) {
	for _, reply := range []any{
		nil, "OK", int64(1), []any{}, []any{"x"}, []any{int64(4)}, []any{int64(-1)},
		[]any{int64(answerGranted)}, []any{int64(answerGranted), int64(1), int64(2)},
		[]any{int64(answerWaits), int64(1), int64(2), int64(3), "H"},
		[]any{int64(answerFound), int64(1)}, []any{int64(answerUnknown), int64(1)},
	} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			f.eval = func(context.Context, Call) (any, error) { return reply, nil }
			w := begin(t, l, "k", "t")
			require.True(t, w.isDone(), "%v", reply)
			require.ErrorIs(t, w.err, errUnexpected, "%v", reply)
		})
	}
}

// A Locker with WithQueue(false) sends no enqueue. Nothing is sent if the arguments or ctx forbid it.
func TestNothingIsSent(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx   context.Context
		token string
		opts  []Option
		want  error
	}{
		{context.Background(), "t", []Option{WithQueue(false)}, errors.ErrUnsupported},
		{ended, "t", nil, context.Canceled},
		{context.Background(), "", nil, dlock.ErrInvalid},
	} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			_, err := l.Acquire(c.ctx, "k", c.token, time.Minute)
			require.ErrorIs(t, err, c.want)
			synctest.Wait()
			require.Empty(t, f.evals(0))
			require.Empty(t, f.listened())
		}, c.opts...)
	}
}

// The errors of an attempt and of a wait say that a server is too old.
func TestTooOldAServer(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		refusal := errors.New("ERR Error running script (call to f_5f45): @user_script:44: @user_script: 44: " +
			"Write commands are not allowed after non deterministic commands.")
		f.eval = func(context.Context, Call) (any, error) { return nil, refusal }
		_, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.ErrorIs(t, err, refusal)
		require.ErrorContains(t, err, "before Redis 5")
		w := begin(t, l, "k", "t")
		require.True(t, w.isDone())
		require.ErrorContains(t, w.err, "before Redis 5")
	})
}

// A waiter whose user may not check in gets an error, and does not wait forever.
func TestCheckInIsDenied(t *testing.T) {
	for _, text := range []string{
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"ERR The user executing the script can't run this command or subcommand script: 46d8, on @user_script:86.",
		"ERR ACL failure in script: User u has no permissions to run the 'hget' command script: 46d8, on @user_script:86.",
	} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			w := begin(t, l, "k", "t")
			f.set(func() {
				f.eval = func(context.Context, Call) (any, error) { return nil, errors.New(text) }
			})
			time.Sleep(checkInPeriod + checkInJitter)
			require.True(t, w.isDone())
			require.ErrorIs(t, w.err, dlock.ErrInvalid)
			require.ErrorContains(t, w.err, text)
		})
	}
}

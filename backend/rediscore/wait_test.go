package rediscore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

var errDown = errors.New("down")

const forgedTicket = 4800

// waits is the answer "waits".
func waits(rank int64, holder string, rest int64) []any {
	return []any{int64(rediscore.AnswerWaits), int64(forgedTicket), rank, time.Now().UnixMicro(), holder, rest}
}

// answersWaits answers all calls with "waits".
func (a *actor) answersWaits(rank int64, holder string, rest int64) {
	a.answers(func(rediscore.Call) (any, error) { return waits(rank, holder, rest), nil })
}

func gaps(all []noted) (gaps []time.Duration) {
	for i := 1; i < len(all); i++ {
		gaps = append(gaps, all[i].at.Sub(all[i-1].at))
	}
	return gaps
}

// A waiter checks in about every two seconds, with jitter, so that it counts as alive even if one check-in is lost. The
// first two also do when a lease ends, one after the other, and more often while the lock is reserved for one without an
// inbox. Without an inbox, a waiter checks in more often, the first most often, and several times in its TTL, unless that is
// extremely short: the lock is reserved for it for no longer.
func TestCheckIns(t *testing.T) {
	const (
		usual, jitter   = rediscore.CheckInPeriod - rediscore.CheckInJitter/2, rediscore.CheckInJitter
		period, longest = rediscore.UnsubscribedPeriod, rediscore.MaxUnsubscribed
		end             = 701 * time.Millisecond
	)
	require.Less(t, 2*(usual+jitter), 5*time.Second, "two periods, and the limit in queue.lua")
	require.Less(t, longest+period, 2*time.Second, "the limit in queue.lua")
	for _, c := range []struct {
		inbox       bool
		ttl         time.Duration
		ranks       []int64
		holder      string
		rests       []int64
		least, most time.Duration // between two check-ins, if all have the same answer
	}{
		{true, ttl, []int64{2}, "H", []int64{-1, 0, 1, 50_000}, usual, usual + jitter},
		{true, ttl, []int64{0, 1}, "H", []int64{-1, 50_000}, usual, usual + jitter},
		{true, ttl, []int64{2}, "", []int64{-2}, usual, usual + jitter},
		{true, ttl, []int64{0}, "H", []int64{700}, end, end},
		{true, ttl, []int64{0}, "H", []int64{0}, time.Millisecond, time.Millisecond},
		{true, ttl, []int64{1}, "H", []int64{700}, end + rediscore.ExpiryStagger, end + rediscore.ExpiryStagger},
		{true, ttl, []int64{0, 1}, "", []int64{-2}, rediscore.ReservePeriod, rediscore.ReservePeriod},
		{false, ttl, []int64{0}, "H", []int64{50_000}, period, 2*period - 1},
		{false, ttl, []int64{1}, "H", []int64{50_000}, 2 * period, 3*period - 1},
		{false, ttl, []int64{4}, "H", []int64{50_000}, 5 * period, 6*period - 1},
		{false, ttl, []int64{9, 1000}, "H", []int64{50_000}, longest, longest + period - 1},
		{false, ttl, []int64{0}, "H", []int64{0}, time.Millisecond, time.Millisecond},
		{false, 40 * time.Millisecond, []int64{0, 1, 9, 1000}, "H", []int64{50_000}, rediscore.MinUnsubscribed, 40 * time.Millisecond / 3},
		{false, 200 * time.Millisecond, []int64{0, 1, 9, 1000}, "H", []int64{50_000}, rediscore.MinUnsubscribed, 200 * time.Millisecond / 3},
		{false, time.Second, []int64{0, 1, 9, 1000}, "H", []int64{50_000}, rediscore.MinUnsubscribed, time.Second / 3},
		{false, time.Millisecond, []int64{0}, "H", []int64{50_000}, rediscore.MinUnsubscribed, time.Second},
		{false, 5 * time.Second, []int64{0}, "H", []int64{50_000}, period, time.Second},
	} {
		for _, rank := range c.ranks {
			for _, rest := range c.rests {
				inScene(t, func(s *scene, a *actor) {
					a.answersWaits(rank, c.holder, rest)
					if !c.inbox {
						a.refuses(errDown)
					}
					w := a.acquireFor("k", "A", c.ttl)
					n := len(a.asked(0)) - 1
					for d := 10 * time.Millisecond; d < 30*time.Second && len(a.asked(n)) < 100; d *= 2 {
						time.Sleep(d)
					}
					for _, call := range a.asked(n + 1) {
						require.Equal(s, rediscore.CheckInScript, call.script())
						require.Equal(s, "A", call.args()[0])
					}
					between := gaps(a.asked(n))
					w.cancelled()
					require.LessOrEqual(s, c.least, slices.Min(between), "%+v", c)
					require.GreaterOrEqual(s, c.most, slices.Max(between), "%+v", c)
					if c.most > c.least && c.inbox {
						require.Greater(s, slices.Max(between)-slices.Min(between), jitter/4, "jitter, %+v", c)
					} else if c.most > c.least {
						require.Greater(s, slices.Max(between), slices.Min(between), "jitter, %+v", c)
					}
				})
			}
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
			inScene(t, func(s *scene, a *actor) {
				w := a.acquire("A")
				change := func(is bool) {
					if is {
						rediscore.ChangeInbox(a.Locker, "A")
					}
					if i == 0 { // else it may read first what came last
						synctest.Wait()
					}
				}
				checkIn := a.holdCall(rediscore.CheckInScript, "A")
				change(true)
				checkIn.Await()
				sent, calls := time.Now(), len(a.asked(0))
				time.Sleep(100 * time.Millisecond)
				change(c.before)
				a.tell(fmt.Sprintf("88 %d A", clock+c.granted))
				require.False(s, w.over(), "%s: nothing is known of the server's clock", name)
				answer := []any{int64(rediscore.AnswerWaits), int64(forgedTicket), int64(0), int64(clock), "H", int64(60_000)}
				change(c.after)
				checkIn.Return(answer, nil)
				require.Equal(s, c.believe, w.over(), name)
				if !c.believe {
					require.Len(s, a.asked(calls), 1, "%s: it checks in at once", name)
					return
				}
				since := sent.Add(time.Duration(c.granted)*time.Microsecond - time.Millisecond)
				require.Equal(s, dlock.Attempt{Acquired: true, Fence: 88, Since: since}, w.Attempt, name)
				require.Len(s, a.asked(0), calls, "%s: no call more", name)
			})
		}
	}
}

// A message is dated by the last answer: the time of its call, plus what the server's clock has moved since, less a
// millisecond. A grant that a check-in finds is dated in the same way. A grant that is made in the answer is dated from the
// time of the call. So the delay of a message or an answer is lost for the lease. The server may have any other clock.
func TestGrantsAreDated(t *testing.T) {
	const leg = 200 * time.Millisecond // of a round trip
	for _, how := range []string{"told", "told late", "found", "answered", "enqueued"} {
		inScene(t, func(s *scene, a *actor) {
			s.server.SetClock(-10 * time.Hour)
			s.hold("H")
			a.travels(sim.Fate{Request: sim.Leg{Delay: leg}, Reply: sim.Leg{Delay: leg}})
			if how == "enqueued" {
				s.expire()
			}
			w := a.acquire("A")
			time.Sleep(time.Second)
			var message *sim.Held
			switch how {
			case "found", "told late":
				message = a.holdMessage("A")
				fallthrough
			case "told":
				s.release("H")
			case "answered":
				s.expire()
			}
			want := time.Now().Add(-leg - time.Millisecond) // the server's clock was read a leg after the call
			if how == "told late" {
				time.Sleep(leg)
				message.Deliver()
			}
			<-w.done
			if asked := a.asked(0); how == "answered" || how == "enqueued" {
				want = asked[len(asked)-1].at
			}
			require.WithinDuration(s, want, w.granted().Since, time.Microsecond, how)
		})
	}
}

// Errors are returned until the store has answered once. After that the wait goes on, with growing pauses.
func TestWaitSurvivesFailures(t *testing.T) {
	inScene(t, func(s *scene, a *actor) {
		a.replies(nil, errDown)
		w := a.acquire("A")
		w.failed(errDown)
		require.Len(s, a.asked(0), 1)
	})
	inScene(t, func(s *scene, a *actor) {
		w := a.acquire("A")
		for range 2 {
			jitter := false
			a.replies(nil, errDown)
			n := len(a.asked(0))
			time.Sleep(10 * time.Second)
			pauses := gaps(a.asked(n))
			want := []time.Duration{200, 400, 800, 1600, 1600}
			require.Greater(s, len(pauses), len(want))
			for i := range want {
				pause := want[i] * time.Millisecond
				require.True(s, pause/2 <= pauses[i] && pauses[i] <= pause, "pause %d: %v", i, pauses[i])
				jitter = jitter || pauses[i] != pause
			}
			require.True(s, jitter)
			a.answers(nil)
			time.Sleep(2 * time.Second)
		}
		require.False(s, w.over())
		s.release("H")
		w.grantedNow()
	})
}

// When ctx ends, the wait returns when the server last answered, and why the last call failed or that it had no reply.
func TestWaitTellsWhatFailed(t *testing.T) {
	hang := func(a *actor) { a.travels(sim.Fate{Reply: sim.Leg{Lost: true}}) }
	for name, c := range map[string]struct {
		begin func(*actor)
		wait  time.Duration
		text  string
		is    error
	}{
		"nothing":        {nil, 10 * time.Second, "context canceled", context.Canceled},
		"hangs a little": {hang, rediscore.CheckInPeriod + 500*time.Millisecond, "context canceled", context.Canceled},
		"hangs":          {hang, rediscore.CheckInPeriod + 1700*time.Millisecond, "context canceled: no reply for 1.", context.Canceled},
		"refuses":        {func(a *actor) { a.replies(nil, io.ErrUnexpectedEOF) }, 10 * time.Second, "context canceled: unexpected EOF", io.ErrUnexpectedEOF},
	} {
		inScene(t, func(s *scene, a *actor) {
			w := a.acquire("A")
			if c.begin != nil {
				c.begin(a)
			}
			time.Sleep(c.wait)
			w.cancelled()
			require.ErrorIs(s, w.err, c.is, name)
			require.True(s, strings.HasPrefix(w.err.Error(), c.text), "%s: %v", name, w.err)
			require.NotEmpty(s, w.Holder)
			if c.begin != nil {
				require.Equal(s, w.began, w.Since, name)
			} else {
				require.WithinDuration(s, time.Now(), w.Since, checkInLatest)
			}
		})
	}
}

// A check-in found the grant, and its message comes during the release of the lease. The inbox must
// not release it too: the release in flight would find nothing, and the lease would count as lost.
// If the release in flight finds nothing, or fails, the message may be of a later grant, which is released.
func TestMessageDuringTheRelease(t *testing.T) {
	for name, want := range map[string]int{"held": 1, "not held": 2, "lost": 2} {
		inScene(t, func(s *scene, a *actor) {
			message := a.holdMessage("A")
			w := a.acquire("A")
			s.release("H")
			w.granted()
			if name == "not held" {
				s.expire()
			}
			release := a.holdCall(rediscore.ReleaseScript, "A")
			done := a.beginRelease("A")
			release.Await()
			message.Deliver()
			require.Equal(s, 1, a.calls(rediscore.ReleaseScript, "A"))
			if name == "lost" {
				release.Return(nil, errLost)
			} else {
				release.Answer()
			}
			r := <-done
			require.Equal(s, name == "held", r.Held, "the answer of the release")
			require.Equal(s, name == "lost", errors.Is(r.Err, errLost))
			require.Equal(s, want, a.calls(rediscore.ReleaseScript, "A"))
			require.Empty(s, s.holder())
			require.False(s, a.release("A"))
			require.Equal(s, want+1, a.calls(rediscore.ReleaseScript, "A"), "nothing more was missed")
		})
	}
}

// All waits of a room are for the store while the calls of the first fail or hang, and no longer when one is answered.
func TestWaitsForTheStore(t *testing.T) {
	for _, failure := range []error{errors.New("OOM"), errSilent} {
		inScene(t, func(s *scene, a *actor) {
			c := dlock.New(a.Locker)
			for range 5 {
				go func() { _, _ = c.Acquire(s.Context(), "k") }()
			}
			waiting := func(want int, after time.Duration) {
				time.Sleep(after)
				require.Equal(s, want, c.Stats().StoreWaiters, "%v after %v", failure, after)
			}
			waiting(0, 10*time.Second)
			a.replies(nil, failure)
			waiting(5, 10*time.Second)
			waiting(5, time.Hour)
			a.answers(nil)
			waiting(0, 10*time.Second)
			require.Equal(s, 5, c.Stats().Waiters+c.Stats().Leases)
			require.NoError(s, c.Close())
		})
	}
}

// What waits do.
var waitings = scenes{
	"A waiter checks in at once when its inbox is opened or lost, with the address that it has then": func(s *scene, a *actor) {
		subscription := a.holdSubscription()
		w := a.acquire("A")
		require.Len(s, a.asked(0), 1)
		require.Equal(s, []string{"A", "60000", "", ""}, a.asked(0)[0].args()[:4])
		for range 3 {
			n := len(a.asked(0))
			subscription.Answer()
			require.Len(s, a.asked(n), 1, "after the inbox was opened")
			require.Equal(s, []string{"A", "p" + a.inbox().Channel}, a.asked(n)[0].args())
			subscription = a.holdSubscription()
			a.conn.Cut()
			require.Len(s, a.asked(n), 2, "after the inbox was lost")
			require.Equal(s, []string{"A", ""}, a.asked(n)[1].args())
			time.Sleep(time.Second)
		}
		subscription.Answer()
		time.Sleep(time.Millisecond)
		s.release("H")
		w.grantedNow()
	},
	"A message waits for the answer to the call in flight, not to the next one: the server's clock may be set back": func(s *scene, a *actor) {
		w := a.acquire("A")
		checkIn := a.holdCall(rediscore.CheckInScript, "A")
		rediscore.ChangeInbox(a.Locker, "A")
		checkIn.Await()
		a.grant(88, "A")
		s.server.SetClock(-time.Hour)
		checkIn.Return(nil, errDown)
		time.Sleep(time.Second)
		require.Greater(s, a.calls(rediscore.CheckInScript, "A"), 2)
		require.False(s, w.over())
	},
	"An answer that was in flight when the inbox changed may come from another server, and does not date a message": func(s *scene, a *actor) {
		// The message is only a hint, but it came: so the inbox works, and is not opened again.
		w := a.acquire("A")
		first := a.holdCall(rediscore.CheckInScript, "A")
		rediscore.ChangeInbox(a.Locker, "A")
		first.Execute()
		rediscore.ChangeInbox(a.Locker, "A")
		s.server.SetClock(2 * time.Second)
		second := a.holdCall(rediscore.CheckInScript, "A")
		first.Answer()
		second.Await()
		time.Sleep(time.Millisecond)
		s.release("H")
		require.False(s, w.over(), "dated by the clock of what may be another server")
		second.Answer()
		require.True(s, w.over())
		require.WithinDuration(s, time.Now(), w.granted().Since, 3*time.Millisecond)
		a.acquire("B")
		time.Sleep(20 * time.Second)
		require.Len(s, a.listened(), 1)
	},
	"While a waiter goes back into the queue, a message may be of an earlier grant. The answer counts": func(s *scene, a *actor) {
		w := a.acquire("A")
		s.release("A")
		enqueue := a.holdCall(rediscore.EnqueueScript, "A")
		time.Sleep(checkInLatest)
		enqueue.Await()
		a.grant(88, "A")
		require.False(s, w.over())
		s.release("H")
		enqueue.Answer()
		w.grantedNow()
	},
	"When ctx ends, the wait ends at once, even if a call hangs, and returns the last answer": func(s *scene, a *actor) {
		// The call is limited to five seconds.
		w := a.acquire("A")
		n, answered := len(a.asked(0)), w.began
		a.travels(sim.Fate{Reply: sim.Leg{Lost: true}})
		time.Sleep(3 * time.Second)
		require.Len(s, a.asked(n), 1, "calls while one hangs")
		w.cancelled()
		require.Equal(s, dlock.Attempt{Since: answered, Holder: "H", Remaining: time.Minute}, w.Attempt)
		require.NoError(s, a.Close())
		require.Equal(s, rediscore.CallLimit, time.Since(a.asked(n)[0].at))
	},
	"When Close returns, nothing is in flight, so that the client can be closed: what was queued or granted has been released": func(s *scene, a *actor) {
		a.travels(sim.Fate{Request: sim.Leg{Delay: 2 * time.Second}})
		w := a.acquire("A")
		require.NoError(s, a.Close())
		w.failed(dlock.ErrClosed)
		require.Equal(s, 1, a.calls(rediscore.EnqueueScript, "A"))
		require.Empty(s, s.queue(), "the token is in the queue when Close has returned")
		n := len(a.asked(0))
		time.Sleep(time.Hour)
		require.Empty(s, a.asked(n), "calls after Close")
		require.Empty(s, s.queue())
	},
	"A wait whose inbox cannot be opened is counted once, and one whose inbox is late, as after an outage, is not": func(s *scene, a *actor) {
		c := dlock.New(a.Locker)
		var told []error
		c = c.With(dlock.WithObserver(&dlock.Observer{InboxMissing: func(_ context.Context, i dlock.InboxMissingInfo) { told = append(told, i.Err) }}))
		go func() { _, _ = c.Acquire(s.Context(), "k") }()
		time.Sleep(10 * time.Second)
		a.replies(nil, errDown)
		a.refuses(errDown)
		a.conn.Cut()
		time.Sleep(time.Minute)
		a.answers(nil)
		a.refuses(nil)
		time.Sleep(time.Minute)
		require.Zero(s, c.Stats().WaitsWithoutInbox)
		require.Equal(s, 1, c.Stats().Leases, "that of H has ended")
		a.refuses(errDown)
		a.conn.Cut()
		for range 3 {
			go func() { _, _ = c.Acquire(s.Context(), "k") }()
		}
		time.Sleep(time.Minute)
		require.EqualValues(s, 3, c.Stats().WaitsWithoutInbox)
		require.Equal(s, []error{errDown, errDown, errDown}, told)
		require.NoError(s, c.Close())
	},
}

func TestWaitings(t *testing.T) { waitings.play(t) }

package rediscore

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// requireClean fails unless the lock is free and has no waiters, also after the Lockers have
// finished everything in progress.
func (s *scene) requireClean(lockers ...*Locker) {
	s.Helper()
	for _, l := range lockers {
		require.NoError(s, l.Close())
	}
	require.Empty(s, s.holder())
	require.Empty(s, s.queue())
}

func (w *waiting) releaseBy(l *Locker) {
	w.Helper()
	held, err := l.Release(w.Context(), w.key, w.token)
	require.NoError(w, err)
	require.True(w, held, "%q held the lock", w.token)
}

// The plain case: a release hands the lock over, with one message.
func TestHandover(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	checkIns := stage.calls(checkInScript, "A")
	before, err := strconv.ParseInt(s.text(t, "GET", s.lock.texts[1]), 10, 64)
	require.NoError(t, err)
	s.release("H")
	require.GreaterOrEqual(t, w.granted().Fence, before+8)
	require.LessOrEqual(t, stage.calls(checkInScript, "A"), checkIns+2, "it checks in every two seconds, not for this")
	w.releaseBy(a)
	s.requireClean(a)
}

// An enqueue that is delivered twice makes one place in the queue.
func TestEnqueueTwiceWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	b, _ := s.enter()
	enqueue := stage.intercept(enqueueScript)
	w := s.acquire(a, "A")
	first := enqueue.await().execute()
	other := s.acquire(b, "B").listening()
	enqueue.answer(first)
	w.listening()
	again := enqueue.execute().([]any)
	require.Equal(t, first.([]any)[:3], again[:3], "state, ticket and rank")
	require.Equal(t, []string{"A", "B"}, s.queue())
	forceCheckIn(a, "A")
	w.listening() // which the late enqueue did not know of
	s.release("H")
	w.granted()
	enqueue.execute()
	require.Equal(t, []string{"B"}, s.queue(), "when it holds the lock")
	w.releaseBy(a)
	other.granted()
	other.releaseBy(b)
	s.requireClean(a, b)
}

// An enqueue that is delivered after the release of its token queues the token again. Its grant is
// released at once.
func TestEnqueueAfterRelease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	b, _ := s.enter()
	s.acquire(a, "first").listening().cancel() // so that the inbox is open
	s.release("first")
	enqueue := stage.interceptOf("A", enqueueScript)
	w := s.acquire(a, "A")
	enqueue.answer(enqueue.await().execute())
	w.listening()
	s.release("H")
	w.granted()
	w.releaseBy(a)
	s.hold("H2")
	enqueue.execute()
	require.Equal(t, []string{"A"}, s.queue())
	next := s.acquire(b, "B").listening()
	s.release("H2")
	next.granted()
	require.Empty(t, s.queue())
	next.releaseBy(b)
	s.requireClean(a, b)
}

// The wait of a token is cancelled while its enqueue is in flight.
func TestEnqueueAfterCancel(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	b, _ := s.enter()
	s.acquire(a, "first").listening().cancel()
	s.release("first")
	enqueue := stage.interceptOf("A", enqueueScript)
	w := s.acquire(a, "A")
	enqueue.await()
	w.cancel()
	w.ended()
	require.ErrorIs(t, w.err, context.Canceled)
	s.release("A")
	enqueue.execute()
	enqueue.lose()
	next := s.acquire(b, "B").listening()
	require.Equal(t, []string{"A", "B"}, s.queue())
	s.release("H")
	next.granted()
	next.releaseBy(b)
	s.requireClean(a, b)
}

// An enqueue of a cancelled wait arrives after the release of its token. When the release returns,
// it has left neither a place nor a lease, whether its answer comes before or after that of the
// release. An answer that comes before the release causes no second release.
func TestEnqueueAfterReleaseOfCancelled(t *testing.T) {
	t.Parallel()
	for _, free := range []bool{false, true} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("free=%v/early=%v", free, early), func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				a, stage := s.enter()
				enqueue, release := stage.intercept(enqueueScript), stage.intercept(releaseScript)
				w := s.acquire(a, "A")
				enqueue.await()
				w.cancel()
				w.ended()
				if free {
					s.release("H")
				}
				released := make(chan bool, 1)
				go func() {
					held, err := a.Release(t.Context(), s.key, "A")
					require.NoError(t, err)
					released <- held
				}()
				none := release.await().execute()
				reply := enqueue.execute()
				if early {
					enqueue.answer(reply)
					time.Sleep(10 * time.Millisecond)
				}
				release.answer(none)
				if !early {
					time.Sleep(10 * time.Millisecond)
					require.Empty(t, released)
					enqueue.answer(reply)
				}
				require.Equal(t, free, <-released)
				require.NotEqual(t, "A", s.holder())
				require.Empty(t, s.queue())
				require.Equal(t, 2, stage.calls(releaseScript, "A"))
				if !free {
					s.release("H")
				}
				s.requireClean(a)
			})
		}
	}
}

func TestEnqueueBeforeRelease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	enqueue := stage.intercept(enqueueScript)
	w := s.acquire(a, "A")
	enqueue.await()
	w.cancel()
	w.ended()
	enqueue.answer(enqueue.execute())
	s.eventually(func() bool {
		a.post.mu.Lock()
		defer a.post.mu.Unlock()
		return a.post.tokens["A"].answered == nil
	}, "the answer has come")
	_, err := a.Release(t.Context(), s.key, "A")
	require.NoError(t, err)
	s.release("H")
	s.requireClean(a)
	require.Equal(t, 1, stage.calls(releaseScript, "A"))
}

// A message for a former acquisition of a token does not end the present one.
func TestTokenIsUsedAgain(t *testing.T) {
	t.Parallel()
	message := func(s *scene, a *Locker, stage *interceptConn) func() {
		stage.silence(true)
		w := s.acquire(a, "A").listening()
		s.release("H")
		deliver := stage.message()
		w.cancel()
		w.ended()
		return deliver
	}
	for name, former := range map[string]func(s *scene, a *Locker, stage *interceptConn) (tell func()){
		"message":       message,
		"message, vote": message,
		"answer": func(s *scene, a *Locker, stage *interceptConn) func() {
			enqueue := stage.intercept(enqueueScript)
			w := s.acquire(a, "A")
			enqueue.await()
			w.cancel()
			w.ended()
			s.release("H")
			reply := enqueue.execute()
			return func() { enqueue.answer(reply) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			a, stage := s.enter()
			tell := former(s, a, stage)
			held, err := a.Release(t.Context(), s.key, "A")
			require.NoError(t, err)
			require.True(t, held)
			if name == "message, vote" {
				require.True(t, vote(t, a, s.key, "A", 0).Fresh)
			} else {
				attempt, err := a.TryAcquire(t.Context(), s.key, "A", time.Minute)
				require.NoError(t, err)
				require.True(t, attempt.Acquired)
			}
			tell()
			time.Sleep(50 * time.Millisecond)
			require.Equal(t, "A", s.holder())
			s.release("A")
			s.requireClean(a)
		})
	}
}

// The message of a grant comes after the release of its token, so the token is released once more in
// the background. A later acquisition of the same token waits for that: it would end the new lease.
func TestTokenIsUsedDuringItsRelease(t *testing.T) {
	t.Parallel()
	for name, acquire := range map[string]func(ctx context.Context, l *Locker) (dlock.Attempt, error){
		"TryAcquire": func(ctx context.Context, l *Locker) (dlock.Attempt, error) {
			return l.TryAcquire(ctx, "k", "A", time.Minute)
		},
		"Acquire": func(ctx context.Context, l *Locker) (dlock.Attempt, error) {
			return l.Acquire(ctx, "k", "A", time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			a, stage := s.enter()
			release := func(lost bool) {
				stage.silence(true)
				w := s.acquire(a, "A").listening()
				s.release(s.holder())
				message := stage.message()
				w.cancel()
				w.ended()
				held, err := a.Release(t.Context(), s.key, "A")
				require.NoError(t, err)
				require.True(t, held)
				giveBack := stage.intercept(releaseScript)
				message()
				giveBack.await()

				done := make(chan error, 1)
				go func() {
					attempt, err := acquire(t.Context(), a)
					if err == nil && !attempt.Acquired {
						err = errLost
					}
					done <- err
				}()
				time.Sleep(10 * time.Millisecond)
				if lost {
					hasty, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					defer cancel()
					_, err := acquire(hasty, a)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.True(t, dlock.NoEffect(err))
					giveBack.lose()
					err = <-done
					require.ErrorIs(t, err, errUnsettled)
					require.True(t, dlock.NoEffect(err))
					return
				}
				giveBack.answer(giveBack.execute())
				require.NoError(t, <-done)
				require.Equal(t, "A", s.holder(), "after the release in the background")
			}
			release(false)
			s.release("A")
			s.hold("H")
			release(true)
			s.requireClean(a)
		})
	}
}

// A waiter that has lost its place takes it again with its old ticket. An unanswered enqueue that a
// check-in and another enqueue overtake does no harm, whenever it arrives.
func TestCheckInOvertakesEnqueue(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	b, _ := s.enter()
	w := s.acquire(a, "A").listening()
	ticket := s.text(t, "ZSCORE", s.lock.texts[2], "A")
	other := s.acquire(b, "B").listening()
	s.bench.release("A") // by a verdict of death that was wrong
	lost, answered := stage.intercept(enqueueScript), stage.intercept(enqueueScript)
	forceCheckIn(a, "A")
	lost.await().lose()
	w.waits()
	answered.answer(answered.await().execute())
	require.Equal(t, ticket, s.text(t, "ZSCORE", s.lock.texts[2], "A"), "the ticket that it brings")
	require.Equal(t, []string{"A", "B"}, s.queue())
	checkIns := stage.calls(checkInScript, "A")
	forceCheckIn(a, "A")
	s.eventually(func() bool { return stage.calls(checkInScript, "A") > checkIns }, "it checks in")
	lost.execute()
	require.Equal(t, []string{"A", "B"}, s.queue())
	require.Equal(t, ticket, s.text(t, "ZSCORE", s.lock.texts[2], "A"))
	s.release("H")
	w.granted()
	lost.execute()
	require.Equal(t, []string{"B"}, s.queue())
	w.releaseBy(a)
	other.granted()
	other.releaseBy(b)
	s.requireClean(a, b)
}

// The inbox is open before the answer to the enqueue. The check-in waits for the answer.
func TestInboxBeforeAnswer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	enqueue := stage.intercept(enqueueScript)
	w := s.acquire(a, "A")
	enqueue.await()
	s.eventually(func() bool { stage.mu.Lock(); defer stage.mu.Unlock(); return stage.opened > 0 }, "the inbox is open")
	require.Zero(t, stage.calls(checkInScript, "A"), "checks in before the token is in the queue")
	enqueue.answer(enqueue.execute())
	w.listening()
	s.release("H")
	w.granted()
}

// A message that overtakes the answer to the enqueue is dated by that answer. There is no further
// round trip.
func TestMessageOvertakesAnswer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	s.acquire(a, "first").listening().cancel()
	s.release("first")
	enqueue := stage.interceptOf("A", enqueueScript)
	w := s.acquire(a, "A")
	answer := enqueue.await().execute()
	stage.silence(true)
	s.release("H")
	message := stage.message()
	time.Sleep(300 * time.Millisecond) // the grant ages
	message()
	w.waits()
	enqueue.answer(answer)
	w.granted()
	require.Zero(t, stage.calls(checkInScript, "A"))
	w.releaseBy(a)
	s.requireClean(a)
}

// A message comes before any answer, as after the inbox was opened again.
func TestMessageWithoutClock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	stage.silence(true)
	checkIn := stage.intercept(checkInScript)
	forceCheckIn(a, "A")
	checkIn.await()
	s.release("H")
	message := stage.message()
	time.Sleep(300 * time.Millisecond)
	message()
	checkIns := stage.calls(checkInScript, "A")
	checkIn.lose()
	w.granted()
	require.Greater(t, stage.calls(checkInScript, "A"), checkIns, "it checks in when")
}

// A check-in finds the grant, and its message comes later. The lease stays.
func TestMessageAfterCheckIn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	stage.silence(true)
	s.release("H")
	message := stage.message()
	forceCheckIn(a, "A")
	w.granted()
	message()
	require.NoError(t, a.Close()) // waits for what the message has begun
	require.Zero(t, stage.calls(releaseScript, "A"))
	require.Equal(t, "A", s.holder())
}

// A message that comes twice.
func TestMessageTwice(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	stage.silence(true)
	s.release("H")
	message := stage.message()
	message()
	w.granted()
	message()
	require.NoError(t, a.Close())
	require.Equal(t, "A", s.holder())
}

// A message that comes after the release of its token, when another holds the lock.
func TestMessageAfterRelease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	stage.silence(true)
	s.release("H")
	message := stage.message()
	forceCheckIn(a, "A")
	w.granted()
	w.releaseBy(a)
	s.hold("B")
	message()
	require.NoError(t, a.Close())
	require.Equal(t, 2, stage.calls(releaseScript, "A"), "a grant to a token that is used no more is released")
	require.Equal(t, "B", s.holder())
}

// A message comes for a cancelled wait. The grant is released, so that the next waiter gets the
// lock, even if nobody else releases the token.
func TestMessageAfterCancel(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	b, _ := s.enter()
	w := s.acquire(a, "A").listening()
	next := s.acquire(b, "B").listening()
	stage.silence(true)
	s.release("H")
	message := stage.message()
	w.cancel()
	w.ended()
	require.Equal(t, "A", s.holder())
	message()
	next.granted()
	next.releaseBy(b)
	s.requireClean(a, b)
}

// A lease that its holder has detached stays, whatever comes late.
func TestMessageAfterDetach(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	b, _ := s.enter()
	giver, taker := dlock.New(a), dlock.New(b)
	stage.silence(true)
	lease := s.client(giver)
	s.eventually(func() bool { return len(s.queue()) == 1 && s.listens(s.queue()[0]) }, "it waits and listens")
	s.release("H")
	message := stage.message()
	forceCheckIn(a, s.holder())
	given := lease()
	detached, err := given.Detach()
	require.NoError(t, err)
	taken, err := taker.Adopt(t.Context(), detached)
	require.NoError(t, err)
	message()
	require.NoError(t, giver.Close())
	require.NoError(t, a.Close())
	require.NoError(t, taken.Renew(t.Context()))
	require.Equal(t, taken.Token(), s.holder())
	require.NoError(t, taken.Release())
	require.NoError(t, taker.Close())
	require.Empty(t, s.holder())
}

func (b *bench) listens(token string) bool {
	waiter := b.waiters()[":"+token]
	return len(waiter) > 0 && waiter[len(waiter)-1] != ' '
}

// client starts an Acquire of the lock, and returns a function that waits for it.
func (s *scene) client(c *dlock.Client) func() *dlock.Lease {
	done := make(chan struct{})
	var lease *dlock.Lease
	var err error
	go func() {
		defer close(done)
		lease, err = c.Acquire(s.Context(), s.key)
	}()
	return func() *dlock.Lease {
		s.Helper()
		await(s, done, "the end of Acquire")
		require.NoError(s, err)
		return lease
	}
}

// Since is not the time at which the message is read: the delay of a waiter or a message is lost for
// the lease. Nor is it the time of the check-in before.
func TestLateMessage(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	listening := time.Since(w.began) // within this time the last answer was called for
	stage.silence(true)
	time.Sleep(300 * time.Millisecond)
	released := time.Now()
	s.release("H")
	message := stage.message()
	time.Sleep(300 * time.Millisecond)
	checkIns := stage.calls(checkInScript, "A")
	message()
	grant := w.granted()
	if stage.calls(checkInScript, "A") == checkIns {
		earliest := released.Add(-listening - 2*time.Millisecond)
		assert.False(t, grant.Since.Before(earliest), "Since is %v before what is known", earliest.Sub(grant.Since))
	}
}

// A grant that a check-in finds later is dated too.
func TestLateCheckIn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	stage.silence(true)
	released := time.Now()
	s.release("H")
	stage.message()
	time.Sleep(300 * time.Millisecond)
	called := time.Now()
	forceCheckIn(a, "A")
	grant := w.granted()
	took := time.Since(called)
	assert.False(t, grant.Since.Before(released.Add(-took-2*time.Millisecond)), "Since is older than the release")
}

// An answer that comes late dates its grant from the time of its call.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	for _, script := range []*Script{enqueueScript, checkInScript} {
		s := newScene(t)
		a, stage := s.enter()
		call := stage.intercept(script)
		w := s.acquire(a, "A")
		call.await()
		s.expire()
		answer := call.execute()
		require.EqualValues(t, answerGranted, s.answerOf(answer))
		time.Sleep(300 * time.Millisecond)
		call.answer(answer)
		w.granted()
		require.Zero(t, stage.calls(enqueueScript, "A")-1)
	}
}

// A wait that is cancelled before its grant gives up its place to the next.
func TestCancelBeforeGrant(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, _ := s.enter()
	b, _ := s.enter()
	w := s.acquire(a, "A").listening()
	next := s.acquire(b, "B").listening()
	w.cancel()
	w.ended()
	held, err := a.Release(t.Context(), s.key, "A")
	require.NoError(t, err)
	require.False(t, held)
	require.Equal(t, []string{"B"}, s.queue())
	s.release("H")
	next.granted()
	next.releaseBy(b)
	s.requireClean(a, b)
}

// A wait is cancelled while the answer with the grant is in flight.
func TestCancelDuringGrant(t *testing.T) {
	t.Parallel()
	for _, script := range []*Script{enqueueScript, checkInScript} {
		s := newScene(t)
		a, stage := s.enter()
		call := stage.intercept(script)
		w := s.acquire(a, "A")
		call.await()
		s.expire()
		answer := call.execute()
		require.EqualValues(t, answerGranted, s.answerOf(answer))
		w.cancel()
		w.ended()
		call.answer(answer)
		w.releaseBy(a)
		s.requireClean(a)
	}
}

// A wait is cancelled when its grant has come. It may return either, and that is true.
func TestCancelAfterGrant(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for range 20 {
		a, stage := s.enter()
		w := s.acquire(a, "A").listening()
		stage.silence(true)
		s.release("H")
		message := stage.message()
		go w.cancel()
		message()
		await(t, w.done, "the end of the wait")
		require.Equal(t, w.err == nil, w.attempt.Acquired)
		require.NoError(t, a.Close())
		if w.err == nil {
			w.requireKept(w.attempt)
		} else {
			require.ErrorIs(t, w.err, context.Canceled)
		}
		s.bench.release("A")
		require.Empty(t, s.holder())
		require.Empty(t, s.queue())
		s.hold("H")
	}
}

// A grant that is found after it has ended does not count, nor does its fence. The token is tried
// once more, given up, and released. The wait goes on with a new token.
func TestGrantFoundTooLate(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	c := dlock.New(a, dlock.WithTTL(time.Second))
	stage.silence(true)
	lease := s.client(c)
	s.eventually(func() bool { return len(s.queue()) == 1 && s.listens(s.queue()[0]) }, "it waits and listens")
	token := s.queue()[0]
	checkIn := stage.interceptOf(token, checkInScript)
	defer checkIn.lose()
	s.release("H")
	message := stage.message()
	s.eventually(func() bool { return s.holder() == "" }, "the lease ends before its message comes")
	fence := s.hold("rival")
	stage.silence(false)
	tries := stage.calls(acquireScript, token)
	message()
	s.eventually(func() bool { return len(s.queue()) == 1 && s.queue()[0] != token }, "a new token waits")
	require.Equal(t, tries+1, stage.calls(acquireScript, token))
	s.eventually(func() bool { return stage.calls(releaseScript, token) > 0 }, "what is owed is released")
	require.Equal(t, "rival", s.holder())
	s.release("rival")
	got := lease()
	require.NotEqual(t, token, got.Token())
	require.Greater(t, got.Fence(), fence)
	_ = got.Release()
	require.NoError(t, c.Close())
	s.requireClean(a)
}

// A waiter may have died unnoticed. So it is granted the lock for a few seconds, and then renews the
// lease to its full TTL.
func TestFirstTTL(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, _ := s.enter()
	c := dlock.New(a, dlock.WithTTL(time.Minute))
	lease := s.client(c)
	s.eventually(func() bool { return len(s.queue()) == 1 && s.listens(s.queue()[0]) }, "it waits and listens")
	require.Contains(t, s.waiters()[":"+s.queue()[0]], " 5000 ")
	s.release("H")
	got := lease()
	s.eventually(func() bool { return s.integer(t, "PTTL", s.key) > 50_000 }, "it is renewed")
	require.NoError(t, got.Release())
	require.NoError(t, c.Close())
	s.requireClean(a)
}

// A release that overtakes the enqueue that it is to undo is repeated until it has undone it.
func TestReleaseOvertakesEnqueue(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	c := dlock.New(a, dlock.WithTTL(10*limit), dlock.WithRenewal(false))
	ctx, cancel := context.WithCancel(t.Context())
	enqueue := stage.intercept(enqueueScript)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, s.key)
		failed <- err
	}()
	token := enqueue.await().call.Args[0]
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	s.eventually(func() bool { return stage.calls(releaseScript, token) > 0 }, "the token is released")
	s.expire()
	enqueue.execute()
	enqueue.lose()
	s.eventually(func() bool { return s.holder() == "" }, "the late grant is released")
	require.NoError(t, c.Close())
	s.requireClean(a)
}

// A release waits for the last call of its token's wait until its ctx ends. What that call is
// granted later is released nevertheless.
func TestReleaseUnderContext(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	enqueue := stage.intercept(enqueueScript)
	w := s.acquire(a, "A")
	enqueue.await()
	w.cancel()
	w.ended()
	s.release("H")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	held, err := a.Release(ctx, s.key, "A")
	require.NoError(t, err, "the server has answered")
	require.False(t, held)
	require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
	enqueue.answer(enqueue.execute())
	s.eventually(func() bool { return s.holder() == "" }, "the late grant is released")
	s.requireClean(a)
}

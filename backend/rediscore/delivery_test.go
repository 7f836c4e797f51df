package rediscore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A Locker has one inbox, whose name nobody else has, however many wait; and none
// before somebody does.
func TestInboxIsShared(t *testing.T) {
	seen := make(map[string]bool)
	for range 2 {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			_, err := l.Release(t.Context(), "k", "t")
			require.Error(t, err, "of a fake")
			require.Empty(t, f.listened())
			var all []*fakeWait
			for i := range 50 {
				all = append(all, begin(t, l, fmt.Sprint("k", i%7), fmt.Sprint("t", i)))
			}
			require.Len(t, f.listened(), 1)
			inbox := f.listened()[0]
			require.False(t, inbox.sharded)
			require.Regexp(t, `^p\{:dlock1:inbox:[A-Z2-7]{26}$`, inbox.channel)
			require.False(t, seen[inbox.channel])
			seen[inbox.channel] = true
			for i, w := range all {
				require.False(t, w.isDone())
				f.grant(i, fmt.Sprint("t", i))
				require.True(t, w.isDone())
				require.EqualValues(t, i, w.attempt.Fence)
			}
		}, WithPrefix("p{:"))
	}
}

// A token that waits for another key than before is given back there.
func TestTokenWaitsForAnotherKey(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		for _, key := range []string{"first", "second"} {
			w := begin(t, l, key, "t")
			w.cancel()
			require.True(t, w.isDone())
			var released []string
			eval := f.eval
			f.set(func() {
				f.eval = func(ctx context.Context, call Call) (any, error) {
					if call.Script == releaseScript {
						released = append(released, call.Keys()[0])
					}
					return eval(ctx, call)
				}
			})
			f.tell("8 1 t")
			synctest.Wait()
			require.Equal(t, []string{key}, released)
			f.set(func() { f.eval = eval })
		}
	})
}

// A token holds the lock that it has waited for, and is released for another key. A late message of
// the grant is no reason to release the lock.
func TestTokenIsReleasedForAnotherKey(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		var released []string
		f.eval = func(_ context.Context, call Call) (any, error) {
			if call.Script == releaseScript {
				released = append(released, call.Keys()[0])
				return int64(0), nil
			}
			return []any{int64(answerGranted), int64(88)}, nil
		}
		w := begin(t, l, "first", "t")
		require.True(t, w.isDone())
		require.True(t, w.attempt.Acquired)
		_, err := l.Release(t.Context(), "second", "t")
		require.NoError(t, err)
		f.grant(88, "t")
		synctest.Wait()
		require.Equal(t, []string{"second"}, released)
	})
}

// An inbox stays open while messages come for those who have gone away: the grants of
// many who went together come one after the other.
func TestInboxLingersForTheGone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "gone")
		w.cancel()
		require.True(t, w.isDone())
		for range 3 {
			time.Sleep(lingering - time.Millisecond)
			f.tell("8 1 gone")
			require.Equal(t, 1, f.opened())
		}
		time.Sleep(lingering + time.Millisecond)
		require.Zero(t, f.opened())

		next := begin(t, l, "k", "next")
		require.Equal(t, 1, f.opened())
		next.cancel()
		require.NoError(t, l.Close())
		require.Zero(t, f.opened())
	})
}

// An inbox that nobody waits for is closed after a while, not at once.
func TestInboxIsClosedWhenIdle(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		first, second := begin(t, l, "k", "a"), begin(t, l, "k", "b")
		first.cancel()
		time.Sleep(3 * lingering)
		require.Equal(t, 1, f.opened(), "while one waits")
		for range 3 {
			second.cancel()
			require.True(t, second.isDone())
			time.Sleep(lingering - time.Millisecond)
			second = begin(t, l, "k", "c")
		}
		time.Sleep(3 * lingering)
		l.post.inboxes[f.listened()[0].channel].closeIfIdle() // by a timer that could not be stopped
		time.Sleep(3 * lingering)
		require.Len(t, f.listened(), 1)
		second.cancel()
		require.True(t, second.isDone())
		time.Sleep(lingering - time.Millisecond)
		require.Equal(t, 1, f.opened())
		time.Sleep(2 * time.Millisecond)
		require.Zero(t, f.opened())
		n := len(f.evals(0))
		third := begin(t, l, "k", "d")
		require.Len(t, f.listened(), 2)
		require.Equal(t, f.listened()[0].channel, f.listened()[1].channel)
		require.NotEmpty(t, f.evals(n + 1)[0].args[1], "the ask of one whose inbox was opened again")
		third.cancel()
	})
}

// A waiter that comes while its inbox is being closed has it opened again afterwards: there are
// never two subscriptions to one channel.
func TestInboxIsNeededAgain(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		f.listen = func(ctx context.Context, on func(Event)) error {
			on(Event{Kind: Subscribed})
			<-ctx.Done()
			time.Sleep(time.Second)
			return ctx.Err()
		}
		first := begin(t, l, "k", "first")
		first.cancel()
		time.Sleep(lingering + 100*time.Millisecond)
		second := begin(t, l, "k", "second")
		require.Len(t, f.listened(), 1)
		time.Sleep(time.Second)
		require.Len(t, f.listened(), 2)
		require.Equal(t, 1, f.opened())
		second.cancel()
	})
}

// An inbox that cannot be opened, or was lost, is opened again: soon, and ever more
// seldom while that fails.
func TestInboxIsOpenedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		f.listen = refuse
		w := begin(t, l, "k", "t")
		time.Sleep(time.Minute)
		requireGrowing(t, f.listened())
		f.set(func() {
			f.listen = func(_ context.Context, on func(Event)) error {
				on(Event{Kind: Subscribed})
				time.Sleep(time.Second)
				f.set(func() { f.listen = refuse })
				return errDown
			}
		})
		n := len(f.listened())
		time.Sleep(time.Minute)
		again := f.listened()[n:]
		require.NotEmpty(t, again)
		again[0].at = again[0].at.Add(time.Second) // when it was lost
		requireGrowing(t, again)
		w.cancel()
	})
}

func requireGrowing(t *testing.T, tries []noted) {
	t.Helper()
	pause := minPause
	for _, gap := range gaps(tries) {
		require.GreaterOrEqual(t, gap, pause)
		require.Less(t, gap, 2*pause)
		pause = min(2*pause, maxPause)
	}
	require.Equal(t, maxPause, pause)
}

// An inbox that misses a message though somebody listens is opened anew. One whose
// message is only late is not, nor one that the server did not know of.
func TestDeafInboxIsOpenedAnew(t *testing.T) {
	for _, c := range []struct {
		name    string
		known   bool // to the server, when the lock was handed over
		message time.Duration
		want    int
	}{
		{"deaf", true, 2 * messageLag, 2},
		{"late", true, messageLag / 2, 1},
		{"early", true, 0, 1},
		{"unknown", false, 2 * messageLag, 1},
	} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			open := make(chan struct{})
			if !c.known {
				f.listen = func(ctx context.Context, on func(Event)) error {
					<-open
					on(Event{Kind: Subscribed})
					<-ctx.Done()
					return ctx.Err()
				}
			}
			w := begin(t, l, "k", "t")
			f.set(func() {
				f.eval = func(context.Context, Call) (any, error) {
					if c.message == 0 {
						l.post.deliver("88 1 t")
					}
					return []any{int64(answerFound), int64(88), int64(1), int64(1)}, nil
				}
			})
			close(open) // which makes it ask, where it was not open before
			if c.known {
				forceCheckIn(l, "t")
			}
			require.True(t, w.isDone())
			require.NoError(t, w.err)
			f.set(func() { f.eval = waitsAlways(3, "H", -1) })
			other := begin(t, l, "k2", "other") // or the inbox is closed
			time.Sleep(c.message)
			f.tell("88 1 t")
			time.Sleep(3 * messageLag)
			require.Len(t, f.listened(), c.want, c.name)
			require.Equal(t, 1, f.opened(), c.name)
			other.cancel()
		})
	}
}

// A message that overtakes the answer to the enqueue has come: the inbox is not deaf.
func TestInboxThatIsAhead(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		other := begin(t, l, "k2", "other") // the inbox is open
		answer := make(chan []any)
		f.set(func() { f.eval = answering(answer) })
		w := begin(t, l, "k", "t")
		f.tell("88 1 t")
		synctest.Wait()
		answer <- waits(0, "H", 60_000)
		answer <- []any{int64(answerFound), int64(88), int64(1), int64(1)}
		require.True(t, w.isDone())
		require.NoError(t, w.err)
		f.set(func() { f.eval = waitsAlways(3, "H", -1) })
		time.Sleep(3 * messageLag)
		require.Len(t, f.listened(), 1)
		other.cancel()
	})
}

// A locatedConn is a fakeConn that knows the master.
type locatedConn struct {
	*fakeConn
	master any
}

func (c *locatedConn) Locate(context.Context, string) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.master
}

// An inbox is opened again when another master has its slot. The Locker looks after 250 ms, ever less
// often while the subscription is there, and at least every 10 s.
func TestInboxFollowsTheMaster(t *testing.T) {
	for _, c := range []struct {
		after       time.Duration // the master changes
		silent      bool          // the first master does not answer
		first, last time.Duration // look that can notice
	}{
		{100 * time.Millisecond, false, minFollow, minFollow},
		{2 * time.Second, false, 15 * minFollow, 15 * minFollow},
		{2 * time.Second, true, 2 * time.Second, 2*time.Second + minFollow},
		{time.Hour, false, time.Hour, time.Hour + maxFollow},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &locatedConn{&fakeConn{eval: waitsAlways(3, "H", -1)}, "one"}
			if c.silent {
				f.listen = func(ctx context.Context, _ func(Event)) error {
					<-ctx.Done()
					return ctx.Err()
				}
			}
			var told error
			l := New(f, WithInboxError(func(err error) { told = err }))
			defer l.Close()
			w := begin(t, l, "k", "t")
			time.Sleep(c.after)
			f.set(func() { f.master, f.listen = "other", nil })
			time.Sleep(time.Hour)
			require.Len(t, f.listened(), 2, "%+v", c)
			took := gaps(f.listened())[0]
			require.True(t, c.first+minPause <= took && took < c.last+2*minPause, "%+v: opened again after %v", c, took)
			require.Equal(t, c.silent, told == errReplaced, "%+v", c)
			require.Equal(t, 1, f.opened(), "%+v", c)
			w.cancel()
		})
	}
}

// An inbox stays where it is while the master is not known.
func TestInboxWithoutAMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &locatedConn{&fakeConn{eval: waitsAlways(3, "H", -1)}, "one"}
		l := New(f)
		defer l.Close()
		w := begin(t, l, "k", "t")
		for _, master := range []any{nil, "one"} {
			f.set(func() { f.master = master })
			time.Sleep(time.Hour)
			require.Len(t, f.listened(), 1, "the master is %v", master)
		}
		w.cancel()
	})
}

// In Redis Cluster a Locker has a sharded inbox in each slot that it waits for, however many.
func TestInboxesOfCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeConn{cluster: true, eval: waitsAlways(3, "H", -1)}
		l := New(f, WithPrefix("p:"))
		const slots = 100
		var all []*fakeWait
		used := make(map[int]bool)
		for i := 0; len(all) < slots; i++ {
			key := fmt.Sprint("k", i)
			if slot := Slot("p:" + key); !used[slot] {
				used[slot] = true
				n := len(f.evals(0))
				all = append(all, begin(t, l, key, key))
				calls := f.evals(n)
				address := calls[len(calls)-1].args[1]
				name := strings.TrimPrefix(address, "sp:{"+tags()[slot]+"}dlock1:inbox:")
				require.Len(t, name, 26, "%q", address)
				require.Equal(t, noted{at: time.Now(), channel: address[1:], sharded: true}, f.listened()[len(all)-1])
			}
		}
		require.Len(t, f.listened(), slots)
		begin(t, l, "k0", "same slot").cancel()
		require.Len(t, f.listened(), slots)
		all[0].cancel()
		time.Sleep(lingering + time.Millisecond)
		require.Equal(t, slots-1, f.opened())
		begin(t, l, "k0", "again").cancel()
		require.Equal(t, slots, f.opened())
		for _, w := range all {
			w.cancel()
		}
		require.NoError(t, l.Close())
		require.Zero(t, f.opened())
	})
}

// Close ends subscriptions, also one that is about to be opened again, and what is
// under way, and none is opened after it.
func TestCloseEndsInboxes(t *testing.T) {
	for _, listen := range []func(context.Context, func(Event)) error{nil, refuse} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			f.listen = listen
			w := begin(t, l, "k", "t")
			time.Sleep(maxPause)
			n := len(f.listened())
			start := time.Now()
			require.NoError(t, l.Close())
			require.NoError(t, l.Close())
			require.Zero(t, time.Since(start))
			require.True(t, w.isDone())
			require.ErrorIs(t, w.err, dlock.ErrClosed)
			require.Zero(t, f.opened())
			calls := len(f.evals(0))
			f.tell("1 1 t") // it was on its way
			time.Sleep(time.Minute)
			require.Len(t, f.listened(), n)
			require.Len(t, f.evals(0), calls)
		})
	}
}

// What a message may say, whoever sent it.
func TestMessagesOfStrangers(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "t")
		n := len(f.evals(0))
		for _, payload := range []string{"", " ", "x", "1", "1 2", "1 t", "x 2 t", "1 x t", "1 2 T", "1 2  t", "1 2 t ", "99999999999999999999 2 t", "1 2 stranger"} {
			f.tell(payload)
			require.False(t, w.isDone(), "after %q", payload)
		}
		time.Sleep(time.Second)
		require.Len(t, f.evals(n), 0, "calls because of such")
		w.cancel()
	})
}

// Messages that a waiter has not read yet hold up nobody.
func TestMessagesPileUp(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := l.post.join("k", "slow", 0)
		synctest.Wait()
		for i := range 3 {
			f.tell(fmt.Sprint(88+i, " 1 slow"))
		}
		other := begin(t, l, "k", "t")
		f.grant(96, "t")
		require.True(t, other.isDone())
		require.EqualValues(t, 88, (<-w.granted).fence)
		l.post.leave("slow", w, true)
	})
}

// A Locker remembers the last tokens that have waited, and all that wait.
func TestTokensAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		w := begin(t, l, "k", "waits")
		l.post.leave("givenBack", l.post.join("k", "givenBack", 0), false)
		l.post.tokens["givenBack"].givenBack = make(chan struct{})
		for i := range maxTokens + 100 {
			token := strconv.Itoa(i)
			l.post.leave(token, l.post.join("k", token, 0), false)
		}
		require.LessOrEqual(t, len(l.post.tokens), maxTokens+2)
		require.Len(t, l.post.order, len(l.post.tokens))
		require.Nil(t, l.post.tokens["0"])
		require.NotNil(t, l.post.tokens["givenBack"], "one that is being released")
		require.Equal(t, given, l.post.tokens[strconv.Itoa(maxTokens+99)].use)
		f.grant(88, "waits")
		require.True(t, w.isDone())
		require.NoError(t, w.err)
	})
}

// So are those of many that waited at once.
func TestManyTokensAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		var waiting []*addressee
		for i := range 2 * maxTokens {
			waiting = append(waiting, l.post.join("k", strconv.Itoa(i), 0))
		}
		require.Len(t, l.post.tokens, 2*maxTokens)
		for i, w := range waiting {
			l.post.leave(strconv.Itoa(i), w, false)
		}
		for i := range maxTokens + 1 {
			token := strconv.Itoa(i) + "later"
			l.post.leave(token, l.post.join("k", token, 0), false)
		}
		require.LessOrEqual(t, len(l.post.tokens), maxTokens+1)
		require.Len(t, l.post.order, len(l.post.tokens))
	})
}

// A message that got lost, or that nobody may publish, costs no more than the time
// to the next ask.
func TestMessageIsLost(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	stage.silence(true)
	s.release("H")
	stage.message()
	w.granted()
	w.releaseBy(a)
	s.requireClean(a)
}

// A lease that runs out is found by the first in the queue, long before the next
// regular ask, or the others'.
func TestLeaseRunsOut(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, _ := s.enter()
	b, _ := s.enter()
	first := s.acquire(a, "A").listening()
	second := s.acquire(b, "B").listening()
	s.integer(t, "PEXPIRE", s.key, 300)
	forceCheckIn(a, "A") // so that it knows
	first.granted()
	second.waits()
	first.releaseBy(a)
	second.granted()
}

// A Locker that may not subscribe stands in the queue like the others, and is served
// in its turn; the others wait for it, and not longer than it lives.
func TestWithoutSubscriptionInTheQueue(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, _ := s.enter()
	b, stage := s.enter()
	stage.refuse = errDown
	c, _ := s.enter()
	first := s.acquire(a, "A").listening()
	second := s.acquire(b, "B")
	s.eventually(func() bool { return len(s.queue()) == 2 }, "B stands in the queue")
	third := s.acquire(c, "C").listening()
	s.release("H")
	fence := first.granted().Fence
	first.releaseBy(a)
	next := second.granted().Fence
	require.Greater(t, next, fence)
	third.waits()
	second.releaseBy(b)
	require.Greater(t, third.granted().Fence, next)

	deaf := s.acquire(b, "deaf")
	s.eventually(func() bool { return len(s.queue()) == 1 }, "it stands in the queue")
	last := s.acquire(a, "last").listening()
	b.post.end() // it dies
	<-deaf.done
	s.enqueue("deaf", "")
	s.integer(t, "ZADD", s.lock.texts[2], 1, "deaf")
	third.releaseBy(c)
	require.Empty(t, s.holder(), "the lock is kept for one that may come")
	last.granted()
}

// Whoever may not subscribe, by the rules of the server, gets the lock all the same.
func TestSubscriptionIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.rule("-subscribe")
	a, stage := s.enter()
	w := s.acquire(a, "A")
	s.eventually(func() bool { return len(s.queue()) == 1 }, "it stands in the queue")
	s.release("H")
	w.granted()
	require.Zero(t, stage.opened)
	s.rule("+subscribe")
	s.acquire(a, "again").listening().cancel()
}

// A subscription that is lost is made again; the waiter asks then, and hears of its
// grant again.
func TestSubscriptionIsLost(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, stage := s.enter()
	w := s.acquire(a, "A").listening()
	for n := range 2 {
		asks := stage.calls(checkInScript, "A")
		s.integer(t, "CLIENT", "KILL", "TYPE", "pubsub")
		s.eventually(func() bool { stage.mu.Lock(); defer stage.mu.Unlock(); return stage.opened == n+2 }, "it is opened again")
		s.eventually(func() bool { return stage.calls(checkInScript, "A") >= asks+2 }, "it asks when lost and when opened")
	}
	w.listening()
	stage.silence(true)
	s.release("H")
	stage.message()()
	w.granted()
}

// A hundred waiters of a process that is stopped, or gone, hold nobody up.
func TestDeadHostWithManyWaiters(t *testing.T) {
	b := newBench(t, "", "k")
	ear, alive := b.listen("inbox"), b.listen("alive")
	b.hold("H")
	for i := range 200 {
		token := fmt.Sprint("dead", i)
		b.wait(token, []string{ear.inbox, "", "pnobody"}[i%3])
		b.age(token, []time.Duration{6 * time.Second, 3 * time.Second, 0}[i%3])
	}
	b.wait("A", alive.inbox)
	b.release("H")
	alive.requireTold("A")
	require.Empty(t, b.queue())
	require.Len(t, b.waiters(), 1)
}

// Many who come and go, with inboxes and without, are all served, one at a time.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const rounds = 5
	done := make(chan error, 4)
	for i := range cap(done) {
		l, stage := s.enter()
		if i == 0 {
			stage.refuse = errDown
		}
		c := dlock.New(l)
		t.Cleanup(func() { c.Close() })
		go func() {
			var err error
			for range rounds {
				err = c.Do(t.Context(), s.key, func(context.Context, *dlock.Lease) error { return nil })
				if err != nil {
					break
				}
			}
			done <- err
		}()
	}
	s.eventually(func() bool { return len(s.queue()) >= 3 }, "they wait")
	s.release("H")
	for range cap(done) {
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(limit):
			require.FailNow(t, "somebody is not served")
		}
	}
	s.eventually(func() bool { return s.holder() == "" && len(s.queue()) == 0 }, "nothing stays")
}

// A conn that subscribes on another server than where the locks are, as one that is still
// connected to a former master does.
type elsewhere struct {
	*interceptConn
	other plainConn
	times int // so often; -1 for ever
}

func (e *elsewhere) Listen(ctx context.Context, channel string, sharded bool, on func(Event)) error {
	if e.times == 0 {
		return e.interceptConn.Listen(ctx, channel, sharded, on)
	}
	e.times--
	return e.other.Listen(ctx, channel, sharded, on)
}

// A waiter whose inbox is on another server counts as dead at each handover. It is served
// all the same, while others keep coming.
func TestInboxOfAnotherServer(t *testing.T) {
	for name, times := range map[string]int{"once": 1, "for ever": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			_, stage := s.enter()
			a := New(&elsewhere{stage, plain(t, redistest.Start(t).Addr()), times})
			w := s.acquire(a, "A").listening()
			t.Cleanup(func() { a.Close() })
			b, _ := s.enter()
			others := dlock.New(b)
			t.Cleanup(func() { others.Close() })
			ctx, cancel := context.WithCancel(t.Context())
			var working sync.WaitGroup
			t.Cleanup(func() { cancel(); working.Wait() })
			for range 3 {
				working.Go(func() {
					for ctx.Err() == nil {
						_ = others.Do(ctx, s.key, func(context.Context, *dlock.Lease) error {
							time.Sleep(20 * time.Millisecond)
							return nil
						})
					}
				})
			}
			s.eventually(func() bool { return len(s.queue()) == 4 }, "all wait")
			s.release("H")
			await(t, w.done, "the end of the wait")
			require.NoError(t, w.err)
			require.True(t, w.attempt.Acquired)
			w.releaseBy(a)
		})
	}
}

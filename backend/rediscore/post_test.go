package rediscore

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A dumbConn gives each call the same reply, and confirms no subscription.
type dumbConn struct {
	Conn
	reply any
}

func (c dumbConn) Cluster() bool                           { return false }
func (c dumbConn) Eval(context.Context, Call) (any, error) { return c.reply, nil }

func (c dumbConn) Listen(ctx context.Context, _ string, _ bool, _ func(Event)) error {
	<-ctx.Done()
	return ctx.Err()
}

// A wait that was busy finds two things at once: its inbox has changed, and a message came
// afterwards. It does not use the old clock to date the message, whichever it reads first.
func TestChangeBeforeMessage(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := New(dumbConn{reply: []any{int64(answerFound), int64(8), int64(1_000_000), int64(2_000_000)}})
			defer l.Close()
			w := &wait{
				locker:    l,
				ctx:       t.Context(),
				key:       "k",
				token:     "t",
				addressee: l.post.join("k", "t", 0),
				answers:   make(chan answer, 1),
				timer:     time.NewTimer(time.Hour),
				news:      news{clock: 1, sent: time.Now()},
			}
			w.addressee.changed <- struct{}{}
			w.addressee.granted <- handover{fence: 7, time: 100_000_000}
			attempt, err := w.run()
			l.post.leave("t", w.addressee, true)
			require.NoError(t, err)
			require.EqualValues(t, 8, attempt.Fence, "the fence of the answer")
		})
	}
}

// A wait takes note of a change of its inbox before it dates a message. It checks in then.
func TestChangeBeforeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clock = 1_700_000_000_000_000
		for _, changed := range []bool{false, true} {
			w := &wait{
				addressee: &addressee{changed: make(chan struct{}, 1)},
				timer:     time.NewTimer(time.Hour),
				early:     handover{fence: 88, time: clock + 1},
			}
			if changed {
				w.addressee.changed <- struct{}{}
			}
			attempt := w.stillQueued(answer{sent: time.Now()}, []int64{4800, 0, clock, 60_000}, "H")
			require.Equal(t, !changed, attempt.Acquired)
			require.Equal(t, changed, w.again, "it checks in at once")
			w.timer.Stop()
		}
	})
}

// A message that has come, and is not read yet, is no sign of a deaf inbox.
func TestMessageToBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(dumbConn{})
		defer l.Close()
		a := l.post.join("k", "t", 0)
		defer l.post.leave("t", a, true)
		a.inbox.live = true
		for _, come := range []bool{false, true} {
			if come {
				l.post.deliver("8 1 t")
			}
			l.post.found("t", a)
			require.Equal(t, come, l.post.tokens["t"].due == nil)
		}
	})
}

// A Locker remembers the last tokens that have waited, all that wait, and all that are being released.
// Messages that a waiter has not read yet hold up nobody.
func TestTokensAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(dumbConn{})
		defer l.Close()
		slow := l.post.join("k", "slow", 0)
		l.post.leave("givenBack", l.post.join("k", "givenBack", 0), false)
		l.post.tokens["givenBack"].givenBack = make(chan struct{})
		var waiting []*addressee
		for i := range 2 * maxTokens {
			waiting = append(waiting, l.post.join("k", strconv.Itoa(i), 0))
		}
		require.Len(t, l.post.tokens, 2*maxTokens+2, "all that wait")
		for i, w := range waiting {
			l.post.leave(strconv.Itoa(i), w, false)
		}
		for i := range maxTokens + 1 {
			token := strconv.Itoa(i) + "later"
			l.post.leave(token, l.post.join("k", token, 0), false)
		}
		require.LessOrEqual(t, len(l.post.tokens), maxTokens+3)
		require.Len(t, l.post.order, len(l.post.tokens))
		require.Nil(t, l.post.tokens["0"])
		require.NotNil(t, l.post.tokens["givenBack"])
		require.Equal(t, given, l.post.tokens[strconv.Itoa(maxTokens)+"later"].use)
		for fence := range 3 {
			l.post.deliver(strconv.Itoa(fence) + " 1 slow")
		}
		require.EqualValues(t, 0, (<-slow.granted).fence)
		l.post.leave("slow", slow, true)
	})
}

// A Locker keeps the names of few locks.
func TestNamesAreForgotten(t *testing.T) {
	l := New(dumbConn{})
	for i := range 3 * maxNames {
		l.keysOf(strconv.Itoa(i))
		require.LessOrEqual(t, len(l.keys), maxNames)
	}
}

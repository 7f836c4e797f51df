package rediscore

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/bubble"
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

func joined(t *testing.T, l *Locker, token string, vote ...string) *wait {
	w := newWait(l, t.Context(), "k", token, time.Minute)
	w.vote = vote
	require.True(t, l.post.join(w, 0))
	return w
}

// What a post does, and the waits of its Locker, whose calls all get the reply 1.
var posts = map[string]func(t *testing.T, l *Locker){
	"The last wait leaves its room, also while the timer of the room fires. Nobody is there to be called, now or later": func(t *testing.T, l *Locker) {
		w := joined(t, l, "t")
		l.post.rest(w, 1, time.Second)
		r := w.room
		l.post.quit(w)
		require.False(t, r.timer.Stop(), "the timer runs on")
		l.post.callFirst(r)
		l.post.leave(w, false)
	},
	"A wait takes note of a change of its inbox before it dates a message. It checks in then": func(t *testing.T, l *Locker) {
		const clock = 1_700_000_000_000_000
		for _, changed := range []bool{false, true} {
			w := &wait{locker: l, timer: time.NewTimer(time.Hour), early: handover{fence: 88, time: clock + 1}, mail: mail{changed: changed}}
			attempt := w.stillQueued(answer{sent: time.Now()}, []int64{4800, 0, clock, 60_000}, [2]string{"H"})
			require.Equal(t, !changed, attempt.Acquired)
			require.Equal(t, changed, w.again, "it checks in at once")
			attempt, err := w.read(l.post.take(w)) // the change was read
			require.NoError(t, err)
			require.False(t, attempt.Acquired || w.calling)
			w.timer.Stop()
		}
	},
	"A message that has come, and is not read yet, is no sign of a deaf inbox": func(t *testing.T, l *Locker) {
		w := joined(t, l, "t")
		defer l.post.leave(w, false)
		w.inbox.live = true
		l.post.found(w)
		require.NotNil(t, l.post.tokens["t"].due)
		l.post.deliver("8 1 t")
		l.post.found(w)
		require.Nil(t, l.post.tokens["t"].due)
	},
	"A Locker remembers the last tokens that have waited, all that wait, and all that are being released": func(t *testing.T, l *Locker) {
		// Messages that a waiter has not read yet hold up nobody.
		slow, unsettled := joined(t, l, "slow"), joined(t, l, "unsettled")
		l.post.outlived(unsettled)
		l.post.leave(unsettled, false)
		defer func() { unsettled.answers <- answer{} }()
		var waiting []*wait
		for i := range 2 * maxTokens {
			waiting = append(waiting, joined(t, l, strconv.Itoa(i)))
		}
		require.Len(t, l.post.tokens, 2*maxTokens+2, "all that wait")
		for _, w := range waiting {
			l.post.leave(w, false)
		}
		for i := range maxTokens + 1 {
			l.post.leave(joined(t, l, strconv.Itoa(i)+"later"), false)
		}
		require.LessOrEqual(t, len(l.post.tokens), maxTokens+3)
		require.Len(t, l.post.order, len(l.post.tokens))
		require.Nil(t, l.post.tokens["0"])
		require.NotNil(t, l.post.tokens["unsettled"])
		require.Nil(t, l.post.tokens[strconv.Itoa(maxTokens)+"later"].wait)
		for fence := range 3 {
			l.post.deliver(strconv.Itoa(fence) + " 1 slow")
		}
		require.EqualValues(t, 0, slow.mail.granted.fence)
		l.post.leave(slow, true)
	},
	"A release was not sent, but a message that came meanwhile lets the token be released in the background": func(t *testing.T, l *Locker) {
		l.post.leave(joined(t, l, "t"), true)
		for _, message := range []bool{false, true} {
			l.post.releasing("k", "t", false)
			if message {
				l.post.deliver("8 1 t")
			}
			_, err := l.post.released(t.Context(), "k", "t", 0, false, mark(context.DeadlineExceeded))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, !message, dlock.NoEffect(err))
		}
	},
	"A token that votes again and again is remembered once": func(t *testing.T, l *Locker) {
		for i := range 3 {
			l.post.leave(joined(t, l, "t", "place", "floor"), i > 0)
		}
		require.Len(t, l.post.tokens, 1)
		require.Len(t, l.post.order, 1)
	},
}

func TestPosts(t *testing.T) {
	for name, play := range posts {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l := New(dumbConn{reply: int64(1)})
				defer l.Close()
				play(t, l)
			})
		})
	}
}

// A wait that was busy finds two things at once: its inbox has changed, and a message came
// afterwards. It does not use the old clock to date the message, whichever it reads first.
func TestChangeBeforeMessage(t *testing.T) {
	for range 20 {
		bubble.Test(t, func(t *testing.T) {
			l := New(dumbConn{reply: []any{int64(answerFound), int64(8), int64(1_000_000), int64(2_000_000)}})
			defer l.Close()
			w := joined(t, l, "t")
			w.timer, w.news = time.NewTimer(time.Hour), news{clock: 1, sent: time.Now()}
			w.mail = mail{changed: true, granted: handover{fence: 7, time: 100_000_000}}
			w.ring()
			attempt, err := w.run()
			l.post.leave(w, false)
			require.NoError(t, err)
			require.EqualValues(t, 8, attempt.Fence, "the fence of the answer")
		})
	}
}

package rediscore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A foundConn answers that the lock was granted a second ago.
type foundConn struct{ Conn }

func (foundConn) Eval(context.Context, Call) (any, error) {
	return []any{int64(answerFound), int64(8), int64(1_000_000), int64(2_000_000)}, nil
}

func (foundConn) Cluster() bool { return false }

func (foundConn) Listen(ctx context.Context, _ string, _ bool, _ func(Event)) error {
	<-ctx.Done()
	return ctx.Err()
}

// A wait that was busy finds both at once, that its inbox has changed and a message that
// came afterwards: the message is not dated by what was known before, whichever it looks
// at first.
func TestChangeBeforeMessage(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := New(foundConn{})
			defer l.Close()
			w := &wait{
				locker:  l,
				ctx:     t.Context(),
				key:     "k",
				token:   "t",
				waiter:  l.post.join("k", "t", 0),
				answers: make(chan answer, 1),
				timer:   time.NewTimer(time.Hour),
				clock:   1,
				sent:    time.Now(),
			}
			w.waiter.changed <- struct{}{}
			w.waiter.granted <- handover{fence: 7, time: 100_000_000}
			attempt, err := w.run()
			l.post.leave("t", w.waiter, true)
			require.NoError(t, err)
			require.EqualValues(t, 8, attempt.Fence, "the fence of the answer")
		})
	}
}

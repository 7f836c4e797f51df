package rediscore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errEnded = errors.New("subscription ended")

// A wait that was busy finds two things at once: its inbox has changed, and a message came
// afterwards. It does not use the old clock to date the message, whichever it reads first.
func TestChangeBeforeMessage(t *testing.T) {
	for range 20 {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			f.eval = always(func() []any {
				return []any{int64(answerFound), int64(8), int64(1_000_000), int64(2_000_000)}
			})
			f.listen = func(ctx context.Context, _ func(Event)) error { // the test itself says what changes
				<-ctx.Done()
				return ctx.Err()
			}
			w := &wait{
				locker:    l,
				ctx:       t.Context(),
				key:       "k",
				token:     "t",
				addressee: l.post.join("k", "t", 0),
				answers:   make(chan answer, 1),
				timer:     time.NewTimer(time.Hour),
				clock:     1,
				sent:      time.Now(),
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

// A serverChange is a Conn whose inbox is lost during a check-in and opened again on another
// server, whose clock is ahead. The answer to the check-in comes then, from the old server,
// and after it a message.
type serverChange struct {
	*fakeConn
	start         time.Time
	granted       time.Time
	lost, arrived chan struct{}
	sent          chan struct{} // closed when the message was sent, and granted is set
	checkIns      int
}

const (
	oldClock = 1000 * time.Second // what the first server's clock shows at the start
	newClock = 1100 * time.Second // and the second's
)

func micros(clock time.Duration, since time.Duration) int64 { return (clock + since).Microseconds() }

func (c *serverChange) eval(_ context.Context, call Call) (any, error) {
	waiting := []any{int64(answerWaits), int64(100), int64(0), micros(oldClock, time.Since(c.start)), "H", int64(3_600_000)}
	if call.Script != checkInScript || call.Args[0] != "t" {
		return waiting, nil
	}
	if c.checkIns++; c.checkIns == 1 { // because the inbox is open
		close(c.lost)
		<-c.arrived
		return waiting, nil
	}
	<-c.sent
	time.Sleep(time.Second)
	return []any{int64(answerFound), int64(7), micros(newClock, c.granted.Sub(c.start)), micros(newClock, time.Since(c.start))}, nil
}

func (c *serverChange) listen(ctx context.Context, on func(Event)) error {
	on(Event{Kind: Subscribed})
	switch len(c.listened()) {
	case 1:
		<-c.lost
		return errEnded
	case 2:
		synctest.Wait()
		close(c.arrived)
		time.Sleep(time.Microsecond)
		c.granted = time.Now()
		close(c.sent)
		on(Event{Kind: Message, Payload: fmt.Sprintf("7 %d t", micros(newClock, c.granted.Sub(c.start)))})
	}
	<-ctx.Done()
	return ctx.Err()
}

// An answer that was on its way while the inbox was opened again may come from the old server.
// It must not date a message of the new one. The message was only a hint, but it came: so the
// inbox works, and is not opened again.
func TestWaitAcrossAChangeOfServers(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		c := &serverChange{fakeConn: f, start: time.Now(), lost: make(chan struct{}), arrived: make(chan struct{}), sent: make(chan struct{})}
		f.eval, f.listen = c.eval, c.listen
		begin(t, l, "k", "other") // goes on waiting
		attempt, err := l.Acquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		require.WithinRange(t, attempt.Since, c.granted.Add(-2*time.Second), c.granted, "the date of the grant")
		time.Sleep(time.Minute)
		require.Len(t, f.listened(), 2, "subscriptions")
	})
}

// Subscriptions that end at once are not repeated in haste.
func TestInboxThatDoesNotLast(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		f.listen = func(_ context.Context, on func(Event)) error {
			on(Event{Kind: Subscribed})
			return errEnded
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := l.Acquire(ctx, "k", "t", time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, len(f.listened()), 60, "subscriptions in a minute")
	})
}

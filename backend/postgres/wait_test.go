package postgres

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/storewait"
)

// away is a source without a server.
type away struct{}

func (away) with(context.Context, func(*pgx.Conn) error) error { return errors.New("away") }
func (away) dial(context.Context) (*pgx.Conn, error)           { return nil, errors.New("away") }

// When the inbox has changed, a message may come from another server: neither an answer from before the change dates it,
// nor that to a call that was sent before.
func TestAnotherServersClockDatesNothing(t *testing.T) {
	l := open(away{}, false, nil)
	t.Cleanup(func() { l.Close() })
	w := &wait{
		call: call{key: "key", token: "x", ttl: time.Second, box: 1}, l: l, ctx: t.Context(), heard: storewait.Of(t.Context()),
		queued: true, answers: make(chan result, 9),
	}
	answered := func(box int64) {
		w.calling, w.again = false, false
		_, err := w.take(result{sent: time.Now(), box: box, verdict: waiting, clock: 1000, ticket: 1, holder: []byte("y"), remaining: 1000})
		require.NoError(t, err)
	}
	granted := func(box, at int64) bool {
		a := w.read(message{box: box, fence: 1, since: at, made: at})
		require.False(t, a.Since.After(time.Now()))
		return a.Acquired
	}
	answered(1)
	require.True(t, granted(1, 2000))
	require.False(t, granted(1, 1000), "an older message")
	require.False(t, granted(2, 2000), "the inbox has changed")
	answered(1)
	require.False(t, granted(2, 2000), "this call was sent before")
	answered(2)
	require.True(t, granted(2, time.Hour.Microseconds()))
	require.False(t, w.read(message{}).Acquired)
	require.True(t, w.calling)
}

// A token that was released is not granted, though a message says so.
func TestReleasedBesideAGrant(t *testing.T) {
	for range 30 { // as select draws
		w := &wait{
			ctx: t.Context(), last: result{box: 1, sent: time.Now()}, mail: make(chan message, 1),
			calling: true, withdraw: func() bool { return true },
		}
		w.stop, w.quit = context.WithCancelCause(t.Context())
		w.tell(message{box: 1, made: 1})
		w.quit(dlock.ErrReleased)
		a, err := w.run()
		require.False(t, a.Acquired)
		require.ErrorIs(t, err, dlock.ErrReleased)
	}
}

// A mute source has a server that is told what to answer.
type mute struct {
	away
	calls chan chan error
}

func (m mute) with(context.Context, func(*pgx.Conn) error) error {
	answer := make(chan error)
	m.calls <- answer
	return <-answer
}

// A release does not overtake the enqueue of the wait that it ends. A grant to a wait that is over is given back, whenever it
// comes.
func TestWhatAWaitLeaves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := mute{calls: make(chan chan error, 9)}
		l := open(m, false, nil)
		defer l.Close()
		ended, released := make(chan error, 1), make(chan error, 1)
		go func() { _, err := l.Acquire(t.Context(), "key", "x", time.Second); ended <- err }()
		enqueue := <-m.calls
		go func() { _, err := l.Release(t.Context(), "key", "x"); released <- err }()
		require.ErrorIs(t, <-ended, dlock.ErrReleased)
		synctest.Wait()
		require.Empty(t, m.calls)
		enqueue <- io.EOF
		release := <-m.calls
		release <- io.EOF
		require.ErrorIs(t, <-released, io.EOF)
		time.Sleep(time.Hour)
		l.post.deliver(1, "dlock_1", "1 2 3 4")
		release = <-m.calls
		release <- io.EOF
		l.post.deliver(1, "dlock_1", "1 2 3 4")
		synctest.Wait()
		require.Empty(t, m.calls)
	})
}

// Only after an ERROR is it known that a statement was rolled back.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		severity, code             string
		noEffect, temporary, state bool
	}{
		{"ERROR", "55P03", true, true, false},
		{"ERROR", "25006", true, true, false},
		{"ERROR", "42P01", true, false, false},
		{"ERROR", "53100", true, false, true},
		{"ERROR", "40003", false, false, false},
		{"ERROR", "08006", false, false, false},
		{"FATAL", "57P01", false, false, false},
		{"FATAL", "58000", false, false, false}, // of a pooler that has lost the server
		{"PANIC", "53100", false, false, false}, // the log cannot be synced
	} {
		err := outcome(&pgconn.PgError{SeverityUnlocalized: c.severity, Code: c.code})
		require.Equal(t, c.noEffect, dlock.NoEffect(err), "%+v", c)
		if none, ok := errors.AsType[*dlock.NoEffectError](err); ok {
			require.Equal(t, []bool{c.temporary, c.state}, []bool{none.Temporary, none.State}, "%+v", c)
		}
	}
}

package rediscore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// Inspect counts the waiters in the queue, also while the lock is free. For a user without the
// right to count, it still reports the holder.
func TestInspectTellsHowManyWait(t *testing.T) {
	b := newBench(t, "", "k")
	inspect := func() dlock.Hold {
		t.Helper()
		hold, err := b.locker.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.LessOrEqual(t, hold.Remaining, time.Minute)
		hold.Remaining = 0
		return hold
	}
	require.Equal(t, dlock.Hold{}, inspect())
	b.hold("H")
	require.Equal(t, dlock.Hold{Held: true, Token: "H"}, inspect())
	b.wait("A", "")
	b.wait("B", "")
	require.Equal(t, dlock.Hold{Held: true, Token: "H", Waiting: 2}, inspect())
	b.expire()
	require.Equal(t, dlock.Hold{Waiting: 2}, inspect())
	b.text(t, "SET", "k", "")
	require.Equal(t, dlock.Hold{Held: true, Waiting: 2}, inspect(), "a holder whose token is empty")
	b.rule("-zcard")
	require.Equal(t, dlock.Hold{Held: true}, inspect())
}

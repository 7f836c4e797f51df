package rediscore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// Inspect counts the waiters in the queue, also while the lock is free. For a user without the
// right to count, it still reports the holder.
func TestInspectTellsHowManyWait(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		requireHold := func(want dlock.Hold) {
			b.Helper()
			hold, err := b.locker.Inspect(b.Context(), "k")
			require.NoError(b, err)
			require.Equal(b, want, hold)
		}
		requireHold(dlock.Hold{})
		b.hold("H")
		time.Sleep(5 * time.Second)
		requireHold(dlock.Hold{Held: true, Token: "H", Remaining: 55 * time.Second})
		b.wait("A", "")
		b.wait("B", "")
		requireHold(dlock.Hold{Held: true, Token: "H", Remaining: 55 * time.Second, Waiting: 2})
		b.expire()
		requireHold(dlock.Hold{Waiting: 2})
		b.do("SET", "k", "")
		requireHold(dlock.Hold{Held: true, Remaining: -time.Millisecond, Waiting: 2}) // the token is empty
		b.forbid("ZCARD")
		requireHold(dlock.Hold{Held: true, Remaining: -time.Millisecond})
	})
}

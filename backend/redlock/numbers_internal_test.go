package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	memorybackend "github.com/dlock-go/dlock/backend/memory"
)

func TestNumbers(t *testing.T) {
	l := New([]dlock.Locker{memorybackend.New(), memorybackend.New(), memorybackend.New()}, WithNodeLimit(time.Second))
	defer l.Close()
	type rests = []time.Duration
	for got, want := range map[time.Duration]time.Duration{
		voteTTL(60*time.Millisecond + 1): 61 * time.Millisecond,
		voteTTL(62 * time.Millisecond):   62 * time.Millisecond,
		voteTTL(time.Millisecond):        50 * time.Millisecond,
		voteTTL(maxDefault + 1):          maxDefault + 1,

		l.patience(3 * time.Second):      300 * time.Millisecond, // a tenth
		l.patience(time.Millisecond) - 1: 50*time.Millisecond - 1,
		l.patience(time.Hour):            time.Second,

		l.rest(rests{3, 9}, 1):     9, // the one that is missing may hold it for longer
		l.rest(rests{3, 9, 7}, 0):  7,
		l.rest(rests{-1, 5}, 1):    -1, // for ever
		l.rest(rests{-1, 5, 6}, 0): 6,
		l.rest(nil, 3):             0,
	} {
		require.Equal(t, want, got)
	}
	require.Zero(t, l.rest(rests{0, 0, 0}, 0), "unknown, and not for ever")
}

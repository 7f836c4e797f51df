package sim_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A wait at a majority of servers is given up, while its token is on the way to each queue. The release of the token overtakes
// that request, and so does the release of the holder. So each server votes for a token that was released. When the release
// has been answered, none does any more.
func TestReleaseOvertakesAWait(t *testing.T) {
	const rtt = 10 * time.Millisecond
	for _, after := range []time.Duration{0, 4 * rtt, time.Minute} {
		t.Run(after.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				requests := make(map[*sim.Server]int)
				all := servers(3)
				a := majorityOf(t, all, nil)
				b := majorityOf(t, all, func(trip sim.Trip) (f sim.Fate) {
					mu.Lock()
					defer mu.Unlock()
					if trip.Calls != nil {
						if requests[trip.To]++; requests[trip.To] == 2 { // the first is a vote
							f.Request.Delay = 5 * rtt
						}
					}
					return f
				})
				held, err := a.TryAcquire(t.Context(), "k", "holder", time.Hour)
				require.True(t, held.Acquired && err == nil, "%+v, %v", held, err)
				ctx, cancel := context.WithTimeout(t.Context(), 2*rtt)
				defer cancel()
				_, err = b.(dlock.Acquirer).Acquire(ctx, "k", "waiter", time.Hour)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				released, err := a.Release(t.Context(), "k", "holder")
				require.True(t, released && err == nil, "%v", err)
				_, err = b.Release(t.Context(), "k", "waiter")
				require.NoError(t, err)
				time.Sleep(after)
				next, err := a.TryAcquire(t.Context(), "k", "next", time.Hour)
				require.True(t, next.Acquired && err == nil, "%+v, %v", next, err)
			})
		})
	}
}

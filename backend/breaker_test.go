package backend_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/redistest"
)

// An asked is a Locker that counts what reaches it.
type asked struct {
	dlock.Forward
	attempts, inFlight atomic.Int64
}

func (a *asked) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a.attempts.Add(1)
	a.inFlight.Add(1)
	defer a.inFlight.Add(-1)
	return a.Forward.TryAcquire(ctx, key, token, ttl)
}

// TestBreaker suspends a server, kills it and starts it again, under load. Without a breaker,
// each call would hang until its client gives up.
func TestBreaker(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	const load, keys = 200, 50
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l, _ := a.Dial(t, clients.At(server.Addr()))
			t.Cleanup(func() { l.Close() })
			inner := &asked{Forward: dlock.Forward{Locker: l}}
			b := breaker.New(inner, breaker.WithSlow(300*time.Millisecond), breaker.WithProbe(200*time.Millisecond))
			locks := dlock.New(b, dlock.WithTTL(2*time.Second))

			var granted, refused atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var workers sync.WaitGroup
			for i := range load {
				workers.Go(func() {
					for ctx.Err() == nil {
						lease, err := locks.TryAcquire(ctx, "k"+strconv.Itoa(i%keys))
						switch {
						case err == nil:
							granted.Add(1)
							lease.Release()
						case errors.Is(err, dlock.ErrUnavailable):
							refused.Add(1)
						}
						sleep(ctx, 10*time.Millisecond)
					}
				})
			}
			reaches := func(n *atomic.Int64, many int64, what string) {
				t.Helper()
				from := n.Load()
				require.Eventually(t, func() bool { return n.Load() >= from+many }, patient, pause, what)
			}
			reaches(&granted, 300, "grants")
			before := runtime.NumGoroutine()

			server.Suspend()
			require.Eventually(t, func() bool { return b.State().Open }, patient, pause)
			require.Eventually(t, func() bool { return inner.inFlight.Load() == 0 }, patient, pause)
			reaches(&refused, load, "what the last calls owe is counted")
			sent, owed := inner.attempts.Load(), locks.Stats().ReleasesOwed
			reaches(&refused, 10*load, "refusals")
			assert.Equal(t, sent, inner.attempts.Load(), "refused calls that were sent")
			assert.LessOrEqual(t, locks.Stats().ReleasesOwed, owed+load, "refused calls owe nothing; a release of each worker may")
			server.Kill()
			reaches(&refused, 10*load, "refusals")
			assert.Less(t, runtime.NumGoroutine(), before+2*load)

			server.Restart()
			reaches(&granted, 300, "grants")
			stop()
			workers.Wait()
			require.NoError(t, locks.Close())
		})
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

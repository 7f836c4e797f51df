package redlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// What calls cost: requests to three nodes, of which one is a little slower.
func TestCosts(t *testing.T) {
	const ttl = 10 * time.Second
	type requests = map[string]int
	try := func(ctx context.Context, l *redlock.Locker) error {
		_, err := l.TryAcquire(ctx, "key", "x", ttl)
		return err
	}
	renew := func(ctx context.Context, l *redlock.Locker) error {
		_, err := l.Renew(ctx, "key", "x", ttl)
		return err
	}
	for name, c := range map[string]struct {
		holder string
		err    error // of the slower node
		call   func(context.Context, *redlock.Locker) error
		want   requests
	}{
		"an attempt":                      {"", nil, try, requests{"Vote": 3}},
		"an attempt, and the key is held": {"y", nil, try, requests{"Vote": 3}},
		"a renewal":                       {"x", nil, renew, requests{"Confirm": 3}},
		"a renewal that a node answers too late with an error": {"x", errReset, renew, requests{"Confirm": 3}},
		"a release": {"x", nil, func(ctx context.Context, l *redlock.Locker) error {
			_, err := l.Release(ctx, "key", "x")
			return err
		}, requests{"Pass": 3}},
		"a look": {"x", nil, func(ctx context.Context, l *redlock.Locker) error {
			_, err := l.Inspect(ctx, "key")
			return err
		}, requests{"Inspect": 3}},
		"a wait for a minute": {"y", nil, func(ctx context.Context, l *redlock.Locker) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := l.Acquire(ctx, "key", "x", ttl)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return nil
		}, requests{"Vote": 3, "AcquireVote": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, made := newStores(3), make(requests)
				if c.holder != "" {
					for _, n := range s {
						_, err := n.Vote(t.Context(), "key", c.holder, time.Hour, 0)
						require.NoError(t, err)
					}
				}
				var mu sync.Mutex
				l := redlock.New(s.tapped(func(node int) tap {
					return func(r request) error {
						mu.Lock()
						made[r.method]++
						mu.Unlock()
						err := r.make(r.ctx)
						if time.Sleep(time.Millisecond); node == 2 {
							if time.Sleep(50 * time.Microsecond); c.err != nil {
								time.Sleep(20 * time.Millisecond)
								return c.err
							}
						}
						return err
					}
				}))
				require.NoError(t, c.call(t.Context(), l))
				time.Sleep(time.Second)
				require.NoError(t, l.Close())
				require.Equal(t, c.want, made)
			})
		})
	}
}

package redlock_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A cutting node keeps votes for whole milliseconds.
type cutting struct{ *memory.Locker }

func (n cutting) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	return n.Locker.Vote(ctx, key, token, ttl.Truncate(time.Millisecond), floor)
}

func (n cutting) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	return n.Locker.AcquireVote(ctx, key, token, ttl.Truncate(time.Millisecond), floor, place)
}

func (n cutting) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	whole := append([]quorum.Confirmation(nil), batch...)
	for i := range whole {
		whole[i].TTL = whole[i].TTL.Truncate(time.Millisecond)
	}
	return n.Locker.Confirm(ctx, whole)
}

// A holder is certain for its TTL, with its fraction of a millisecond.
func TestFractionsOfMilliseconds(t *testing.T) {
	const ttl = 60*time.Millisecond + 999*time.Microsecond
	for name, take := range map[string]func(*redlock.Locker, context.Context) (time.Time, error){
		"TryAcquire": func(l *redlock.Locker, ctx context.Context) (time.Time, error) {
			a, err := l.TryAcquire(ctx, "key", "x", ttl)
			return a.Since, err
		},
		"Acquire": func(l *redlock.Locker, ctx context.Context) (time.Time, error) {
			a, err := l.Acquire(ctx, "key", "x", ttl)
			return a.Since, err
		},
		"Renew": func(l *redlock.Locker, ctx context.Context) (time.Time, error) {
			if _, err := l.TryAcquire(ctx, "key", "x", time.Millisecond); err != nil {
				return time.Time{}, err
			}
			begun := time.Now()
			_, err := l.Renew(ctx, "key", "x", ttl)
			return begun, err
		},
		"RenewBatch": func(l *redlock.Locker, ctx context.Context) (time.Time, error) {
			if _, err := l.TryAcquire(ctx, "key", "x", time.Millisecond); err != nil {
				return time.Time{}, err
			}
			begun := time.Now()
			_, err := l.RenewBatch(ctx, []dlock.Renewal{{Key: "key", Token: "x", TTL: time.Millisecond}, {Key: "key", Token: "x", TTL: ttl}})
			return begun, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				l := redlock.New([]dlock.Locker{cutting{s[0]}, cutting{s[1]}, cutting{s[2]}})
				defer l.Close()
				since, err := take(l, t.Context())
				require.NoError(t, err)
				time.Sleep(time.Until(since.Add(ttl - time.Microsecond)))
				a, err := l.TryAcquire(t.Context(), "key", "y", time.Second)
				require.False(t, a.Acquired && err == nil, "another has the key 1µs before the deadline")
				time.Sleep(2 * time.Millisecond)
				a, err = l.TryAcquire(t.Context(), "key", "y", time.Second)
				require.True(t, a.Acquired && err == nil, "after the deadline: %+v, %v", a, err)
			})
		})
	}
}

// A TTL beyond all limits is the node's to refuse, and does not become a short one.
func TestTheLongestDuration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New(s.nodes(), redlock.WithoutGuard())
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", math.MaxInt64)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		hold, err := s[0].Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.Greater(t, hold.Remaining, 365*24*time.Hour)
	})
}

// Nodes that are 600 ms away, on the other side of the world, serve four processes without an error if the TTL is at least
// five round trips.
func TestFarNodes(t *testing.T) {
	const rtt, lasts = 600 * time.Millisecond, time.Minute
	for _, ttl := range []time.Duration{5 * rtt, 10 * time.Second, 30 * time.Second} {
		bubble.Test(t, func(t *testing.T) {
			var nodes []dlock.Locker
			for range 3 {
				conn := sim.Dial(sim.NewServer(), func(sim.Trip) (f sim.Fate) {
					f.Request.Delay, f.Reply.Delay = rtt/2, rtt/2
					return f
				})
				node := rediscore.New(conn)
				defer func() { _ = node.Close(); conn.Close() }()
				nodes = append(nodes, node)
			}
			var grants atomic.Int64
			var running sync.WaitGroup
			ctx, fail := context.WithCancel(t.Context()) // a process that fails ends the others, which would wait for its lease
			defer fail()
			for range 4 {
				running.Go(func() {
					l := redlock.New(nodes, redlock.WithoutGuard())
					c := dlock.New(l, dlock.WithTTL(ttl))
					defer func() {
						assert.NoError(t, c.Close())
						assert.NoError(t, l.Close())
					}()
					for end := time.Now().Add(lasts); time.Now().Before(end); grants.Add(1) {
						lease, err := c.Acquire(ctx, "k")
						if err == nil {
							time.Sleep(rtt / 6)
							err = lease.Release()
						}
						if !assert.NoError(t, err) {
							fail()
							return
						}
					}
				})
			}
			running.Wait()
			require.Greater(t, grants.Load(), int64(lasts/rtt/3))
		})
	}
}

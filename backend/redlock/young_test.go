package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// far makes nodes of stores of which the last one is that far away, there and back.
func far(s stores, trip time.Duration) []dlock.Locker {
	nodes := s.nodes()
	last := len(s) - 1
	nodes[last] = remote(s[last], func() time.Duration { return trip / 2 })
	return nodes
}

// One node has just restarted, and another one is far away. The two that count decide, however much
// sooner the young one answers.
func TestAYoungNodeIsNoWorseThanOneThatIsDown(t *testing.T) {
	const keys = 60
	for _, trip := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond} {
		for name, strike := range map[string]func(*memory.Locker){
			"young": (*memory.Locker).Wipe,
			"down":  func(n *memory.Locker) { n.Fail(errDial) },
		} {
			t.Run(fmt.Sprint(name, " ", trip), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s := newStores(3)
					strike(s[1])
					l := redlock.New(far(s, trip))
					defer l.Close()
					for call, acquire := range map[string]func(context.Context, string, string, time.Duration) (dlock.Attempt, error){
						"Acquire": l.Acquire, "TryAcquire": l.TryAcquire,
					} {
						failed, example := 0, error(nil)
						for i := range keys {
							if a, err := acquire(t.Context(), fmt.Sprint(call, i), "x", 10*time.Second); !a.Acquired || err != nil {
								failed, example = failed+1, err
							}
						}
						if failed > 0 {
							t.Errorf("%d of %d calls of %s failed: %v", failed, keys, call, example)
						}
					}
				})
			})
		}
	}
}

// A key is held while one of the nodes restarts. All attempts say so, in whatever order the nodes answer.
func TestAKeyHeldAcrossARestart(t *testing.T) {
	const attempts = 100
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		nodes := s.nodes()
		for i := range nodes {
			nodes[i] = remote(s[i], func() time.Duration {
				return 100*time.Microsecond + rand.N(200*time.Microsecond)
			})
		}
		l := redlock.New(nodes)
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "holder", 30*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		s[1].Wipe()
		failed, example := 0, error(nil)
		for i := range attempts {
			a, err := l.TryAcquire(t.Context(), "key", fmt.Sprint("x", i), 30*time.Second)
			if err != nil || a.Holder != "holder" {
				failed, example = failed+1, err
			}
		}
		if failed > 0 {
			t.Errorf("%d of %d attempts did not name the holder: %v", failed, attempts, example)
		}
	})
}

// Wait is for the guard. It is 0 if a majority is old enough, and did not decide for another reason.
func TestWaitIsOfTheGuard(t *testing.T) {
	const guard = 31300 * time.Millisecond
	reset := errors.New("connection reset")
	for name, c := range map[string]struct {
		strike func(stores)
		wait   time.Duration
	}{
		"old nodes are split":  {func(s stores) { s[2].Steal("key", time.Hour) }, 0},
		"an old node is down":  {func(s stores) { s[2].Fail(reset) }, guard},
		"an old node hangs":    {func(s stores) { s[2].Delay(time.Hour) }, guard - 5*time.Second},
		"another one is young": {func(s stores) { s[2].Wipe() }, guard},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				s[1].Wipe()
				c.strike(s)
				l := redlock.New(s.nodes())
				_, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
				var missing *redlock.MajorityError
				require.ErrorAs(t, err, &missing)
				require.InDelta(t, c.wait, missing.Wait, float64(50*time.Millisecond), "%v", err)
				require.NoError(t, l.Close())
			})
		})
	}
}

// Two nodes lose the votes that a wait would need.
func TestWaitingForNodesThatHaveForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New(s.nodes())
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "holder", 30*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		ctx, cancel := context.WithTimeout(t.Context(), 11300*time.Millisecond)
		defer cancel()
		time.AfterFunc(time.Second, func() { s[0].Wipe(); s[1].Wipe() })
		_, err = l.Acquire(ctx, "key", "x", 20*time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var missing *redlock.MajorityError
		require.ErrorAs(t, err, &missing)
		require.InDelta(t, 21*time.Second, missing.Wait, float64(50*time.Millisecond), "%v", err)
	})
}

// A holder repeats its attempt after one of the two nodes of its lease has lost its data. A waiter has
// the third one, and now that one as well. The attempt gives back no vote of the lease.
func TestRepeatedAttemptAfterAWipe(t *testing.T) {
	const ttl, keys = 20 * time.Second, 6
	for name, repeat := range map[string]func(*redlock.Locker, context.Context, string, string, time.Duration) (dlock.Attempt, error){
		"TryAcquire": (*redlock.Locker).TryAcquire, "Acquire": (*redlock.Locker).Acquire,
	} {
		t.Run(name, func(t *testing.T) {
			twice := 0
			for i := range keys { // with any arbiter
				bubble.Test(t, func(t *testing.T) {
					s, key := newStores(3), fmt.Sprint("key", i)
					l, other := redlock.New(s.nodes()), redlock.New(s.nodes())
					defer l.Close()
					defer other.Close()
					s[2].Fail(errDial)
					a, err := l.TryAcquire(t.Context(), key, "x", ttl)
					require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
					s[2].Fail(nil)
					certain, cancel := context.WithDeadline(t.Context(), a.Since.Add(ttl))
					defer cancel()
					for _, n := range s {
						n.Delay(10 * time.Millisecond) // so that they are asked less often
					}
					time.AfterFunc(time.Second, s[1].Wipe)
					time.AfterFunc(2*time.Second, func() {
						ctx, cancel := context.WithTimeout(certain, 5*time.Second)
						defer cancel()
						_, _ = repeat(l, ctx, key, "x", ttl)
					})
					if b, err := other.Acquire(certain, key, "y", ttl); b.Acquired && err == nil {
						twice++
					}
				})
			}
			if twice > 0 {
				t.Errorf("two held %d of %d keys", twice, keys)
			}
		})
	}
}

// A forgetting node loses all data when it is asked who holds the key, and votes for another then.
type forgetting struct{ *memory.Locker }

func (n forgetting) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	n.Wipe()
	if _, err := n.Vote(ctx, key, "y", time.Hour, 0); err != nil {
		return dlock.Hold{}, err
	}
	return n.Locker.Inspect(ctx, key)
}

// A fading node keeps the votes of no wait any more, and is slow to say so.
type fading struct{ *memory.Locker }

func (fading) Confirm(context.Context, []quorum.Confirmation) ([]quorum.Ballot, error) {
	return nil, errors.New("connection reset")
}

func (fading) AcquireVote(ctx context.Context, _, _ string, _ time.Duration, _, _ int64) (quorum.Ballot, error) {
	<-ctx.Done()
	time.Sleep(time.Second)
	return quorum.Ballot{}, ctx.Err()
}

// A holder does not know that a node has just lost its data, or has no answer of the other one. Its
// attempt ends, and what it asked for there is not given back.
func TestUnansweredRepeatAfterAWipe(t *testing.T) {
	const ttl = 20 * time.Second
	for name, c := range map[string]struct {
		nodes  func(stores) []dlock.Locker
		repeat func(context.Context, *redlock.Locker)
	}{
		"an attempt": {func(s stores) []dlock.Locker {
			return []dlock.Locker{lossy(s[0]), forgetting{s[1]}, s[2]}
		}, func(ctx context.Context, l *redlock.Locker) { _, _ = l.TryAcquire(ctx, "key", "x", ttl) }},
		"a wait": {func(s stores) []dlock.Locker {
			s[1].Wipe()
			s[1].Steal("key", time.Hour)
			return []dlock.Locker{fading{s[0]}, s[1], s[2]}
		}, func(ctx context.Context, l *redlock.Locker) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, _ = l.Acquire(ctx, "key", "x", 3*time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				for i, token := range []string{"x", "x", "y"} {
					_, err := s[i].Vote(t.Context(), "key", token, ttl, 0)
					require.NoError(t, err)
				}
				l := redlock.New(c.nodes(s))
				defer l.Close()
				c.repeat(t.Context(), l)
				time.Sleep(2 * time.Second)
				hold, err := s[0].Inspect(t.Context(), "key")
				require.NoError(t, err)
				require.Equal(t, "x", hold.Token, "at the node that has not answered")
			})
		})
	}
}

// Another token has two votes, one of them by a young node. It is no holder.
func TestAYoungNodeNamesNoHolder(t *testing.T) {
	for i := range 6 { // with any arbiter
		bubble.Test(t, func(t *testing.T) {
			s, key := newStores(3), fmt.Sprint("key", i)
			s[1].Wipe()
			for _, n := range s[1:] {
				_, err := n.Vote(t.Context(), key, "y", time.Hour, 0)
				require.NoError(t, err)
			}
			for _, n := range s {
				n.Delay(10 * time.Millisecond) // so that it asks them less often
			}
			l := redlock.New(s.nodes())
			defer l.Close()
			a, err := l.TryAcquire(t.Context(), key, "x", 10*time.Second)
			require.Error(t, err, "%+v", a)
		})
	}
}

// Two have a vote each, and one of them that of the young node as well. Both must agree who of them passes
// its vote on.
func TestAYoungNodeLeadsNobody(t *testing.T) {
	for name, acquire := range map[string]func(*redlock.Locker, context.Context, string, string, time.Duration) (dlock.Attempt, error){
		"TryAcquire": (*redlock.Locker).TryAcquire, "Acquire": (*redlock.Locker).Acquire,
	} {
		for i := range 6 { // with any arbiter
			bubble.Test(t, func(t *testing.T) {
				s, key := newStores(3), fmt.Sprint("key", i)
				s[1].Wipe()
				l := redlock.New([]dlock.Locker{farFrom(s[0], "y"), farFrom(s[1], "y"), farFrom(s[2], "x")})
				defer l.Close()
				begun := time.Now()
				var both sync.WaitGroup
				var granted atomic.Int64
				for _, token := range []string{"x", "y"} {
					both.Go(func() {
						a, err := acquire(l, t.Context(), key, token, 10*time.Second)
						require.NoError(t, err)
						if a.Acquired {
							granted.Add(1)
							_, _ = l.Release(t.Context(), key, token)
						}
					})
				}
				both.Wait()
				require.Positive(t, granted.Load(), "%s: nobody was granted the key", name)
				require.Less(t, time.Since(begun), 40*time.Millisecond, "until both were answered")
			})
		}
	}
}

// A waiter asks a young node again as soon as it counts.
func TestANodeBecomesOldDuringAWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s[1].SetAge(30300 * time.Millisecond) // counts in 1s
		s[2].Steal("key", time.Hour)
		l := redlock.New(s.nodes())
		defer l.Close()
		begun := time.Now()
		a, err := l.Acquire(t.Context(), "key", "x", 30*time.Second)
		require.NoError(t, err, "%+v", a)
		require.True(t, a.Acquired)
		require.Less(t, time.Since(begun), 3*time.Second)
	})
}

// All calls succeed although as many nodes are young as can be, and one is slow.
func TestAllCallsWithYoungNodes(t *testing.T) {
	for _, n := range []int{3, 5} {
		for first := range n {
			bubble.Test(t, func(t *testing.T) {
				ctx := t.Context()
				s := newStores(n)
				for i := range n / 2 {
					s[(first+i)%n].Wipe()
				}
				nodes := s.nodes()
				slow := (first + n/2) % n
				nodes[slow] = remote(s[slow], func() time.Duration { return 20 * time.Millisecond })
				l := redlock.New(nodes)
				defer l.Close()
				for _, acquire := range []func(context.Context, string, string, time.Duration) (dlock.Attempt, error){l.TryAcquire, l.Acquire} {
					a, err := acquire(ctx, "key", "x", 20*time.Second)
					require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
					again, err := acquire(ctx, "key", "x", 20*time.Second)
					require.True(t, again.Acquired && err == nil && again.Fence > a.Fence, "%+v, %v", a, err)
					hold, err := l.Inspect(ctx, "key")
					require.NoError(t, err)
					require.Equal(t, "x", hold.Token)
					for range 5 {
						time.Sleep(5 * time.Second)
						held, err := l.Renew(ctx, "key", "x", 20*time.Second)
						require.True(t, held && err == nil, "%v", err)
					}
					b, err := l.TryAcquire(ctx, "key", "y", 20*time.Second)
					require.NoError(t, err)
					require.Equal(t, "x", b.Holder)
					short, cancel := context.WithTimeout(ctx, 2*time.Second)
					b, err = l.Acquire(short, "key", "y2", 20*time.Second)
					cancel()
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, "x", b.Holder)
					_, err = l.Release(ctx, "key", "y2")
					require.NoError(t, err)
					done := make(chan error)
					go func() {
						c, err := l.Acquire(ctx, "key", "z", 20*time.Second)
						if !c.Acquired && err == nil {
							err = context.Canceled
						}
						done <- err
					}()
					time.Sleep(3 * time.Second)
					held, err := l.Release(ctx, "key", "x")
					require.True(t, held && err == nil, "%v", err)
					begun := time.Now()
					require.NoError(t, <-done)
					require.Less(t, time.Since(begun), time.Second)
					held, err = l.Release(ctx, "key", "z")
					require.True(t, held && err == nil, "%v", err)
					time.Sleep(time.Second)
					for i := range s {
						hold, _ := s[i].Inspect(ctx, "key")
						require.False(t, hold.Held || hold.Waiting > 0, "node %d: %+v", i, hold)
					}
				}
			})
		}
	}
}

package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

const (
	soon  = 20 * time.Millisecond // after which nodes answer
	never = time.Hour
)

// A lateNode executes a vote at once, and answers after a while. If ctx ends before that, the answer comes late, or never.
// A wait has a place in the queue then. The node counts its releases, before and after the answer of the first node.
type lateNode struct {
	*memory.Locker
	after    time.Duration
	releases *[2]atomic.Int64
	first    time.Time
}

func (n lateNode) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	return n.ask(ctx, n.after, key, token, ttl, nil)
}

func (n lateNode) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, _ int64) (quorum.Ballot, error) {
	return n.ask(ctx, max(n.after, 10*soon), key, token, ttl, none(context.Canceled))
}

func (n lateNode) ask(ctx context.Context, after time.Duration, key, token string, ttl time.Duration, late error) (quorum.Ballot, error) {
	b, err := n.Locker.Vote(ctx, key, token, ttl, 0)
	timer := time.NewTimer(after)
	defer timer.Stop()
	if err != nil {
		return b, err
	}
	sent := time.Now()
	select {
	case <-timer.C:
		return b, nil
	case <-ctx.Done():
	}
	if err = ctx.Err(); after < never {
		err = fmt.Errorf("decorated: %w", &dlock.UnansweredError{Err: err, Late: func(f func(dlock.Attempt, error)) {
			time.AfterFunc(time.Until(sent.Add(after)), func() { f(b.Attempt, late) })
		}})
	}
	return quorum.Ballot{}, err
}

func (n lateNode) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	if time.Now().Before(n.first) {
		n.releases[0].Add(1)
	} else {
		n.releases[1].Add(1)
	}
	return n.Locker.Pass(ctx, key, token, to, floor)
}

// What a node has answered is not owed there, whatever the other nodes do. The answer of the first node comes as soon as
// those of the others, or much later, or never. (A first attempt asks it only for a vote, so it has no place in its queue.)
func TestWhatANodeHasAnsweredIsNotOwed(t *testing.T) {
	const later, many = 10 * time.Second, -1
	for name, test := range map[string]struct {
		queued bool
		after  time.Duration // the first node answers
		free   []int         // these nodes vote for the attempts
		want   [3][2]int     // releases of an attempt at the first, the second and the third node: before that answer, and after it
	}{
		"held":                             {false, soon, nil, [3][2]int{}},
		"one votes":                        {false, soon, []int{0}, [3][2]int{{0, 1}}},
		"two vote":                         {false, soon, []int{0, 1}, [3][2]int{{0, 1}, {0, 1}}},
		"all wait":                         {true, soon, nil, [3][2]int{{0, 1}, {0, 1}, {0, 1}}},
		"late":                             {false, later, nil, [3][2]int{{many, 0}}},
		"late, and it votes":               {false, later, []int{0}, [3][2]int{{many, 1}}},
		"late, and another votes":          {false, later, []int{1}, [3][2]int{{many, 0}, {1, 0}}},
		"late, and two vote":               {false, later, []int{0, 1}, [3][2]int{{many, 1}, {1, 0}}},
		"late, and all wait":               {true, later, nil, [3][2]int{{many, 0}, {1, 0}, {1, 0}}},
		"after the releases, and it votes": {false, time.Minute, []int{0}, [3][2]int{{many, 1}}},
		"after the releases, and two vote": {false, time.Minute, []int{0, 1}, [3][2]int{{many, 1}, {1, 0}}},
		"after the releases, and all wait": {true, time.Minute, nil, [3][2]int{{many, 0}, {1, 0}, {1, 0}}},
		"never":                            {false, never, nil, [3][2]int{{many, 0}}},
		"never, and another votes":         {false, never, []int{1}, [3][2]int{{many, 0}, {1, 0}}},
	} {
		for _, n := range []int{3, 5} {
			t.Run(fmt.Sprintf("%s, %d nodes", name, n), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					const attempts = 100
					releases := giveUp(t, n, attempts, test.queued, test.after, func(c *dlock.Client, _ *redlock.Locker) { time.Sleep(never) }, test.free...)
					for i := range releases {
						for k, want := range test.want[min(i, 2)] {
							got := int(releases[i][k].Load())
							require.True(t, got == want*attempts || want == many && got > attempts, "node %d: %d releases, want %d for each attempt", i, got, want)
						}
					}
				})
			})
		}
	}
}

// A vote that comes when the Locker is closed is not released.
func TestALateVoteAfterClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		releases := giveUp(t, 3, 1, false, time.Minute, func(c *dlock.Client, l *redlock.Locker) {
			_ = c.Close()
			require.NoError(t, l.Close())
			time.Sleep(never)
		}, 0)
		require.Zero(t, releases[0][1].Load())
	})
}

// giveUp makes attempts that are given up, and returns the releases at each node.
func giveUp(t *testing.T, n, attempts int, queued bool, after time.Duration, then func(*dlock.Client, *redlock.Locker), free ...int) [][2]atomic.Int64 {
	s, releases := newStores(n), make([][2]atomic.Int64, n)
	nodes := s.nodes()
	for i := range nodes {
		nodes[i] = lateNode{s[i], soon, &releases[i], time.Now().Add(after)}
	}
	nodes[0] = lateNode{s[0], after, &releases[0], time.Now().Add(after)}
	l := redlock.New(nodes)
	c := dlock.New(breaker.New(l), dlock.WithTTL(20*time.Second))
	defer func() { _, _ = c.Close(), l.Close() }()
	patience, call := soon/2, c.TryAcquire
	if queued {
		patience, call = 15*soon, c.Acquire
	}
	var all sync.WaitGroup
	for k := range attempts {
		key := fmt.Sprint("k", k)
		for i := range s {
			if !slices.Contains(free, i) {
				_, _ = s[i].TryAcquire(t.Context(), key, "holder", 24*time.Hour)
			}
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := call(ctx, key)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	all.Wait()
	time.Sleep(time.Second)
	then(c, l)
	require.Zero(t, c.Stats().ReleasesOwed)
	return releases
}

package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/dlock-go/dlock/internal/redistest"
)

// A contest has workers of some libraries want the same keys.
type contest struct {
	keys    int
	workers int // for each key, of each library
	time    time.Duration
	work    time.Duration // that a worker does under the lock
	rest    time.Duration // between two turns of a worker
}

// turns returns how often the workers of each library had a key.
func (c contest) turns(t *testing.T, libs ...library) []int {
	t.Helper()
	counts := make([]atomic.Int64, len(libs))
	ctx, cancel := context.WithTimeout(t.Context(), c.time)
	defer cancel()
	var all sync.WaitGroup
	for key := range c.keys {
		for i, lib := range libs {
			for range c.workers {
				all.Go(func() {
					for ctx.Err() == nil {
						had, err := c.turn(ctx, lib, fmt.Sprint("key ", key))
						if err != nil {
							t.Errorf("%s: %v", lib.name, err)
							return
						}
						if had {
							counts[i].Add(1)
						}
						time.Sleep(c.rest)
					}
				})
			}
		}
	}
	all.Wait()
	turns := make([]int, len(libs))
	for i := range turns {
		turns[i] = int(counts[i].Load())
		t.Logf("%s had %d turns", libs[i].name, turns[i])
	}
	return turns
}

// turn works once under the lock, and reports whether it got it before ctx ended.
func (c contest) turn(ctx context.Context, lib library, key string) (had bool, err error) {
	held, err := lib.wait(ctx, key)
	if errors.Is(err, errHeld) || errors.Is(err, context.DeadlineExceeded) || err != nil && ctx.Err() != nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	time.Sleep(c.work)
	if ok, err := held.release(context.WithoutCancel(ctx)); err != nil || !ok {
		return false, errors.Join(fmt.Errorf("release: held is %v", ok), err)
	}
	return true, nil
}

// requireTurns repeats a contest until the turns are as wanted: chance, or a busy machine, may
// favour one library, but hardly each time. If there are too few turns, nothing can be told.
func requireTurns(t *testing.T, c contest, enough int, want func(turns []int) bool, what string, libs ...library) {
	t.Helper()
	const tries = 3
	total := 0
	for range tries {
		turns := c.turns(t, libs...)
		if want(turns) {
			return
		}
		total = 0
		for _, n := range turns {
			total += n
		}
	}
	if total < enough {
		t.Skipf("the machine is too busy: %d turns, want %d", total, enough)
	}
	t.Errorf("%d times not so: %s", tries, what)
}

// TestShareBesideRedsync: at their default paces, dlock's pollers get as many turns as redsync's.
func TestShareBesideRedsync(t *testing.T) {
	client := dial(t, redistest.Start(t))
	c := contest{keys: 20, workers: 4, time: 8 * time.Second, work: 100 * time.Millisecond, rest: 50 * time.Millisecond}
	requireTurns(t, c, 500, func(turns []int) bool {
		t.Logf("dlock's share: %.2f of redsync's", float64(turns[0])/float64(turns[1]))
		return 10*turns[0] >= 8*turns[1]
	}, "dlock's pollers have at least 0.8 of the turns of redsync's", ours(client), redsyncs(client))
}

// TestLoopWithoutPauses: whoever tries without a pause takes the turns of everybody else, of either library.
func TestLoopWithoutPauses(t *testing.T) {
	client := dial(t, redistest.Start(t))
	loop := redsyncs(client, redsync.WithRetryDelay(time.Nanosecond))
	loop.name = "redsync, without pauses"
	c := contest{keys: 1, workers: 2, time: 3 * time.Second, work: 10 * time.Millisecond}
	requireTurns(t, c, 200, tenTimesTheOthers, "those without pauses have ten times the turns of the others", loop, ours(client), redsyncs(client))
}

// TestQueueBesidePollers: where the key is always waited for in the queue, it passes from
// one waiter to the next, and those who poll find it taken.
func TestQueueBesidePollers(t *testing.T) {
	client := dial(t, redistest.Start(t))
	c := contest{keys: 4, workers: 2, time: 4 * time.Second, work: 10 * time.Millisecond, rest: 10 * time.Millisecond}
	requireTurns(t, c, 500, tenTimesTheOthers, "those who queue have ten times the turns of who polls", queueing(t, client), ours(client), redsyncs(client))
}

func tenTimesTheOthers(turns []int) bool { return turns[0] > 10*(turns[1]+turns[2]) }

package redlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
)

// A farFrom is a node whose votes take longer for one token than for others.
type farFrom struct {
	*memory.Locker
	token string
}

func (n farFrom) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (dlock.Ballot, error) {
	if token == n.token {
		time.Sleep(time.Millisecond)
	}
	return n.Locker.Vote(ctx, key, token, ttl, floor)
}

// Two waiters get a vote each with their first requests, and the third node is down. No other
// vote comes that would make them look.
func TestFirstVotesOfWaitersAreSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := memory.New()
		down.Fail(errors.New("down"))
		l := redlock.New([]dlock.Locker{farFrom{memory.New(), "x"}, down, farFrom{memory.New(), "y"}}, redlock.WithoutGuard())
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var waiters sync.WaitGroup
		for _, token := range []string{"x", "y"} {
			waiters.Go(func() {
				a, err := l.Acquire(ctx, "key", token, 3*time.Second)
				if err != nil || !a.Acquired {
					t.Errorf("Acquire of %s: %+v, %v", token, a, err)
					return
				}
				held, err := l.Release(ctx, "key", token)
				if !held || err != nil {
					t.Errorf("Release of %s: %v, %v", token, held, err)
				}
			})
		}
		waiters.Wait()
	})
}

package dlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// The pauses of a waiter that polls. While the store answers, each is random between
// minPollPause and maxPollPause, however long the wait: early waiters poll as frequently as
// late ones, and waiters that began together drift apart. These are redsync's pauses, so that
// both libraries get a shared lock equally often. While the store fails, pauses double up to
// maxErrorPause, plus up to a half.
const (
	minPollPause  = 50 * time.Millisecond
	maxPollPause  = 250 * time.Millisecond
	maxErrorPause = 640 * time.Millisecond
)

// A pace is the pauses of one wait.
type pace struct {
	backoff  *func(attempt int) time.Duration
	pauses   int
	failures int  // of attempts, in a row
	early    bool // the last pause ended early, with the holder's lease
}

// pause returns nil when it is time for the next attempt, or the error of ctx. The last
// attempt returned err.
func (p *pace) pause(ctx context.Context, a *acquisition, err error) error {
	p.pauses++
	p.failures++
	if errors.Is(err, ErrHeld) {
		p.failures = 0
	}
	d, err := p.next(a)
	if err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func (p *pace) next(a *acquisition) (time.Duration, error) {
	if p.backoff != nil {
		d := (*p.backoff)(p.pauses)
		if d <= 0 {
			return 0, invalid("WithBackoff: %v for attempt %d: not positive", d, p.pauses)
		}
		return d, nil
	}
	if p.failures > 0 {
		d := min(minPollPause<<min(p.failures-1, 10), maxErrorPause)
		return d + rand.N(d/2), nil
	}
	d := minPollPause + rand.N(maxPollPause-minPollPause)
	if p.early {
		p.early = false
		return max(d, 2*minPollPause), nil // a short TTL does not make it poll more frequently
	}
	if a.held == nil || a.held.Remaining <= 0 || a.held.Remaining > d {
		return d, nil
	}
	p.early = true
	expiry := time.Until(a.returned.Add(a.held.Remaining)) + time.Millisecond + rand.N(2*time.Millisecond)
	return max(0, min(d, expiry)), nil
}

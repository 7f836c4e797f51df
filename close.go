package dlock

import (
	"container/list"
	"context"
	"fmt"
	"time"
)

const closeTimeout = 5 * time.Second // for all that is owed when a Client is closed

// Close ends all waits with [ErrClosed], and ends all renewal: leases that are still
// held are lost at their deadlines, and can be released until then. It waits for at most
// 5 s until calls in flight have ended, and the store has answered the releases that are
// owed, and keeps the keys of [WithMinHold]. It returns an error if some were not answered:
// their keys may stay for up to one TTL. It does not wait for releases that the store
// refuses. It does not close the Locker. Closing a closed Client does nothing.
//
// A Client that is not closed leaks nothing, since it has no goroutine while there
// is nothing to do. Close it, or call [Client.Shutdown], before the process ends, or what
// it owes, and what [WithMinHold] promises, ends with the process.
func (c *Client) Close() error {
	k := c.keeper
	if k == nil || k.closed.Swap(true) {
		return nil
	}
	k.endOpen()
	return k.close("close")
}

// Shutdown ends all waits with [ErrClosed], refuses new calls, and waits until all
// leases have been released or lost, or ctx ends. Leases are renewed meanwhile. When ctx
// ends, leases that are still held end with ErrClosed, and their contexts with them; they
// are not released, since their work may still run. Their keys stay until their TTL has
// passed, and their [WithMinHold], unless their holders call Release. Then Shutdown does
// what Close does, for up to 5 s more.
//
// It returns nil if everything was released, an error that matches ctx's if leases were
// still held, and else the error of Close. Once Close or Shutdown was called, both do
// nothing, and return nil at once.
func (c *Client) Shutdown(ctx context.Context) error {
	k := c.keeper
	if k == nil || k.closed.Swap(true) {
		return nil
	}
	k.endOpen()
	held := k.awaitLeases(ctx)
	err := k.close("shutdown")
	if held > 0 {
		return fmt.Errorf("dlock: shutdown: %w: %d leases still held", endOf(ctx), held)
	}
	return err
}

// awaitLeases waits until no lease is held, or ctx ends, and returns how many leases it
// has abandoned then.
func (k *keeper) awaitLeases(ctx context.Context) int {
	for {
		k.mu.Lock()
		held := k.leases
		k.mu.Unlock()
		if held == 0 && k.calls.Load() == 0 {
			return 0
		}
		select {
		case <-k.changed:
		case <-ctx.Done():
			return k.abandon()
		}
	}
}

// abandon ends all leases without releasing them, and returns how many.
func (k *keeper) abandon() int {
	k.abandoned.Store(true)
	k.mu.Lock()
	n := k.leases
	leases := make([]*Lease, 0, len(k.agenda))
	for _, e := range k.agenda { // those that are just being taken from it look by themselves
		if e.lease != nil {
			leases = append(leases, e.lease)
		}
	}
	k.mu.Unlock()
	for _, l := range leases {
		_ = l.Err() // which looks
	}
	return n
}

// close ends renewal, and waits for what is in flight and owed.
func (k *keeper) close(op string) error {
	k.endRenew()
	k.hurry()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	for k.outstanding() {
		select {
		case <-k.changed:
			continue
		case <-timer.C:
		}
		break
	}
	if calls, debts := k.finish(); calls > 0 || debts > 0 {
		return fmt.Errorf("dlock: %s: %d releases not answered, and %d calls not ended, within %v: their keys may stay for up to one TTL",
			op, debts, calls, closeTimeout)
	}
	return nil
}

// hurry tries at once to pay the debts that wait for their next try.
func (k *keeper) hurry() {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := &k.owed
	o.silent = 0
	for _, all := range []*list.List{&o.fresh, &o.held} {
		for e := all.Front(); e != nil; e = e.Next() {
			if d := e.Value.(*debt); d.inFlight == 0 && !d.answered && !d.refused {
				k.removeLocked(&d.event)
				d.tries = 0
				k.dueLocked(d)
			}
		}
	}
	k.wakeLocked()
}

func (k *keeper) outstanding() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls.Load() > 0 || k.owed.unanswered > 0
}

// finish drops what is still owed, and returns how many calls are in flight, and how many
// releases the store has not answered.
func (k *keeper) finish() (calls, debts int) {
	defer k.endOver()
	k.mu.Lock()
	defer k.mu.Unlock()
	o := &k.owed
	calls, debts = int(k.calls.Load()), o.unanswered
	o.finished = true
	for _, all := range []*list.List{&o.fresh, &o.settled, &o.held} {
		for all.Len() > 0 {
			k.dropLocked(all.Front().Value.(*debt))
		}
	}
	k.removeLocked(&o.probe)
	if len(k.agenda) == 0 && k.timer != nil {
		k.timer.Stop()
		k.wake = time.Time{}
	}
	return calls, debts
}

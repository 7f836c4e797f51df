package dlock

import (
	"fmt"
	"time"
)

// trouble describes the failed renewals of a lease since the last successful one. Leases are
// renewed in batches; a batch that hangs counts as failed. If a whole batch fails, the store
// may be away, or one element may spoil the batch. To find out, one lease of the batch is
// renewed alone at once, as a probe. If the store answers that or any other renewal, and the
// batch fails once more, the batch is split, down to single leases as long as others succeed.
// A lease that was renewed returns to the large batches.
type trouble struct {
	err         error     // of the last renewal
	sent        time.Time // when the last one was sent
	inFlight    int       // the size of its batch; 0 once that has failed or hangs
	silentSince time.Time // when the first one was sent
	failedAt    time.Time // when the first one failed in a batch of this size
	suspect     bool      // the store had answered others between failedAt and sent
	queue       int       // of the renewals
}

// The queues of leases that are due for a renewal, and the sizes of their batches. Leases that
// failed while others of their batch did not have a queue of their own: the server of a
// cluster that keeps them may be down, and would delay the others.
const (
	queueWhole = iota
	queueApart
	queueSmaller
	queueCount = queueSmaller + 3
)

var batchSizes = [queueCount]int{maxBatch, maxBatch, maxBatch >> 4, maxBatch >> 8, 1}

// noteLocked chooses the queue of a lease whose renewal has failed.
func (t *trouble) noteLocked(l *Lease, o outcome) {
	alive := !t.failedAt.IsZero() && l.keeper.renewals.answeredSince(t.failedAt)
	probed := l.keeper.endProbe(l)
	switch {
	case o.size == spared:
		t.queue = queueApart
	case t.queue >= queueSmaller && alive, t.queue < queueSmaller && t.suspect:
		t.queue, t.failedAt = cut(o.size), o.answered
	case probed:
		t.queue = queueApart // it may be the one that spoils the batch
	case t.failedAt.IsZero():
		t.failedAt = o.answered
	}
}

// cut returns the queue with batches of at most half of size.
func cut(size int) int {
	q := queueSmaller
	for q < queueCount-1 && 2*batchSizes[q] > size {
		q++
	}
	return q
}

// causeLocked returns why renewals failed before a loss; nil if none was tried. If they only
// timed out, it says for how long there was no answer.
func (t *trouble) causeLocked(now time.Time) error {
	err := hideContextErrors(t.err)
	if t.err != nil && besidesEnd(t.err) == nil || t.err == nil && t.inFlight > 0 {
		err = fmt.Errorf("no answer for %v", now.Sub(t.silentSince).Round(time.Millisecond))
	}
	return err
}

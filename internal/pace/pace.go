// Package pace says how soon those who ask again and again for something that another has ask next: it draws their
// pauses, and remembers for a second what was waited for.
package pace

import (
	"time"

	"github.com/dlock-go/dlock/internal/chance"
)

// While there are answers, each pause is random between minPoll and maxPoll, however long the wait: early waiters
// ask as frequently as late ones, and waiters that began together drift apart. These are redsync's pauses, so that both
// libraries get a shared lock equally often. After failures, pauses double up to maxFailure, plus up to a half.
const (
	minPoll    = 50 * time.Millisecond
	maxPoll    = 250 * time.Millisecond
	maxFailure = 640 * time.Millisecond
)

// A set that is taken as a whole keeps nobody from anything while it asks. It asks more and more frequently, so that those who
// have waited for long come first, until the pauses are between a half and one and a half of minSet.
const (
	minSet  = 5 * time.Millisecond
	maxSet  = 10 * time.Millisecond
	setStep = 250 * time.Microsecond
)

// OfSet returns the n-th pause of a set that is taken as a whole.
func OfSet(n int) time.Duration {
	d := max(minSet, maxSet-time.Duration(n)*setStep)
	return d/2 + chance.N(d)
}

// AfterFailures returns the pause after n failures in a row.
func AfterFailures(n int) time.Duration {
	d := min(minPoll<<min(n-1, 10), maxFailure)
	return d + chance.N(d/2)
}

// A Poll draws the pauses of one waiter. The zero value is ready for use.
type Poll struct {
	early bool // the last pause ended early
}

// Next returns the next pause. It ends early, with what the waiter waits for, if that ends at a known time; but not twice
// in a row, so that the waiter does not ask more frequently if that is short. An end that is zero is unknown.
func (p *Poll) Next(end time.Time) time.Duration {
	d := minPoll + chance.N(maxPoll-minPoll)
	rest := time.Until(end)
	switch {
	case p.early:
		p.early = false
		return max(d, 2*minPoll)
	case end.IsZero(), rest > d:
		return d
	}
	p.early = true
	return max(0, min(d, rest+time.Millisecond+chance.N(2*time.Millisecond)))
}

package peers

import (
	"cmp"
	"slices"
	"time"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
)

// A tenure is one hold of a lock. Its instants are nanoseconds of the machine's clock, so those
// of several processes can be compared. A wait that had not ended when its turn did has no Got.
type tenure struct {
	Who, Key         int32
	Asked, Got, Done int64 // Done is just before the release
}

// contend judges the tenures of waiters that wanted one key in the time from from until until. It returns
// how often each held it; of each handover, the time from the release by another to the grant; and the waits
// of those that were handed the lock, and of those that wait still. A handover is a hold whose holder is not
// the one before: one that takes the lock again at once hands nothing over, and did not wait.
func contend(all []tenure, waiters int, from, until int64) (served []float64, gaps, waits []time.Duration) {
	all = slices.SortedFunc(slices.Values(all), func(a, b tenure) int { return cmp.Compare(a.Got, b.Got) })
	served = make([]float64, waiters)
	last := -1
	for i, t := range all {
		switch {
		case t.Got == 0 || t.Got > until:
			if t.Asked < until {
				waits = append(waits, time.Duration(until-t.Asked))
			}
			continue
		case t.Got >= from:
			served[t.Who]++
			if last >= 0 && all[last].Who != t.Who {
				gaps = append(gaps, time.Duration(t.Got-all[last].Done))
				waits = append(waits, time.Duration(t.Got-t.Asked))
			}
		}
		last = i
	}
	return served, gaps, waits
}

// cycle is the median time from one request of the only worker to its next.
func cycle(all []tenure) time.Duration {
	var took []time.Duration
	for i := 1; i < len(all); i++ {
		took = append(took, time.Duration(all[i].Asked-all[i-1].Asked))
	}
	return figures.Median(took)
}

func total(all []float64) (sum float64) {
	for _, x := range all {
		sum += x
	}
	return sum
}

// jain is Jain's index of fairness: 1 if all have the same, 1/n if one has everything.
func jain(all []float64) float64 {
	sum, squares := total(all), 0.0
	for _, x := range all {
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(all)) * squares)
}

package learn

import (
	"math"
	"time"
)

const (
	window  = 1000 // samples in a generation
	buckets = 8    // for each doubling: a quantile is at most 9 % too long
	octaves = 46   // from 1 µs to 2 years
)

// times describes the latest samples of a duration, 1,000 to 2,000 of them, in flat memory.
type times struct {
	now, before generation
}

type generation struct {
	counts [octaves * buckets]uint16
	count  int
	sum    time.Duration
}

func (t *times) add(d time.Duration) {
	if t.now.count == window {
		t.before, t.now = t.now, generation{}
	}
	t.now.counts[bucket(d)]++
	t.now.count++
	t.now.sum += min(d, limit(octaves*buckets-1))
}

func (t *times) count() int { return t.now.count + t.before.count }

func (t *times) mean() time.Duration {
	n := time.Duration(max(1, t.count()))
	return t.now.sum/n + t.before.sum/n
}

// quantile returns a duration that at least the share q of the samples does not exceed, for q above
// 0. It returns 0 if there are none.
func (t *times) quantile(q float64) time.Duration {
	above := int(float64(t.count()) * (1 - q))
	for i := octaves*buckets - 1; i >= 0; i-- {
		above -= int(t.now.counts[i]) + int(t.before.counts[i])
		if above < 0 {
			return limit(i)
		}
	}
	return 0
}

// bucket returns the index of the bucket of d, whose longest duration is limit.
func bucket(d time.Duration) int {
	if d <= time.Microsecond {
		return 0
	}
	i := int(math.Ceil(math.Log2(float64(d)/float64(time.Microsecond)) * buckets))
	return min(i, octaves*buckets-1)
}

func limit(i int) time.Duration {
	return time.Duration(math.Ceil(float64(time.Microsecond) * math.Exp2(float64(i)/buckets)))
}

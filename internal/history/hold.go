package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A Hold is a time in which a client was certain that it held a key.
type Hold struct {
	Client     int
	Key, Token string
	Asked      time.Duration // when the key was asked for
	Start, End time.Duration // the grant's return; the call of Release, or the lease's deadline
	Fence      int64
}

func (h *Hold) String() string {
	return fmt.Sprintf("certain of %s, fence %d", short(h.Token), h.Fence)
}

// cutAtWipes returns holds as they were certain before and after the store lost its
// data. A grant that was asked for before the end of a loss may have been lost with it.
func cutAtWipes(holds []*Hold, operations []*Operation) []*Hold {
	var left []*Hold
	for _, h := range holds {
		cut := *h
		for _, o := range operations {
			if o.Method == Wipe && h.Asked <= o.Returned {
				cut.End = min(cut.End, o.Called)
			}
		}
		if cut.Start < cut.End {
			left = append(left, &cut)
		}
	}
	return left
}

// checkHolds returns two certain holds of one key at one time, or two whose fences
// are not in the order of the holds.
func (m Model) checkHolds(holds []*Hold) *Violation {
	latest := make(map[string]*Hold)
	for _, h := range slices.SortedStableFunc(slices.Values(holds), func(a, b *Hold) int { return cmp.Compare(a.Start, b.Start) }) {
		before := latest[h.Key]
		latest[h.Key] = h
		what := ""
		switch {
		case before == nil:
		case h.Start < before.End:
			what = fmt.Sprintf("two certain holds overlap by %s", millis(min(before.End, h.End)-h.Start))
		case cmp.Or(h.Fence, before.Fence) != 0 && h.Fence < before.Fence+m.FenceStep:
			what = fmt.Sprintf("a later hold does not have a fence that is higher by at least %d", m.FenceStep)
		}
		if what != "" {
			return &Violation{Key: h.Key, What: what, Holds: []*Hold{before, h}}
		}
	}
	return nil
}

package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A Hold is a grant of a key, and the time in which a client was certain that it held the key.
type Hold struct {
	Client, Key, Token string
	Asked              time.Duration // when the key was asked for
	Start, End         time.Duration // the grant's return; the call of Release, or the lease's deadline
	Lost               time.Duration // when the store did not know the lease, before its deadline; or 0
	Fence              int64
}

func (h *Hold) String() string {
	return line(h.Start, h.End, h.Client, fmt.Sprintf("certain of %s, fence %d", short(h.Token), h.Fence))
}

// certain reports whether there is any time in which h was certain.
func (h *Hold) certain() bool { return h.Start < h.End }

// mayEndWith reports whether o is a loss of all data that h may have been lost with: it was asked
// for before the end of the loss.
func (h *Hold) mayEndWith(o *Operation) bool { return o.Method == Wipe && h.Asked <= o.Returned }

// cutAtWipes leaves of h what was certain before and after the store lost its data.
func (h *Hold) cutAtWipes(operations []*Operation) {
	for _, o := range operations {
		if h.mayEndWith(o) {
			h.End = min(h.End, o.Called)
		}
	}
}

// Overlaps returns each certain hold that began before an earlier one of its key had ended, and that one.
func (h *History) Overlaps() (found []*Violation) {
	latest := make(map[string]*Hold) // of each key: the one that ends last
	for _, hold := range sorted(h.certain(), start) {
		before := latest[hold.Key]
		if before != nil && hold.Start < before.End {
			found = append(found, blame(fmt.Sprintf("two certain holds overlap by %s", millis(min(before.End, hold.End)-hold.Start)), before, hold))
		}
		if before == nil || before.End < hold.End {
			latest[hold.Key] = hold
		}
	}
	return found
}

// Disorders returns each hold whose fence is not larger, by at least step, than that of an earlier
// grant, and the hold of that one. Without fences, all are 0. A grant is earlier than another
//
//   - if both holds were certain, and the one had ended when the other began,
//   - if it had returned when the other was asked for, even if all data was lost in between.
func (h *History) Disorders(step int64) []*Violation {
	return append(disorders(h.certain(), step, end, start), disorders(h.Holds, step, returned, asked)...)
}

// disorders compares the fence of each hold with those of the same key whose instant made is not
// later than its instant begun.
func disorders(holds []*Hold, step int64, made, begun func(*Hold) time.Duration) (found []*Violation) {
	highest := make(map[string]*Hold) // by key
	earlier := sorted(holds, made)
	for _, hold := range sorted(holds, begun) {
		for len(earlier) > 0 && made(earlier[0]) <= begun(hold) {
			if e := earlier[0]; highest[e.Key] == nil || highest[e.Key].Fence < e.Fence {
				highest[e.Key] = e
			}
			earlier = earlier[1:]
		}
		before := highest[hold.Key]
		if before != nil && cmp.Or(hold.Fence, before.Fence) != 0 && hold.Fence < before.Fence+step {
			found = append(found, blame(fmt.Sprintf("a later hold does not have a fence that is higher by at least %d", step), before, hold))
		}
	}
	return found
}

// Losses returns the holds that the store lost before the deadline, except with all its data.
func (h *History) Losses() (found []*Violation) {
	for _, hold := range h.Holds {
		explains := func(o *Operation) bool { return hold.mayEndWith(o) && o.Called <= hold.Lost }
		if hold.Lost != 0 && !slices.ContainsFunc(h.Operations, explains) {
			found = append(found, blame(fmt.Sprintf("a lease was lost before its deadline, at %s at the latest", millis(hold.Lost)), hold))
		}
	}
	return found
}

func blame(what string, holds ...*Hold) *Violation {
	return &Violation{Key: holds[0].Key, What: what, History: History{Holds: holds}}
}

func (h *History) certain() []*Hold {
	return slices.DeleteFunc(slices.Clone(h.Holds), func(hold *Hold) bool { return !hold.certain() })
}

func sorted(holds []*Hold, by func(*Hold) time.Duration) []*Hold {
	return slices.SortedStableFunc(slices.Values(holds), func(a, b *Hold) int { return cmp.Compare(by(a), by(b)) })
}

// The instants of holds. A grant that returned at the instant of a request may have been made later.
func asked(h *Hold) time.Duration    { return h.Asked }
func start(h *Hold) time.Duration    { return h.Start }
func returned(h *Hold) time.Duration { return h.Start + 1 }
func end(h *Hold) time.Duration      { return h.End }

package world

import (
	"maps"
	"slices"
)

// An item is one of the things that happen in a plan.
type item struct {
	job, fault int // or -1
	trip       string
}

// items are all that shrinking can leave out.
func (p *plan) items() (all []item) {
	for i := range p.turns { // the jobs of a client together: often it is not needed at all
		for n, j := range p.jobs {
			if j.process == i {
				all = append(all, item{job: n, fault: -1})
			}
		}
	}
	for n := range p.faults {
		all = append(all, item{job: -1, fault: n})
	}
	for _, trip := range sortedKeys(p.mishaps) {
		all = append(all, item{-1, -1, trip})
	}
	return all
}

// without returns a plan without some of the things that happen in p.
func (p *plan) without(left map[item]bool) *plan {
	q := *p
	q.jobs, q.faults, q.mishaps = nil, nil, maps.Clone(p.mishaps)
	for n, j := range p.jobs {
		if !left[item{job: n, fault: -1}] {
			q.jobs = append(q.jobs, j)
		}
	}
	for n, f := range p.faults {
		if !left[item{job: -1, fault: n}] {
			q.faults = append(q.faults, f)
		}
	}
	maps.DeleteFunc(q.mishaps, func(trip string, _ mishap) bool { return left[item{-1, -1, trip}] })
	return &q
}

// shrink leaves out of a plan, whose mishaps are listed, what it fails without: halves first, then
// quarters, as delta debugging does. It asks fails at most tries times.
func (p *plan) shrink(tries int, fails func(*plan) bool) *plan {
	all, left := p.items(), make(map[item]bool)
	for size := len(all); size > 0; size /= 2 {
		kept := slices.DeleteFunc(slices.Clone(all), func(i item) bool { return left[i] })
		for chunk := range slices.Chunk(kept, size) {
			if tries--; tries < 0 {
				return p.without(left)
			}
			less := maps.Clone(left)
			for _, i := range chunk {
				less[i] = true
			}
			if q := p.without(less); len(q.jobs) > 0 && fails(q) {
				left = less
			}
		}
	}
	return p.without(left)
}

package museum

import (
	"slices"

	"github.com/dlock-go/dlock"
)

var batches = []Exhibit{
	// A large batch is sent in pieces of 100, and the remainder is forgotten. Seen: a trial of the suite. Harm: a lease that is
	// held is reported as lost, and ends.
	{Name: "dropsTheTail", Cases: names{"BatchOfAnySize"}, BeyondModel: true,
		on: names{"RenewBatch"}, call: func(r request) (answer, error) {
			n := len(r.Batch)
			if n > 100 {
				r.Batch = r.Batch[:n-n%100]
			}
			a, err := r.send()
			a.Results = append(a.Results, make([]dlock.RenewResult, n-len(r.Batch))...)
			return a, err
		}},
	// The results are in a buffer of the client, which its next batch overwrites. Seen: a trial of the suite. Harm: a holder
	// whose lease is lost goes on.
	{Name: "reusesResults", Cases: names{"BatchIsTheCallers"}, BeyondModel: true,
		on: names{"RenewBatch"}, call: after(func(r request, a *answer, err error) {
			note, _ := r.notes.LoadOrStore("buffer", new([]dlock.RenewResult))
			buffer := note.(*[]dlock.RenewResult)
			*buffer = append((*buffer)[:0], a.Results...)
			a.Results = *buffer
		})},
	// A busy store does a part of a batch. The client reports the remainder as renewed. Seen: a trial of the suite. Harm: leases
	// end in which their holders believe.
	{Name: "unprocessed", Cases: names{"BatchesCross"}, BeyondModel: true,
		on: names{"RenewBatch"}, call: func(r request) (answer, error) {
			n := len(r.Batch)
			r.run(func(d *db) {
				if d.incrBy("batches", 1) > 1 {
					r.Batch = r.Batch[:min(n, 20)]
				}
			})
			defer r.run(func(d *db) { d.incrBy("batches", -1) })
			a, err := r.send()
			for len(a.Results) < n {
				a.Results = append(a.Results, dlock.RenewResult{Held: true})
			}
			return a, err
		}},
	// The results are in the reverse order of the batch. Harm: leases that are held are reported as lost, and lost ones as held.
	{Name: "answersBackwards", Cases: names{"BatchKeepsOrder"},
		on: names{"RenewBatch"}, call: after(func(r request, a *answer, err error) { slices.Reverse(a.Results) })},
	// A batch sets the TTLs of its keys, even if the leases last longer, or whoever holds them. Seen: a well-known recipe. Harm:
	// a late batch cuts a lease in which its holder believes, or prolongs that of another, who may be dead.
	{Name: "batchShortens", Cases: names{"BatchRenewsAsRenew", "LateDuplicate"},
		Network:      says{"LateDuplicateOverNetwork": `must still hold the key`},
		renewInBatch: func(d *db, q question) bool { return d.holds(q) && d.pExpire(q.Key, q.TTL) }},
	{Name: "batchExtendsAny", Cases: names{"BatchRenewsAsRenew"},
		Network: says{"LateDuplicateOverNetwork": `want it to be acquired`},
		renewInBatch: func(d *db, q question) bool {
			d.pExpire(q.Key, max(q.TTL, d.pTTL(q.Key)))
			return d.holds(q)
		}},
}

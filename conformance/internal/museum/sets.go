package museum

import (
	"slices"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock"
)

var sets = []Exhibit{
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
	// A script takes the keys of a set one by one, and stops at the first that is held. Harm: locks that nobody holds, until
	// their TTLs have passed.
	{Name: "stopsHalfway", Cases: names{"SetAllOrNone"},
		takeSet: func(d *db, q question) []dlock.Attempt {
			answers := d.trySet(q)
			for i, e := range q.Set {
				if !answers[i].Acquired && !answers[i].Free {
					break
				}
				d.try(question{Key: e.Key, Token: e.Token, TTL: e.TTL})
			}
			return answers
		}},
	// A client takes the keys of a set by an attempt each, and gives them back when one is held. Seen: loops around a lock
	// library. Harm: two sets refuse each other, and a key seems to be held that nobody gets; after an error, some keys stay
	// held.
	{Name: "givesBack", Cases: names{"SetAtOneInstant"}, BeyondModel: true,
		Network: says{"LostReplyOverNetwork": `has left . of them free`},
		on:      names{"TryAcquireSet"}, call: func(r request) (answer, error) {
			var a answer
			for i, e := range r.Set {
				one := request{r.client, r.ctx, question{Call: "TryAcquire", Key: e.Key, Token: e.Token, TTL: e.TTL}}
				got, err := one.send()
				if err != nil {
					return answer{}, err
				}
				if a.Attempts = append(a.Attempts, got.Attempt); got.Acquired {
					continue
				}
				for at, e := range r.Set[:i] {
					a.Attempts[at] = dlock.Attempt{Free: true}
					_, _ = r.Release(r.ctx, e.Key, e.Token) // best effort: the TTL frees the others
				}
				for range r.Set[i+1:] {
					a.Attempts = append(a.Attempts, dlock.Attempt{Free: true})
				}
				break
			}
			return a, nil
		}},
	// A set is sorted by its keys, and so are the answers. Harm: the caller waits for a key that is free, while another is held.
	{Name: "sortsTheAnswers", Cases: names{"SetAllOrNone"},
		on: names{"TryAcquireSet"}, call: before(func(r *request) {
			r.Set = slices.Clone(r.Set)
			sortByKey(r.Set)
		})},
	{Name: "sortsTheSet", Cases: names{"SetAllOrNone"}, BeyondModel: true,
		on: names{"TryAcquireSet"}, call: before(func(r *request) { sortByKey(r.Set) })},
	// A set whose own token holds a key extends that lease, even if it is refused because of another. Harm: a key that nobody
	// wants any more is held for longer.
	{Name: "extendsItsOwn", Cases: names{"SetAllOrNone"},
		takeSet: func(d *db, q question) []dlock.Attempt {
			for _, e := range q.Set {
				d.extend(question{Key: e.Key, Token: e.Token, TTL: e.TTL})
			}
			return d.trySet(q)
		}},
	// A set in which a key is held is refused, whoever holds it. Seen: MSETNX. Harm: a set whose reply was lost, and that is
	// repeated, waits for itself.
	{Name: "refusesItsOwn", Cases: names{"SetGrantsAsTryAcquire", "LostReply"},
		takeSet: func(d *db, q question) []dlock.Attempt {
			strangers := slices.Clone(q.Set)
			for i, e := range strangers {
				if d.get(e.Key) != "" {
					strangers[i].Token = "stranger"
				}
			}
			return d.trySet(question{Set: strangers})
		}},
	// All leases of a set get the TTL of the first; or each its own, even if it lasts longer already; or all get the last fence.
	// Harm: a lease ends in which its holder believes; the resource refuses a holder.
	{Name: "oneTTL", Cases: names{"SetGrantsAsTryAcquire"},
		takeSet: func(d *db, q question) []dlock.Attempt {
			q.Set = slices.Clone(q.Set)
			for i := range q.Set {
				q.Set[i].TTL = q.Set[0].TTL
			}
			return d.trySet(q)
		}},
	{Name: "setShortens", Cases: names{"SetGrantsAsTryAcquire", "LateDuplicate"},
		takeSet: func(d *db, q question) []dlock.Attempt {
			answers := d.trySet(q)
			for i, e := range q.Set {
				if answers[i].Acquired {
					d.pExpire(e.Key, e.TTL)
				}
			}
			return answers
		}},
	{Name: "lastFence", Cases: names{"SetGrantsAsTryAcquire"},
		takeSet: func(d *db, q question) []dlock.Attempt {
			last, _ := strconv.ParseInt(d.get("fence"), 10, 64)
			answers := d.trySet(q)
			for i := range answers {
				answers[i].Fence = min(answers[i].Fence, last)
			}
			return answers
		}},
	// A set takes a key that is free, though a waiter is about to come back for it. Harm: sets overtake those who wait, for as
	// long as sets keep coming.
	{Name: "looksAtNoQueue", Cases: names{"SetOvertakesNobody"}, BeyondModel: true,
		on: names{"TryAcquireSet"}, call: func(r request) (a answer, err error) {
			if r.ctx.Err() == nil && !r.takeable() {
				return r.send()
			}
			a.Attempts, err = eval(r, func(d *db) []dlock.Attempt { return d.trySet(r.question) })
			return a, err
		}},
	// A set is sent as it is. Harm: with a key twice, the caller is told that it has two locks, and its first Release ends both.
	{Name: "takesAnySet", Cases: names{"SetRefusesNonsense"}, BeyondModel: true,
		on: names{"TryAcquireSet"}, call: func(r request) (answer, error) { return r.ask() }},
}

func sortByKey(set []dlock.Acquisition) {
	slices.SortFunc(set, func(a, b dlock.Acquisition) int { return strings.Compare(a.Key, b.Key) })
}

package museum

import "github.com/dlock-go/dlock"

var random = []Exhibit{
	// Now and then a lock is forgotten: a replica without it becomes the master. Seen: the Redis documentation, on asynchronous
	// replication. Harm: two holders.
	{Name: "failsOver", Cases: names{"History"}, Sporadic: true,
		near: true, on: names{"TryAcquire", "Acquire"}, call: before(func(r *request) {
			r.run(func(d *db) {
				if holder := d.get(r.Key); holder != "" && holder != r.Token && d.turn(40) {
					d.del(r.Key)
				}
			})
		})},
	// Now and then an attempt reads a replica, which has not heard of the last release. Seen: asynchronous replication. Harm: a
	// free key seems to be held.
	{Name: "readsAReplica", Cases: names{"History"}, Sporadic: true,
		take: func(d *db, q question) dlock.Attempt {
			last := d.get("last holder of " + q.Key)
			if q.Call == "TryAcquire" && d.get(q.Key) == "" && last != "" && last != q.Token && d.turn(5) {
				return dlock.Attempt{Holder: last}
			}
			a := d.try(q)
			if a.Acquired {
				d.set("last holder of "+q.Key, q.Token, forever)
			}
			return a
		}},
	// The fence is drawn when a waiter arrives, not when it is served. Seen: ticket locks. Harm: a waiter that others have
	// overtaken has a fence below theirs, and the resource refuses it.
	{Name: "fenceOnArrival", Cases: names{"History"}, Sporadic: true,
		on: names{"Acquire"}, call: func(r request) (answer, error) {
			fence, err := eval(r, (*db).fence)
			if err != nil {
				return answer{}, err
			}
			a, err := r.send()
			if a.Acquired {
				a.Fence = fence
			}
			return a, err
		}},
	// Now and then a release of a lease that is held answers false. Harm: the caller believes that its lease had ended before
	// its work did.
	{Name: "deniesReleases", Cases: names{"History"}, Sporadic: true,
		release: func(d *db, q question) bool { return d.free(q) && !d.turn(25) }},
	// When the data is lost for the third time, fences begin at 8. Harm: the resource refuses every holder.
	{Name: "twoBackups", Cases: names{"HistoryAcrossDataLoss"}, Sporadic: true,
		take: tried(func(d *db, q question, a *dlock.Attempt) {
			if d.losses >= 3 {
				d.count(a, "fence since", numbers)
			}
		})},
}

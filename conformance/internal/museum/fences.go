package museum

import (
	"time"

	"github.com/dlock-go/dlock"
)

var fences = []Exhibit{
	// The fence is drawn after the acquire: SETNX, then INCR.
	// Seen: a well-known recipe.
	// Harm: a client that is slow between the two has a fence above that of its successor.
	// Right: number the grant in the script that makes it.
	{Name: "fenceAfterwards", Cases: names{"FenceRises"}, BeyondModel: true,
		on: names{"TryAcquire"}, call: func(r request) (answer, error) {
			a, err := r.send()
			if a.Acquired {
				a.Fence, err = eval(r, (*db).fence)
			}
			return a, err
		}},
	// The counter is deleted with the lock.
	// Seen: a well-known recipe.
	// Harm: every holder has the same fence, and the resource cannot tell them apart.
	// Right: a counter that outlives the lock.
	{Name: "fenceInTheLock", Cases: names{"FenceRises", "History", "GuardedRegister"}, Also: mixedUp,
		take: func(d *db, q question) dlock.Attempt {
			if d.get(q.Key) == "" {
				d.del("fence of " + q.Key)
			}
			a := d.try(q)
			d.count(&a, "fence of "+q.Key, numbers)
			return a
		}},
	// The counter begins at 1 when the data is lost.
	// Seen: servers without persistence.
	// Harm: the resource refuses every holder, until the counter has caught up.
	// Right: at least the server's time, which goes on.
	{Name: "fenceInTheData", Cases: names{"FenceSurvivesDataLoss"}, Also: names{"NoLeaks"}, BeyondModel: true,
		take: tried(func(d *db, q question, a *dlock.Attempt) { d.count(a, "fence of "+q.Key, numbers) })},
	// The counter is dropped when the key has not been used for an hour.
	// Seen: a trial of the suite.
	// Harm: the resource refuses every holder.
	// Right: a number that does not depend on what was kept, such as the time.
	{Name: "fenceOfAnHour", Cases: names{"FenceSurvivesIdleness"}, Also: mixedUp, BeyondModel: true,
		take: tried(func(d *db, q question, a *dlock.Attempt) {
			d.count(a, "fence of "+q.Key, numbers)
			d.pExpire("fence of "+q.Key, time.Hour)
		})},
	// Each lock has a counter of its own, which stays when the lock is gone.
	// Seen: redisson/redisson#6510.
	// Harm: the store fills up where locks are named after orders.
	// Right: one counter for many locks, or one that expires, beside the time.
	{Name: "counterOfEachLock", Cases: names{"NoLeaks"}, BeyondModel: true,
		take: tried(func(d *db, q question, _ *dlock.Attempt) { d.set("fence of "+q.Key, "kept", forever) })},
	// The seventh grant of a key has the fence of the fifth, from a page that was cached.
	// Harm: the resource refuses the holder, and takes the writes of an earlier one.
	// Right: number the grant in the script that makes it.
	{Name: "repeatsAFence", Cases: names{"FenceRises"}, Also: mixedUp, BeyondModel: true,
		near: true, take: tried(func(d *db, q question, a *dlock.Attempt) {
			if !a.Acquired {
				return
			}
			switch d.incrBy("grants of "+q.Key, 1) {
			case 5:
				d.incrBy("fifth fence of "+q.Key, a.Fence)
			case 7:
				a.Fence = d.incrBy("fifth fence of "+q.Key, 0)
			}
		})},
	// Fences rise by 1 (INCR).
	// Seen: a well-known recipe.
	// Harm: a process that numbers the writes of its goroutines uses the numbers of the next holder.
	// Right: leave at least 8 numbers for each grant.
	{Name: "oneByOne", Cases: names{"FenceRises"}, Also: mixedUp,
		take: tried(func(d *db, q question, a *dlock.Attempt) { d.count(a, "fences", 1) })},
}

// count numbers a grant by a counter.
func (d *db) count(a *dlock.Attempt, counter string, by int64) {
	if a.Acquired {
		a.Fence = d.incrBy(counter, by)
	}
}

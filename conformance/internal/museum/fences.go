package museum

import (
	"time"

	"github.com/dlock-go/dlock"
)

var fences = []Exhibit{
	// The fence is drawn after the acquire: SETNX, then INCR. Seen: a well-known recipe. Harm: a client that is slow between the
	// two has a fence above that of its successor.
	{Name: "fenceAfterwards", Cases: names{"FenceRises"}, BeyondModel: true,
		on: names{"TryAcquire"}, call: func(r request) (answer, error) {
			a, err := r.send()
			if a.Acquired {
				a.Fence, err = eval(r, (*db).fence)
			}
			return a, err
		}},
	// The counter of a key is deleted with the lock, with all data, or an hour after it was last used. Seen: a well-known
	// recipe; servers without persistence; a trial of the suite. Harm: two holders have the same fence, or the resource refuses
	// each until the counter has caught up.
	{Name: "fenceInTheLock", Cases: names{"FenceRises", "History"},
		take: func(d *db, q question) dlock.Attempt {
			if d.get(q.Key) == "" {
				d.del("fence of " + q.Key)
			}
			a := d.try(q)
			d.count(&a, "fence of "+q.Key, numbers)
			return a
		}},
	{Name: "fenceInTheData", Cases: names{"FenceSurvivesDataLoss"}, BeyondModel: true,
		take: tried(func(d *db, q question, a *dlock.Attempt) { d.count(a, "fence of "+q.Key, numbers) })},
	{Name: "fenceOfAnHour", Cases: names{"FenceSurvivesIdleness"}, BeyondModel: true,
		take: tried(func(d *db, q question, a *dlock.Attempt) {
			d.count(a, "fence of "+q.Key, numbers)
			d.pExpire("fence of "+q.Key, time.Hour)
		})},
	// Each lock has a counter of its own, which stays when the lock is gone. Seen: redisson/redisson#6510. Harm: the store fills
	// up where locks are named after orders.
	{Name: "counterOfEachLock", Cases: names{"NoLeaks"}, BeyondModel: true,
		take: tried(func(d *db, q question, _ *dlock.Attempt) { d.set("fence of "+q.Key, "kept", forever) })},
	// The seventh grant of a key is numbered by a server whose clock is a day behind. Harm: the resource refuses the holder.
	{Name: "otherClock", Cases: names{"FenceRises"}, BeyondModel: true,
		near: true, take: tried(func(d *db, q question, a *dlock.Attempt) {
			if a.Acquired && d.incrBy("grants of "+q.Key, 1) == 7 {
				a.Fence -= (24 * time.Hour).Microseconds()
			}
		})},
	// Fences rise by 1 (INCR). Seen: a well-known recipe. Harm: a process that numbers the writes of its goroutines uses the
	// numbers of the next holder.
	{Name: "oneByOne", Cases: names{"FenceRises"},
		take: tried(func(d *db, q question, a *dlock.Attempt) { d.count(a, "fences", 1) })},
}

// count numbers a grant by a counter.
func (d *db) count(a *dlock.Attempt, counter string, by int64) {
	if a.Acquired {
		a.Fence = d.incrBy(counter, by)
	}
}

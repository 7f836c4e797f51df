package museum

import (
	"time"

	"github.com/dlock-go/dlock"
)

var inspecting = []Exhibit{
	// Inspecting does not look at the queue. Harm: a contended lock goes unnoticed.
	{Name: "countsNobody", Cases: names{"WaitingIsCounted"}, BeyondModel: true,
		call: after(func(r request, a *answer, err error) { a.Hold.Waiting = 0 })},
	// What is said of the holder is an instant of before its wait. Harm: an operator believes that the holder hangs, and breaks
	// a healthy one.
	{Name: "datesTheWait", Cases: names{"HeldSinceTheGrant"}, BeyondModel: true,
		call: after(func(r request, a *answer, err error) {
			if !a.Acquired {
				a.HeldSince = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
			}
		})},
	// The remaining time is 5 ms less than it is, as a margin for clocks. Harm: others come too early, and are refused.
	{Name: "tellsLess", Cases: names{"InspectTells", "HolderIsTold"},
		BeyondModel: true, near: true,
		call: after(func(r request, a *answer, err error) {
			a.Remaining = max(0, a.Remaining-5*time.Millisecond)
			a.Hold.Remaining = max(0, a.Hold.Remaining-5*time.Millisecond)
		})},
	// To see whether a key is free, Inspect takes it. Seen: a well-known recipe. Harm: clients that come meanwhile are refused.
	{Name: "takesToLook", Cases: names{"InspectChangesNothing"},
		inspect: func(d *db, q question) dlock.Hold {
			defer d.try(question{Key: q.Key, Token: "inspector", TTL: time.Minute})
			return d.hold(q)
		}},
}

package museum

import "fmt"

var renewing = []Exhibit{
	// A renewal is SET XX, without comparing. Seen: a well-known recipe. Harm: a client that has lost its lease takes the lock
	// away from its successor.
	{Name: "setExisting", Cases: names{"RenewByStranger", "TokensCompareWhole", "LateDuplicate"},
		Network: says{"LateDuplicateOverNetwork": `want it to be acquired|held = true; want false`},
		renew:   func(d *db, q question) bool { return d.get(q.Key) != "" && d.set(q.Key, q.Token, q.TTL) }},
	// GET, compare, then PEXPIRE (here with GT, so that it shortens nothing). Seen: a well-known recipe. Harm: the lease ends
	// between the two, and the TTL of the successor's lease is changed.
	{Name: "getThenExpire", Cases: names{"RenewAfterExpiry", "RenewCrossesTakeover"}, BeyondModel: true,
		on: names{"Renew"}, call: looksFirst(func(d *db, q question) bool { return d.pExpire(q.Key, max(q.TTL, d.pTTL(q.Key))) })},
	// A renewal creates the key again when it has expired. Seen: samcook/RedLock.net#93, #48. Harm: two holders: one whose lease
	// was revived, and one that acquired the lock meanwhile.
	{Name: "revives", Cases: names{"RenewAfterExpiry", "LateDuplicate"},
		Network: says{"LateDuplicateOverNetwork": `want it to be acquired`},
		renew:   func(d *db, q question) bool { return d.try(q).Acquired }},
	// A renewal compares, and then writes the token with a new TTL. A release in between is undone. Seen:
	// samcook/RedLock.net#64, redisson/redisson#7272. Harm: a lock that nobody holds, until its TTL has passed; or for ever, if
	// the renewals go on.
	{Name: "renewsWhatIsReleased", Cases: names{"LateDuplicate", "RenewCrossesTakeover"}, BeyondModel: true,
		on: names{"Renew"}, call: looksFirst(func(d *db, q question) bool { return d.set(q.Key, q.Token, max(q.TTL, d.pTTL(q.Key))) })},
	// Each renewal raises a version, and must know the last one. After a lost reply it does not. Seen:
	// cirello-io/dynamolock#280. Harm: the holder gives up a lock that it has.
	{Name: "versions", Cases: names{"LostReply"},
		on: names{"Renew"}, call: func(r request) (a answer, err error) {
			seen, known := r.notes.Load(r.Token)
			version, err := eval(r, func(d *db) int64 {
				if known && d.get("version of "+r.Key) != fmt.Sprint(seen) || !d.extend(r.question) {
					return 0
				}
				return d.incrBy("version of "+r.Key, 1)
			})
			if a.Held = version != 0; a.Held {
				r.notes.Store(r.Token, version)
			}
			return a, err
		}},
	// A renewal sets the TTL that it was given, even if the lease lasts longer. Seen: a well-known recipe. Harm: a renewal that
	// arrives late cuts a lease in which its holder believes.
	{Name: "shortens", Cases: names{"RenewNeverShortens", "LateDuplicate"},
		Network: says{"LateDuplicateOverNetwork": `must still hold the key`},
		renew:   func(d *db, q question) bool { return d.holds(q) && d.pExpire(q.Key, q.TTL) }},
	// A renewal asks whether the store knows the token, which it does if the token waits. Seen: a trial of the suite. Harm: a
	// waiter believes that it holds the lock.
	{Name: "renewsWaiters", Cases: names{"WaiterIsNoHolder"}, BeyondModel: true,
		renew: func(d *db, q question) bool { return d.extend(q) || d.waits(q) }},
	// A renewal compares the token, and sets no TTL. Harm: the lease ends in which its holder believes.
	{Name: "onlyLooks", Cases: names{"RenewExtends"}, renew: (*db).holds},
}

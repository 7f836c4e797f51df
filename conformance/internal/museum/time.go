package museum

import (
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

var timing = []Exhibit{
	// The TTL is cut to whole seconds, or rounded up to them. Seen: recipes with EXPIRE. Harm: the lock is free while its holder
	// works, or that of a dead holder is held for longer.
	{Name: "wholeSeconds", Cases: names{"NotBefore"},
		take: lasting(func(ttl time.Duration) time.Duration { return max(ttl.Truncate(time.Second), time.Second) })},
	{Name: "roundsUp", Cases: names{"Expiry"},
		take: lasting(func(ttl time.Duration) time.Duration { return (ttl + time.Second - 1).Truncate(time.Second) })},
	// A TTL below the unit of the command becomes 0; EXPIRE with 0 deletes the key, and reports success. Seen: below 1 ms: in
	// the source of bsm/redislock and go-redsync/redsync. Harm: the renewal deletes the lock that it should prolong.
	{Name: "expiresAtOnce", Cases: names{"RenewNeverShortens"},
		renew: func(d *db, q question) bool { return d.holds(q) && d.pExpire(q.Key, q.TTL.Truncate(time.Second)) }},
	// The client says when the key expires, by its own clock (PXAT). Seen: in the source of rueidislock. Harm: a client whose
	// clock is behind acquires a key that is gone at once.
	{Name: "wallClock", Cases: names{"NotBefore"},
		on: names{"TryAcquire"}, call: before(func(r *request) {
			if r.name != "client 1" { // which has the right time
				r.TTL = max(r.TTL-time.Second, 1) // PXAT: gone at once if that has passed
			}
		})},
	// An attempt by the holder sets the TTL that it was given, even if the lease lasts longer. Seen: in a model of a handover.
	// Harm: an earlier attempt that arrives late cuts the lease in which its holder believes.
	{Name: "sameTokenShortens", Cases: names{"SameTokenAgain", "LateDuplicate"},
		Network: says{"LateDuplicateOverNetwork": `must still hold the key`},
		take: tried(func(d *db, q question, a *dlock.Attempt) {
			if a.Acquired {
				d.pExpire(q.Key, q.TTL)
			}
		})},
	// The store's clock is cut to whole milliseconds, so that a lease seems to begin before its grant. Seen: a store on SQLite,
	// while it was written. Harm: the lock is free for up to a millisecond while its holder works.
	{Name: "cutsItsClock", Cases: names{"AnyTTL"}, BeyondModel: true,
		near: true, take: lasting(func(ttl time.Duration) time.Duration {
			return time.Until(time.Now().Truncate(time.Millisecond).Add(ttl))
		})},
	// When there are many keys, a sweeper removes those whose original TTL has passed, renewed or not. Seen: a trial of the
	// suite. Harm: under load, a renewed lock is free while its holder works.
	{Name: "sweepsByGrant", Cases: names{"ManyLeases"}, BeyondModel: true,
		take: func(d *db, q question) dlock.Attempt {
			if d.pTTL(q.Key) == 0 {
				d.set("grant of "+q.Key, "lasts", q.TTL)
			}
			for other := range d.data {
				if len(d.data) > 200 && !strings.HasPrefix(other, "grant of ") && d.get("grant of "+other) == "" {
					d.del(other)
				}
			}
			return d.try(q)
		}},
	// One method takes a lease for ended 5 ms before the others do, to be safe. Seen: trials of the suite. Harm: a holder is
	// told that its lease is lost, though nobody else could have the key.
	{Name: "endsEarly Renew", Cases: names{"ExpiresForAll"}, BeyondModel: true, renew: early((*db).extend)},
	{Name: "endsEarly Release", Cases: names{"ExpiresForAll"}, BeyondModel: true, release: early((*db).free)},
	{Name: "endsEarly RenewBatch", Cases: names{"ExpiresForAll"}, BeyondModel: true, renewInBatch: early((*db).extend)},
	{Name: "endsEarly Inspect", Cases: names{"ExpiresForAll"}, BeyondModel: true, inspect: early((*db).hold)},
}

// early is a script that finds nothing during the last 5 ms of a lease.
func early[T any](right func(*db, question) T) func(*db, question) T {
	return func(d *db, q question) (none T) {
		if d.pTTL(q.Key) <= 5*time.Millisecond {
			return none
		}
		return right(d, q)
	}
}

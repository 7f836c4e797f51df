package museum

import (
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

var timing = []Exhibit{
	// The TTL is cut to whole seconds.
	// Seen: recipes with EXPIRE.
	// Harm: the lock is free while its holder works.
	// Right: milliseconds.
	{Name: "wholeSeconds", Cases: names{"NotBefore"}, Also: unending,
		take: func(d *db, q question) dlock.Attempt {
			q.TTL = max(q.TTL.Truncate(time.Second), time.Second)
			return d.try(q)
		}},
	// A TTL below the unit of the command becomes 0; EXPIRE with 0 deletes the key, and reports success.
	// Seen: below 1 ms: in the source of bsm/redislock and go-redsync/redsync.
	// Harm: the renewal deletes the lock that it should prolong.
	// Right: refuse such a TTL, or round it up.
	{Name: "expiresAtOnce", Cases: names{"RenewNeverShortens"}, Also: names{"LateDuplicate", "NoLeaks",
		"NotBefore", "RenewExtends"},
		renew: func(d *db, q question) bool { return d.holds(q) && d.pExpire(q.Key, q.TTL.Truncate(time.Second)) }},
	// The client says when the key expires, by its own clock (PXAT).
	// Seen: in the source of rueidislock.
	// Harm: a client whose clock is behind acquires a key that is gone at once.
	// Right: the client says how long (PX), and the server has the only clock.
	{Name: "wallClock", Cases: names{"NotBefore"}, Also: names{"EndedContext", "NoLeaks"},
		on: names{"TryAcquire"}, call: before(func(r *request) {
			if r.name != "client 1" { // which has the right time
				r.TTL = max(r.TTL-time.Second, 1) // PXAT: gone at once if that has passed
			}
		})},
	// An attempt by the token that holds already sets the TTL that it was given, even if the lease lasts
	// longer.
	// Seen: in a model of a handover.
	// Harm: an earlier attempt that arrives late cuts the lease in which its holder believes.
	// Right: the longer of the remaining TTL and the new one.
	{Name: "sameTokenShortens", Cases: names{"SameTokenAgain", "LateDuplicate"},
		Network: says{"LateDuplicateOverNetwork": `must still hold the key`},
		take: func(d *db, q question) dlock.Attempt {
			a := d.try(q)
			if a.Acquired {
				d.pExpire(q.Key, q.TTL)
			}
			return a
		}},
	// The store's clock is cut to whole milliseconds, so that a lease seems to begin before its grant.
	// Seen: a store on SQLite, while it was written.
	// Harm: the lock is free for up to a millisecond while its holder works.
	// Right: the full precision of the clock, or an end that is rounded up.
	{Name: "cutsItsClock", Cases: names{"AnyTTL"}, BeyondModel: true,
		near: true, take: func(d *db, q question) dlock.Attempt {
			q.TTL = time.Until(time.Now().Truncate(time.Millisecond).Add(q.TTL))
			return d.try(q)
		}},
	// When there are many keys, a sweeper removes those whose original TTL has passed, renewed or not.
	// Seen: a trial of the suite.
	// Harm: under load, a renewed lock is free while its holder works.
	// Right: go by the end that counts for everything else.
	{Name: "sweepsByGrant", Cases: names{"ManyLeases"}, Also: names{"NoLeaks"}, BeyondModel: true,
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
	// The TTL is rounded up to whole seconds.
	// Seen: recipes with EXPIRE.
	// Harm: the lock of a dead holder is held for longer than was asked.
	// Right: milliseconds.
	{Name: "roundsUp", Cases: names{"Expiry"}, Also: unending,
		take: func(d *db, q question) dlock.Attempt {
			q.TTL = (q.TTL + time.Second - 1).Truncate(time.Second)
			return d.try(q)
		}},
	// One method takes a lease for ended 5 ms before the others do, to be safe.
	// Seen: trials of the suite.
	// Harm: a holder is told that its lease is lost, or that its release came too late, while nobody else
	// could have the key; a key is shown as free that cannot be taken.
	// Right: one comparison with the time, for all methods.
	{Name: "endsEarly Renew", Cases: names{"ExpiresForAll"}, BeyondModel: true,
		renew: func(d *db, q question) bool { return !d.endsSoon(q) && d.extend(q) }},
	{Name: "endsEarly Release", Cases: names{"ExpiresForAll"}, BeyondModel: true,
		release: func(d *db, q question) bool { return !d.endsSoon(q) && d.free(q) }},
	{Name: "endsEarly RenewBatch", Cases: names{"ExpiresForAll"}, BeyondModel: true,
		renewInBatch: func(d *db, q question) bool { return !d.endsSoon(q) && d.extend(q) }},
	{Name: "endsEarly Inspect", Cases: names{"ExpiresForAll"}, BeyondModel: true,
		inspect: func(d *db, q question) dlock.Hold {
			if d.endsSoon(q) {
				return dlock.Hold{}
			}
			return d.hold(q)
		}},
}

func (d *db) endsSoon(q question) bool { return d.pTTL(q.Key) <= 5*time.Millisecond }

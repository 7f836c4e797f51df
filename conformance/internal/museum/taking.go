package museum

import (
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

var taking = []Exhibit{
	// SETNX without an expiry, or with EXPIRE afterwards. Seen: the oldest recipe; a well-known one. Harm: the lock of a holder
	// that dies, or of a client that stops between the two, is held for ever.
	{Name: "noExpiry", Cases: names{"Expiry", "WaitEndsOnExpiry"},
		Network: says{"LateDuplicateOverNetwork": `want it to be acquired`},
		take:    lasting(func(time.Duration) time.Duration { return forever })},
	{Name: "setThenExpire", Cases: names{"Expiry"},
		polls: true, on: names{"TryAcquire"}, call: func(r request) (a answer, err error) {
			ok, err := eval(r, func(d *db) bool { return d.get(r.Key) == "" && d.set(r.Key, r.Token, forever) })
			if ok {
				a.Acquired, err = eval(r, func(d *db) bool { return d.pExpire(r.Key, r.TTL) })
			}
			return a, err
		}},
	// GET, then SET if there was nothing. Seen: a well-known recipe. Harm: two clients find the key free, and both hold it.
	{Name: "getThenSet", Cases: names{"Exclusion", "History"},
		on: names{"TryAcquire", "Acquire"}, call: func(r request) (a answer, err error) {
			if holder, err := r.get(r.Key); err != nil || holder != "" {
				return r.send()
			}
			a.Acquired, err = eval(r, func(d *db) bool { return d.set(r.Key, r.Token, r.TTL) })
			return a, err
		}},
	// The value is the time of expiry. When that has passed, the next client takes the key with GETSET. Seen: the Redis
	// documentation, before SET had options. Harm: the loser's GETSET moves the winner's expiry; all clocks must agree; a late
	// release frees the next lock.
	{Name: "timestamps", Cases: names{"ReleaseAfterExpiry"},
		polls: true, on: names{"TryAcquire"}, call: func(r request) (a answer, err error) {
			passed := func(timestamp string) bool {
				at, _ := strconv.ParseInt(timestamp, 10, 64) // 0, if there is none
				return at <= time.Now().UnixMilli()
			}
			theirs, err := r.get(r.Key)
			if err == nil && passed(theirs) {
				theirs, err = eval(r, func(d *db) string { // GETSET
					defer d.set(r.Key, strconv.FormatInt(time.Now().Add(r.TTL).UnixMilli(), 10), forever)
					return d.get(r.Key)
				})
			}
			a.Acquired = err == nil && passed(theirs)
			return a, err
		},
		release: func(d *db, q question) bool { return d.del(q.Key) }},
	// An attempt that is repeated because its reply was lost is refused. Seen: redis/go-redis#2985. Harm: the client waits for a
	// lock that it holds itself, until the TTL has passed.
	{Name: "heldByOneself", Cases: names{"SameTokenAgain", "LostReply", "History"},
		Network: says{"LostReplyOverNetwork": `want it to be acquired`},
		take: func(d *db, q question) dlock.Attempt {
			if holder := d.get(q.Key); holder != "" {
				return dlock.Attempt{Holder: holder, Remaining: d.pTTL(q.Key)}
			}
			return d.try(q)
		}},
	// An attempt sets the TTL, whoever holds the key: SETNX and EXPIRE in one pipeline, or with GT. Seen: a well-known recipe.
	// Harm: a refused attempt cuts the lease in which the holder believes, or prolongs that of a dead one.
	{Name: "setsAnyTTL", Cases: names{"HeldIsUntouched"},
		take: tried(func(d *db, q question, _ *dlock.Attempt) { d.pExpire(q.Key, q.TTL) })},
	{Name: "expiresAnyway", Cases: names{"HeldIsUntouched"},
		take: tried(func(d *db, q question, _ *dlock.Attempt) { d.pExpire(q.Key, max(q.TTL, d.pTTL(q.Key))) })},
	// A key is sent as it is. Harm: all whose key was left empty by mistake, as from a missing field, share one lock.
	{Name: "takesEmptyKey", Cases: names{"EmptyKey"}, BeyondModel: true, polls: true,
		on: names{"TryAcquire"}, call: func(r request) (answer, error) { return r.ask() }},
	// GETSET, then a look at the old value: a refused attempt has written its token. Seen: a well-known recipe. Harm: the holder
	// can neither renew nor release; the lock is that of a client that was refused.
	{Name: "getSetFirst", Cases: names{"HeldIsUntouched", "Exclusion"},
		polls: true, take: tried(func(d *db, q question, _ *dlock.Attempt) { d.set(q.Key, q.Token, d.pTTL(q.Key)) })},
}

package museum

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

var leases = []Exhibit{
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
	// DEL without comparing. Seen: a well-known recipe. Harm: a late holder frees the lock of its successor, and a third client
	// takes it.
	{Name: "plainDelete", Cases: names{"ReleaseByStranger", "ReleaseTwice", "ReleaseAfterExpiry",
		"TokensCompareWhole", "LateDuplicate"},
		Network: says{"LateDuplicateOverNetwork": `must still hold the key|Release.*: held = true; want false`},
		polls:   true, release: func(d *db, q question) bool { return d.del(q.Key) }},
	// GET, compare, then DEL. Seen: a well-known recipe. Harm: the lease ends between the two, and the successor's lock is
	// deleted.
	{Name: "getThenDelete", Cases: names{"ReleaseAfterExpiry", "ReleaseCrossesTakeover"}, BeyondModel: true,
		polls: true, on: names{"Release"}, call: looksFirst(func(d *db, q question) bool { return d.del(q.Key) })},
	// A release is always confirmed. Harm: a holder whose lease ended while it worked does not hear of it.
	{Name: "trueForEver", Cases: names{"ReleaseByStranger", "ReleaseTwice", "ReleaseAfterExpiry"},
		near: true, release: func(d *db, q question) bool { return d.free(q) || true }},
	// A release names the session, not the acquisition. The client remembers which caller holds the key. Seen:
	// etcd-io/etcd#22082. Harm: an unlock that is retried deletes the lock that another caller of the session has by then.
	{Name: "sessions", Cases: names{"ReleaseTwice"},
		polls: true, on: names{"TryAcquire", "Renew", "Release"}, call: func(r request) (answer, error) {
			token := r.Token
			r.Token = r.name
			if r.Call != "TryAcquire" {
				return r.send()
			}
			return eval(r, func(d *db) (a answer) {
				if holder, _ := r.notes.Load(r.Key); d.holds(r.question) && holder != token {
					a.Remaining = d.pTTL(r.Key)
				} else if a.Attempt = d.try(r.question); a.Acquired {
					r.notes.Store(r.Key, token)
				}
				a.Holder = ""
				return a
			})
		}},
	// A release ends everything that its token holds. Seen: a trial of the suite. Harm: a lease that nobody released has ended.
	{Name: "endsTheSession", Cases: names{"TokenHoldsManyKeys"},
		release: func(d *db, q question) bool {
			for key := range d.data {
				if key != q.Key && d.get(key) == q.Token {
					d.del(key)
				}
			}
			return d.free(q)
		}},
	// A release marks the row as released, and an attempt does not look at the mark. Harm: the key is held until its TTL has
	// passed.
	{Name: "onlyMarks", Cases: names{"ReleaseFrees"},
		polls: true, release: func(d *db, q question) bool {
			held := d.holds(q) && d.get("released "+q.Key) != q.Token
			return held && d.set("released "+q.Key, q.Token, d.pTTL(q.Key))
		}},
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
	// Leases are found by the name key:token, where a:b:c is a and b:c as well as a:b and c. Seen: a trial of the suite. Harm: a
	// stranger renews the lease.
	{Name: "joined", Cases: names{"KeyAndTokenApart"},
		take: tried(func(d *db, q question, a *dlock.Attempt) {
			if a.Acquired {
				d.set("lease "+q.Key+":"+q.Token, q.Key, d.pTTL(q.Key))
			}
		}),
		renew: func(d *db, q question) bool {
			name := "lease " + q.Key + ":" + q.Token
			q.Key = d.get(name)
			q.Token = d.get(q.Key)
			return q.Token != "" && d.extend(q) && d.pExpire(name, d.pTTL(q.Key))
		}},
	// The value is always the same, or the name of the process. Seen: well-known recipes. Harm: everybody releases everybody's
	// lock, or two goroutines of one process hold it at once.
	{Name: "constant", Cases: names{"ReleaseByStranger"},
		polls: true, on: names{"TryAcquire", "Renew", "Release"}, call: before(func(r *request) { r.Token = "locked" }),
		take: func(d *db, q question) (a dlock.Attempt) {
			if d.get(q.Key) == "" {
				a = d.try(q)
			}
			return a
		}},
	{Name: "processName", Cases: names{"Exclusion"},
		polls: true, on: names{"TryAcquire", "Renew", "Release"}, call: before(func(r *request) { r.Token = r.name })},
	// A key is hashed to 32 bits: plumless and buckeroo are the same lock. Seen: advisory locks on the CRC-32 of a name. Harm:
	// clients that lock one key wait for another, now and then.
	{Name: "hashedKeys", Cases: names{"KeysAreIndependent"}, BeyondModel: true,
		call: storedAs(func(key string) string { return strconv.Itoa(int(crc32.ChecksumIEEE([]byte(key)))) })},
	// A part of the key does not count: what follows NUL, as in C; upper and lower case, as in the default collation of MySQL;
	// space around it; or what follows 255 bytes, which the database cuts silently. Harm: two keys become one.
	{Name: "cKeys", Cases: names{"KeysAreIndependent"},
		call: storedAs(func(key string) string { return strings.SplitN(key, "\x00", 2)[0] })},
	{Name: "foldedKeys", Cases: names{"KeysAreIndependent"}, call: storedAs(strings.ToLower)},
	{Name: "trimmedKeys", Cases: names{"KeysAreIndependent"}, call: storedAs(strings.TrimSpace)},
	{Name: "shortKeys", Cases: names{"KeysAreIndependent"},
		call: storedAs(func(key string) string { return key[:min(len(key), 255)] })},
	// The value is the token and a comment: only as many bytes are compared as the caller's token has. Seen: in the source of
	// bsm/redislock, with custom tokens. Harm: user-1 takes the lock of user-10.
	{Name: "prefixes", Cases: names{"TokensCompareWhole"},
		polls: true, take: func(d *db, q question) dlock.Attempt { return d.try(d.asPrefix(q)) },
		renew:   func(d *db, q question) bool { return d.extend(d.asPrefix(q)) },
		release: func(d *db, q question) bool { return d.free(d.asPrefix(q)) }},
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

// early is a script that finds nothing during the last 5 ms of a lease.
func early[T any](right func(*db, question) T) func(*db, question) T {
	return func(d *db, q question) (none T) {
		if d.pTTL(q.Key) <= 5*time.Millisecond {
			return none
		}
		return right(d, q)
	}
}

// storedAs stores keys under other names.
func storedAs(name func(key string) string) func(request) (answer, error) {
	return func(r request) (answer, error) {
		r.Key, r.Batch, r.Set = name(r.Key), slices.Clone(r.Batch), slices.Clone(r.Set)
		for i := range r.Batch {
			r.Batch[i].Key = name(r.Batch[i].Key)
		}
		for i := range r.Set {
			r.Set[i].Key = name(r.Set[i].Key)
		}
		return r.send()
	}
}

// asPrefix returns q with the token of the holder, if that begins with the one of q.
func (d *db) asPrefix(q question) question {
	if holder := d.get(q.Key); strings.HasPrefix(holder, q.Token) {
		q.Token = holder
	}
	return q
}

// count numbers a grant by a counter.
func (d *db) count(a *dlock.Attempt, counter string, by int64) {
	if a.Acquired {
		a.Fence = d.incrBy(counter, by)
	}
}

package museum

import (
	"context"
	"math"
	"time"

	"github.com/dlock-go/dlock"
)

var waiting = []Exhibit{
	// A release hands the key to the first of the queue, dead or alive, or if its subscription outlives it. Seen: queues that
	// are a list in Redis; connections that nobody closes. Harm: everybody waits for the TTL of a dead waiter, or of a hundred
	// of one crashed process.
	{Name: "handsToTheDead", Cases: names{"DeadWaiterIsSkipped"}, BeyondModel: true,
		next: func(d *db, key string) { d.hand(d.first(key)) }},
	{Name: "hearsForTheDead", Cases: names{"DeadWaiterIsSkipped", "DeadHostManyWaiters"}, BeyondModel: true,
		on: names{"Acquire"}, call: after(func(r request, a *answer, err error) {
			if err != nil {
				r.subscribe(r.Token)
			}
		})},
	// The last waiter is served first: a stack, not a queue. Seen: LPUSH with LPOP. Harm: the first waiters wait as long as
	// others keep coming.
	{Name: "lastComeFirst", Cases: names{"FirstComeFirstServed", "NoStarvation"}, BeyondModel: true,
		near: true, next: func(d *db, key string) {
			w := d.queues[key][len(d.queues[key])-1]
			d.unqueue(w.question)
			d.hand(w)
		}},
	// A release wakes the first waiter, which is to take the key itself, but may just have given up. Seen: as old as condition
	// variables; missed wake-ups in redis/rueidis#604. Harm: the others sleep on before a free key.
	{Name: "wakesOne", Cases: names{"CancelledWait"}, BeyondModel: true,
		release: func(d *db, q question) bool {
			d.unqueue(q)
			return d.holds(q) && d.end(q)
		},
		next: func(d *db, key string) {
			for len(d.queues[key]) > 0 && d.publish(d.first(key).Token, answer{}) == 0 {
			}
		},
		checkIn: func(a answer) time.Duration { return a.Remaining }},
	// A waiter asks, hears that the key is held, and subscribes: a wake-up between the two is missed. Seen:
	// redisson/redisson#1763. Harm: it sleeps on before a free key.
	{Name: "subscribesLate", Cases: names{"WaitEndsOnRelease"}, BeyondModel: true,
		on: names{"Acquire"}, call: func(r request) (a answer, err error) {
			sent := time.Now()
			a.Attempt, err = eval(r, func(d *db) dlock.Attempt { return d.try(r.question) })
			if a.Since = sent; err != nil || a.Acquired {
				return a, err
			}
			released, leave := r.subscribe(r.Key)
			select {
			case <-released:
			case <-time.After(a.Remaining):
			case <-r.ctx.Done():
			}
			leave()
			return r.call(r)
		},
		release: func(d *db, q question) bool {
			defer d.publish(q.Key, answer{})
			return d.end(q)
		}},
	// Only a release wakes waiters, or only the end of the lease of which they heard. Seen: recipes with PUBLISH; a well-known
	// recipe. Harm: they wait for ever when the holder dies, or sleep on before a key that was released.
	{Name: "trustsTheHolder", Cases: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true,
		checkIn: func(answer) time.Duration { return math.MaxInt64 }},
	{Name: "sleepsOut", Cases: names{"WaitEndsOnRelease"}, BeyondModel: true,
		next:    func(*db, string) {},
		checkIn: func(a answer) time.Duration { return a.Remaining }},
	// A waiter that gives up leaves the queue, and believes that it holds nothing: its release sends nothing. Seen: in a model
	// of a handover. Harm: the key may have been handed to it at that moment; nobody gets it until the TTL has passed.
	{Name: "missesItsGrant", Cases: names{"CancelledWait"},
		on: names{"Acquire", "Release"}, call: func(r request) (a answer, err error) {
			if _, gone := r.notes.LoadAndDelete(r.Token); gone && r.Call == "Release" {
				return a, nil // saves a round trip
			}
			if a, err = r.send(); err != nil && r.Call == "Acquire" {
				r.notes.Store(r.Token, true)
				r.run(func(d *db) { d.unqueue(r.question) })
			}
			return a, err
		}},
	// A waiter counts its lease from when it reads of its grant. Seen: in a model of a handover. Harm: if the process was
	// stopped before that, it believes in a lease that is over.
	{Name: "datesItsDiscovery", Cases: names{"SinceIsConservative", "History"}, BeyondModel: true,
		on: names{"Acquire"}, call: after(func(r request, a *answer, err error) {
			time.Sleep(40 * time.Millisecond) // a garbage collection, a busy machine, a frozen container
			a.Since = time.Now()
		})},
	// A check-in queues, or takes a free key. One arrives after its waiter has given up and released its token. Seen: in a model
	// of a handover. Harm: a lock that nobody holds, until its TTL has passed.
	{Name: "checksInLate", Cases: names{"CancelledWait"},
		on: names{"Acquire"}, call: after(func(r request, a *answer, err error) {
			if err != nil { // an ask is on its way, by a slow connection
				time.AfterFunc(20*time.Millisecond, func() { r.run(func(d *db) { d.enqueue(r.question) }) })
			}
		})},
	// The lease of a waiter begins when it queues. Seen: etcd-io/etcd#11456. Harm: the lock is granted to a waiter whose lease
	// has ended, and to the next one as well.
	{Name: "leaseOfTheQueue", Cases: names{"SinceIsConservative"}, BeyondModel: true,
		next: func(d *db, key string) {
			w := d.first(key)
			w.TTL = max(w.TTL-time.Since(w.since), 1) // gone at once if that has passed
			d.hand(w)
		}},
	// While others wait, every caller goes to the end of the queue, also the holder that repeats its call. Seen: a trial of the
	// suite. Harm: everybody waits until the TTL has passed, the holder for itself.
	{Name: "queuesTheHolder", Cases: names{"HolderAcquiresAgain"}, BeyondModel: true,
		take: func(d *db, q question) dlock.Attempt {
			if q.Call == "Acquire" && d.holds(q) && len(d.queues[q.Key]) > 0 {
				return dlock.Attempt{Holder: q.Token, Remaining: d.pTTL(q.Key)}
			}
			return d.try(q)
		}},
	// The queue is a ring of 128 places. When it is full, the newest takes the place of the first. Seen: a trial of the suite.
	// Harm: a waiter is never served, and does not hear of it.
	{Name: "ring", Cases: names{"LongQueue"}, BeyondModel: true,
		take: func(d *db, q question) dlock.Attempt {
			if q.Call == "Acquire" && len(d.queues[q.Key]) == 128 {
				d.first(q.Key)
			}
			return d.try(q)
		},
		checkIn: func(answer) time.Duration { return math.MaxInt64 }},
	// A client removes only those places from the queue that it has added itself. Seen: a trial of the suite. Harm: if another
	// client releases the token, the key is handed to nobody, until its TTL has passed.
	{Name: "ownPlaces", Cases: names{"ReleaseForgets"}, BeyondModel: true,
		on: names{"Acquire", "Release"}, call: func(r request) (a answer, err error) {
			if _, mine := r.notes.LoadOrStore(r.Token, true); mine || r.Call == "Acquire" {
				return r.send()
			}
			a.Held, err = eval(r, func(d *db) bool { return d.end(r.question) })
			return a, err
		}},
	// A cancelled wait says that one release settles it, while a check-in is on its way that queues again. Harm: a lock that
	// nobody holds, until its TTL has passed.
	{Name: "leavesASecondPlace", Cases: names{"OneReleaseSettles"},
		on: names{"Acquire"}, call: after(func(r request, a *answer, err error) {
			if err != nil && a.Holder != "" {
				_, leave := r.subscribe(r.Token)
				time.AfterFunc(15*time.Millisecond, func() {
					r.run(func(d *db) { d.enqueue(r.question) })
					time.AfterFunc(time.Second, leave)
				})
			}
		})},
	// A wait does not look at its ctx once it has begun. Seen: a well-known recipe. Harm: a program that is shut down hangs.
	{Name: "ignoresItsContext", Cases: names{"CancelledWait", "NoLeaks"},
		on: names{"Acquire"}, call: before(func(r *request) {
			if r.ctx.Err() == nil {
				r.ctx = context.WithoutCancel(r.ctx)
			}
		})},
	// A release ends the lease of its token, and leaves its place in the queue. Seen: a well-known recipe. Harm: the key is
	// handed to a waiter that has given up, until its TTL has passed.
	{Name: "forgetsThePlace", Cases: names{"CancelledWait", "NoLeaks"},
		release: (*db).end,
		next:    func(d *db, key string) { d.hand(d.first(key)) }},
	// A waiter leaves the queue only when it is served. A free key goes to the first, or, if that is dead, to nobody. Seen:
	// queues that are a list in Redis. Harm: one dead waiter blocks the key for ever.
	{Name: "neverCleans", Cases: names{"CancelledWait", "DeadWaiterIsSkipped"},
		take: func(d *db, q question) dlock.Attempt {
			if q.Call != "hand" && d.get(q.Key) == "" && len(d.queues[q.Key]) > 0 {
				return dlock.Attempt{}
			}
			return d.try(q)
		}, release: (*db).end,
		next: func(d *db, key string) {
			if d.listeners(d.queues[key][0].Token) > 0 {
				d.hand(d.first(key))
			}
		}},
	// A goroutine for each wait stays until the ctx ends, or two that the first wait of a client starts, for ever. Seen: a trial
	// of the suite; a well-known recipe. Harm: a program that goes on, or makes clients again and again, has more and more of
	// them.
	{Name: "watchesItsContext", Cases: names{"NoLeaks"}, BeyondModel: true,
		on: names{"Acquire"}, call: before(func(r *request) { go watch(r.ctx) })},
	{Name: "leavesAGoroutine", Cases: names{"NoLeaks"},
		on: names{"Acquire"}, call: before(func(r *request) {
			if _, begun := r.notes.LoadOrStore("goroutines", true); !begun {
				go idle()
				go idle()
			}
		})},
}

func idle() { select {} }

func watch(ctx context.Context) { <-ctx.Done() }

package museum

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

var waiting = []Exhibit{
	{Name: "handsToTheDead", Cases: names{"DeadWaiterIsSkipped"}, Also: names{"WaitEndsOnExpiry"}, BeyondModel: true, build: onQueue[handsToTheDead]},
	{Name: "lastComeFirst", Cases: names{"FirstComeFirstServed", "NoStarvation"}, Also: names{"DeadWaiterIsSkipped", "WaitEndsOnExpiry"}, BeyondModel: true, build: near(onQueue[lastComeFirst])},
	{Name: "wakesOne", Cases: names{"CancelledWait"}, Also: names{"NoStarvation", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[wakesOne]},
	{Name: "subscribesLate", Cases: names{"WaitEndsOnRelease"}, Also: unserved, BeyondModel: true, build: onLock[subscribesLate]},
	{Name: "trustsTheHolder", Cases: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[trustsTheHolder]},
	{Name: "missesItsGrant", Cases: names{"CancelledWait"}, build: func(c conn) dlock.Locker { return &missesItsGrant{queue: *newQueue(c)} }},
	{Name: "datesItsDiscovery", Cases: names{"SinceIsConservative", "History"}, Also: names{"WaitEndsOnExpiry"}, BeyondModel: true, build: onQueue[datesItsDiscovery]},
	{Name: "checksInLate", Cases: names{"CancelledWait"}, Also: names{"NoLeaks", "OneReleaseSettles"}, build: onQueue[checksInLate]},
	{Name: "leaseOfTheQueue", Cases: names{"SinceIsConservative"}, Also: names{"DeadWaiterIsSkipped", "WaitEndsOnExpiry"}, BeyondModel: true, build: onQueue[leaseOfTheQueue]},
	{Name: "formersTTL", Cases: names{"AnyTTL"}, Also: names{"NoLeaks"}, BeyondModel: true, build: onQueue[formersTTL]},
	{Name: "queuesTheHolder", Cases: names{"HolderAcquiresAgain"}, Also: names{"FirstComeFirstServed"}, BeyondModel: true, build: onQueue[queuesTheHolder]},
	{Name: "watchman", Cases: names{"WaitEndsOnExpiry"}, BeyondModel: true, build: onQueue[watchman]},
	{Name: "forgetsHalf", Cases: names{"ReleaseForgets"}, Also: names{"DeadHostManyWaiters", "DeadWaiterIsSkipped", "WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[forgetsHalf]},
	{Name: "ring", Cases: names{"LongQueue"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[ring]},
	{Name: "textTickets", Cases: names{"LongQueue"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[textTickets]},
	{Name: "fewTickets", Cases: names{"LongQueue"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[fewTickets]},
	{Name: "ownPlaces", Cases: names{"ReleaseForgets"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &ownPlaces{queue: *newQueue(c)} }},
	{Name: "cleansUpLate", Cases: names{"LeaseOutlivesContext"}, build: onQueue[cleansUpLate]},
	{Name: "losesOnePlace", Cases: names{"ReleaseForgets"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &losesOnePlace{forgetsHalf{*newQueue(c)}} }},
	{Name: "servedByDeath", Cases: names{"DeadWaiterIsSkipped"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &servedByDeath{queue: *newQueue(c)} }},
	{Name: "oneSession", Cases: names{"DeadWaiterIsSkipped"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &oneSession{queue: *newQueue(c)} }},
	{Name: "threeDigits", Cases: names{"LongQueue"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[threeDigits]},
	{Name: "growingRing", Cases: names{"LongQueue"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[growingRing]},
	{Name: "joinsAgain", Cases: names{"LongQueue"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[joinsAgain]},
	{Name: "oneEar", Cases: names{"WaitEndsOnRelease"}, Also: unserved, BeyondModel: true, build: func(c conn) dlock.Locker { return &oneEar{queue: *newQueue(c)} }},
	{Name: "shortDeadline", Cases: names{"WaitEndsOnRelease"}, BeyondModel: true, build: onQueue[shortDeadline]},
	{Name: "sharesItsLease", Cases: names{"TokenHoldsManyKeys"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &sharesItsLease{queue: *newQueue(c)} }},
	{Name: "indexesWaits", Cases: names{"NoLeaks"}, BeyondModel: true, build: onQueue[indexesWaits]},
	{Name: "givesBackInSilence", Cases: names{"CancelledWait"}, Also: names{"WaitEndsOnExpiry", "WaitEndsOnRemoval"}, build: onQueue[givesBackInSilence]},
	{Name: "saysClosed", Cases: names{"ReleaseForgets"}, BeyondModel: true, build: func(c conn) dlock.Locker { return &saysClosed{queue: *newQueue(c)} }},
	{Name: "readsWords", Cases: names{"KeyAndTokenApart"}, Also: names{"DeadHostManyWaiters", "DeadWaiterIsSkipped", "WaitEndsOnExpiry", "WaitEndsOnRemoval"}, BeyondModel: true, build: onQueue[readsWords]},
	{Name: "marksItsEnqueue", Cases: names{"NoEffect"}, Also: names{"CancelledWait"}, BeyondModel: true, build: onQueue[marksItsEnqueue]},
	{Name: "leavesASecondPlace", Cases: names{"OneReleaseSettles"}, Also: names{"CancelledWait", "DeadWaiterIsSkipped", "NoLeaks", "WaitEndsOnExpiry"}, build: onQueue[leavesASecondPlace]},
	{Name: "ignoresItsContext", Cases: names{"CancelledWait", "NoLeaks"}, Also: unserved, build: onQueue[ignoresItsContext]},
	{Name: "forgetsThePlace", Cases: names{"CancelledWait", "NoLeaks"}, Also: names{"DeadWaiterIsSkipped", "OneReleaseSettles", "WaitEndsOnExpiry"}, build: onQueue[forgetsThePlace]},
	{Name: "neverCleans", Cases: names{"CancelledWait", "DeadWaiterIsSkipped"}, Also: names{"DeadHostManyWaiters", "NoLeaks", "WaitEndsOnExpiry", "WaitEndsOnRemoval"}, build: onQueue[neverCleans]},
	{Name: "sleepsOut", Cases: names{"WaitEndsOnRelease"}, Also: unserved, BeyondModel: true, build: onLock[sleepsOut]},
	{Name: "hearsForTheDead", Cases: names{"DeadWaiterIsSkipped", "DeadHostManyWaiters"}, Also: names{"WaitEndsOnExpiry"}, BeyondModel: true, build: onQueue[hearsForTheDead]},
	{Name: "triesTheDead", Cases: names{"DeadHostManyWaiters"}, BeyondModel: true, build: onQueue[triesTheDead]},
	{Name: "triesEachSecond", Cases: names{"WaitEndsOnExpiry"}, Also: unserved, BeyondModel: true, build: onLock[triesEachSecond]},
	{Name: "tellsItself", Cases: names{"EndedContext"}, BeyondModel: true, build: around[tellsItself]},
	{Name: "hurries", Cases: names{"EndedContext"}, BeyondModel: true, build: around[hurries]},
	{Name: "datesItsCall", Cases: names{"SinceIsConservative"}, BeyondModel: true, build: around[datesItsCall]},
	{Name: "leavesAGoroutine", Cases: names{"NoLeaks"}, Also: slices.Concat(unserved, names{"DecoratorHidesNothing"}), build: func(c conn) dlock.Locker { return &leavesAGoroutine{Forward: forward(c)} }},
}

// A release hands the key to the first of the queue, dead or alive.
// Seen: queues that are a list in Redis.
// Harm: everybody waits for the TTL of a dead waiter, or of a hundred of one crashed
// process.
// Right: hand it to the first that listens.
type handsToTheDead struct{ queue }

func (q *handsToTheDead) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		if w, ok := d.first(key); ok {
			d.hand(key, w.token, w.ttl)
		}
	})
}

// The last waiter is served first: a stack, not a queue.
// Seen: LPUSH with LPOP.
// Harm: the first waiters wait as long as others keep coming.
// Right: first come, first served.
type lastComeFirst struct{ queue }

func (q *lastComeFirst) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		if n := len(d.queues[key]); n > 0 {
			w := d.queues[key][n-1]
			d.unqueue(key, w.token)
			d.hand(key, w.token, w.ttl)
		}
	})
}

// A release wakes the first waiter, which is to take the key itself, but may just have
// given up.
// Seen: as old as condition variables; missed wake-ups in redis/rueidis#604.
// Harm: the others sleep on before a free key.
// Right: a waiter that is woken in vain wakes the next; or the release hands the key
// over.
type wakesOne struct{ queue }

func (q *wakesOne) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	inbox, leave := q.subscribe(token)
	defer leave()
	for {
		sent := time.Now()
		a, err := q.take(ctx, key, token, ttl)
		if a.Since = sent; err != nil || a.Acquired {
			return a, err
		}
		select {
		case <-inbox:
		case <-time.After(a.Remaining):
		case <-ctx.Done():
			return dlock.Attempt{}, ctx.Err()
		}
	}
}

// take takes a free key; others wait.
func (q *wakesOne) take(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Attempt {
		d.unqueue(key, token)
		a := d.try(key, token, ttl)
		if !a.Acquired {
			d.queues[key] = append(d.queues[key], waiter{token: token})
		}
		return a
	})
}

func (q *wakesOne) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.lock.TryAcquire(ctx, key, token, ttl)
}

func (q *wakesOne) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		d.unqueue(key, token)
		held := d.get(key) == token && d.del(key)
		for held && len(d.queues[key]) > 0 {
			if w, _ := d.first(key); d.publish(w.token, message{}) > 0 {
				break
			}
		}
		return held
	})
}

// A waiter asks, hears that the key is held, and subscribes: a wake-up between the two is
// missed.
// Seen: redisson/redisson#1763.
// Harm: it sleeps on before a free key.
// Right: subscribe, then ask.
type subscribesLate struct{ lock }

func (l *subscribesLate) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	sent := time.Now()
	a, err := l.TryAcquire(ctx, key, token, ttl)
	if a.Since = sent; err != nil || a.Acquired {
		return a, err
	}
	released, leave := l.subscribe(key)
	defer leave()
	for !a.Acquired && err == nil {
		select {
		case <-released:
		case <-time.After(a.Remaining):
		case <-ctx.Done():
		}
		sent = time.Now()
		a, err = l.TryAcquire(ctx, key, token, ttl)
		a.Since = sent
	}
	return a, err
}

func (l *subscribesLate) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, l.conn, func(d *db) bool {
		held := d.get(key) == token && d.del(key)
		if held {
			d.publish(key, message{})
		}
		return held
	})
}

// Only a release wakes waiters.
// Seen: recipes with PUBLISH.
// Harm: when the holder dies, they wait for ever.
// Right: check in when the holder's lease ends, and from time to time.
type trustsTheHolder struct{ queue }

func (q *trustsTheHolder) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt { return d.enqueue(key, token, ttl).Attempt })
}

// A waiter that gives up leaves the queue, and assumes that it holds nothing: its release
// sends nothing.
// Seen: in a model of a handover.
// Harm: the key may have been handed to it at that moment; nobody gets it until the TTL
// has passed.
// Right: release the token after a cancelled wait: the store knows.
type missesItsGrant struct {
	queue
	gone sync.Map // tokens whose wait has ended
}

func (q *missesItsGrant) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil {
		q.gone.Store(token, true)
		_, _ = eval(context.WithoutCancel(ctx), q.conn, func(d *db) bool { d.unqueue(key, token); return true })
	}
	return a, err
}

func (q *missesItsGrant) Release(ctx context.Context, key, token string) (bool, error) {
	if _, gone := q.gone.LoadAndDelete(token); gone {
		return false, nil // saves a round trip
	}
	return q.queue.Release(ctx, key, token)
}

// A waiter counts its lease from when it reads of its grant.
// Seen: in a model of a handover.
// Harm: if the process was stopped before that, it believes in a lease that is over.
// Right: count from the grant.
type datesItsDiscovery struct{ queue }

func (q *datesItsDiscovery) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	time.Sleep(40 * time.Millisecond) // a garbage collection, a busy machine, a frozen container
	a.Since = time.Now()
	return a, err
}

// A check-in queues, or takes a free key. One is delivered after its waiter has given up
// and released its token.
// Seen: in a model of a handover.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: only the first call of a waiter queues it; repeat the release of what may still
// be on its way.
type checksInLate struct{ queue }

func (q *checksInLate) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil { // an ask is on its way, by a slow connection
		time.AfterFunc(20*time.Millisecond, func() {
			q.run(func(d *db) any { return d.enqueue(key, token, ttl) })
		})
	}
	return a, err
}

// The lease of a waiter begins when it queues.
// Seen: etcd-io/etcd#11456.
// Harm: the lock is granted to a waiter whose lease has ended, and to the next one as
// well.
// Right: the lease begins with the grant.
type leaseOfTheQueue struct{ queue }

func (q *leaseOfTheQueue) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		if w, ok := d.first(key); ok {
			d.hand(key, w.token, max(w.ttl-time.Since(w.since), 1)) // gone at once if that has passed
		}
	})
}

// The key is handed over with the TTL of its former holder.
// Seen: a trial of the suite.
// Harm: the waiter's lease ends before it thinks that it does, or long after it has died.
// Right: the waiter's TTL.
type formersTTL struct{ queue }

func (q *formersTTL) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.TryAcquire(ctx, key, token, ttl)
	if a.Acquired {
		q.run(func(d *db) any { return d.set("TTL of "+key, ttl.String(), forever) })
	}
	return a, err
}

func (q *formersTTL) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		ttl, err := time.ParseDuration(d.get("TTL of " + key))
		for i := range d.queues[key] {
			if err == nil {
				d.queues[key][i].ttl = ttl
			}
		}
		d.serve(key)
	})
}

// While others wait, every caller goes to the end of the queue, also the holder that
// repeats its call.
// Seen: a trial of the suite.
// Harm: everybody waits until the TTL has passed, the holder for itself.
// Right: first look who holds the key.
type queuesTheHolder struct{ queue }

func (q *queuesTheHolder) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	queued, err := eval(ctx, q.conn, func(d *db) bool {
		if d.get(key) != token || len(d.queues[key]) == 0 {
			return false
		}
		d.queues[key] = append(d.queues[key], waiter{token, ttl, time.Now()})
		return true
	})
	if err != nil || !queued {
		return q.queue.Acquire(ctx, key, token, ttl)
	}
	inbox, leave := q.subscribe(token)
	defer leave()
	select {
	case m := <-inbox:
		return m.grant, nil
	case <-ctx.Done():
		return dlock.Attempt{}, ctx.Err()
	}
}

// The first waiter alone watches the holder's lease, for all, and leaves.
// Seen: a trial of the suite.
// Harm: the holder dies, and the others wait for ever.
// Right: the next one watches then; or all do.
type watchman struct{ queue }

func (q *watchman) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	inbox, leave := q.subscribe(token)
	defer leave()
	for first := true; ; {
		sent := time.Now()
		p, err := eval(ctx, q.conn, func(d *db) place {
			p := d.enqueue(key, token, ttl)
			first = len(d.queues[key]) > 0 && d.queues[key][0].token == token
			return p
		})
		if p.Since = sent; err != nil || p.Acquired {
			return p.Attempt, err
		}
		var watch <-chan time.Time
		if first {
			watch = time.After(p.pause())
		}
		select {
		case m := <-inbox:
			m.grant.Since = sent.Add(m.at.Sub(p.now))
			return m.grant, nil
		case <-watch:
		case <-ctx.Done():
			return dlock.Attempt{}, ctx.Err()
		}
	}
}

// A token whose call was repeated is in the queue twice. A release by the holder hands
// the key to the next place at once.
// Seen: a trial of the suite.
// Harm: it may be the second place of the same token: a lock that nobody holds, until its
// TTL has passed.
// Right: a release removes every place of its token.
type forgetsHalf struct{ queue }

func (q *forgetsHalf) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		d.serve(key)
		a := d.try(key, token, ttl)
		if !a.Acquired {
			d.queues[key] = append(d.queues[key], waiter{token, ttl, time.Now()})
		}
		return a
	})
}

func (q *forgetsHalf) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		if d.get(key) == token {
			d.del(key)
			if w, ok := d.first(key); ok {
				d.hand(key, w.token, w.ttl)
			}
			return true
		}
		d.unqueue(key, token)
		return false
	})
}

// wait waits for a message after enter has taken a token into the queue, and asks no
// more.
func (q *queue) wait(ctx context.Context, token string, enter func(*db) dlock.Attempt) (dlock.Attempt, error) {
	inbox, leave := q.subscribe(token)
	defer leave()
	sent := time.Now()
	p, err := eval(ctx, q.conn, func(d *db) place { return place{enter(d), time.Now()} })
	if p.Since = sent; err != nil || p.Acquired {
		return p.Attempt, err
	}
	select {
	case m := <-inbox:
		m.grant.Since = sent.Add(m.at.Sub(p.now))
		return m.grant, nil
	case <-ctx.Done():
		return dlock.Attempt{}, ctx.Err()
	}
}

// The queue is a ring of 128 places. When it is full, the newest takes the place of the
// first.
// Seen: a trial of the suite.
// Harm: a waiter is never served, and does not hear of it.
// Right: a queue that grows, or an error for the newest.
type ring struct{ queue }

func (q *ring) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const places = 128
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		p := d.enqueue(key, token, ttl)
		d.queues[key] = d.queues[key][max(0, len(d.queues[key])-places):]
		return p.Attempt
	})
}

// byTicket takes a token into the queue at the place that its ticket has among the
// others, in the order of their text.
func (d *db) byTicket(key, token string, ttl time.Duration, ticket func(n int64) string) dlock.Attempt {
	p := d.enqueue(key, token, ttl)
	if !p.Acquired {
		d.set("ticket of "+token, ticket(d.incrBy("tickets", 1)), time.Hour)
		slices.SortFunc(d.queues[key], func(a, b waiter) int {
			return strings.Compare(d.get("ticket of "+a.token), d.get("ticket of "+b.token))
		})
	}
	return p.Attempt
}

// Tickets are compared as text: 10 is before 9.
// Seen: a trial of the suite.
// Harm: the tenth waiter is served before the second.
// Right: numbers, or text of one length.
type textTickets struct{ queue }

func (q *textTickets) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		return d.byTicket(key, token, ttl, func(n int64) string { return strconv.FormatInt(n, 10) })
	})
}

// Tickets have three digits, and begin again after the last.
// Seen: a trial of the suite.
// Harm: the next waiter is served before all who wait.
// Right: numbers that do not come to an end.
type fewTickets struct{ queue }

func (q *fewTickets) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const tickets = 256
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		return d.byTicket(key, token, ttl, func(n int64) string { return fmt.Sprintf("%03d", n%tickets) })
	})
}

// A client removes only those places from the queue that it has added itself.
// Seen: a trial of the suite.
// Harm: if another client releases the token, the key is handed to nobody, until its TTL
// has passed.
// Right: what is in the store is found there.
type ownPlaces struct {
	queue
	mine sync.Map // tokens that wait, or have waited
}

func (q *ownPlaces) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q.mine.Store(token, true)
	return q.queue.Acquire(ctx, key, token, ttl)
}

func (q *ownPlaces) Release(ctx context.Context, key, token string) (bool, error) {
	if _, ok := q.mine.LoadAndDelete(token); ok {
		return q.queue.Release(ctx, key, token)
	}
	return eval(ctx, q.conn, func(d *db) bool {
		held := d.get(key) == token && d.del(key)
		if held {
			d.serve(key)
		}
		return held
	})
}

// A cancelled wait is cleaned up in the background.
// Seen: a trial of the suite.
// Harm: the caller releases the token as well and uses it again: its new lease is ended.
// Right: leave it to the caller.
type cleansUpLate struct{ queue }

func (q *cleansUpLate) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil {
		time.AfterFunc(50*time.Millisecond, func() {
			_, _ = q.queue.Release(context.WithoutCancel(ctx), key, token)
		})
	}
	return a, err
}

// A token whose call was repeated is in the queue twice, and its release removes one
// place.
// Seen: a trial of the suite.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: a release removes every place of its token.
type losesOnePlace struct{ forgetsHalf }

func (q *losesOnePlace) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		waits := func(w waiter) bool { return w.token == token }
		if i := slices.IndexFunc(d.queues[key], waits); i >= 0 {
			d.queues[key] = slices.Delete(d.queues[key], i, i+1)
		}
		held := d.get(key) == token && d.del(key)
		d.serve(key)
		return held
	})
}

// Each waiter watches the one before it, and takes the key when that is gone.
// Seen: a trial of the suite.
// Harm: it was only a waiter, which died: two holders.
// Right: the watch is a reason to look, no more.
type servedByDeath struct{ queue }

func (q *servedByDeath) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil {
		time.AfterFunc(30*time.Second, func() { // the session ends
			q.run(func(d *db) any { d.dies(key, token); return nil })
		})
	}
	return a, err
}

// dies removes a waiter whose session has ended, and tells the next.
func (d *db) dies(key, token string) {
	i := slices.IndexFunc(d.queues[key], func(w waiter) bool { return w.token == token })
	if i < 0 {
		return
	}
	d.unqueue(key, token)
	if i < len(d.queues[key]) {
		next := d.queues[key][i]
		d.unqueue(key, next.token)
		d.del(key)
		d.hand(key, next.token, next.ttl)
	}
}

// All waits of a client share one session, which lasts as long as the ctx of the first.
// Seen: a trial of the suite.
// Harm: the other waits lose their places, and wait for ever.
// Right: the session lasts as long as anything needs it.
type oneSession struct {
	queue
	mu    sync.Mutex
	waits map[string]string // token → key
	kept  bool
}

func (q *oneSession) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q.mu.Lock()
	if q.waits == nil {
		q.waits = make(map[string]string)
	}
	q.waits[token] = key
	if !q.kept {
		q.kept = true
		context.AfterFunc(ctx, func() { time.AfterFunc(3*time.Second, q.expire) })
	}
	q.mu.Unlock()
	a, err := q.wait(ctx, token, func(d *db) dlock.Attempt { return d.enqueue(key, token, ttl).Attempt })
	q.mu.Lock()
	delete(q.waits, token)
	q.mu.Unlock()
	return a, err
}

func (q *oneSession) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for token, key := range q.waits {
		q.run(func(d *db) any { d.unqueue(key, token); return nil })
	}
}

// Tickets are compared as text of three digits.
// Seen: a trial of the suite.
// Harm: from the thousandth waiter on the order is lost.
// Right: numbers, or text that is long enough for ever.
type threeDigits struct{ queue }

func (q *threeDigits) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		return d.byTicket(key, token, ttl, func(n int64) string { return fmt.Sprintf("%03d", n) })
	})
}

// The queue is a ring. When it grows, it is copied as it lies in memory, where the last
// may be before the first.
// Seen: a trial of the suite.
// Harm: those who came first wait for long.
// Right: copy it in its own order.
type growingRing struct{ queue }

func (q *growingRing) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		p := d.enqueue(key, token, ttl)
		line := d.queues[key]
		if n := len(line); !p.Acquired && n >= 8 && n&(n-1) == 0 { // it is full
			served := int(d.incrBy("came for "+key, 1)) - n
			start := n - served%n // what lies at the beginning
			d.queues[key] = slices.Concat(line[start%n:], line[:start%n])
		} else if !p.Acquired {
			d.incrBy("came for "+key, 1)
		}
		return p.Attempt
	})
}

// The first waiter watches from the revision at which it began. When the store has
// forgotten that, it queues again.
// Seen: a trial of the suite.
// Harm: on a busy store, the first becomes the last.
// Right: watch from the present revision, and keep the place.
type joinsAgain struct{ queue }

const revision = "revision"

func (q *joinsAgain) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Attempt {
		d.incrBy(revision, 1)
		d.serve(key)
		return d.try(key, token, ttl)
	})
}

func (q *joinsAgain) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const kept = 1000
	begun := q.run(func(d *db) any { return d.incrBy(revision, 1) }).(int64)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(checkInPeriod / 20):
			}
			q.run(func(d *db) any {
				line, now := d.queues[key], d.incrBy(revision, 0)
				first := len(line) > 0 && line[0].token == token
				if first && now-begun > kept {
					d.queues[key] = append(line[1:], line[0])
				}
				if !first || now-begun > kept {
					begun = now
				}
				return nil
			})
		}
	}()
	return q.wait(ctx, token, func(d *db) dlock.Attempt { return d.enqueue(key, token, ttl).Attempt })
}

// A client passes messages to its waiters by a hash of their keys: of two with the same
// hash, the latest hears those for both.
// Seen: a trial of the suite.
// Harm: a process that waits for many keys waits for ever.
// Right: by key and token.
type oneEar struct {
	queue
	mu   sync.Mutex
	ears [64]string // the token that listens
}

func (q *oneEar) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	hash := fnv.New32a()
	hash.Write([]byte(key))
	ear := &q.ears[hash.Sum32()%uint32(len(q.ears))]
	q.mu.Lock()
	*ear = token
	q.mu.Unlock()
	a, err := q.wait(ctx, token, func(d *db) dlock.Attempt { return d.enqueue(key, token, ttl).Attempt })
	q.mu.Lock()
	heard := *ear == token
	q.mu.Unlock()
	if err == nil && !heard {
		<-ctx.Done()
		return dlock.Attempt{}, ctx.Err()
	}
	return a, err
}

// The remaining time of the ctx is sent as milliseconds in 32 bits.
// Seen: a trial of the suite.
// Harm: a program that would wait for some weeks does not wait at all.
// Right: 64 bits; or a maximum.
type shortDeadline struct{ queue }

func (q *shortDeadline) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if end, ok := ctx.Deadline(); ok {
		left := time.Duration(int32(time.Until(end).Milliseconds())) * time.Millisecond
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	return q.queue.Acquire(ctx, key, token, ttl)
}

// The waits of a client that have the same TTL share one lease object.
// Seen: a trial of the suite.
// Harm: renewing one key renews them all, also those whose owner is dead.
// Right: an object for each.
type sharesItsLease struct {
	queue
	mu     sync.Mutex
	shared map[time.Duration]map[string]string // TTL → key → token
}

func (q *sharesItsLease) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err == nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.shared == nil {
			q.shared = make(map[time.Duration]map[string]string)
		}
		if q.shared[ttl] == nil {
			q.shared[ttl] = make(map[string]string)
		}
		q.shared[ttl][key] = token
	}
	return a, err
}

func (q *sharesItsLease) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	var shared map[string]string
	q.mu.Lock()
	for _, keys := range q.shared {
		if keys[key] == token {
			shared = maps.Clone(keys)
		}
	}
	q.mu.Unlock()
	for other, its := range shared {
		if _, err := q.queue.Renew(ctx, other, its, ttl); err != nil {
			return false, err
		}
	}
	return q.queue.Renew(ctx, key, token, ttl)
}

// A cancelled wait leaves its entry in an index.
// Seen: a trial of the suite.
// Harm: the store fills up.
// Right: whatever ends a wait removes all of it.
type indexesWaits struct{ queue }

func (q *indexesWaits) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q.run(func(d *db) any { return d.set("wait of "+token, key, forever) })
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err == nil {
		q.run(func(d *db) any { return d.del("wait of " + token) })
	}
	return a, err
}

// A waiter that is cancelled while its grant is on its way gives the key back, and serves
// nobody.
// Seen: a trial of the suite.
// Harm: the key is free, and those behind wait for ever.
// Right: whoever frees a key serves the next.
type givesBackInSilence struct{ queue }

func (q *givesBackInSilence) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.wait(ctx, token, func(d *db) dlock.Attempt { return d.enqueue(key, token, ttl).Attempt })
	if err != nil {
		q.run(func(d *db) any {
			d.unqueue(key, token)
			return d.get(key) == token && d.del(key)
		})
	}
	return a, err
}

func (q *givesBackInSilence) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		held := d.get(key) == token && d.del(key)
		if held {
			d.serve(key)
		}
		return held
	})
}

// A wait that was ended by a release returns dlock.ErrClosed: no later call can succeed.
// Seen: a trial of the suite.
// Harm: a program gives up a store that works.
// Right: an error of its own.
type saysClosed struct {
	queue
	ended sync.Map // token → a channel that is closed by its release
}

func (q *saysClosed) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	waiting, end := context.WithCancel(ctx)
	defer end()
	released, _ := q.ended.LoadOrStore(token, make(chan struct{}))
	go func() {
		select {
		case <-released.(chan struct{}):
			end()
		case <-waiting.Done():
		}
	}()
	a, err := q.queue.Acquire(waiting, key, token, ttl)
	if err != nil && ctx.Err() == nil {
		err = dlock.ErrClosed
	}
	return a, err
}

func (q *saysClosed) Release(ctx context.Context, key, token string) (bool, error) {
	if released, ok := q.ended.LoadAndDelete(token); ok {
		close(released.(chan struct{}))
	}
	return q.queue.Release(ctx, key, token)
}

// The token in a message ends at its first space.
// Seen: a trial of the suite.
// Harm: another token that begins with the same word hears the grant: two holders.
// Right: tokens are any bytes: the remainder of the message.
type readsWords struct{ queue }

func firstWord(token string) string {
	word, _, _ := strings.Cut(token, " ")
	return word
}

func (q *readsWords) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, firstWord(token), func(d *db) dlock.Attempt { return d.enqueue(key, token, ttl).Attempt })
}

func (q *readsWords) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		if w, ok := d.first(key); ok {
			d.publish(firstWord(w.token), message{d.try(key, w.token, w.ttl), time.Now()})
		}
	})
}

// A cancelled wait says that nothing is left of it while its first request is on its way.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: say so only when every request has been answered.
type marksItsEnqueue struct{ queue }

func (q *marksItsEnqueue) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil {
		return dlock.Attempt{}, ctx.Err()
	}
	type result struct {
		dlock.Attempt
		err error
	}
	done := make(chan result, 1)
	go func() {
		a, err := q.queue.Acquire(ctx, key, token, ttl)
		done <- result{a, err}
	}()
	select {
	case r := <-done:
		return r.Attempt, r.err
	case <-ctx.Done():
		return dlock.Attempt{}, &dlock.NoEffectError{Err: ctx.Err()}
	}
}

// A cancelled wait says that one release settles it, while a last check-in is on its way,
// which queues again.
// Seen: made for its case.
// Harm: a lock that nobody holds, until its TTL has passed.
// Right: say so only when no check-in is on its way.
type leavesASecondPlace struct{ queue }

func (q *leavesASecondPlace) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil && a.Holder != "" {
		_, leave := q.subscribe(token)
		time.AfterFunc(15*time.Millisecond, func() {
			q.run(func(d *db) any { return d.enqueue(key, token, ttl) })
			time.AfterFunc(time.Second, leave)
		})
	}
	return a, err
}

// A wait does not look at its ctx once it has begun.
// Seen: a well-known recipe.
// Harm: a program that is shut down hangs.
// Right: return soon after the ctx ends.
type ignoresItsContext struct{ queue }

func (q *ignoresItsContext) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil {
		return dlock.Attempt{}, ctx.Err()
	}
	return q.queue.Acquire(context.WithoutCancel(ctx), key, token, ttl)
}

// A release ends the lease of its token, and leaves its place in the queue.
// Seen: a well-known recipe.
// Harm: the key is handed to a waiter that has given up, until its TTL has passed.
// Right: a release forgets all of a token.
type forgetsThePlace struct{ queue }

func (q *forgetsThePlace) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		if d.get(key) != token {
			return false
		}
		d.del(key)
		if w, ok := d.first(key); ok {
			d.hand(key, w.token, w.ttl)
		}
		return true
	})
}

// A waiter leaves the queue only when it is served. A free key goes to the first, and to
// nobody if that is dead.
// Seen: queues that are a list in Redis.
// Harm: one dead waiter blocks the key for ever.
// Right: skip the dead.
type neverCleans struct{ queue }

func (q *neverCleans) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Attempt {
		if d.get(key) == "" && len(d.queues[key]) > 0 {
			return dlock.Attempt{}
		}
		return d.try(key, token, ttl)
	})
}

func (q *neverCleans) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		a := d.try(key, token, ttl)
		if !a.Acquired {
			d.queues[key] = append(d.queues[key], waiter{token, ttl, time.Now()})
		}
		return a
	})
}

func (q *neverCleans) Release(ctx context.Context, key, token string) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		held := d.get(key) == token && d.del(key)
		if held && len(d.queues[key]) > 0 && d.listeners(d.queues[key][0].token) > 0 {
			d.serve(key)
		}
		return held
	})
}

// A waiter sleeps for the remaining time that it was told, and asks again.
// Seen: a well-known recipe.
// Harm: it sleeps on before a key that was released.
// Right: a release wakes the first waiter.
type sleepsOut struct{ lock }

func (l *sleepsOut) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	for {
		sent := time.Now()
		a, err := l.TryAcquire(ctx, key, token, ttl)
		if a.Since = sent; err != nil || a.Acquired {
			return a, err
		}
		select {
		case <-time.After(a.Remaining):
		case <-ctx.Done():
			return dlock.Attempt{}, ctx.Err()
		}
	}
}

// The subscription of a waiter stays when that has died.
// Seen: connections that nobody closes.
// Harm: everybody waits for the TTLs of all the dead.
// Right: a subscription ends with its waiter.
type hearsForTheDead struct{ queue }

func (q *hearsForTheDead) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil {
		q.subscribe(token)
	}
	return a, err
}

// A dead waiter is handed the key, and loses it if it does not answer within a second.
// Seen: made for its case.
// Harm: a crashed process with a hundred waiters blocks the key for a hundred seconds.
// Right: skip all the dead at once.
type triesTheDead struct{ queue }

func (q *triesTheDead) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil {
		q.subscribe(token)
		q.run(func(d *db) any {
			for i, w := range d.queues[key] {
				if w.token == token {
					d.queues[key][i].ttl = time.Second
				}
			}
			return nil
		})
	}
	return a, err
}

// The first wait of a client starts two goroutines that nothing ends.
// Seen: a well-known recipe.
// Harm: a program that makes clients again and again has more and more of them.
// Right: the client is closed, and its goroutines end.
type leavesAGoroutine struct {
	dlock.Forward
	once sync.Once
}

func (l *leavesAGoroutine) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.once.Do(func() {
		for range 2 { // one that reads and one that writes
			go func() { select {} }()
		}
	})
	return l.Forward.Acquire(ctx, key, token, ttl)
}

// A waiter tries once a second.
// Seen: a trial of the suite.
// Harm: up to a second passes after the death of a holder, and after each release, in which
// nobody holds the key.
// Right: try when the lease ends, and hear of releases.
type triesEachSecond struct{ lock }

func (l *triesEachSecond) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	for {
		sent := time.Now()
		a, err := l.TryAcquire(ctx, key, token, ttl)
		if a.Since = sent; err != nil || a.Acquired {
			return a, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

// A wait that is cancelled names its own token as the holder.
// Seen: made for its case.
// Harm: users are shown that they wait for themselves.
// Right: who held the key when the store last answered, or nothing.
type tellsItself struct{ dlock.Forward }

func (l *tellsItself) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	if err != nil && ctx.Err() != nil {
		a.Holder = token
	}
	return a, err
}

// A wait ends 4 ms before the deadline of its ctx, to have time for the way back.
// Seen: made for its case.
// Harm: a lock that becomes free in time is not acquired.
// Right: wait until ctx ends.
type hurries struct{ dlock.Forward }

func (l *hurries) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil {
		early, cancel := context.WithDeadline(ctx, deadline.Add(-4*time.Millisecond))
		defer cancel()
		ctx = early
	}
	return l.Forward.Acquire(ctx, key, token, ttl)
}

// A grant after a wait is dated when the wait began.
// Seen: made for its case.
// Harm: after a wait for longer than its TTL, the lease is over before it begins.
// Right: the time of the grant, or a little before.
type datesItsCall struct{ dlock.Forward }

func (l *datesItsCall) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	start := time.Now()
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	a.Since = start
	return a, err
}

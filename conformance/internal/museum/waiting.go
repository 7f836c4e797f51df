package museum

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// The key is handed to the first in the queue, whether that lives or not. A dead
// one keeps it until the TTL has passed, and a crashed process with a hundred
// waiters a hundred times as long. Right: hand it to the first who listens.
type handsToTheDead struct{ queue }

func (q *handsToTheDead) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		if w, ok := d.first(key); ok {
			d.hand(key, w.token, w.ttl)
		}
	})
}

// Whoever came last is served first, so those who came first wait for as long as
// others keep coming. Right: first come, first served.
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

// A release wakes the first waiter, which is to take the key itself. If that has
// just given up, the wake-up is lost, and the others sleep on before a key that is
// free. Right: who is woken and does not want the key any more wakes the next; or
// the release hands the key over.
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

// A waiter asks, is told that the key is held, and subscribes. What is published
// between the two does not reach it, and it sleeps on before a key that is free.
// Right: subscribe, and then ask.
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

// Waiters wait for the holder to tell them that it has released the lock. One that
// has died tells nobody, and they wait for ever, before a key that has expired. Right:
// ask when the lease of the holder ends, and from time to time.
type trustsTheHolder struct{ queue }

func (q *trustsTheHolder) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	inbox, leave := q.subscribe(token)
	defer leave()
	sent := time.Now()
	p, err := eval(ctx, q.conn, func(d *db) place { return d.enqueue(key, token, ttl) })
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

// A waiter that gives up leaves the queue, and takes it for granted that it holds
// nothing. If the key was handed to it at that moment, nobody has it until the TTL
// has passed. Right: a wait that was cancelled is followed by a release, which
// asks the store.
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

// A waiter counts its lease from the moment in which it reads of its grant. The
// store counts from the grant; if the process was stopped between, its holder
// believes in a lease that is over. Right: count from the grant.
type datesItsDiscovery struct{ queue }

func (q *datesItsDiscovery) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	time.Sleep(20 * time.Millisecond) // a garbage collection, a busy machine, a frozen container
	a.Since = time.Now()
	return a, err
}

// To ask means to queue, or to take the key if it is free. An ask that is delivered
// when its waiter has given up, and released its token, does so for nobody. Right:
// an ask creates nothing; only the first call of a waiter queues it, and the
// release of what may still be on its way is repeated.
type asksLate struct{ queue }

func (q *asksLate) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err != nil { // an ask is on its way, by a slow connection
		time.AfterFunc(20*time.Millisecond, func() {
			q.run(func(d *db) any { return d.enqueue(key, token, ttl) })
		})
	}
	return a, err
}

// The lease of a waiter begins when it queues. When its turn comes, the lease may
// be nearly over, or have ended; it is told that it holds the key all the same.
// Right: the lease begins with the grant.
type leaseOfTheQueue struct{ queue }

func (q *leaseOfTheQueue) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, func(d *db, key string) {
		if w, ok := d.first(key); ok {
			d.hand(key, w.token, max(w.ttl-time.Since(w.since), 1)) // gone at once if that has passed
		}
	})
}

// The key is handed over with the lease of its former holder, whose TTL it keeps. Right:
// the waiter's.
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

// Whoever comes while others wait goes to the end of the queue, the holder too, if it asks
// again since its reply was lost: it waits for itself. Right: first look who holds the key.
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

// The first waiter alone watches the lease of the holder, for all. When it leaves, nobody
// does, and when the holder dies, the others wait for ever. Right: whoever is first then
// watches; or all do.
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

// A token whose call was repeated stands in the queue twice. It is served once, works, and
// releases the key, which is handed to the place that it has left: nobody holds it until
// the TTL has passed. Right: a release forgets all of a token.
type forgetsHalf struct{ queue }

func (q *forgetsHalf) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	inbox, leave := q.subscribe(token)
	defer leave()
	sent := time.Now()
	p, err := eval(ctx, q.conn, func(d *db) place {
		d.serve(key)
		a := d.try(key, token, ttl)
		if !a.Acquired {
			d.queues[key] = append(d.queues[key], waiter{token, ttl, time.Now()})
		}
		return place{a, time.Now()}
	})
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

// The queue is a ring of 128 places. Whoever comes when it is full takes the place of
// the first, who is told nothing, and waits for ever. Right: a queue that grows, or an
// error for whoever comes too late.
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

// Tickets are compared as text: 10 is before 9. Right: numbers, or text of one length.
type textTickets struct{ queue }

func (q *textTickets) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		return d.byTicket(key, token, ttl, func(n int64) string { return strconv.FormatInt(n, 10) })
	})
}

// Tickets have three digits, and begin anew after the last, though some wait that have
// those from before. Right: numbers that do not come to an end.
type fewTickets struct{ queue }

func (q *fewTickets) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const tickets = 256
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		return d.byTicket(key, token, ttl, func(n int64) string { return fmt.Sprintf("%03d", n%tickets) })
	})
}

// A client takes those out of the queue only that it has put there itself. When another
// releases a token, as one does that cleans up after it, the place stays, and the key is
// handed to nobody. Right: what is in the store is found there.
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

// A wait that was cancelled is cleaned up in the background, so that the caller need not
// wait for that. The caller does it as well, and uses the token again; what it holds then
// is released behind its back. Right: leave it to the caller.
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

// A token that stands in the queue twice loses one place when it is released: it is
// served in the other, when nobody waits there any more. Right: a release forgets all of
// a token.
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

// Each waiter watches the one before it. When that is gone the watch fires, and the waiter
// takes the key: if the one before was a waiter as well, which has died, the key is still
// held. Right: the watch is a reason to look, no more.
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

// All waits of a client share one session, which is kept alive for as long as the ctx of
// the first of them lasts. When that ends, the others lose their places, and wait for ever.
// Right: a session lasts for as long as anything needs it.
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

// Tickets are compared as text, with zeros before the number: enough for 999. Right:
// numbers, or text that is long enough for all times.
type threeDigits struct{ queue }

func (q *threeDigits) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return q.wait(ctx, token, func(d *db) dlock.Attempt {
		return d.byTicket(key, token, ttl, func(n int64) string { return fmt.Sprintf("%03d", n) })
	})
}

// The queue is a ring that is made larger when it is full: by copying it as it lies in
// memory, where the last may stand before the first. Right: copy it in its own order.
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

// The first of the queue watches the holder's key from the revision at which it began to.
// When the store has forgotten that, the waiter begins anew, behind all who came after it.
// Right: watch from the present revision, and keep the place.
type joinsAnew struct{ queue }

const revision = "revision"

func (q *joinsAnew) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Attempt {
		d.incrBy(revision, 1)
		d.serve(key)
		return d.try(key, token, ttl)
	})
}

func (q *joinsAnew) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	const kept = 1000
	begun := q.run(func(d *db) any { return d.incrBy(revision, 1) }).(int64)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(askPeriod / 20):
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

// A client hands its messages to its waiters by the hash of their keys: where two have the
// same, the latest hears what is meant for the other. Right: by key and token.
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

// What is left of the ctx is sent to the store in milliseconds, of 32 bits. A program that
// waits "for ever", which is some weeks, does not wait at all. Right: 64 bits; or a
// maximum.
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

// What a client has waited for with the same TTL shares one lease object. Who renews one
// key renews them all, and what its owner has left for dead stays. Right: an object for
// each.
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
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, keys := range q.shared {
		if keys[key] != token {
			continue
		}
		for other, its := range keys {
			if _, err := q.queue.Renew(ctx, other, its, ttl); err != nil {
				return false, err
			}
		}
	}
	return q.queue.Renew(ctx, key, token, ttl)
}

// The first of the queue is shown as the holder, though the key is still on its way to it.
// Right: who holds is what is stored under the key.
type showsTheNext struct{ queue }

func (q *showsTheNext) Release(ctx context.Context, key, token string) (bool, error) {
	held, err := q.release(ctx, key, token, func(*db, string) {})
	time.Sleep(20 * time.Millisecond)
	q.run(func(d *db) any { d.serve(key); return nil })
	return held, err
}

func (q *showsTheNext) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Hold {
		token := d.get(key)
		if token == "" && len(d.queues[key]) > 0 {
			token = d.queues[key][0].token
		}
		return dlock.Hold{Held: token != "", Token: token, Remaining: d.pTTL(key)}
	})
}

// A wait that is given up leaves its entry in an index, which nothing but a grant removes.
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

// A waiter that is cancelled while its grant is on the way gives the key back in the
// background, and serves nobody, since only a release does. Right: whoever frees a key
// serves the next.
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

// A wait whose token is released ends, with the error of a client that was closed: it
// means that no later call can succeed, so that its caller gives the store up. Right: an
// error of its own.
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

// A message is read word by word, so that a token ends with its first space. The grant for
// one token is heard by another that begins with it. Right: tokens are any bytes; cut off
// what is before, and take the rest as it is.
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

// A wait whose ctx ends says that nothing of it is left, while the request that takes it
// into the queue, or takes the key, is still on its way. Right: say so when each request
// has been answered, and else return the error as it is.
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

// A wait that was told who holds the key asks once more, by a connection of its own, when
// its ctx ends, and says that one release settles it. The question takes a second place in
// the queue, or the key, when the token has been released. Right: say so when no question
// is on its way.
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

// A counter beside the queue tells how many wait. It goes up with each that comes, and down
// with each that is served: who was cancelled counts for ever. Right: count the queue.
type countsTheLeft struct{ queue }

func (q *countsTheLeft) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q.run(func(d *db) any { return d.incrBy("waiting for "+key, 1) })
	a, err := q.queue.Acquire(ctx, key, token, ttl)
	if err == nil {
		q.run(func(d *db) any { return d.incrBy("waiting for "+key, -1) })
	}
	return a, err
}

func (q *countsTheLeft) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Hold {
		h := d.hold(key)
		h.Waiting = int(d.incrBy("waiting for "+key, 0))
		return h
	})
}

// Inspecting looks at the key, and not at its queue: nobody seems to wait. Right: count the
// queue.
type countsNobody struct{ queue }

func (q *countsNobody) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return q.lock.Inspect(ctx, key)
}

// The holder is counted as the first of those who wait. Right: whoever has been served waits
// no more.
type countsTheHolder struct{ queue }

func (q *countsTheHolder) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	h, err := q.queue.Inspect(ctx, key)
	if h.Held {
		h.Waiting++
	}
	return h, err
}

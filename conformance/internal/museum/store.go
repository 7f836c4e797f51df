package museum

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// The scripts of the server are right: the key holds the token of the holder, with the TTL, and each call is one script,
// which checks and acts in one step. Whoever frees the key grants it to the first waiter that lives, and tells it.

// reply is what the server does when q arrives.
func (d *db) reply(q question) (a answer) {
	switch a.at = time.Now(); q.Call {
	case "TryAcquire":
		d.serve(q.Key) // it does not overtake those who wait
		a.Attempt = d.take(d, q)
	case "TryAcquireSet":
		for _, e := range q.Set {
			d.serve(e.Key)
		}
		a.Attempts = d.takeSet(d, q)
	case "Acquire":
		a.Attempt = d.enqueue(q)
	case "Renew":
		a.Held = d.renew(d, q)
	case "Release":
		a.Held = d.release(d, q)
	case "RenewBatch":
		a.Results = make([]dlock.RenewResult, len(q.Batch))
		for i, r := range q.Batch {
			a.Results[i].Held = d.renewInBatch(d, question{Key: r.Key, Token: r.Token, TTL: r.TTL})
		}
	case "Inspect":
		a.Hold = d.inspect(d, q)
	}
	return a
}

// try grants a free key, or one that the token holds already: then what is left of the
// lease becomes the longer of what it was and the TTL.
func (d *db) try(q question) dlock.Attempt {
	holder, rest := d.get(q.Key), d.pTTL(q.Key)
	if holder != "" && holder != q.Token {
		return dlock.Attempt{Holder: holder, Remaining: rest}
	}
	d.set(q.Key, q.Token, max(q.TTL, rest))
	return dlock.Attempt{Acquired: true, Fence: d.fence()}
}

// trySet grants all keys of a set, if each of them is free or that of its token.
func (d *db) trySet(q question) []dlock.Attempt {
	answers, held := make([]dlock.Attempt, len(q.Set)), false
	for i, e := range q.Set {
		if holder := d.get(e.Key); holder != "" && holder != e.Token {
			answers[i], held = dlock.Attempt{Holder: holder, Remaining: d.pTTL(e.Key)}, true
		} else {
			answers[i].Free = true
		}
	}
	for i, e := range q.Set {
		if !held {
			answers[i] = d.take(d, question{Key: e.Key, Token: e.Token, TTL: e.TTL})
		}
	}
	return answers
}

func (d *db) holds(q question) bool { return d.get(q.Key) == q.Token }

// extend prolongs a lease, and never shortens it.
func (d *db) extend(q question) bool {
	return d.holds(q) && d.pExpire(q.Key, max(q.TTL, d.pTTL(q.Key)))
}

// free ends a lease, or a wait, and what that was granted at the last moment.
func (d *db) free(q question) bool {
	d.unqueue(q)
	return d.end(q)
}

// end ends a lease, and serves those who wait.
func (d *db) end(q question) bool {
	held := d.holds(q) && d.del(q.Key)
	d.serve(q.Key)
	return held
}

// hold also tells how many wait.
func (d *db) hold(q question) dlock.Hold {
	token := d.get(q.Key)
	return dlock.Hold{Held: token != "", Token: token, Remaining: d.pTTL(q.Key), Waiting: len(d.queues[q.Key])}
}

// numbers is how many numbers a fence leaves for its holder.
const numbers = 8

// fence numbers a grant in the script that makes it. The number is the time,
// unless that stands still, so that it rises even after the data was lost.
func (d *db) fence() int64 {
	last, _ := strconv.ParseInt(d.get("fence"), 10, 64)
	next := max(last+numbers, time.Now().UnixMicro())
	d.set("fence", strconv.FormatInt(next, 10), forever)
	return next
}

// A waiter is an element of the list of those who wait for a key.
type waiter struct {
	question
	since time.Time
}

// enqueue grants the key, or takes the token into the queue, once.
func (d *db) enqueue(q question) dlock.Attempt {
	d.serve(q.Key)
	a := d.take(d, q)
	if a.Acquired {
		d.unqueue(q)
	} else if !d.waits(q) {
		d.queues[q.Key] = append(d.queues[q.Key], waiter{q, time.Now()})
	}
	return a
}

func (d *db) waits(q question) bool {
	return slices.ContainsFunc(d.queues[q.Key], func(w waiter) bool { return w.Token == q.Token })
}

func (d *db) unqueue(q question) {
	d.queues[q.Key] = slices.DeleteFunc(d.queues[q.Key], func(w waiter) bool { return w.Token == q.Token })
}

// serve grants a key to one of those who wait for it, if it is free.
func (d *db) serve(key string) {
	if d.get(key) == "" && len(d.queues[key]) > 0 {
		d.next(d, key)
	}
}

// nextThatLives grants a free key to the first waiter that listens. The others are dead.
func (d *db) nextThatLives(key string) {
	for d.get(key) == "" && len(d.queues[key]) > 0 {
		if w := d.first(key); d.listeners(w.Token) > 0 {
			d.hand(w)
		}
	}
}

// first takes the first waiter from the queue.
func (d *db) first(key string) (w waiter) {
	w, d.queues[key] = d.queues[key][0], d.queues[key][1:]
	return w
}

// hand grants a free key to a waiter, and tells it.
func (d *db) hand(w waiter) {
	w.Call = "hand"
	d.publish(w.Token, answer{Attempt: d.take(d, w.question), at: time.Now()})
}

// checkInPeriod is how often waiters check in, in case that a message was lost, or the whole queue.
const checkInPeriod = 2 * time.Second

func (a answer) checkIn() time.Duration {
	if a.Remaining <= 0 {
		return checkInPeriod
	}
	return min(a.Remaining, checkInPeriod)
}

// queue subscribes before it asks for the first time, so that it misses no grant. What it is granted by a message counts
// from the grant, not from the receipt of the message: since is that instant on the client's clock, or before.
//
// A wait that ends between two questions has no request on its way, and says so. Its place is left, or what it was granted
// at the last moment, which one release ends.
func (r request) queue() (answer, error) {
	if r.ctx.Err() != nil {
		return answer{}, r.ctx.Err()
	}
	inbox, leave := r.subscribe(r.Token)
	defer leave()
	for {
		sent := time.Now()
		a, err := r.ask()
		if a.Since = sent; err != nil || a.Acquired {
			return a, err
		}
		select {
		case grant := <-inbox:
			if grant.at.Before(a.at) { // it was lost with all data: the token waits again
				continue
			}
			grant.Since = sent.Add(grant.at.Sub(a.at))
			return grant, nil
		case <-time.After(r.checkIn(a)):
		case <-r.ctx.Done():
			a.Since = time.Time{}
			return a, &dlock.NoEffectError{Err: r.ctx.Err()}
		}
	}
}

// A Store is a very small Redis server on which clients use an exhibit.
type Store struct {
	mu      sync.Mutex // each script is atomic
	db      db
	clients atomic.Int64
}

// A db is what the server keeps: strings that expire, lists of waiters, and the channels on
// which subscribers listen. Its methods are what scripts can call.
type db struct {
	Exhibit
	data   map[string]entry
	queues map[string][]waiter
	subs   map[chan answer]string
	losses int // of all data
}

func (s *Store) run(script func(*db)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	script(&s.db)
}

// Wipe makes the server lose everything. Subscriptions are no data.
func (s *Store) Wipe() {
	s.run(func(d *db) {
		clear(d.data)
		clear(d.queues)
		d.losses++
	})
}

// Stored returns how many keys there are, without those that have expired. An empty list is no key.
func (s *Store) Stored() (n int) {
	s.run(func(d *db) {
		for key := range d.data {
			if d.get(key) != "" {
				n++
			}
		}
		for _, q := range d.queues {
			if len(q) > 0 {
				n++
			}
		}
	})
	return n
}

// eval has the server run a script. If the ctx of the request ends meanwhile, the script runs, but the reply is lost.
func eval[T any](r request, script func(*db) T) (reply T, err error) {
	var none T
	if r.ctx.Err() == nil {
		time.Sleep(r.rtt / 2)
		r.run(func(d *db) { reply = script(d) })
		time.Sleep(r.rtt / 2)
	}
	if err := r.ctx.Err(); err != nil {
		return none, err
	}
	return reply, nil
}

// subscribe listens on a channel, until the function that it returns is called.
func (c *client) subscribe(channel string) (inbox chan answer, leave func()) {
	inbox = make(chan answer, 1)
	time.Sleep(c.rtt / 2)
	c.run(func(d *db) { d.subs[inbox] = channel })
	return inbox, func() { c.run(func(d *db) { delete(d.subs, inbox) }) }
}

// turn counts its calls in a key of the server, and reports whether this is an nth one.
func (d *db) turn(n int64) bool { return d.incrBy("turns", 1)%n == 0 }

type entry struct {
	value string
	until time.Time // zero: it never expires
}

// forever is the TTL of a key that never expires.
const forever = 0

func (d *db) get(key string) string {
	e := d.data[key]
	if !e.until.IsZero() && !time.Now().Before(e.until) {
		delete(d.data, key)
		return ""
	}
	return e.value
}

// set is SET PX. A TTL of 0 stands for none.
func (d *db) set(key, value string, ttl time.Duration) bool {
	e := entry{value: value}
	if ttl != forever {
		e.until = time.Now().Add(ttl)
	}
	d.data[key] = e
	return true
}

// pExpire sets the TTL of key, if that exists. One that is not positive deletes it, which is a success as well.
func (d *db) pExpire(key string, ttl time.Duration) bool {
	switch value := d.get(key); {
	case value == "":
		return false
	case ttl <= 0:
		return d.del(key)
	default:
		return d.set(key, value, ttl)
	}
}

// pTTL returns how long key will still be there: 0 if it is not, negative if it never expires.
func (d *db) pTTL(key string) time.Duration {
	switch e := d.data[key]; {
	case d.get(key) == "":
		return 0
	case e.until.IsZero():
		return -time.Millisecond
	default:
		return time.Until(e.until)
	}
}

func (d *db) del(key string) bool {
	existed := d.get(key) != ""
	delete(d.data, key)
	return existed
}

func (d *db) incrBy(key string, by int64) int64 {
	n, _ := strconv.ParseInt(d.get(key), 10, 64) // "" is 0
	d.set(key, strconv.FormatInt(n+by, 10), forever)
	return n + by
}

// publish sends a message to all who listen on a channel, and returns how many they are. It takes a millisecond.
func (d *db) publish(channel string, m answer) (n int) {
	for inbox, name := range d.subs {
		if name == channel {
			n++
			time.AfterFunc(time.Millisecond, func() {
				select {
				case inbox <- m:
				default: // it has one already
				}
			})
		}
	}
	return n
}

// listeners is PUBSUB NUMSUB.
func (d *db) listeners(channel string) (n int) {
	for _, name := range d.subs {
		if name == channel {
			n++
		}
	}
	return n
}

package museum

import (
	"slices"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
)

// The scripts of the server are right: the key holds the token of the holder, with the TTL, and each
// call is one script, which checks and acts in one step. Whoever frees the key grants
// it to the first waiter that lives, and tells it.

// reply is what the server does when q arrives.
func (d *db) reply(q question) (a answer) {
	switch a.at = time.Now(); q.Call {
	case "TryAcquire":
		d.serve(q.Key) // it does not overtake those who wait
		a.Attempt = d.take(d, q)
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

// checkInPeriod is how often waiters check in, in case that a message was lost, or the
// whole queue.
const checkInPeriod = 2 * time.Second

func (a answer) checkIn() time.Duration {
	if a.Remaining <= 0 {
		return checkInPeriod
	}
	return min(a.Remaining, checkInPeriod)
}

// queue subscribes before it asks for the first time, so that it misses no
// grant. What it is granted by a message counts from the grant, not from the
// receipt of the message: since is that instant on the client's clock, or before.
//
// A wait that ends between two questions has no request on its way, and says so. Its
// place is left, or what it was granted at the last moment, which one release ends.
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

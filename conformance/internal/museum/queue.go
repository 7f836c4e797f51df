package museum

import (
	"context"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

// A queue is right: a lock whose waiters stand in line. Whoever frees the key
// grants it to the first of them that lives, and tells it.
type queue struct{ lock }

// A waiter is an element of the list of those who wait for a key.
type waiter struct {
	token string
	ttl   time.Duration
	since time.Time
}

// A message tells a waiter of its grant, and when, by the server's clock, that
// was made.
type message struct {
	grant dlock.Attempt
	at    time.Time
}

// A place is the answer to a waiter's question: its grant, or who is before it,
// and the server's clock.
type place struct {
	dlock.Attempt
	now time.Time
}

// checkInPeriod is how often waiters check in, in case that a message was lost, or the
// whole queue.
const checkInPeriod = 2 * time.Second

// Acquire subscribes before it asks for the first time, so that it misses no
// grant. What it is granted by a message counts from the grant, not from the
// receipt of the message: since is that instant on the client's clock, or before.
//
// A wait that ends between two questions has no request on its way, and says so. Its
// place is left, or what it was granted at the last moment, which one release ends.
func (q *queue) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil {
		return dlock.Attempt{}, ctx.Err()
	}
	inbox, leave := q.subscribe(token)
	defer leave()
	for {
		sent := time.Now()
		p, err := eval(ctx, q.conn, func(d *db) place { return d.enqueue(key, token, ttl) })
		if p.Since = sent; err != nil || p.Acquired {
			return p.Attempt, err
		}
		select {
		case m := <-inbox:
			if m.at.Before(p.now) { // of a grant that was lost with all data: the token waits again
				continue
			}
			m.grant.Since = sent.Add(m.at.Sub(p.now))
			return m.grant, nil
		case <-time.After(p.pause()):
		case <-ctx.Done():
			held := dlock.Attempt{Holder: p.Holder, Remaining: p.Remaining}
			return held, &dlock.NoEffectError{Err: ctx.Err()}
		}
	}
}

// Inspect also tells how many wait.
func (q *queue) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Hold {
		h := d.hold(key)
		h.Waiting = len(d.queues[key])
		return h
	})
}

// pause is how long to wait for a message before asking again.
func (p place) pause() time.Duration {
	if p.Remaining <= 0 {
		return checkInPeriod
	}
	return min(p.Remaining, checkInPeriod)
}

// TryAcquire does not overtake those who wait.
func (q *queue) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return eval(ctx, q.conn, func(d *db) dlock.Attempt {
		d.serve(key)
		return d.try(key, token, ttl)
	})
}

// Release also ends the wait of a token, and frees what that was granted at the
// last moment.
func (q *queue) Release(ctx context.Context, key, token string) (bool, error) {
	return q.release(ctx, key, token, (*db).serve)
}

// release forgets token, and has serve pass on a key that is free then.
func (q *queue) release(ctx context.Context, key, token string, serve func(*db, string)) (bool, error) {
	return eval(ctx, q.conn, func(d *db) bool {
		d.unqueue(key, token)
		held := d.get(key) == token && d.del(key)
		if d.get(key) == "" {
			serve(d, key)
		}
		return held
	})
}

// enqueue grants the key, or takes token into the queue, once.
func (d *db) enqueue(key, token string, ttl time.Duration) place {
	d.serve(key)
	a := d.try(key, token, ttl)
	waits := func(w waiter) bool { return w.token == token }
	switch {
	case a.Acquired:
		d.unqueue(key, token)
	case !slices.ContainsFunc(d.queues[key], waits):
		d.queues[key] = append(d.queues[key], waiter{token, ttl, time.Now()})
	}
	return place{a, time.Now()}
}

func (d *db) unqueue(key, token string) {
	d.queues[key] = slices.DeleteFunc(d.queues[key], func(w waiter) bool { return w.token == token })
}

// serve grants a key, if it is free, to the first waiter that listens. The others
// are dead.
func (d *db) serve(key string) {
	for d.get(key) == "" {
		w, ok := d.first(key)
		if !ok {
			return
		}
		if d.listeners(w.token) > 0 {
			d.hand(key, w.token, w.ttl)
		}
	}
}

// hand grants a free key to a waiter, and tells it.
func (d *db) hand(key, token string, ttl time.Duration) {
	d.publish(token, message{d.try(key, token, ttl), time.Now()})
}

// first takes the first waiter from the queue.
func (d *db) first(key string) (w waiter, ok bool) {
	if len(d.queues[key]) == 0 {
		return waiter{}, false
	}
	w, d.queues[key] = d.queues[key][0], d.queues[key][1:]
	return w, true
}

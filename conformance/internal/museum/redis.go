package museum

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/backend/memory"
)

// A Store is a very small Redis server on which clients use an exhibit.
type Store struct {
	mu      sync.Mutex // each script is atomic
	db      db
	clients atomic.Int64
	memory  *memory.Locker
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

// run executes a script.
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
	s.memory.Wipe()
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

// eval has the server run a script. If the ctx of the request ends meanwhile, the
// script runs, but the reply is lost.
func eval[T any](r request, script func(*db) T) (reply T, err error) {
	var none T
	if err := r.ctx.Err(); err != nil {
		return none, err
	}
	time.Sleep(r.rtt / 2)
	r.run(func(d *db) { reply = script(d) })
	time.Sleep(r.rtt / 2)
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

// turn counts its calls, and reports whether this is an nth one.
func (d *db) turn(n int64) bool { return d.incrBy("turns", 1)%n == 0 }

type entry struct {
	value string
	until time.Time // zero: it never expires
}

// forever is the TTL of a key that never expires.
const forever = 0

// get returns the value of key, or "" if there is none.
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

// pExpire sets the TTL of key, if that exists. One that is not positive deletes
// it, which is a success as well.
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

// pTTL returns how long key will still be there: 0 if it is not, negative if it
// never expires.
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

// publish sends a message to all who listen on a channel, and returns how many they are. It takes
// a millisecond.
func (d *db) publish(channel string, m answer) int {
	for inbox, name := range d.subs {
		if name == channel {
			time.AfterFunc(time.Millisecond, func() {
				select {
				case inbox <- m:
				default: // it has one already
				}
			})
		}
	}
	return d.listeners(channel)
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

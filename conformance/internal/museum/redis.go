package museum

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// A redis is a very small Redis server: strings that expire, lists of waiters,
// and channels to publish on. Each command is atomic, and so is each script.
type redis struct {
	mu sync.Mutex
	db db
}

func newRedis() *redis {
	return &redis{db: db{
		data:   make(map[string]entry),
		queues: make(map[string][]waiter),
		subs:   make(map[string][]*subscriber),
	}}
}

// flushAll makes the server lose everything. Subscriptions are no data.
func (r *redis) flushAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.db.data)
	clear(r.db.queues)
	r.db.losses++
}

// A conn is the connection of one client.
type conn struct {
	redis *redis
	name  string          // of the client
	rtt   time.Duration   // a command and its reply take half of it each
	lag   time.Duration   // by which the client's wall clock is behind
	over  context.Context // ends with the server, if that is behind a network
}

// eval has the server run a script. If ctx ends meanwhile, the script runs, but
// the reply is lost.
func eval[T any](ctx context.Context, c conn, script func(*db) T) (reply T, err error) {
	if ctx.Err() != nil {
		return reply, ctx.Err()
	}
	time.Sleep(c.rtt / 2)
	reply = c.run(func(d *db) any { return script(d) }).(T)
	time.Sleep(c.rtt / 2)
	if ctx.Err() != nil {
		var none T
		return none, ctx.Err()
	}
	return reply, nil
}

func (c conn) run(script func(*db) any) any {
	c.redis.mu.Lock()
	defer c.redis.mu.Unlock()
	return script(&c.redis.db)
}

// The commands that clients send on their own, not in a script.

func (c conn) get(ctx context.Context, key string) (string, error) {
	return eval(ctx, c, func(d *db) string { return d.get(key) })
}

func (c conn) set(ctx context.Context, key, value string, ttl time.Duration) error {
	_, err := eval(ctx, c, func(d *db) bool { d.set(key, value, ttl); return true })
	return err
}

func (c conn) setNX(ctx context.Context, key, value string, ttl time.Duration) (bool, error) {
	return eval(ctx, c, func(d *db) bool { return d.get(key) == "" && d.set(key, value, ttl) })
}

func (c conn) setXX(ctx context.Context, key, value string, ttl time.Duration) (bool, error) {
	return eval(ctx, c, func(d *db) bool { return d.get(key) != "" && d.set(key, value, ttl) })
}

func (c conn) getSet(ctx context.Context, key, value string) (string, error) {
	return eval(ctx, c, func(d *db) string {
		defer d.set(key, value, forever)
		return d.get(key)
	})
}

func (c conn) pExpire(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	return eval(ctx, c, func(d *db) bool { return d.pExpire(key, ttl) })
}

// pExpireGT sets the TTL if that is longer than what is left, and reports whether
// the key exists.
func (c conn) pExpireGT(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	return eval(ctx, c, func(d *db) bool { return d.pExpire(key, max(ttl, d.pTTL(key))) })
}

func (c conn) del(ctx context.Context, key string) (bool, error) {
	return eval(ctx, c, func(d *db) bool { return d.del(key) })
}

// A subscriber hears what is published on a channel while it is subscribed.
type subscriber struct {
	inbox chan message
	rtt   time.Duration
}

// subscribe listens on a channel, until the function that it returns is called.
func (c conn) subscribe(channel string) (inbox <-chan message, leave func()) {
	s := &subscriber{make(chan message, 1), c.rtt}
	time.Sleep(c.rtt / 2)
	c.run(func(d *db) any { d.subs[channel] = append(d.subs[channel], s); return nil })
	return s.inbox, func() { c.run(func(d *db) any { d.unsubscribe(channel, s); return nil }) }
}

// A db is what the server keeps. Its methods are what scripts can call.
type db struct {
	data   map[string]entry
	queues map[string][]waiter
	subs   map[string][]*subscriber
	turns  int
	losses int // of all data
}

// turn counts its calls, and reports whether this is an nth one.
func (d *db) turn(n int) bool {
	d.turns++
	return d.turns%n == 0
}

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

// size is DBSIZE, without what has expired. An empty list is no key.
func (d *db) size() (n int) {
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
	return n
}

func (d *db) incrBy(key string, by int64) int64 {
	n, _ := strconv.ParseInt(d.get(key), 10, 64) // "" is 0
	d.set(key, strconv.FormatInt(n+by, 10), forever)
	return n + by
}

// publish sends a message to all who listen on a channel, and returns how many
// they are.
func (d *db) publish(channel string, m message) int {
	for _, s := range d.subs[channel] {
		time.AfterFunc(max(s.rtt/2, time.Nanosecond), func() { // in a bubble, Go 1.26's race detector crashes of 0
			select {
			case s.inbox <- m:
			default: // it has one already
			}
		})
	}
	return len(d.subs[channel])
}

// listeners is PUBSUB NUMSUB.
func (d *db) listeners(channel string) int { return len(d.subs[channel]) }

func (d *db) unsubscribe(channel string, s *subscriber) {
	var others []*subscriber
	for _, other := range d.subs[channel] {
		if other != s {
			others = append(others, other)
		}
	}
	d.subs[channel] = others
}

package museum

import (
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
)

// An Exhibit is a lock.
type Exhibit struct {
	Name  string // of its type
	Room  string // the file where that is
	Flaw  string // empty if there is none
	Seen  string // where it happened
	Harm  string // what comes of it
	Case  string // of the conformance suite: the one that must catch it
	build func(conn) dlock.Locker
}

// A Store is a server on which clients use an exhibit.
type Store struct {
	redis   *redis
	build   func(conn) dlock.Locker
	clients int
}

// Open puts the exhibit on a server of its own.
func (e Exhibit) Open() *Store { return &Store{redis: newRedis(), build: e.build} }

// Client returns one more client. The first is near the server, the second far
// from it. The first has the right time; the clocks of the others are behind.
func (s *Store) Client() dlock.Locker {
	s.clients++
	c := conn{redis: s.redis, name: fmt.Sprint("client ", s.clients), rtt: time.Millisecond}
	if s.clients%2 == 0 {
		c.rtt = 6 * time.Millisecond
	}
	if s.clients > 1 {
		c.lag = time.Second
	}
	return s.build(c)
}

// Wipe makes the server lose everything.
func (s *Store) Wipe() { s.redis.flushAll() }

// Stored returns how many keys there are on the server.
func (s *Store) Stored() int {
	return conn{redis: s.redis}.run(func(d *db) any { return d.size() }).(int)
}

func newQueue(c conn) *queue { return &queue{lock{c}} }

// forward is what decorators embed.
func forward(c conn) dlock.Forward { return dlock.Forward{Locker: newQueue(c)} }

package museum

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// An Exhibit is a lock. The comment of its type or function says what is wrong with it.
type Exhibit struct {
	Name        string // of its type or function, and what tells it from others of that
	Cases       names  // of the conformance suite, each of which must catch it
	Also        names  // other cases that it may fail, beside those that use nearly all of a store
	BeyondModel bool   // AgreesWithModel need not catch it
	Sporadic    bool   // it shows now and then, so that it may fail any case
	Network     says   // cases that must catch it over a network, and what they say
	build       func(conn) dlock.Locker
	flaw        func(*majority)                   // of a lock on several stores
	client      func(wire) dlock.Locker           // over a network, if the flaw is in the client
	votes       func(*memory.Locker) dlock.Locker // in place of build, if the flaw is in a Voter
}

// says holds regular expressions by the names of cases.
type says = map[string]string

type names = []string

// Cases that cannot do their work where leases do not end in time, where a store takes one
// holder for another, or where waiters are not served as they should be.
var (
	unending = names{"BatchKeepsOrder", "BatchRenewsAsRenew", "EndedContext", "Exclusion", "Expiry", "FenceRises", "HeldIsUntouched",
		"InspectChangesNothing", "LateDuplicate", "LostReply", "NoLeaks", "NotBefore", "ReleaseAfterExpiry", "RenewAfterExpiry",
		"RenewByStranger", "RenewExtends", "RenewNeverShortens", "SameTokenAgain", "WaitEndsOnExpiry"}
	mixedUp = names{"BatchKeepsOrder", "BatchRenewsAsRenew", "EndedContext", "Expiry", "FenceRises", "FenceSurvivesDataLoss",
		"HeldIsUntouched", "InspectChangesNothing", "LateDuplicate", "LostReply", "NoLeaks", "NoStarvation", "NotBefore",
		"ReleaseAfterExpiry", "ReleaseByStranger", "ReleaseFrees", "ReleaseTwice", "RenewAfterExpiry", "RenewByStranger",
		"RenewExtends", "RenewNeverShortens", "SameTokenAgain", "TokensCompareWhole"}
	unserved = names{"CancelledWait", "DeadHostManyWaiters", "DeadWaiterIsSkipped", "EndedContext", "Exclusion", "FenceRises",
		"FirstComeFirstServed", "LostReply", "NoEffect", "NoLeaks", "NoStarvation", "OneReleaseSettles", "SinceIsConservative",
		"WaitEndsOnExpiry", "WaitEndsOnRelease", "WaitEndsOnRemoval"}
)

// A Chapter is a file of exhibits.
type Chapter struct {
	File, Title string
	Exhibits    []Exhibit
}

// Chapters are those of the contract.
var Chapters = []Chapter{
	{"taking.go", "Taking", taking},
	{"renewing.go", "Renewing", renewing},
	{"releasing.go", "Releasing", releasing},
	{"batches.go", "Batches", batches},
	{"time.go", "Time", timing},
	{"keys.go", "Keys and tokens", keys},
	{"fences.go", "Fences", fences},
	{"waiting.go", "Waiting", waiting},
	{"clients.go", "Clients and the network", clients},
	{"inspecting.go", "Inspecting", inspecting},
	{"votes.go", "Votes", voting},
	{"majorities.go", "Majorities", majorities},
	{"random.go", "Random histories", random},
}

// Right are the locks without a flaw, which must pass the whole suite.
var Right = []Exhibit{
	{Name: "lock", build: func(c conn) dlock.Locker { return &lock{c} }},
	{Name: "queue", build: onlyQueue},
	{Name: "near", build: near(onlyQueue)},
	{Name: "majority", flaw: func(*majority) {}},
}

// near builds clients that are in the same process as the server.
func near(build func(conn) dlock.Locker) func(conn) dlock.Locker {
	return func(c conn) dlock.Locker {
		c.rtt = 0
		return build(c)
	}
}

// A flawed is a pointer to a T, and a lock.
type flawed[T any] interface {
	*T
	dlock.Locker
}

// onLock builds an exhibit that embeds a lock and nothing else.
func onLock[T ~struct{ lock }, P flawed[T]](c conn) dlock.Locker {
	l := T(struct{ lock }{lock{c}})
	return P(&l)
}

// onQueue builds an exhibit that embeds a queue and nothing else.
func onQueue[T ~struct{ queue }, P flawed[T]](c conn) dlock.Locker {
	q := T(struct{ queue }{*newQueue(c)})
	return P(&q)
}

// onMemory builds an exhibit that embeds package memory's Locker and nothing else.
func onMemory[T ~struct{ *memory.Locker }, P flawed[T]](m *memory.Locker) dlock.Locker {
	v := T(struct{ *memory.Locker }{m})
	return P(&v)
}

// IsVoter reports whether the flaw is in the methods of a quorum.Voter.
func (e Exhibit) IsVoter() bool { return e.votes != nil }

// around builds an exhibit that is a decorator of a queue.
func around[T ~struct{ dlock.Forward }, P flawed[T]](c conn) dlock.Locker {
	d := T(struct{ dlock.Forward }{forward(c)})
	return P(&d)
}

// asking builds a client that asks in its own way.
func asking(ask func(wire) asker) func(wire) dlock.Locker {
	return func(w wire) dlock.Locker { return &remote{ask(w)} }
}

// overWire builds an exhibit that embeds a remote and nothing else.
func overWire[T ~struct{ remote }, P flawed[T]](w wire) dlock.Locker {
	r := T(struct{ remote }{remote{w.ask}})
	return P(&r)
}

// A Store is a server on which clients use an exhibit.
type Store struct {
	redis  *redis
	memory *memory.Locker
	Exhibit
	clients atomic.Int64
}

// Open puts the exhibit on a server of its own.
func (e Exhibit) Open() *Store {
	if e.build == nil {
		e.build = onlyQueue
	}
	return &Store{redis: newRedis(), memory: memory.New(), Exhibit: e}
}

// Dial returns a client of the Store that is served at addr. Nothing in the traffic of one
// that is sealed can be read.
func (e Exhibit) Dial(addr string, sealed bool) dlock.Locker {
	w := wire{addr, sealed}
	if e.client == nil {
		return &remote{w.ask}
	}
	return e.client(w)
}

// Client returns one more client. The first is near the server, the second far
// from it. The first has the right time; the clocks of the others are behind.
func (s *Store) Client() dlock.Locker {
	if s.votes != nil {
		return s.votes(s.memory)
	}
	n := s.clients.Add(1)
	c := conn{redis: s.redis, name: fmt.Sprint("client ", n), rtt: time.Millisecond}
	if n%2 == 0 {
		c.rtt = 6 * time.Millisecond
	}
	if n > 1 {
		c.lag = time.Second
	}
	return s.build(c)
}

// Wipe makes the server lose everything.
func (s *Store) Wipe() {
	s.redis.flushAll()
	s.memory.Wipe()
}

// Stored returns how many keys there are on the server.
func (s *Store) Stored() int {
	return conn{redis: s.redis}.run(func(d *db) any { return d.size() }).(int)
}

func newQueue(c conn) *queue { return &queue{lock{c}} }

func onlyQueue(c conn) dlock.Locker { return newQueue(c) }

// forward is what decorators embed.
func forward(c conn) dlock.Forward { return dlock.Forward{Locker: newQueue(c)} }

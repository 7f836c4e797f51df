package rediscore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

const (
	maxLanes    = 4    // batches at once for a master
	poolShare   = 4    // one connection of so many is for asks
	minBatch    = 64   // calls that a batch may have, whatever the round trip
	maxBatch    = 1500 // fewer than make rueidis take a connection of its own for them
	executionOf = 50 * time.Microsecond
	maxRest     = 600 * time.Millisecond
)

// An outbox sends what the waits of a Locker ask. An ask goes at once if a lane to the master of
// its lock is free. Asks that come while all lanes are taken go together, in one batch, as soon as
// one is free: the more waits there are, the larger are the batches. So ten thousand waits of a
// process need no more connections than ten, and leave most of the pool to renewals, releases and
// the user's own calls.
//
// There is one lane for four connections of the pool, and at most maxLanes. The only lane of a
// smaller pool rests after each batch, for three times as long as the batch took if the pool has
// one connection. So asks use a quarter of it, too. An ask that was alone needs no rest.
type outbox struct {
	locker *Locker
	lanes  int
	rests  float64 // for how many times as long as a batch took

	mu     sync.Mutex
	queues map[any]*askQueue // by master
}

// An askQueue has the asks for one master, the oldest first.
type askQueue struct {
	master    any
	asks      []*ask
	lanes     int           // that are taken
	roundTrip time.Duration // about that of the fastest batches lately
}

// An ask is a call of a wait, whose answer goes to a channel with room for it.
type ask struct {
	ctx     context.Context // for its values
	call    Call
	address string // of the inbox
	answers chan<- answer

	sent, withdrawn bool // neither while it is in the outbox
}

func newOutbox(l *Locker) *outbox {
	o := &outbox{locker: l, lanes: maxLanes, queues: make(map[any]*askQueue)}
	if p, ok := l.conn.(Pooled); ok && p.PoolSize() > 0 {
		o.lanes = max(1, min(p.PoolSize()/poolShare, maxLanes))
		o.rests = max(0, float64(poolShare)/float64(p.PoolSize())-1)
	}
	return o
}

// put sends an ask at once or soon. It returns false if the Locker is closed.
func (o *outbox) put(a *ask) bool {
	master := o.master(a)
	o.mu.Lock()
	q := o.queues[master]
	if q == nil {
		q = &askQueue{master: master}
		o.queues[master] = q
	}
	q.asks = append(q.asks, a)
	free := q.lanes < o.lanes
	if free {
		q.lanes++
	}
	o.mu.Unlock()
	return !free || o.locker.post.start(func() { o.run(q) })
}

// master returns what the asks for a master have in common. In a cluster whose Conn does not know
// the masters, that is the slot: a dead master must not hold up the asks for others.
func (o *outbox) master(a *ask) any {
	if r, ok := o.locker.conn.(Router); ok {
		return r.Master(a.ctx, a.call)
	}
	if o.locker.conn.Cluster() {
		return a.call.keys.slot
	}
	return nil
}

// withdraw reports whether an ask was not sent, and will not be.
func (o *outbox) withdraw(a *ask) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	a.withdrawn = !a.sent
	return a.withdrawn
}

// run is a lane. It ends when nothing is left to be sent, or the Locker is closed.
func (o *outbox) run(q *askQueue) {
	for batch := o.take(q); len(batch) > 0; batch = o.take(q) {
		begun := time.Now()
		o.send(batch)
		took := time.Since(begun)
		o.learn(q, took)
		if pause := o.rest(len(batch), took); pause > 0 {
			sleep(o.locker.post.open, pause)
		}
	}
}

// rest returns how long a lane rests after a batch of n that took so long.
func (o *outbox) rest(n int, took time.Duration) time.Duration {
	return min(time.Duration(o.rests*float64(took)), maxRest) * time.Duration(n-1) / time.Duration(n)
}

// take returns the next batch. If there is none, the lane is free.
func (o *outbox) take(q *askQueue) (batch []*ask) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.locker.post.open.Err() != nil {
		return nil // the waits withdraw their asks
	}
	for limit := q.limit(); len(q.asks) > 0 && len(batch) < limit; q.asks = q.asks[1:] {
		if a := q.asks[0]; !a.withdrawn {
			a.sent = true
			batch = append(batch, a)
		}
		q.asks[0] = nil
	}
	if len(batch) == 0 {
		q.asks = nil
		if q.lanes--; q.lanes == 0 {
			delete(o.queues, q.master)
		}
	}
	return batch
}

// limit returns how many asks a batch may have: about as many as the server executes within a
// round trip. So a batch takes a connection for no more than twice as long as a single call.
func (q *askQueue) limit() int {
	return min(minBatch+int(q.roundTrip/executionOf), maxBatch)
}

// learn takes note of how long a batch took. The estimate falls at once, and rises slowly.
func (o *outbox) learn(q *askQueue, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if q.roundTrip > 0 {
		took = min(took, q.roundTrip+q.roundTrip/8)
	}
	q.roundTrip = took
}

// send makes the calls of a batch, and passes the answers on. A call that is alone goes with the
// values of its wait's ctx. A token that was released meanwhile must not come back: its ask has no
// effect.
func (o *outbox) send(batch []*ask) {
	batch = slices.DeleteFunc(batch, func(a *ask) bool {
		released := o.locker.post.isReleased(a.call.Args[0])
		if released {
			a.answers <- answer{script: a.call.Script, err: mark(dlock.ErrReleased)}
		}
		return released
	})
	if len(batch) == 0 {
		return
	}
	sent, results := time.Now(), make([]Result, len(batch))
	if first := batch[0]; len(batch) == 1 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(first.ctx), callLimit)
		defer cancel()
		results[0].Reply, results[0].Err = o.locker.evalOne(ctx, first.call)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		calls := make([]Call, len(batch))
		for i, a := range batch {
			calls[i] = a.call
		}
		o.locker.evalAll(ctx, calls, results)
	}
	for i, a := range batch {
		a.answers <- answer{sent: sent, script: a.call.Script, address: a.address, reply: results[i].Reply, err: results[i].Err}
	}
}

package rediscore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/backend/internal/lanes"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/internal/errs"
)

const (
	usualLanes = 2  // to a server
	poolShare  = 2  // one connection of so many is for lanes
	maxLanes   = 16 // of a Conn that has no pool
	maxFlights = 64 // likewise, with those that are overdue
)

// A route is what calls have in common that may travel together. In a cluster whose Conn does not know the
// masters, that is the slot: a dead master must not hold up the calls for others.
type route struct {
	master any
	slot   int
	kind   int
}

// severalSlots is the slot of a batch that goes to several masters, which the Conn knows by itself.
const severalSlots = -1

// With [WithReplicas], each kind of call travels alone: only some wait for replicas.
const (
	others   = iota // it writes nothing that replicas must have
	grants          // it may grant
	renewals        // it goes before all others, in any case
)

var kinds = map[*Script]int{
	acquireScript: grants, plainAcquireScript: grants, setScript: grants, enqueueScript: grants, checkInScript: grants,
	voteScript: grants, enlistScript: grants, attendScript: grants,
	renewScript: renewals, confirmScript: renewals,
}

func (l *Locker) laneSettings() lanes.Settings[route, Call, Result] {
	s := lanes.Settings[route, Call, Result]{
		Send:       l.send,
		Route:      l.route,
		Rank:       rank,
		Failed:     func(r Result) bool { return r.Err != nil },
		Fail:       l.cut,
		Limit:      callLimit,
		Lanes:      usualLanes,
		MaxLanes:   maxLanes,
		MaxFlights: maxFlights,
	}
	if size := ask(l.conn, Pooled.PoolSize); size > 0 {
		s.MaxFlights = size
		s.MaxLanes = (s.MaxFlights + poolShare - 1) / poolShare
	}
	if r := l.replicas; r != nil { // for each of three kinds
		s.Lanes, s.MaxLanes = 1, max(1, s.MaxLanes/3)
		s.Limit = max(s.Limit, s.Limit+r.Timeout) // the sum may overflow
	}
	s.Lanes = min(s.Lanes, s.MaxLanes)
	return s
}

// reads reports whether a call only reads, so that a replica serves it.
func reads(call Call) bool { return call.Script == inspectScript || call.Script == holderScript }

// rank lets releases go before acquisitions: those who have gone would be granted the lock.
func rank(call Call) lanes.Rank {
	switch {
	case kinds[call.Script] == renewals:
		return lanes.Urgent
	case call.Script == releaseScript, call.Script == plainReleaseScript, call.Script == passScript:
		return lanes.Ending
	}
	return lanes.Other
}

// cut is the result of a call that was not sent, or whose ctx has ended since. If the last calls had no connection, it
// says why.
func (l *Locker) cut(err error, late func(func(Result))) Result {
	if reason := l.unconnected.Load(); reason != nil && errs.IsContext(err) {
		err = fmt.Errorf("%w: %w", err, *reason)
	}
	if late == nil {
		return Result{Err: mark(err)}
	}
	return Result{Err: &unanswered{err, late}}
}

func (l *Locker) route(ctx context.Context, call Call, ofBatch bool) (r route) {
	if l.replicas != nil {
		r.kind = kinds[call.Script]
	}
	if _, routes := l.conn.conn.(Router); routes {
		r.master = ask(l.conn, func(r Router) any { return r.Master(ctx, call) })
	} else if l.conn.cluster() {
		if r.slot = int(call.keys.slot); ofBatch {
			r.slot = severalSlots
		}
	}
	return r
}

// unswept is the reply of a script that has removed many dead waiters, and nothing else, so that
// the server can serve others before it goes on. The call has to be made again.
const unswept = "unswept"

// evalOne makes a call, and repeats it until the script has done its work.
func (l *Locker) evalOne(ctx context.Context, call Call) (any, error) {
	_, reply, err := l.evalSent(ctx, call)
	return reply, err
}

// evalSent is evalOne. It also returns when the last call was sent, or zero if that was the first.
func (l *Locker) evalSent(ctx context.Context, call Call) (sent time.Time, reply any, err error) {
	r := l.lanes.Do(ctx, call)
	for follow(&call, r) {
		sent = time.Now()
		r = l.lanes.Do(ctx, call)
	}
	return sent, r.Reply, r.Err
}

// follow reports whether a call has to follow one that was answered, and makes it the next one.
func follow(call *Call, r Result) bool {
	switch {
	case r.Err != nil:
		return false
	case r.Reply == queued:
		call.Script = whole[call.Script]
		return true
	}
	return r.Reply == unswept
}

// evalAll makes calls as evalOne does, together.
func (l *Locker) evalAll(ctx context.Context, calls []Call, results []Result) {
	l.lanes.DoAll(ctx, calls, results)
	for i, r := range results {
		if follow(&calls[i], r) {
			results[i].Reply, results[i].Err = l.evalOne(ctx, calls[i])
		}
	}
}

// send makes the calls of a flight. They have one route. If the client ends the goroutine, the outcome is unknown.
func (l *Locker) send(ctx context.Context, calls []Call, results []Result) {
	returned := false
	defer func() {
		if !returned {
			failAll(results, errExited)
		}
	}()
	l.sendTogether(ctx, calls, results)
	returned = true
}

// sendTogether makes calls, those that can be combined as one.
func (l *Locker) sendTogether(ctx context.Context, calls []Call, results []Result) {
	c := combine(calls)
	if c == nil {
		l.sendEach(ctx, calls, results)
		return
	}
	sent := make([]Result, len(c.calls))
	l.sendEach(ctx, c.calls, sent)
	l.sendSome(ctx, calls, results, c.spread(sent, results), l.sendEach)
}

// sendEach makes calls in one round trip, or in two if the server turns out to refuse keys of several slots.
func (l *Locker) sendEach(ctx context.Context, calls []Call, results []Result) {
	l.fly(ctx, calls, results)
	l.sendSome(ctx, calls, results, l.crossed(ctx, calls, results), l.fly)
	for i, call := range calls {
		results[i].Err = judge(call.Script, results[i].Err, l.conn)
	}
	l.blameQueue(ctx, calls, results)
	l.noteConnection(results[0].Err)
}

// sendSome makes some of the calls again, with the keys that they have now.
func (l *Locker) sendSome(ctx context.Context, calls []Call, results []Result, which []int, send func(context.Context, []Call, []Result)) {
	if len(which) == 0 {
		return
	}
	some, replies := make([]Call, len(which)), make([]Result, len(which))
	for n, i := range which {
		some[n] = calls[i]
		some[n].keys = l.keysNow(calls[i])
	}
	send(ctx, some, replies)
	for n, i := range which {
		results[i] = replies[n]
	}
}

// fly makes calls on the connection that is at hand, or on another one if that leads to a server that does not serve.
func (l *Locker) fly(ctx context.Context, calls []Call, results []Result) {
	held := l.leaving.answer()
	switch wait := l.replication(calls); {
	case held != nil && !slices.ContainsFunc(calls, reads):
		Fail(results, held)
	case wait != nil:
		l.conn.evalReplicated(ctx, slices.Clone(calls), results, *wait) // it may keep them
		l.count(calls, results)
	case len(calls) == 1:
		results[0] = l.conn.eval(ctx, calls[0])
	default:
		l.conn.evalAll(ctx, calls, results)
	}
	l.leave(ctx, calls, results)
}

// crossed returns which calls are to be made again: they were refused because their keys, with a common counter, are in several
// slots. The server is a cluster, so from then on the Locker uses a counter for each slot. A release that was refused in
// words that are not known is not made again: if it had an effect after all, the second would find nothing to release. Nor is
// a set whose locks have several counters then.
func (l *Locker) crossed(ctx context.Context, calls []Call, results []Result) (again []int) {
	for i, r := range results {
		call, text := calls[i], rediserr.Answer(r.Err)
		if r.Err == nil || call.keys.bySlot || call.Script.Keys == 1 {
			continue
		}
		known := rediserr.CrossSlot(text)
		if known {
			l.bySlot.Store(true)
		}
		crossed := known || l.unknown(r.Err, text) && l.refusesSlots(ctx, call) && rank(call) != lanes.Ending
		if crossed && l.keysNow(call) != nil {
			again = append(again, i)
		}
	}
	return again
}

// unknown reports whether an error is a reply in words that are not known.
func (l *Locker) unknown(err error, text string) bool {
	return rediserr.Refusal(text) == 0 && !rediserr.InScript(text) && l.conn.isReply(err)
}

// refusesSlots reports whether the server refuses scripts with keys in several slots. Proxies have words of their own for
// that, so the server is asked: at most once in probePeriod, by one call, for which others wait. A reply that a proxy makes
// because its server is away is none: it ends.
func (l *Locker) refusesSlots(ctx context.Context, call Call) bool {
	var last time.Time
	select {
	case last = <-l.probing:
	case <-ctx.Done():
		return l.bySlot.Load()
	}
	defer func() { l.probing <- last }()
	if l.bySlot.Load() || time.Since(last) < probePeriod {
		return l.bySlot.Load()
	}
	last = time.Now()
	ask := func(keys *lockKeys) (refusal string, known bool) {
		r := l.conn.eval(ctx, Call{Script: slotsScript, keys: keys})
		refusal = rediserr.Answer(r.Err)
		return refusal, r.Err == nil || l.unknown(r.Err, refusal)
	}
	first, known := ask(call.keys)
	if !known || first == "" {
		return false
	}
	own, known := ask(newLockKeys(l.prefix, l.nameOf(call), true))
	if again, _ := ask(call.keys); known && own == "" && again == first {
		l.bySlot.Store(true)
	}
	return l.bySlot.Load()
}

const probePeriod = time.Second

// nameOf returns the name of the lock of a call.
func (l *Locker) nameOf(call Call) string { return call.keys.texts[0][len(l.prefix):] }

var errExited = errors.New("the Redis client has ended the goroutine of the call")

// noteConnection notes the result of a flight.
func (l *Locker) noteConnection(err error) {
	var unconnected *error
	if err != nil && errors.As(err, new(unsent)) {
		if reason := errs.BesidesEnd(err); reason != nil {
			unconnected = &reason
		}
	}
	if unconnected != nil || l.unconnected.Load() != nil {
		l.unconnected.Store(unconnected)
	}
}

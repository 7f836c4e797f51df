package rediscore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dlock-go/dlock/backend/internal/lanes"
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
	acquireScript: grants, enqueueScript: grants, checkInScript: grants,
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
	if size := l.conn.poolSize(); size > 0 {
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
	case call.Script == releaseScript, call.Script == passScript:
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
	if master, known := l.conn.master(ctx, call); known {
		r.master = master
	} else if l.conn.cluster() {
		if r.slot = call.keys.slot; ofBatch {
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
	r := l.lanes.Do(ctx, call)
	for r.Err == nil && r.Reply == unswept {
		r = l.lanes.Do(ctx, call)
	}
	return r.Reply, r.Err
}

// evalAll makes calls as evalOne does, together.
func (l *Locker) evalAll(ctx context.Context, calls []Call, results []Result) {
	l.lanes.DoAll(ctx, calls, results)
	for i, r := range results {
		if r.Err == nil && r.Reply == unswept {
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
	for _, i := range c.spread(sent, results) {
		l.sendEach(ctx, calls[i:i+1], results[i:i+1])
	}
}

// sendEach makes calls in one round trip.
func (l *Locker) sendEach(ctx context.Context, calls []Call, results []Result) {
	held := l.leaving.answer()
	switch wait := l.replication(calls); {
	case held != nil && !slices.ContainsFunc(calls, reads):
		for i := range results {
			results[i].Err = held
		}
	case wait != nil:
		l.conn.evalReplicated(ctx, slices.Clone(calls), results, *wait) // it may keep them
		l.count(calls, results)
	case len(calls) == 1:
		results[0] = l.conn.eval(ctx, calls[0])
	default:
		l.conn.evalAll(ctx, calls, results)
	}
	l.leave(ctx, calls, results)
	for i, call := range calls {
		results[i].Err = judge(call.Script, results[i].Err, l.conn.cluster)
	}
	l.noteConnection(results[0].Err)
}

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

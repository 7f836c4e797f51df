package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/storewait"
)

const (
	firstPause   = 100 * time.Millisecond // after a failed request of a wait; doubled up to a second
	longestPause = time.Second
	ledFor       = 500 * time.Millisecond // after which a leader without a majority is passed over, at the earliest
	ledSurveys   = 4                      // and so many surveys fit into that time
	slowSurvey   = 2 * time.Second        // the longest time between surveys
)

// Acquire implements [dlock.Acquirer] if all nodes are [quorum.VoteAcquirer]s. The token waits in
// the queues of all nodes at once, with the same place in each, so that all have the same order.
// A release then hands the votes of all nodes to one waiter, in one round trip.
//
// A node that does not answer when a vote of token is given back can no longer vote for token. If the
// other nodes that are up are then no majority, Acquire fails. A wait of another token may succeed.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := l.beginFor(ctx, key, token, ttl); err != nil {
		return dlock.Attempt{}, err
	}
	defer l.work.Done()
	if !l.queues {
		return dlock.Attempt{}, &dlock.NoEffectError{Err: errors.ErrUnsupported}
	}
	w := &wait{voting: l.newVoting(ctx, key, token, ttl), surveys: make(chan []string, 1), passedOver: make(map[string]bool)}
	w.heard = &heard{Listener: storewait.Of(ctx), of: l, nodes: make([]word, len(l.nodes))}
	w.waits = true
	w.queues, w.stop = context.WithCancel(context.Background())
	a, err := w.run()
	if err != nil {
		a, err = w.fail(err)
		err = w.promise(err)
	} else {
		w.linger()
	}
	w.end(isKept)
	return a, err
}

// A wait is a voting that goes on until a majority has voted for the token.
type wait struct {
	*voting
	heard  *heard
	place  int64
	queues context.Context // of the requests that wait
	stop   context.CancelFunc

	surveys    chan []string // the holder at each node, "" if unknown; nil if no majority has answered
	surveying  bool
	surveyed   time.Time // when the last one began
	surveyAt   time.Time // when the next one is due; zero for none
	pause      time.Duration
	leader     string // of the last survey
	ledSince   time.Time
	passedOver map[string]bool
	yields     int
}

func (w *wait) run() (dlock.Attempt, error) {
	floor := w.l.floor()
	for i := range w.seats {
		w.vote(i, floor)
	}
	if err := w.collect(); err != nil {
		return dlock.Attempt{}, err
	}
	if w.number(func(s *seat) bool { return s.granted && s.young.IsZero() }) < w.l.quorum {
		if err := w.lack(); err != nil && w.isReleased() {
			return dlock.Attempt{}, dlock.ErrReleased
		} else if err != nil {
			return dlock.Attempt{}, err
		}
	}
	for i := range w.seats {
		w.place = max(w.place, w.seats[i].place)
	}
	if w.place == 0 {
		w.place = time.Now().UnixMicro()
	}
	w.surveyIn(w.trip()) // the first votes may be split
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if a, ok := w.equalVotes(); ok {
			return a, nil
		}
		if w.counted() >= w.l.quorum {
			if a, err := w.elect(); a.Acquired || err != nil {
				return a, err
			}
		}
		timer.Reset(time.Until(w.act()))
		select {
		case <-w.ctx.Done():
			return dlock.Attempt{}, w.ctx.Err()
		case <-w.l.open.Done():
			return dlock.Attempt{}, dlock.ErrClosed
		case e := <-w.answers:
			if err := w.hear(e); err != nil {
				return dlock.Attempt{}, err
			}
		case holders := <-w.surveys:
			w.surveying = false
			for i := range w.seats {
				w.seats[i].then = nil
			}
			switch {
			case holders == nil: // others may reach a majority
				w.giveTo("", false)
				w.surveyIn(min(2*w.pause, ledFor/2))
			case w.spoilt():
				return dlock.Attempt{}, w.failure(nil)
			default:
				w.judge(holders)
			}
		case <-timer.C:
		}
	}
}

// act makes the requests that are due, and returns when the next ones are.
func (w *wait) act() time.Time {
	now := time.Now()
	next, floor := now.Add(time.Hour), w.l.floor()
	soonest := func(t time.Time) bool {
		if t.After(now) {
			if t.Before(next) {
				next = t
			}
			return false
		}
		return true
	}
	votes := false
	for i := range w.seats {
		s := &w.seats[i]
		if s.granted && !w.inDate(s) {
			s.granted = false
		}
		votes = votes || s.granted
		switch {
		case s.flying || s.err == errSpoilt:
		case s.granted:
			due := s.since.Add(w.ttl / 3)
			if !s.young.IsZero() && s.young.Before(due) {
				due = s.young // it counts from then on
			}
			if soonest(due) && soonest(s.again) {
				w.confirm(i, 0)
			}
		case soonest(s.again):
			w.enter(i, floor)
		}
	}
	if votes && !w.surveying && !w.surveyAt.IsZero() && soonest(w.surveyAt) {
		w.survey()
	}
	return next
}

// enter puts the token into the queue of a node.
func (w *wait) enter(i int, floor int64) {
	waits, cut := context.WithCancel(w.queues)
	w.seats[i].cut = cut
	w.ask(i, enqueued, func(ctx context.Context) (quorum.Ballot, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(waits, cancel)()
		ctx = storewait.With(ctx, seatHeard{w.heard, i})
		if w.isReleased() {
			cancel()
		}
		return w.l.nodes[i].enqueue(ctx, w.claim.key, w.claim.token, w.ttl, floor, w.place)
	})
}

// hear acts on an answer.
func (w *wait) hear(e reply) error {
	s := &w.seats[e.node]
	had, then := s.granted, s.then
	s.then = nil
	if err := w.take(e); err != nil {
		return err
	}
	s.away = nil
	if e.err == nil {
		w.heard.note(e.node, e.sent, nil)
		if e.kind != passed {
			s.pause, s.again = 0, time.Time{}
		}
		switch {
		case then != nil && s.granted && w.counted() < w.l.quorum:
			then()
		case e.kind == enqueued && !s.granted: // neither a grant nor an error
			s.again = time.Now().Add(firstPause)
		case s.granted && !had:
			if s.offered { // it is back, as the holder did not wait for it
				s.offered = false
				w.surveyIn(slowSurvey)
				break
			}
			if w.number(func(s *seat) bool { return s.granted }) == 1 {
				w.surveyAt = time.Time{} // the others may be on their way
			}
			w.surveyIn(w.trip() << min(max(0, w.yields-2), 5))
		}
		return nil
	}
	if w.isReleased() {
		return dlock.ErrReleased
	}
	if pointless(e.err) && w.number(func(s *seat) bool { return s.err != nil && pointless(s.err) }) > len(w.seats)-w.l.quorum {
		return w.failure(nil)
	}
	s.away = e.err
	w.heard.note(e.node, e.sent, e.err)
	s.pause = min(max(2*s.pause, firstPause), longestPause)
	s.again = time.Now().Add(s.pause/2 + chance.N(s.pause/2))
	return nil
}

// A heard is what a wait reports of the nodes together: a majority has answered, or no majority can.
type heard struct {
	storewait.Listener
	of    *Locker
	mu    sync.Mutex
	nodes []word
}

// A word is what a node has said last; the zero value if it has said nothing.
type word struct {
	ok  bool
	err error
}

func (h *heard) note(node int, sent time.Time, err error) {
	h.mu.Lock()
	h.nodes[node] = word{err == nil, err}
	answered, errs := 0, make([]error, len(h.nodes))
	failed := 0
	for i, n := range h.nodes {
		if errs[i] = n.err; n.ok {
			answered++
		} else if n.err != nil {
			failed++
		}
	}
	h.mu.Unlock()
	switch {
	case answered >= h.of.quorum:
		h.Answered()
	case failed > len(errs)-h.of.quorum:
		h.Failed(sent, h.of.failure(errs, false))
	}
}

// A seatHeard is what a wait hears of the wait at one node.
type seatHeard struct {
	*heard
	node int
}

func (s seatHeard) Answered()                        { s.note(s.node, time.Time{}, nil) }
func (s seatHeard) Failed(sent time.Time, err error) { s.note(s.node, sent, err) }

// trip returns about a round trip, a little longer or shorter each time.
func (w *wait) trip() time.Duration {
	trip := max(time.Duration(w.l.trip.Load()), time.Millisecond)
	return trip + chance.N(trip)
}

// surveyIn makes a survey due after d, unless one is due sooner.
func (w *wait) surveyIn(d time.Duration) {
	w.pause = d
	if at := time.Now().Add(d); w.surveyAt.IsZero() || at.Before(w.surveyAt) {
		w.surveyAt = at
	}
}

// survey asks all nodes who holds the key.
func (w *wait) survey() {
	w.surveying, w.surveyed, w.surveyAt = true, time.Now(), time.Time{}
	inspect := w.inspect()
	w.l.spawn(func() {
		holds := inspect()
		if !w.l.enough(holds) {
			w.surveys <- nil
			return
		}
		holders := make([]string, len(holds))
		for i := range holds {
			if holds[i].ok() && holds[i].value.Held {
				holders[i] = holds[i].value.Token
			}
		}
		w.surveys <- holders
	})
}

// judge decides what to do with votes that are no majority. If another token has one, it holds the
// key, and the votes are kept for the time after it. One that keeps the key for long may lack them,
// since a node was away: if it waits for them, it gets them. Otherwise the votes are split. The
// leader, the holder at the first node in the key's order, keeps its votes, and all others pass theirs
// on to it. A leader that gets no majority in time is passed over: its client may have died. The time
// suffices for the others to learn who leads, for their votes to reach it, and for them to see that: on a
// slow network that is some round trips. When all were passed over, it is their turn again.
func (w *wait) judge(holders []string) {
	votes := make(map[string]int)
	for i := range holders {
		switch s := &w.seats[i]; {
		case time.Now().Before(s.young): // it was not asked
		case s.granted:
			holders[i] = w.claim.token
		case holders[i] == w.claim.token && s.cut != nil:
			s.cut() // another wait of the token has got the vote: this one gets it, too, when it asks again
		}
		votes[holders[i]]++
	}
	for token, n := range votes {
		if token != "" && token != w.claim.token && n >= w.l.quorum {
			clear(w.passedOver)
			w.leader, w.yields = "", 0
			if w.pause >= slowSurvey {
				w.giveTo(token, true)
			}
			w.surveyIn(min(max(2*w.pause, 10*time.Millisecond), slowSurvey))
			return
		}
	}
	leader := w.leads(holders)
	if leader != w.leader {
		w.leader, w.ledSince, w.yields = leader, time.Now(), 0 // it may be about to end: look again
		w.surveyIn(w.trip())
		return
	}
	if time.Since(w.ledSince) > max(ledFor, ledSurveys*time.Since(w.surveyed)) {
		w.passedOver[leader] = true
		leader = w.leads(holders)
		w.leader, w.ledSince = leader, time.Now()
	}
	if leader == "" || leader == w.claim.token {
		w.surveyIn(min(2*w.pause, ledFor/2))
		return
	}
	w.yields++
	w.giveTo(leader, false)
	w.surveyIn(min(2*w.pause, ledFor/2))
}

// spoilt reports whether the token is spoilt on so many nodes that the others that are up, and count, are no
// majority. It would only keep votes from tokens that can have one.
func (w *wait) spoilt() bool {
	spoilt, away := 0, 0
	for i := range w.seats {
		switch s := &w.seats[i]; {
		case s.err == errSpoilt:
			spoilt++
		case time.Now().Before(s.young), !s.granted && w.l.nodes[i].health.now("").Status == NodeDown:
			away++
		}
	}
	return spoilt > 0 && spoilt+away > len(w.seats)-w.l.quorum
}

// giveTo passes the votes on to a token that may wait for them, and may hold the key; or to nobody in
// particular, and then waits a moment before it asks for them again. A vote that is just being confirmed
// is passed on after that: on a slow network one or the other always is.
func (w *wait) giveTo(token string, holds bool) {
	for i := range w.seats {
		s := &w.seats[i]
		if !w.mayReturn(s) {
			continue
		}
		give := func() {
			s.offered = holds
			if token == "" {
				s.again = time.Now().Add(longestPause/2 + chance.N(longestPause/2))
			}
			w.pass(i, token, w.l.floor())
		}
		if s.flying {
			s.then = give
		} else {
			give()
		}
	}
}

// leads returns the holder at the first node in the key's order that was not passed over; or "" if there
// is no holder.
func (w *wait) leads(holders []string) string {
	for {
		for i := range w.l.order(w.claim.key) {
			if h := holders[i]; h != "" && !w.passedOver[h] {
				return h
			}
		}
		if len(w.passedOver) == 0 {
			return ""
		}
		clear(w.passedOver)
	}
}

// linger ends a wait that was granted. The nodes whose votes were not needed are given a moment to
// add theirs, as they do after a release that reaches all of them. Then the token leaves their
// queues: it must not wait there any more when another client releases it.
func (w *wait) linger() {
	defer w.stop()
	timer := time.NewTimer(w.trip()/4 + shortestGrace)
	defer timer.Stop()
	for w.l.anyFast(func(i int) bool { return w.seats[i].flying }) {
		select {
		case e := <-w.answers:
			w.note(e)
		case <-timer.C:
			w.late()
		case <-w.ctx.Done():
			return
		}
	}
}

// fail ends a wait without a grant. The error says that there was no effect if at most places
// in queues are left. If no majority has answered lately, it says why.
func (w *wait) fail(err error) (dlock.Attempt, error) {
	w.stop()
	w.cancel()
	timer := time.NewTimer(minLimit)
	defer timer.Stop()
	for ended := false; w.flying > 0 && !ended; {
		select {
		case e := <-w.answers:
			w.last(e)
		case <-timer.C:
			ended = true
		}
	}
	held := w.plurality()
	errs, silent := make([]error, len(w.seats)), 0
	for i := range w.seats {
		switch s := &w.seats[i]; {
		case s.away != nil:
			errs[i] = s.away
		case s.flying:
			errs[i] = errPending
		case time.Now().Before(s.young):
			errs[i] = &youngError{time.Until(s.young)}
		default:
			continue
		}
		silent++
	}
	if err == w.ctx.Err() && silent > len(w.seats)-w.l.quorum {
		err = fmt.Errorf("%w: %w", err, w.l.failure(errs, w.unsure))
	}
	if held.Holder == "" {
		held = dlock.Attempt{}
	}
	if w.flying == 0 && !w.unsure && w.number(func(s *seat) bool { return s.granted }) == 0 && held.Holder != "" {
		return held, &dlock.NoEffectError{Err: err}
	}
	return held, err
}

// last notes the answer to a request that was cut short.
func (w *wait) last(e reply) {
	s := &w.seats[e.node]
	away := s.away
	w.note(e)
	if e.kind != enqueued || e.err == nil {
		return
	}
	if s.away = away; e.ballot.Holder != "" {
		s.answered, s.holder, s.remaining, s.heldSince, s.away = true, e.ballot.Holder, e.ballot.Remaining, e.ballot.HeldSince, nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(e.raw, &joined) && len(joined.Unwrap()) > 1 {
		s.away = hideContext(joined.Unwrap()[1], w.l.limit)
	}
}

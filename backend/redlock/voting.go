package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A voting collects the votes of the nodes for one token, in one call. All fields but those that
// mu guards belong to the goroutine of the call.
type voting struct {
	l        *Locker
	ctx      context.Context // the caller's
	claim    *claim
	releases int64 // claim.releases at the begin
	ttl      time.Duration
	seats    []seat
	flying   int
	unsure   bool       // the call may have had an effect, or may still have one
	waits    bool       // the call ends with a grant or an error
	answers  chan reply // each node has at most one request in flight

	requests context.Context // of the requests: it ends with the caller's until the call is decided
	cancel   context.CancelFunc
	decided  func() bool // stops that

	mu   sync.Mutex
	fate fate
	mine bool // the token may have a lease that is older than this call
}

// shortestVote is for how long at least a node keeps a vote. A majority cannot be found within less,
// if the machines are busy.
const shortestVote = 50 * time.Millisecond

// voteTTL returns for how long the nodes keep the votes of a lease. Nodes may cut a fraction of a
// millisecond, so it is a whole number of them.
func voteTTL(ttl time.Duration) time.Duration {
	if fraction := ttl % time.Millisecond; fraction > 0 && ttl < maxDefault {
		ttl += time.Millisecond - fraction
	}
	return max(ttl, shortestVote)
}

// A fate says what becomes of an answer that comes from now on.
type fate int

const (
	isRead     fate = iota
	isKept          // a vote remains part of the lease
	isReturned      // a vote that was fresh is given back
)

// A seat is what a voting knows of one node. (What outlives the call is its nodeClaim.)
type seat struct {
	flying    bool // a request is in flight
	answered  bool // the node's last answer counts for this round
	granted   bool
	fresh     bool      // by this call
	lacked    bool      // a node that counts has said that the token did not hold the key before this call
	since     time.Time // the node keeps the vote until then + TTL
	fence     int64     // the node's counter has reached it
	young     time.Time // when the node counts, by the guard; or zero
	holder    string
	remaining time.Duration
	heldSince time.Time
	until     time.Time // the holder holds the key at the node, unless it releases it
	place     int64
	store     string // that has given the last answer; or empty
	err       error  // of the last request

	// Of a wait:
	again   time.Time     // when the next request is due, after an error or a yield
	pause   time.Duration // before it
	away    error         // why the node did not answer lately
	cut     func()        // ends the request in the queue
	offered bool          // the vote was, to a holder of the key
	then    func()        // passes the vote on, once it has been confirmed; or nil
}

type kind int // of a request

const (
	voted kind = iota
	confirmed
	passed
	enqueued
)

// A reply is the answer of a node to a request of a voting.
type reply struct {
	request
	node   int
	kind   kind
	ballot quorum.Ballot
	kept   bool  // of a wait: see queuedRequest
	raw    error // of a wait: the error of the node, which may be that of its context
}

func (l *Locker) newVoting(ctx context.Context, key, token string, ttl time.Duration) *voting {
	v := &voting{
		l: l, ctx: ctx, ttl: voteTTL(ttl),
		claim:   l.claims.get(key, token),
		seats:   make([]seat, len(l.nodes)),
		answers: make(chan reply, len(l.nodes)),
	}
	v.releases = v.claim.releases.Load()
	v.requests, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	v.decided = context.AfterFunc(ctx, v.cancel)
	return v
}

// end ends a call. Answers that come later meet their fate.
func (v *voting) end(f fate) {
	v.decided()
	v.meet(f)
	v.l.claims.put(v.claim)
}

func (v *voting) meet(f fate) {
	mine := v.mayHold()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fate, v.mine = f, mine
}

// isReleased reports whether a release of the token has begun since the call.
func (v *voting) isReleased() bool { return v.claim.releases.Load() != v.releases }

// ask makes a request to a node in the background.
func (v *voting) ask(i int, kind kind, call func(context.Context) (quorum.Ballot, error)) {
	v.seats[i].flying = true
	v.flying++
	l, held, s := v.l, v.l.claims.hold(v.claim), &v.claim.nodes[i]
	votes := kind == voted || kind == enqueued
	if votes {
		l.claims.asks(held, i)
	}
	l.spawn(func() {
		defer l.claims.put(held)
		due := false
		if kind == passed {
			s.lockForRelease()
			_, due = l.claims.due(held, i)
		} else {
			s.mu.Lock()
		}
		defer s.mu.Unlock()
		e := reply{node: i, kind: kind}
		switch {
		case kind == voted && v.isReleased(): // by a release that came first, and would not end the vote
			e.err = &dlock.NoEffectError{Err: dlock.ErrReleased}
		case kind != passed && !s.useLocked():
			e.err = errSpoilt
		case kind == enqueued:
			e.sent = time.Now()
			s.waitUnlocking(v.requests, &e, call)
			e.fail(e.raw, l.limit)
		default:
			try := l.try
			if kind == voted && !v.waits { // its "no" must be of one instant
				try = l.once
			}
			e.request = try(v.requests, i, l.requestLimit(), v.isDecided, func(ctx context.Context) (err error) {
				e.ballot, err = call(ctx)
				return err
			})
		}
		if votes {
			l.voted(held, i, &e)
		} else if kind == passed {
			if l.released(held, i, e.request, due); e.err != nil {
				l.owe(held, i, s.uses)
			}
		}
		v.report(e, s)
	})
}

func (v *voting) isDecided() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.fate != isRead
}

// report passes an answer to the call, or lets it meet its fate. The caller holds s.mu.
func (v *voting) report(e reply, s *nodeClaim) {
	v.mu.Lock()
	fate, mine := v.fate, v.mine
	if fate == isRead {
		v.answers <- e
	}
	v.mu.Unlock()
	stray := fate == isReturned && (e.kind == voted && e.uncertain() || e.kind == confirmed) || fate == isKept && e.queued() && !e.kept
	if fate == isReturned && e.fresh() || stray && !mine {
		v.l.giveBack(v.claim, e.node, s)
	}
}

// waitUnlocking makes a request that waits. Others may hold mu meanwhile.
func (s *nodeClaim) waitUnlocking(ctx context.Context, e *reply, call func(context.Context) (quorum.Ballot, error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := &queuedRequest{end: cancel, over: make(chan struct{})}
	s.queued.Store(q)
	s.mu.Unlock()
	e.ballot, e.raw = call(ctx)
	s.mu.Lock()
	e.kept = q.kept
	s.queued.Store(nil)
	close(q.over)
}

func (e *reply) granted() bool { return e.err == nil && e.ballot.Acquired }
func (e *reply) fresh() bool   { return e.granted() && e.ballot.Fresh && !e.unknown }

func (e *reply) uncertain() bool { return e.unknown || uncertain(e.err) }

// queued reports whether a wait that has failed may have left its token in the queue.
func (e *reply) queued() bool {
	return e.kind == enqueued && e.err != nil && !(dlock.NoEffect(e.err) && e.ballot.Attempt == (dlock.Attempt{}))
}

// giveBack releases a vote. The caller holds s.mu.
func (l *Locker) giveBack(c *claim, node int, s *nodeClaim) {
	held, r, late := l.release(context.Background(), c, node, minLimit, never, l.floor())
	if r.err != nil || late && !held { // it may be on its way
		l.owe(c, node, s.uses)
	}
}

// vote asks a node for its vote. All nodes get the same floor in a round.
func (v *voting) vote(i int, floor int64) {
	v.ask(i, voted, func(ctx context.Context) (quorum.Ballot, error) {
		return v.l.nodes[i].vote(ctx, v.claim.key, v.claim.token, v.ttl, floor)
	})
}

// confirm extends the vote of a node, and raises its counter to fence.
func (v *voting) confirm(i int, fence int64) {
	batch := []quorum.Confirmation{{Renewal: dlock.Renewal{Key: v.claim.key, Token: v.claim.token, TTL: v.ttl}, Fence: fence}}
	v.ask(i, confirmed, func(ctx context.Context) (quorum.Ballot, error) {
		ballots, err := v.l.nodes[i].confirm(ctx, batch)
		if err != nil {
			return quorum.Ballot{}, err
		}
		ballots[0].Fence = fence
		return ballots[0], ballots[0].Err
	})
}

// pass gives the vote of a node back, to another token if that waits there. It does not count any
// more from now on.
func (v *voting) pass(i int, to string, floor int64) {
	v.seats[i].granted, v.seats[i].fresh = false, false
	v.ask(i, passed, func(ctx context.Context) (quorum.Ballot, error) {
		_, err := v.l.nodes[i].pass(ctx, v.claim.key, v.claim.token, to, floor)
		return quorum.Ballot{}, err
	})
}

// take notes an answer. It returns an error if two nodes are the same store: the call has failed. A node that has not
// answered this call counts, too, by what it said last: a place in its queue that is given back would end the vote that
// the call counts under the other name.
func (v *voting) take(e reply) error {
	v.note(e)
	return v.l.sameStore(func(i int) string {
		if last := v.l.nodes[i].store.Load(); last != nil && v.seats[i].store == "" {
			return *last
		}
		return v.seats[i].store
	})
}

func (v *voting) note(e reply) {
	s := &v.seats[e.node]
	s.flying, s.answered, s.err = false, e.err == nil, e.err
	v.flying--
	v.unsure = v.unsure || e.uncertain()
	if e.err != nil {
		s.granted = false // as far as is known
		return
	}
	b := &e.ballot
	if e.kind != passed {
		s.store = b.Store
	}
	since := b.Since
	if since.IsZero() {
		since = e.sent
	}
	switch e.kind {
	case passed:
		s.answered = false
		return
	case confirmed:
		if !b.Acquired || !v.inDate(s) {
			s.granted, s.answered = false, false
			return
		}
		s.since, s.fence = e.sent, max(s.fence, b.Fence)
	default:
		s.granted, s.fresh = b.Acquired, s.fresh || e.fresh()
		v.unsure = v.unsure || b.Acquired // others may have seen the vote
		s.since = since
		if v.l.voters {
			s.fence = b.Fence
		}
		s.holder, s.remaining, s.heldSince, s.place = b.Holder, b.Remaining, b.HeldSince, b.Place
		if s.until = e.sent.Add(maxDefault); b.Remaining > 0 {
			s.until = e.sent.Add(b.Remaining)
		}
	}
	s.young = time.Time{}
	if wait := v.l.young(b.Age); wait > 0 { // it has no say, as if it had not answered
		s.young, s.answered = time.Now().Add(wait), false
	} else if e.kind != confirmed && (e.fresh() || !b.Acquired) {
		s.lacked = true
	}
}

// inDate reports whether the node of a vote keeps it, even if the clocks' rates differ.
func (v *voting) inDate(s *seat) bool {
	return s.granted && time.Since(s.since) < v.ttl-v.ttl/100
}

// counts reports whether a seat's vote counts for a lease.
func (v *voting) counts(s *seat) bool { return s.young.IsZero() && v.inDate(s) }

func (v *voting) number(is func(*seat) bool) int { return count(v.seats, is) }

func (v *voting) counted() int { return v.number(v.counts) }

// collect reads answers until the round can be judged: a majority has voted, or can only do so
// after the slowest nodes.
func (v *voting) collect() error {
	begun := time.Now()
	timer := time.NewTimer(v.l.limit)
	defer timer.Stop()
	won := false
	for v.flying > 0 {
		counted, answered := v.counted(), v.number(func(s *seat) bool { return s.answered && !s.flying })
		switch {
		case counted >= v.l.quorum:
			if !won {
				won = true
				v.l.noteTrip(time.Since(begun))
				timer.Reset(time.Since(begun)/4 + shortestGrace)
			}
			if !v.l.anyFast(func(i int) bool { return v.seats[i].flying }) {
				return nil
			}
		case answered >= v.l.quorum:
			if counted+v.flying < v.l.quorum && v.unanimous() == nil {
				return nil
			}
			timer.Reset(min(v.l.patience(v.ttl)-time.Since(begun), 3*time.Since(begun)+2*time.Millisecond))
		}
		switch answered, err := v.next(timer); {
		case err != nil:
			return err
		case !answered:
			v.late()
			return nil
		}
	}
	return nil
}

// next takes the next answer, and reports whether one has come before the timer.
func (v *voting) next(timer *time.Timer) (answered bool, err error) {
	select {
	case e := <-v.answers:
		return true, v.take(e)
	case <-timer.C:
		return false, nil
	case <-v.ctx.Done():
		return false, v.ctx.Err()
	case <-v.l.open.Done():
		return false, dlock.ErrClosed
	}
}

// A grace, and a part of the time so far, is how much longer a decided call waits for the nodes that
// were not late the last time. If they are only a little slower than the majority, the call leaves
// nothing to come later. A release has the longest: what comes later may meet its token again. So has an
// Inspect, which tells of all nodes.
const (
	shortestGrace = 100 * time.Microsecond
	shortGrace    = time.Millisecond
	longGrace     = 50 * time.Millisecond
)

// late notes which nodes have not answered.
func (v *voting) late() {
	for i := range v.seats {
		if v.seats[i].flying {
			v.l.nodes[i].slow.Store(true)
		}
	}
}

// anyFast reports whether one of the nodes was not late the last time.
func (l *Locker) anyFast(of func(int) bool) bool {
	for i, n := range l.nodes {
		if of(i) && !n.slow.Load() {
			return true
		}
	}
	return false
}

// noteSpeed notes whether a node was late. One that fails is, since it may be asked again.
func (l *Locker) noteSpeed(node int, r request) {
	switch n := l.nodes[node]; {
	case r.err != nil:
		n.slow.Store(true)
	case n.slow.Load() && time.Since(r.sent) < 2*time.Duration(l.trip.Load()):
		n.slow.Store(false)
	}
}

// noteTrip learns how long a majority takes to answer, up to 100 ms: floor is four times as far ahead of the
// clocks, and they must have reached it before a node counts that has forgotten its fences.
func (l *Locker) noteTrip(d time.Duration) {
	old := l.trip.Load()
	l.trip.Store(old + (int64(min(max(d, 100*time.Microsecond), 100*time.Millisecond))-old)/8)
}

// unanimous returns a seat whose holder all nodes name that have answered, if those are a
// majority and no vote was granted.
func (v *voting) unanimous() *seat {
	var first *seat
	for i := range v.seats {
		switch s := &v.seats[i]; {
		case !s.answered:
		case s.granted:
			return nil
		case first == nil:
			first = s
		case s.holder != first.holder:
			return nil
		}
	}
	return first
}

// equalVotes returns a grant if the votes of a majority have the largest fence of this round. Then
// no counter need be raised, and the lease may even have ended already: its date tells.
func (v *voting) equalVotes() (dlock.Attempt, bool) {
	granted := func(s *seat) bool { return s.granted && s.young.IsZero() }
	fence := v.largestFence(granted)
	return v.dated(fence, func(s *seat) bool { return granted(s) && s.fence == fence })
}

func (v *voting) largestFence(of func(*seat) bool) (fence int64) {
	for i := range v.seats {
		if s := &v.seats[i]; of(s) {
			fence = max(fence, s.fence)
		}
	}
	return fence
}

// dated returns a grant by the votes that count, if they are a majority. The oldest of the
// majority dates it.
func (v *voting) dated(fence int64, counts func(*seat) bool) (dlock.Attempt, bool) {
	var dates []time.Time
	for i := range v.seats {
		if s := &v.seats[i]; counts(s) {
			dates = append(dates, s.since)
		}
	}
	if len(dates) < v.l.quorum {
		return dlock.Attempt{}, false
	}
	slices.SortFunc(dates, func(a, b time.Time) int { return b.Compare(a) })
	return dlock.Attempt{Acquired: true, Since: dates[v.l.quorum-1], Fence: fence}, true
}

// elect turns the votes of a majority into a grant. Its fence is the largest of them, and the
// counters of a majority have reached it while the token held the key there. Without an error and
// a grant, too many votes have ended before that.
func (v *voting) elect() (dlock.Attempt, error) {
	timer := time.NewTimer(min(v.l.limit, v.ttl))
	defer timer.Stop()
	for {
		fence := v.largestFence(v.counts)
		if a, ok := v.dated(fence, func(s *seat) bool { return v.counts(s) && s.fence >= fence }); ok {
			return a, nil
		}
		for i := range v.seats {
			if s := &v.seats[i]; v.counts(s) && s.fence < fence && !s.flying && s.err == nil {
				v.confirm(i, fence)
			}
		}
		if v.flying == 0 || v.counted() < v.l.quorum {
			return dlock.Attempt{}, nil
		}
		switch answered, err := v.next(timer); {
		case err != nil:
			return dlock.Attempt{}, err
		case answered:
		case v.ttl < v.l.limit:
			return dlock.Attempt{}, nil
		default:
			return dlock.Attempt{}, v.failure(errPending)
		}
	}
}

// failure returns why no majority decided. A node that answered, and voted for another, has the
// error other.
func (v *voting) failure(other error) error {
	errs := make([]error, len(v.seats))
	for i := range v.seats {
		switch s := &v.seats[i]; {
		case !s.young.IsZero():
			errs[i] = &youngError{time.Until(s.young)}
		case s.err != nil:
			errs[i] = s.err
		case s.flying:
			errs[i] = errPending
		case !v.counts(s):
			errs[i] = other
		}
	}
	return v.l.failure(errs, v.unsure)
}

// lack returns an error if too few nodes answer, or are old enough, for any majority.
func (v *voting) lack() error {
	if v.number(func(s *seat) bool { return s.err == nil && !s.flying && s.young.IsZero() }) >= v.l.quorum {
		return nil
	}
	return v.failure(nil)
}

// promise marks an error after which the caller owes a release: the answers that are still to come say of what. From then
// on, nodes that owe nothing get none.
func (v *voting) promise(err error) error {
	l, c := v.l, v.claim
	if dlock.NoEffect(err) {
		return err
	}
	l.claims.change(c, func() { c.open = true })
	return &dlock.UnansweredError{Err: err, Late: func(f func(dlock.Attempt, error)) {
		l.claims.change(c, func() {
			c.asked = true
			c.settle = append(c.settle, func(left remains) {
				switch left {
				case something:
					f(dlock.Attempt{Acquired: true}, nil)
				case nothing:
					f(dlock.Attempt{}, &dlock.NoEffectError{Err: err})
				default:
					f(dlock.Attempt{}, err)
				}
			})
		})
	}}
}

func isUnsupported(err error) bool { return errors.Is(err, errors.ErrUnsupported) }

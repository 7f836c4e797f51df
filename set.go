package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/workers"
)

const (
	maxSet   = 2048 // keys of a set
	setCalls = 32   // calls of a set in flight, unless the Locker combines calls: a set must not take all connections
	setAhead = 2    // half as many keys as are tried at once after a wait

	wholeTime  = 200 * time.Millisecond // for which a set takes all keys at once, or none
	wholeTries = 20                     // so often at most
	wholeHeld  = 2                      // keys that others hold, at most
	overtime   = attemptTime / 20       // of a call that begins a second after MaxWait
	wholeWait  = 4                      // times as long as attempts: with a shorter wait these cost more than they gain
	wholeGuess = 10 * time.Millisecond  // how long the first wait is expected to last

	setTime  = 2 * time.Second // for which a set is tried that the Locker takes as a whole
	setTries = 200             // so often at most
)

// Leases is a set of locks that is held: [Client.AcquireAll] returns it. Each key has its own [Lease],
// with its own fence, and is renewed like any other. Its methods are safe for concurrent use.
//
// The set ends when the first of its leases ends, in whatever way. Its contexts end then, Done is
// closed, and Err says why. The other leases stay held until Release, since the work may still run.
type Leases struct {
	all   []*Lease          // in byte order of their keys
	byKey map[string]*Lease // nil until the set is complete
	lives contexts.Lives    // end with the first lease that ends
}

// AcquireAll takes the locks of up to 2,048 keys, named in any order. Two calls of AcquireAll
// never deadlock with each other, whatever keys they share.
//
// If the store can take a set (see [SetAcquirer]), AcquireAll asks for all keys in one operation: the store takes all
// or none. If others hold some, the call holds nothing, pauses, and asks again: up to 200 times within 2 s. The
// pauses are between 1 and 15 ms unless [WithBackoff] sets them. They become shorter, so that the call that has
// waited longest comes first, and they are longer if more than 64 calls of the Client wait.
//
// Elsewhere it makes one attempt for each key, all at once. If others hold one or two of them, it gives the rest
// back, waits like [Client.Acquire] for one that is held, and tries the others again, all at once. It does so
// for at most 200 ms, at most 20 times, and only while attempts are fast: their round trip is at most 2.5 ms at
// first, and a quarter of the last wait later.
//
// After that it takes the keys in byte order, with one attempt for each. It keeps those that come before the first
// that is held, gives the others back, and waits for that key. Then it goes on in the same way with the keys that
// follow. So it waits only for keys that come after all that it holds, and each call is served. Others
// can see it hold some of its keys before it has all.
//
// [WithMaxWait] and ctx limit the whole call; but each attempt has 1 s for its answer, unless ctx ends
// sooner. If the store falls silent, the call ends about 1 s after MaxWait has passed. With
// WithMaxWait(0) it asks once. If that finds keys held, the error is the [*HeldError] of the first in
// byte order. If an attempt fails in another way before the store has said that a key is held, the call
// ends with that error. Later it repeats such an attempt until the wait ends, as Acquire does. If a
// lease is lost before all keys are held, the call ends at once with that [*LostError]. After an error
// nothing is held: what was granted is released, whatever the [WithMinHold]. A release that the store
// does not answer within a second is owed.
//
// The options apply to each lease, from its own grant on, so [WithMaxHold] includes the waits for the
// keys that follow. So does the TTL of a Client with [WithRenewal](false): a wait of one TTL ends with
// a loss, and [Leases.Deadline] tells how much is left for the work.
//
// The error matches [ErrInvalid] if there is no key, if there are more than 2,048, or if a key is named
// twice. It matches [ErrNested] if ctx carries the lease of one of the keys. Nothing is sent then.
//
// Callers that take one lock inside another can deadlock: one holds a and waits for b, another holds b
// and waits for a. Name both in one set instead. If the inner keys are known only later, let each inner
// key come after all outer keys in byte order, or use WithMaxWait. An [Observer] sees such waits (see
// [WaitStartInfo]), and [Stats] counts them.
//
// Use a set for few keys and short work: while it waits, it may hold keys that others want.
func (c *Client) AcquireAll(ctx context.Context, keys ...string) (*Leases, error) {
	keys = slices.Sorted(slices.Values(keys))
	if key, err := c.checkAll(ctx, keys); err != nil {
		return nil, wrap(ctx, "acquire", key, err)
	}
	g := &gathering{client: c, outage: c.options.outage, keys: keys, set: &Leases{}}
	defer func() {
		if g.set.byKey == nil {
			g.set.release(g.patience())
		}
		g.back.Wait()
	}()
	if err := g.gather(ctx); err != nil {
		return nil, err
	}
	return g.set, nil
}

// DoAll runs fn while it holds the locks of all keys. It acquires them like [Client.AcquireAll], and
// does everything else like [Client.Do]: if one lease is lost before fn returns, the context of fn ends,
// and the error matches [ErrLost].
func (c *Client) DoAll(ctx context.Context, keys []string, fn func(context.Context, *Leases) error) error {
	if fn == nil {
		return wrap(ctx, "do", "", invalid("function: nil"))
	}
	leases, err := c.AcquireAll(ctx, keys...)
	if err != nil {
		return err
	}
	return work(ctx, leases.all[0].key, leases, fn)
}

// checkAll returns why a set of sorted keys is refused, and for which key.
func (c *Client) checkAll(ctx context.Context, keys []string) (key string, err error) {
	switch {
	case len(keys) == 0:
		return "", invalid("keys: none")
	case len(keys) > maxSet:
		return keys[0], invalid("keys: %d, more than %d", len(keys), maxSet)
	}
	for i, key := range keys {
		switch err := c.check(key); {
		case err != nil:
			return key, err
		case i > 0 && key == keys[i-1]:
			return key, invalid("key: named twice")
		case findLease(ctx, key, c.keeper) != nil:
			return key, ErrNested
		}
	}
	return "", nil
}

// A gathering is a call of AcquireAll under way. For a while it takes all keys at once or none. Then it takes them in order, and keeps what it has: so it ends, whatever others do.
type gathering struct {
	client *Client
	ctx    context.Context // ends with the caller's, and with the first lease of the set that is lost
	limit  time.Time       // of MaxWait; zero if it is 0 or NoLimit
	whole  time.Time       // until which a wait may last under way to all keys at once; zero if it is for the next in order
	outage time.Duration   // for which attempts are repeated: without a limit once the store has said that a key is held
	keys   []string        // in byte order
	set    *Leases         // of the first keys
	asOne  bool            // the last attempt was one operation: it took all or none
	back   sync.WaitGroup  // leases that are given back
}

// maxWait is how long an acquisition may wait that begins now.
func (g *gathering) maxWait() time.Duration {
	wait := g.client.options.maxWait
	if !g.limit.IsZero() {
		wait = max(0, time.Until(g.limit))
	}
	if !g.whole.IsZero() {
		wait = min(wait, max(0, time.Until(g.whole)))
	}
	return wait
}

// last is when the last attempt ends that begins now: the first second after MaxWait is for a store that has
// fallen silent.
// It is zero if there is no limit.
func (g *gathering) last() time.Time {
	if g.limit.IsZero() {
		return g.limit
	}
	return alarm.Later(g.limit.Add(attemptTime), time.Now().Add(overtime))
}

// patience is how long a release of what cannot be used may take.
func (g *gathering) patience() time.Duration {
	if g.limit.IsZero() {
		return attemptTime
	}
	return min(attemptTime, max(overtime, time.Until(g.limit.Add(attemptTime))))
}

// over reports whether MaxWait has passed.
func (g *gathering) over() bool { return !g.limit.IsZero() && !time.Now().Before(g.limit) }

// gather acquires all keys.
func (g *gathering) gather(ctx context.Context) error {
	if wait := g.client.options.maxWait; 0 < wait && wait < NoLimit {
		g.limit = time.Now().Add(wait)
	}
	g.ctx = g.set.lives.Bind(ctx)
	leases, held, err := g.takeWhole()
	if err == nil {
		err = g.takeInOrder(leases, held)
	}
	if end := g.set.Err(); end != nil {
		return wrapUnlessLost(ctx, "acquire", g.keys[0], end)
	}
	if err == nil {
		g.set.complete()
	}
	return err
}

// takeWhole tries all keys at once, again and again. If others hold some, and the attempt was not one operation, it
// gives all back, and waits for one of those. When it gives up, it returns what the last attempts have brought, if
// there is something to go on with: see try.
func (g *gathering) takeWhole() (leases []*Lease, held []*facts, err error) {
	end, took := time.Now().Add(wholeTime), wholeGuess
	var waited *Lease
	for n := 1; ; n++ {
		sent := time.Now()
		leases, held, err = g.try(g.keys, waited, len(g.keys) > 1)
		enough := n == wholeTries || !time.Now().Before(end) || len(g.keys) == 1
		if err != nil || held == nil || enough || g.asOne && waited == nil || !worthwhile(held, time.Since(sent), took) {
			return leases, held, err
		}
		g.giveBack(leases)
		sent = time.Now()
		first := slices.IndexFunc(held, isHeld)
		if waited, err = g.waitWhole(g.keys[first], *held[first], end); waited == nil {
			return nil, nil, err
		}
		took = time.Since(sent)
	}
}

func isHeld(f *facts) bool { return f != nil }

// worthwhile reports whether a set that was not granted as a whole is to wait for that: an attempt keeps others from
// the keys that it is granted in vain. trip is what the last one took, and waited what the last wait did.
func worthwhile(held []*facts, trip, waited time.Duration) bool {
	n := 0
	for _, f := range held {
		if isHeld(f) {
			n++
		}
	}
	return n <= wholeHeld && waited >= wholeWait*trip
}

// waitWhole waits for a key until end, while the set holds no other. It returns neither a lease nor an error if that
// has passed.
func (g *gathering) waitWhole(key string, held facts, end time.Time) (*Lease, error) {
	g.whole = end
	lease, err := g.waitFor(key, held)
	g.whole = time.Time{}
	if err != nil && !time.Now().Before(end) && ended(g.ctx) == nil && g.maxWait() > 0 {
		return nil, nil
	}
	return lease, err
}

// takeInOrder takes the keys in their order, beginning with what takeWhole has brought. It gives back what comes after
// a key for which it waits. After a wait it tries a few keys at once, since some are probably held, too, and twice as
// many while all are free.
func (g *gathering) takeInOrder(leases []*Lease, held []*facts) (err error) {
	for ahead := setAhead; ; ahead *= 2 {
		first := slices.Index(leases, nil)
		if first < 0 {
			first = len(leases)
		}
		g.add(leases[:first])
		g.giveBack(leases[first:])
		if first < len(leases) && isHeld(held[first]) && g.set.Err() == nil {
			if err := g.wait(held[first]); err != nil {
				return err
			}
			ahead = setAhead
		}
		g.back.Wait()
		next := g.keys[len(g.set.all):]
		if len(next) == 0 || g.set.Err() != nil {
			return nil
		}
		if leases, held, err = g.try(next[:min(ahead, len(next))], nil, false); err != nil {
			return err
		}
	}
}

// add adds the leases of the next keys to the set.
func (g *gathering) add(leases []*Lease) {
	for _, l := range leases {
		g.set.add(l)
	}
}

// giveBack releases leases, some of which may be nil, in the background.
func (g *gathering) giveBack(leases []*Lease) {
	if given := slices.DeleteFunc(slices.Clone(leases), func(l *Lease) bool { return l == nil }); len(given) > 0 {
		limit := g.patience()
		g.back.Go(func() { releaseAll(given, limit) })
	}
}

// wait acquires the next key of the set, which is held.
func (g *gathering) wait(held *facts) error {
	lease, err := g.waitFor(g.keys[len(g.set.all)], *held)
	if err == nil {
		g.set.add(lease)
	}
	return err
}

// waitFor acquires a key that is held. What was given back is free then.
func (g *gathering) waitFor(key string, held facts) (*Lease, error) {
	a := g.part(OpAcquire, key, held)
	lease, err := a.take(a.acquire)
	g.back.Wait()
	return lease, err
}

// part is the acquisition of a key.
func (g *gathering) part(op AcquireOp, key string, held facts) *acquisition {
	return &acquisition{request: request{client: g.client, ctx: g.ctx, op: op, key: key, set: g}, state: state{facts: held}}
}

// try makes one attempt for each of some keys, all at once, except for that of a lease that the set has, unless
// that is nil. If whole is true, and the Locker takes sets, it makes one attempt for all of them, again and again. It
// returns the leases, with this one, and what the store has said of each key that another holds; the latter is
// nil if it has granted all. Any other failure is an error, and so is a held key that may not be waited for. Nothing is
// held then.
func (g *gathering) try(keys []string, have *Lease, whole bool) (leases []*Lease, held []*facts, err error) {
	n := len(keys)
	attempts, leases, errs := make([]*acquisition, n), make([]*Lease, n), make([]error, n)
	for i, key := range keys {
		if have != nil && key == have.key {
			leases[i] = have
		} else {
			attempts[i] = g.part(OpTry, key, facts{})
		}
	}
	most, m := g.client.keeper.atOnce(), (*meeting)(nil)
	if whole {
		m = g.meet(attempts, have == nil)
	}
	if m != nil {
		most = n
	}
	panicked := workers.Each(n, most, func(i int) (more bool) {
		if leases[i] == nil {
			errs[i] = attempts[i].wrap(errPanic) // if the Locker ends the goroutine
			leases[i], errs[i] = attempts[i].take(attempts[i].acquire)
		}
		return errs[i] == nil
	})
	first := slices.Index(leases, nil)
	if first < 0 {
		return leases, nil, nil
	}
	if panicked != nil {
		g.giveBack(leases)
		panic(panicked)
	}
	g.asOne = m != nil && m.present.err == nil
	held = make([]*facts, n)
	for i, e := range errs {
		switch {
		case errors.Is(e, errFree):
		case errors.Is(e, ErrHeld):
			held[i] = &attempts[i].facts
		case e != nil && err == nil:
			err = e
		}
	}
	over, refused, known := ended(g.ctx) != nil || g.maxWait() == 0, m != nil && m.refused, slices.IndexFunc(held, isHeld)
	switch {
	case over && known >= 0 && (err == nil || refused):
		err = withEnd(g.ctx, errs[known]) // ctx may have ended since the attempt was answered
	case err == nil:
		g.outage = NoLimit
		return leases, held, nil
	case !over && refused: // the store fails since: the next attempt is repeated
		g.outage, err = NoLimit, nil
	}
	g.giveBack(leases)
	return nil, nil, err
}

// meet has acquisitions, some of which may be nil, make the same attempts, if the Locker takes sets. Else it returns nil.
func (g *gathering) meet(parts []*acquisition, again bool) *meeting {
	k := g.client.keeper
	l, ok := k.locker.(SetAcquirer)
	if !ok {
		return nil
	}
	m := &meeting{set: g, locker: l, room: make(chan struct{}, k.atOnce()), begun: time.Now(), waits: -1}
	for _, a := range parts {
		if a != nil {
			a.meets, a.seat = m, m.size
			m.size++
		}
	}
	if !again {
		m.attempts = setTries
	}
	m.begin()
	return m
}

// A meeting has several acquisitions make the same attempts, each of which is one call of the Locker. While the calls are
// refused, one of the acquisitions pauses before the next, and the others wait for it.
type meeting struct {
	set    *gathering
	locker SetAcquirer
	size   int           // how many acquisitions meet
	room   chan struct{} // for attempts that each makes for itself, if the Locker cannot make one of these
	begun  time.Time

	mu       sync.Mutex // guards the present attempt until it is made
	present  *common
	attempts int  // that were refused
	refused  bool // the last one that was answered was
	waits    int  // the seat of the acquisition that pauses; negative before the first refusal
}

// A common attempt is one of all acquisitions that meet.
type common struct {
	ctx    context.Context
	absent int // acquisitions that have not come
	set    []Acquisition
	before []Attempt // what the last one has said

	over    chan struct{} // closed when the rest is final
	sent    time.Time
	answers []Attempt
	err     error
	again   bool // another follows
}

// begin begins an attempt, to which the acquisitions are to come.
func (m *meeting) begin() {
	var before []Attempt
	if m.present != nil {
		before = m.present.answers
	}
	m.present = &common{absent: m.size, set: make([]Acquisition, m.size), before: before, over: make(chan struct{})}
}

// attend waits for all others, and returns the attempt, which the last to come makes.
func (m *meeting) attend(ctx context.Context, a *acquisition, ttl time.Duration) *common {
	m.mu.Lock()
	c := m.present
	c.set[a.seat] = Acquisition{a.key, a.token, ttl}
	if c.ctx == nil || c.before == nil || a.waits {
		c.ctx = ctx
	}
	c.absent--
	last := c.absent == 0
	m.mu.Unlock()
	if last {
		m.make(c)
	}
	<-c.over
	return c
}

// leave ends the meeting for an acquisition that does not come, since it has ended with err. No more is sent.
func (m *meeting) leave(err error) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.present
	select {
	case <-c.over:
		return
	default:
	}
	if c.sent, c.answers = time.Now(), c.before; c.before == nil {
		c.err = &NoEffectError{Err: cmp.Or(err, errPanic)}
	}
	close(c.over)
}

// make makes an attempt.
func (m *meeting) make(c *common) {
	defer close(c.over)
	c.sent, c.err = time.Now(), errPanic
	c.answers, c.err = m.locker.TryAcquireSet(c.ctx, c.set)
	held := slices.IndexFunc(c.answers, func(a Attempt) bool { return !a.Acquired && !a.Free })
	switch {
	case c.err != nil:
	case len(c.answers) != len(c.set):
		c.err = fmt.Errorf("%d attempts for a set of %d", len(c.answers), len(c.set))
	case held >= 0:
		m.refuse(c, held)
	}
}

// refuse notes that another holds a key, and decides whether the attempt is made again.
func (m *meeting) refuse(c *common, held int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attempts++
	m.refused = true
	if m.waits < 0 {
		m.waits = held
	}
	g := m.set
	if c.again = m.attempts < setTries && time.Since(m.begun) < setTime && g.maxWait() > 0 && ended(g.ctx) == nil; c.again {
		m.begin()
	}
}

// answer is that of an attempt to the acquisition at a seat.
func (c *common) answer(seat int) (Attempt, error) {
	if c.err != nil {
		return Attempt{}, c.err
	}
	return c.answers[seat], nil
}

// atOnce is how many calls of a set are made at once. A Locker that renews in batches is taken to combine other
// calls too, as those on Redis do.
func (k *keeper) atOnce() int {
	if k.unbatched.Load() {
		return setCalls
	}
	return maxSet
}

// releaseAll releases leases, several at once, and returns their errors. What has no answer when limit
// has passed is owed.
func releaseAll(leases []*Lease, limit time.Duration) []error {
	end, errs := time.Now().Add(limit), make([]error, len(leases))
	if len(leases) == 0 {
		return nil
	}
	panicked := workers.Each(len(leases), leases[0].keeper.atOnce(), func(i int) (more bool) {
		errs[i] = leases[i].releaseWithin(time.Until(end))
		return true
	})
	if panicked != nil {
		panic(panicked)
	}
	return errs
}

// add adds the lease of the next key. The set ends with it.
func (ls *Leases) add(l *Lease) {
	ls.all = append(ls.all, l)
	_ = l.Err() // which ends its lives if it has ended
	l.lives.EndAlso(&ls.lives)
}

// complete makes the set one that is held.
func (ls *Leases) complete() {
	ls.byKey = make(map[string]*Lease, len(ls.all))
	for _, l := range ls.all {
		ls.byKey[l.key] = l
		l.settle()
	}
}

// settle gives the lease its MinHold: its set is complete.
func (l *Lease) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tentative = false
	l.unawaitLocked()
}

// Lease returns the lease of key, or nil if the set has no such key.
func (ls *Leases) Lease(key string) *Lease { return ls.byKey[key] }

// All returns the leases in byte order of their keys.
func (ls *Leases) All() []*Lease { return slices.Clone(ls.all) }

// Context returns a context for work that needs all locks of the set. It ends with parent or with the
// set, whichever is first; [context.Cause] returns parent's cause or the set's Err. It need not be
// cancelled. [LeaseFromContext] finds each lease in it.
func (ls *Leases) Context(parent context.Context) context.Context {
	_ = ls.Err() // which ends what needs the set if it has ended
	return ls.lives.Context(parent, ls, nameOf)
}

// Done returns a channel that is closed when the set ends.
func (ls *Leases) Done() <-chan struct{} {
	_ = ls.Err() // which closes it if the set has ended
	return ls.lives.Done()
}

// Err returns nil while all leases are held. After that it returns the error of the first that ended:
// see [Lease.Err].
func (ls *Leases) Err() error {
	for _, l := range ls.all {
		_ = l.Err() // which ends the set if the lease has ended
	}
	return ls.lives.Err()
}

// Deadline returns the earliest [Lease.Deadline] of the set: until then all locks are held.
func (ls *Leases) Deadline() time.Time {
	deadline := ls.all[0].Deadline()
	for _, l := range ls.all[1:] {
		deadline = alarm.Earlier(deadline, l.Deadline())
	}
	return deadline
}

// Release releases all leases, at once, and returns the errors of those that failed, joined: see
// [Lease.Release]. It takes at most 5 s. Releases that have no answer by then are owed.
func (ls *Leases) Release() error { return errors.Join(ls.release(releaseTimeout)...) }

func (ls *Leases) release(limit time.Duration) []error {
	defer ls.lives.End(ErrReleased)
	return releaseAll(ls.all, limit)
}

// finish is Release, but returns only losses.
func (ls *Leases) finish() (lost error) {
	errs := ls.release(releaseTimeout)
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return !errors.Is(err, ErrLost) })...)
}

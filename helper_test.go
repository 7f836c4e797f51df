package dlock_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errStore = errors.New("store: connection refused")
	errDial  = &net.OpError{Op: "dial", Err: errStore}
)

// A spy is a Locker that notes its calls, and changes them as the test's hook says. It is behind a network: a request
// arrives after half of the round trip time, and its reply after the other half. A fault hits the calls that are under
// way when it begins; their messages stay lost when it ends. Errors of the Locker come back at once.
type spy struct {
	dlock.Forward

	mu       sync.Mutex
	hook     func(c *call)
	calls    []*call
	rtt      time.Duration
	fault    fault
	inFlight int
}

// A fault is what a network does to the messages that pass it.
type fault string

const (
	up     fault = ""
	refuse fault = "refuse" // the call fails at once
	hang   fault = "hang"   // the request never arrives: the call returns when its ctx ends
	ignore fault = "ignore" // the same, but the call ignores its ctx and fails after 3 s
	lose   fault = "lose"   // the request arrives, the reply does not: the call returns when its ctx ends
)

const ignored = 3 * time.Second // how long a call ignores its ctx

func (s *spy) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *spy) busy() (n int)          { s.locked(func() { n = s.inFlight }); return n }
func (s *spy) setRTT(d time.Duration) { s.locked(func() { s.rtt = d }) }
func (s *spy) set(f fault)            { s.locked(func() { s.fault = f }) }

// fail makes the network fail for d, and returns the instant at which it is up again.
func (s *spy) fail(f fault, d time.Duration) time.Time {
	s.set(f)
	time.Sleep(d)
	s.set(up)
	return time.Now()
}

// note sets what is true of a call now.
func (s *spy) note(what *bool) { s.locked(func() { *what = true }) }

// travel takes half of a round trip, to the Locker or back.
func (s *spy) travel(c *call, there bool) error {
	var d time.Duration
	if s.locked(func() { d = s.rtt / 2 }); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			s.note(&c.cut)
			return c.ctx.Err()
		}
	}
	return s.pass(c, there)
}

// pass lets a message pass, or returns the error of its call.
func (s *spy) pass(c *call, there bool) error {
	var f fault
	s.locked(func() { f = s.fault })
	switch {
	case f == up, f == lose && there:
		return nil
	case f == refuse:
		return errStore
	case f == ignore:
		time.Sleep(ignored)
		return errStore
	}
	<-c.ctx.Done()
	s.note(&c.cut)
	return c.ctx.Err()
}

// tokens counts the calls of an operation so far, by token, that were sent before their ctx had ended.
func (s *spy) tokens(op string, that func(c *call) bool) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[string]int)
	for _, c := range s.calls {
		if c.op == op && !c.unsent && that(c) {
			counts[c.token]++
		}
	}
	return counts
}

// onCall sets what runs before each call, in its goroutine. It may change the fields after at.
func (s *spy) onCall(hook func(c *call)) { s.locked(func() { s.hook = hook }) }

// on sets what runs before each call of one of some operations, as in "renew batch".
func (s *spy) on(ops string, hook func(c *call)) {
	s.onCall(func(c *call) {
		if slices.Contains(strings.Fields(ops), c.op) {
			hook(c)
		}
	})
}

// first sets what runs before the first call of an operation.
func (s *spy) first(op string, hook func(c *call)) {
	s.on(op, func(c *call) {
		if len(s.made(op)) == 1 {
			hook(c)
		}
	})
}

type call struct {
	ctx        context.Context
	op         string
	size       int // of a batch
	key, token string
	ttl        time.Duration
	at         time.Time
	answer     *dlock.Attempt                            // returned with err instead of making the call
	err        error                                     // returned instead of making the call
	attempt    *dlock.Attempt                            // returned after making the call
	set        func([]dlock.Acquisition) []dlock.Attempt // likewise, by a set
	reply      error                                     // returned after making the call
	delay      time.Duration                             // of the reply

	unsent  bool // ctx had ended before
	arrived bool
	cut     bool // it has no reply, since its ctx has ended
	refused bool // it was an attempt, and another holds the key
}

// renews reports whether the call is a renewal.
func (c *call) renews() bool { return c.op == "renew" || c.op == "batch" }

// failIf makes the call return an error instead of being made, if that is so; delayIf delays its reply.
func (c *call) failIf(that bool, err error) {
	if that {
		c.err = err
	}
}

func (c *call) delayIf(that bool, d time.Duration) {
	if that {
		c.delay = d
	}
}

// hangIf makes the call wait until its ctx ends, if that is so.
func (c *call) hangIf(that bool) {
	if that {
		c.hang()
	}
}

// answers makes the call return a and err instead of being made.
func (c *call) answers(a dlock.Attempt, err error) { c.answer, c.err = &a, err }

// says returns what makes a call fail.
func says(err error) func(*call) { return func(c *call) { c.err = err } }

// hang makes the call wait until its ctx ends.
func (c *call) hang() {
	<-c.ctx.Done()
	c.err = c.ctx.Err()
}

// take makes the call last for d, or until its ctx ends.
func (c *call) take(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.ctx.Done():
		c.err = c.ctx.Err()
	}
}

func send[R any](s *spy, c *call, f func(*call) (R, error)) (R, error) {
	c.at, c.unsent = time.Now(), c.ctx.Err() != nil
	var hook func(*call)
	s.locked(func() { s.calls, s.inFlight, hook = append(s.calls, c), s.inFlight+1, s.hook })
	defer s.locked(func() { s.inFlight-- })
	if hook != nil {
		hook(c)
	}
	var none R
	if c.err == nil {
		c.err = s.pass(c, true)
	}
	if c.err == nil {
		c.err = s.travel(c, true)
	}
	if c.err != nil {
		return none, c.err
	}
	s.note(&c.arrived)
	r, err := f(c)
	if err == nil {
		if err := s.travel(c, false); err != nil {
			return none, err
		}
	}
	time.Sleep(c.delay)
	if c.reply != nil {
		return none, c.reply
	}
	return r, err
}

func (s *spy) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return s.acquire(&call{ctx: ctx, op: "try", key: key, token: token, ttl: ttl}, s.Forward.TryAcquire)
}

func (s *spy) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return s.acquire(&call{ctx: ctx, op: "acquire", key: key, token: token, ttl: ttl}, s.Forward.Acquire)
}

func (s *spy) acquire(c *call, f func(context.Context, string, string, time.Duration) (dlock.Attempt, error)) (dlock.Attempt, error) {
	a, err := send(s, c, func(c *call) (dlock.Attempt, error) {
		if c.answer != nil {
			return *c.answer, nil
		}
		a, err := f(c.ctx, c.key, c.token, c.ttl)
		if c.attempt != nil {
			a = *c.attempt
		}
		return a, err
	})
	if c.answer != nil {
		a = *c.answer
	}
	if err == nil && !a.Acquired {
		s.note(&c.refused)
	}
	return a, err
}

func (s *spy) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return send(s, &call{ctx: ctx, op: "renew", key: key, token: token, ttl: ttl}, func(c *call) (bool, error) {
		return s.Forward.Renew(c.ctx, key, token, ttl)
	})
}

func (s *spy) Release(ctx context.Context, key, token string) (bool, error) {
	return send(s, &call{ctx: ctx, op: "release", key: key, token: token}, func(c *call) (bool, error) {
		return s.Forward.Release(c.ctx, key, token)
	})
}

func (s *spy) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	c := &call{ctx: ctx, op: "batch", size: len(batch), key: batch[0].Key, token: batch[0].Token, ttl: batch[0].TTL}
	return send(s, c, func(*call) ([]dlock.RenewResult, error) { return s.Forward.RenewBatch(ctx, batch) })
}

// Inspect is not noted.
func (s *spy) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	c := &call{ctx: ctx, op: "inspect", key: key, at: time.Now()}
	if s.hook != nil {
		s.hook(c)
	}
	if c.err != nil {
		return dlock.Hold{}, c.err
	}
	return s.Forward.Inspect(ctx, key)
}

// made returns the calls of the given operations so far, of all if none is given.
func (s *spy) made(ops ...string) (made []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if len(ops) == 0 || slices.Contains(ops, c.op) {
			made = append(made, c)
		}
	}
	return made
}

func (s *spy) ops() (ops []string) {
	for _, c := range s.made() {
		ops = append(ops, c.op)
	}
	return ops
}

func (s *spy) released(token string) bool {
	return slices.ContainsFunc(s.made("release"), func(c *call) bool { return c.token == token })
}

// forget drops the calls so far.
func (s *spy) forget() { s.locked(func() { s.calls = nil }) }

// plain hides the optional interfaces of a Locker: waiters poll, and leases are renewed one by one.
type plain struct{ dlock.Locker }

// single hides only RenewBatch: each renewal is a call of Renew.
type single struct{ *spy }

func (single) RenewBatch(context.Context, []dlock.Renewal) ([]dlock.RenewResult, error) {
	return nil, errors.ErrUnsupported
}

// inSets is a spy whose Locker takes sets: their calls are "set", for all keys.
type inSets struct{ *spy }

func (s inSets) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	c := &call{ctx: ctx, op: "set", token: set[0].Token, ttl: set[0].TTL}
	for _, a := range set {
		c.key += a.Key
	}
	return send(s.spy, c, func(c *call) ([]dlock.Attempt, error) {
		if c.set != nil {
			return c.set(set), nil
		}
		return s.Forward.Locker.(dlock.SetAcquirer).TryAcquireSet(c.ctx, set)
	})
}

// noFences is a store that does not number its grants.
type noFences struct{ dlock.Forward }

func (n noFences) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := n.Forward.TryAcquire(ctx, key, token, ttl)
	a.Fence = 0
	return a, err
}

func (n noFences) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := n.Forward.Acquire(ctx, key, token, ttl)
	a.Fence = 0
	return a, err
}

// spoiled is a Locker whose renewals of some keys fail.
type spoiled struct {
	dlock.Forward
	rtt   time.Duration
	alone func(ctx context.Context, key string) error // the error of Renew
	batch func(ctx context.Context, key string) error // the error of each batch with the key; nil: only of its element, from alone
}

func (s *spoiled) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	time.Sleep(s.rtt)
	if err := s.alone(ctx, key); err != nil {
		return false, err
	}
	return s.Forward.Renew(ctx, key, token, ttl)
}

func (s *spoiled) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if s.batch == nil {
		results := make([]dlock.RenewResult, len(batch))
		for i, r := range batch {
			if results[i].Err = s.alone(ctx, r.Key); results[i].Err == nil {
				results[i].Held, results[i].Err = s.Forward.Renew(context.WithoutCancel(ctx), r.Key, r.Token, r.TTL)
			}
		}
		return results, nil
	}
	time.Sleep(s.rtt)
	for _, r := range batch {
		if err := s.batch(ctx, r.Key); err != nil {
			return nil, err
		}
	}
	return s.Forward.RenewBatch(ctx, batch)
}

// hangIf and failIf are errors of the keys with a prefix: when ctx ends, or at once.
func hangIf(prefix string) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		if strings.HasPrefix(key, prefix) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
}

func failIf(prefix string) func(context.Context, string) error {
	return func(_ context.Context, key string) error {
		if strings.HasPrefix(key, prefix) {
			return errStore
		}
		return nil
	}
}

// in runs a test in virtual time, with a spy around a store of its own.
func in(t *testing.T, f func(t *testing.T, store *memory.Locker, s *spy)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		store := memory.New()
		s := &spy{Forward: dlock.Forward{Locker: store}}
		f(t, store, s)
		time.Sleep(time.Minute) // for calls that nobody waits for
	})
}

// run runs a part of a test like in.
func run(t *testing.T, name string, f func(t *testing.T, store *memory.Locker, s *spy)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { in(t, f) })
}

// inCases are the tests of one subject, by what they say of it, each with a Client of its spy.
type inCases map[string]func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client)

func (all inCases) run(t *testing.T) {
	for name, f := range all {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) { f(t, store, s, dlock.New(s)) })
	}
}

// ways are ways of using a spy, by name. run runs a test like in, once for each.
type ways map[string]func(*spy) dlock.Locker

type test = func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker)

func (w ways) run(t *testing.T, f test) {
	t.Helper()
	for name, way := range w {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) { f(t, store, s, way(s)) })
	}
}

func (w ways) cases(t *testing.T, all map[string]test) {
	for name, f := range all {
		t.Run(name, func(t *testing.T) { w.run(t, f) })
	}
}

func direct(s *spy) dlock.Locker  { return s }
func isPlain(s *spy) dlock.Locker { return plain{s} }

// The ways of waiting and of renewing.
var (
	waiting  = ways{"queue": direct, "poll": isPlain}
	lockers  = ways{"batch": direct, "single": isPlain}
	renewing = ways{"batch": direct, "single": isPlain, "unsupported": func(s *spy) dlock.Locker { return single{s} }}
)

// notShort leaves a test out with -short.
func notShort(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
}

// settle lets a time pass, and what happens at its end.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// async runs f in a goroutine, and returns where its error comes.
func async(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// together runs f in n goroutines, and waits for them.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// dial returns a Client of a simulated server, and what kills it. fate is that of its trips.
func dial(t *testing.T, s *sim.Server, fate func(sim.Trip) sim.Fate, queue bool, opts ...dlock.Option) (c *dlock.Client, kill func()) {
	conn := sim.Dial(s, fate)
	l := rediscore.New(conn, rediscore.WithQueue(queue))
	c = dlock.New(l, opts...)
	kill = sync.OnceFunc(func() {
		conn.Close()
		_ = c.Close()
		_ = l.Close()
	})
	t.Cleanup(kill)
	return c, kill
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// errOf returns the error of a call that has another result.
func errOf[R any](_ R, err error) error { return err }

// as returns the error of a type that err is.
func as[E error](t *testing.T, err error) (e E) {
	t.Helper()
	require.ErrorAs(t, err, &e)
	return e
}

// ended returns a context that has been cancelled.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// inspect returns what the store says of the key k.
func inspect(t *testing.T, c *dlock.Client) dlock.Status {
	t.Helper()
	status, err := c.Inspect(t.Context(), "k")
	require.NoError(t, err)
	return status
}

func releaseAll(t *testing.T, leases []*dlock.Lease) {
	t.Helper()
	for _, l := range leases {
		require.NoError(t, l.Release())
	}
}

func acquire(t *testing.T, c *dlock.Client, key string) *dlock.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key)
	require.NoError(t, err)
	return l
}

func acquireAll(t *testing.T, c *dlock.Client, prefix string, n int) (leases []*dlock.Lease, keys []string) {
	t.Helper()
	for i := range n {
		keys = append(keys, prefix+strconv.Itoa(i))
		leases = append(leases, acquire(t, c, keys[i]))
	}
	return leases, keys
}

func detach(t *testing.T, l *dlock.Lease) dlock.Detached {
	t.Helper()
	d, err := l.Detach()
	require.NoError(t, err)
	return d
}

func adopt(t *testing.T, c *dlock.Client, d dlock.Detached) *dlock.Lease {
	t.Helper()
	l, err := c.Adopt(t.Context(), d)
	require.NoError(t, err)
	return l
}

// hold makes another the holder of the key k for d.
func hold(t *testing.T, store *memory.Locker, d time.Duration) {
	t.Helper()
	holdKey(t, store, "k", d)
}

func holdKey(t *testing.T, store *memory.Locker, key string, d time.Duration) {
	t.Helper()
	a, err := store.TryAcquire(t.Context(), key, "other", d)
	require.NoError(t, err)
	require.True(t, a.Acquired)
}

// holdAll makes another the holder of n keys for an hour, and returns them.
func holdAll(t *testing.T, store *memory.Locker, n int) []string {
	t.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "held" + strconv.Itoa(i)
		holdKey(t, store, keys[i], time.Hour)
	}
	return keys
}

// lostOf returns how many of the leases are not held any more.
func lostOf(leases []*dlock.Lease) (lost int) {
	for _, l := range leases {
		if l.Err() != nil {
			lost++
		}
	}
	return lost
}

func requireNoneLost(t *testing.T, leases []*dlock.Lease) {
	t.Helper()
	if lost := lostOf(leases); lost > 0 {
		t.Errorf("%d of %d leases were lost, want 0", lost, len(leases))
	}
}

func holder(t *testing.T, store dlock.Locker, key string) dlock.Hold {
	t.Helper()
	hold, err := store.(dlock.Inspector).Inspect(t.Context(), key)
	require.NoError(t, err)
	return hold
}

func requireFree(t *testing.T, store dlock.Locker, key string) {
	t.Helper()
	require.False(t, holder(t, store, key).Held, "%q is held", key)
}

func requireTaken(t *testing.T, store dlock.Locker, key string) {
	t.Helper()
	require.True(t, holder(t, store, key).Held, "%q is free", key)
}

func requireHeld(t *testing.T, store dlock.Locker, key, token string) {
	t.Helper()
	require.Equal(t, token, holder(t, store, key).Token, "holder of %q", key)
}

func requireAllFree(t *testing.T, store dlock.Locker, keys []string) {
	t.Helper()
	taken := 0
	for _, key := range keys {
		if holder(t, store, key).Held {
			taken++
		}
	}
	if taken > 0 {
		t.Errorf("%d of %d keys are taken, want 0", taken, len(keys))
	}
}

// What an error must not match, what its text is, and what is not in it, for requireErr.
type (
	not     struct{ error }
	exactly string
	without string
)

const noContext = -1 // it matches no error of a context

// requireErr demands of an error that it matches errors, that it says texts, and more.
func requireErr(t *testing.T, err error, all ...any) {
	t.Helper()
	require.Error(t, err)
	for _, what := range all {
		switch what := what.(type) {
		case not:
			require.NotErrorIs(t, err, what.error)
		case error:
			require.ErrorIs(t, err, what)
		case string:
			require.ErrorContains(t, err, what)
		case exactly:
			require.EqualError(t, err, string(what))
		case without:
			require.NotContains(t, err.Error(), string(what))
		case int:
			requireErr(t, err, not{context.Canceled}, not{context.DeadlineExceeded})
		default:
			t.Fatalf("%T", what)
		}
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// goroutines returns how many goroutines run code of the core, without those of the test.
func goroutines() int {
	buf := make([]byte, 1<<20)
	n := 0
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "dlock-go/dlock.") && !strings.Contains(g, "testing.tRunner") {
			n++
		}
	}
	return n
}

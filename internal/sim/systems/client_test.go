package systems

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/sim"
)

// A client is a process.
type client struct {
	*system
	number, life int
	name         string
	conns        []*sim.Conn // to each server
	lockers      []*rediscore.Locker
	majority     *redlock.Locker // or nil
	lock         *dlock.Client
	dead         chan struct{}     // closed when it was killed
	away         map[int]time.Time // until then, nothing passes between it and a server
	sets         int               // that are acquired now: they rely on tokens while they wait for others
	trips        map[string]int
}

// newClient starts a process.
func (s *system) newClient(number, life int) *client {
	c := &client{
		system: s, number: number, life: life, name: fmt.Sprint("client ", number) + strings.Repeat("'", life),
		dead: make(chan struct{}), away: make(map[int]time.Time), trips: make(map[string]int),
	}
	var nodes []dlock.Locker
	for i, server := range s.servers {
		conn := sim.Dial(server, func(t sim.Trip) sim.Fate { return c.fate(i, t) })
		opts := []rediscore.Option{rediscore.WithQueue(s.kind != polls || c.number == 0)}
		if s.kind == replicas {
			opts = append(opts, rediscore.WithReplicas(s.kind.replicas(), time.Second))
		}
		locker := rediscore.New(jittered{conn, c, i}, opts...)
		c.conns, c.lockers, nodes = append(c.conns, conn), append(c.lockers, locker), append(nodes, locker)
	}
	locker := nodes[0]
	if s.kind == majority {
		c.majority = redlock.New(nodes, redlock.WithLongestTTL(s.ttl))
		locker = c.majority
	}
	opts := []dlock.Option{dlock.WithTTL(s.ttl), dlock.WithOutage(time.Hour), dlock.WithMaxWait(time.Hour)}
	if n := s.turns[number]; n > 0 {
		opts = append(opts, dlock.WithLocalTurns(n))
	}
	c.lock = dlock.New(&watched{dlock.Forward{Locker: s.recorder.Locker(c.name, locker)}, c}, opts...)
	return c
}

// kill ends a process. What it holds then ends with its TTL.
func (c *client) kill() {
	c.mu.Lock()
	for _, key := range c.keys() {
		c.lives[c.holder(key)]++
	}
	c.mu.Unlock()
	close(c.dead)
	for _, conn := range c.conns {
		conn.Close()
	}
	_ = c.lock.Close() // of a process that has ended, nothing goes on
	c.close()
}

func (c *client) close() {
	if c.majority != nil {
		_ = c.majority.Close()
	}
	for i := range c.conns {
		_ = c.lockers[i].Close()
		c.conns[i].Close()
	}
}

func (c *client) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

// A watched Locker notes the tokens of a client, and which calls wait with them.
type watched struct {
	dlock.Forward
	client *client
}

// rely notes that something relies on a token until end is called.
func (c *client) rely(token string) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lives[token]++
	c.of[token] = c
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lives[token]--
	}
}

func (w *watched) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	w.client.jitter(token)
	defer w.client.rely(token)()
	return w.Forward.TryAcquire(ctx, key, token, ttl)
}

func (w *watched) Release(ctx context.Context, key, token string) (bool, error) {
	w.client.jitter(token)
	return w.Forward.Release(ctx, key, token)
}

func (w *watched) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	w.client.jitter(token)
	return w.Forward.Renew(ctx, key, token, ttl)
}

func (w *watched) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	w.client.jitter(token)
	defer w.client.rely(token)()
	return w.Forward.Acquire(ctx, key, token, ttl)
}

// jitter lets what happens at the same instant go on at different ones, which follow from names. Timers
// that are set at the same instant, for the same time, go off in any order.
func (c *client) jitter(name string) {
	time.Sleep(time.Until(c.moment(upTo(c.draws(c.name+name), 10*time.Microsecond))))
}

// A jittered Conn makes each call at an instant of its own.
type jittered struct {
	*sim.Conn
	client *client
	store  int
}

func (j jittered) jitter(call rediscore.Call) {
	j.client.jitter(fmt.Sprint(j.store, call.Script.SHA, call.Keys()[0], call.Args))
}

func (j jittered) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	j.jitter(call)
	return j.Conn.Eval(ctx, call)
}

func (j jittered) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	j.jitter(calls[0])
	j.Conn.EvalAll(ctx, calls, results)
}

func (j jittered) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	j.jitter(calls[0])
	j.Conn.EvalReplicated(ctx, calls, results, wait)
}

func (j jittered) Listen(ctx context.Context, name string, shard bool, on func(rediscore.Event)) error {
	j.client.jitter(fmt.Sprint(j.store))
	return j.Conn.Listen(ctx, name, shard, on)
}

// work does a job.
func (c *client) work(j job) {
	asked := c.recorder.Now()
	ctx, cancel := context.WithDeadline(context.Background(), c.before(j.patience))
	defer cancel()
	lock := c.lock.With(dlock.WithRenewal(j.renews))
	if j.set {
		c.workOnAll(ctx, lock, j, asked)
		return
	}
	acquire := lock.Acquire
	if j.once {
		acquire = lock.TryAcquire
	}
	lease, err := acquire(ctx, j.key)
	c.say("%s: %v", j.key, err)
	if err != nil {
		return
	}
	if j.detaches {
		c.handOn(j, lease, asked)
	} else {
		c.hold(j.hold, lease, asked)
	}
}

// workOnAll does a job with all keys.
func (c *client) workOnAll(ctx context.Context, lock *dlock.Client, j job, asked time.Duration) {
	leases, err := c.acquireAll(ctx, lock)
	c.say("all keys for %s: %v", j.key, err)
	if err != nil {
		return
	}
	var work sync.WaitGroup
	for _, lease := range leases.All() {
		work.Go(func() { c.hold(time.Hour, lease, asked) })
	}
	timer := time.NewTimer(time.Until(c.before(j.hold)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-leases.Done():
	case <-c.dead:
	}
	_ = leases.Release()
	work.Wait()
}

// acquireAll acquires all keys, in an order that differs from client to client.
func (c *client) acquireAll(ctx context.Context, lock *dlock.Client) (*dlock.Leases, error) {
	count := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sets += n
	}
	count(1)
	defer count(-1)
	keys := c.keys()
	c.draws(c.name).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return lock.AcquireAll(ctx, keys...)
}

// hold holds a lease for d, and releases it.
func (c *client) hold(d time.Duration, lease *dlock.Lease, asked time.Duration) {
	end := c.certain(d, lease, asked)
	err := lease.Release()
	if now := c.recorder.Now(); errors.Is(err, dlock.ErrLost) && !c.isDead() && !c.lostVotes(asked) {
		end(now)
	}
	c.say("releases %s, fence %d: %v", lease.Key(), lease.Fence(), err)
}

// lostVotes reports whether a server of several has lost its data since a lease was asked for. (The grant
// of a line may be older than that.)
func (c *client) lostVotes(asked time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind == majority && c.system.restarted > max(0, asked-c.system.ttl)
}

// certain holds a lease for d, or until it ends. Then lost notes that the lease was lost.
func (c *client) certain(d time.Duration, lease *dlock.Lease, asked time.Duration) (lost func(time.Duration)) {
	end := c.rely(lease.Token())
	hold := c.recorder.Hold(c.name, lease, asked)
	timer := time.NewTimer(time.Until(c.before(d)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-lease.Done():
	case <-c.dead:
	}
	deadline := lease.Deadline()
	c.recorder.End(hold, lease)
	end()
	return func(now time.Duration) {
		if now < c.recorder.At(deadline) {
			hold.Lost = now
		}
	}
}

// handOn holds a lease for a while, and hands it on to another client.
func (c *client) handOn(j job, lease *dlock.Lease, asked time.Duration) {
	c.certain(j.hold/2, lease, asked)
	end := c.rely(lease.Token())
	detached, err := lease.Detach()
	if err != nil {
		end()
		_ = lease.Release()
		return
	}
	other := c.client((c.number + 1) % len(c.turns))
	asked = c.recorder.Now()
	ctx, cancel := context.WithDeadline(context.Background(), c.before(c.ttl))
	defer cancel()
	adopted, err := other.lock.Adopt(ctx, detached)
	end()
	other.say("%s from %s: %v", j.key, c.name, err)
	if err != nil {
		c.rely(lease.Token()) // the lease ends with its TTL
	} else {
		other.hold(j.hold/2, adopted, asked)
	}
}

// say writes a line of the journal, unless the process has ended.
func (c *client) say(format string, args ...any) {
	if !c.isDead() {
		c.note("%s: %s", c.name, fmt.Sprintf(format, args...))
	}
}

// fate draws what becomes of a trip to a server.
func (c *client) fate(store int, t sim.Trip) (f sim.Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := c.tripName(store, t)
	r := c.draws(name)
	leg := func() time.Duration { return time.Duration(r.ExpFloat64() * float64(c.trip)) }
	f.Request.Delay, f.Reply.Delay = leg(), leg()
	m, listed := c.mishaps[name]
	if c.mishaps == nil && c.stormy(c.now()) {
		m = c.plan.mishap(r)
		listed = m != mishap{}
	}
	if listed {
		c.system.mishap[name] = m
		f.Request.Lost, f.Reply.Lost = m.lostRequest, m.lostReply
		f.Request.Delay += m.lateRequest
		f.Reply.Delay += m.lateReply
		f.Twice, f.Again.Delay = m.again > 0, m.again
	}
	if time.Now().Before(c.away[store]) {
		f.Request.Lost, f.Reply.Lost = true, true
	}
	if t.Message != "" {
		f.Request = sim.Leg{}
	}
	f.Request.Delay = time.Until(c.momentLocked(f.Request.Delay))
	f.Reply.Delay = time.Until(c.momentLocked(f.Request.Delay+f.Reply.Delay)) - f.Request.Delay
	if f.Twice {
		f.Again.Delay = time.Until(c.momentLocked(f.Again.Delay))
	}
	f.Notice = upTo(r, time.Millisecond)
	c.noteLocked("%s %v %v", name, f, m)
	return f
}

// tripName names a trip by its client, its server, what it is for, and how many such trips were before it.
func (c *client) tripName(store int, t sim.Trip) string {
	what := "message"
	switch {
	case t.Calls != nil:
		call := t.Calls[0]
		what = fmt.Sprintf("%s of %s", scriptName(call.Script), call.Keys()[0])
	case t.Message == "":
		what = "subscription"
	}
	name := fmt.Sprint(c.name, ", ", what)
	if len(c.servers) > 1 {
		name += fmt.Sprint(" to server ", store)
	}
	c.trips[name]++
	return fmt.Sprint(name, " #", c.trips[name])
}

// scriptName is the name of a script. A planted fault changes its source only.
func scriptName(s *rediscore.Script) string {
	for name, sha := range sums() {
		if sha == s.SHA {
			return name
		}
	}
	panic("a script without a sum")
}

var sums = sync.OnceValue(func() map[string]string {
	text, err := os.ReadFile("../../../backend/rediscore/lua/sums.txt")
	if err != nil {
		panic(err)
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		name, sha, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = sha
	}
	return all
})

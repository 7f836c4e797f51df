package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

// TestSystems lets several Clients work with one server, while faults happen that a seed has drawn,
// for minutes that take no time. It judges
//
//   - safety: no two holds overlap, fences rise, no lease is lost but with all data, and, where no
//     request comes late, a fenced mutex could have given all answers;
//   - liveness: while there are no faults, no key is held by a token that nobody relies on, no dead
//     process is granted a key, and in the end everybody is served soon;
//   - cleanliness: in the end nothing is owed, no goroutine goes on, and only fence counters are stored.
//
// DLOCK_SIM_SYSTEMS=1000 tries more of them. DLOCK_SIM_SEED=7 makes the choices of one again. It need
// not take the same course: tokens and pauses of the Clients are random, and goroutines run in any order.
func TestSystems(t *testing.T) {
	from, n := uint64(1), number(t, "DLOCK_SIM_SYSTEMS", 30)
	if testing.Short() || israce.Enabled {
		n = min(n, 5)
	}
	if seed := number(t, "DLOCK_SIM_SEED", 0); seed != 0 {
		from, n = seed, 1
	}
	var total tally
	for seed := from; seed < from+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newSystem(t, seed).run(&total) })
		})
	}
	t.Logf("%+v", total)
}

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, variable)
	return n
}

// A tally is what has happened in all systems.
type tally struct{ holds, faults, scripts int }

// A system is a server, and Clients whose workers want its keys.
type system struct {
	*testing.T
	seed     uint64
	server   *sim.Server
	recorder *history.Recorder
	ttl      time.Duration
	trip     time.Duration // of a leg, on average
	lost     float64       // the share of legs that are
	late     bool          // some requests arrive when the client has given them up
	keys     []string
	clients  []*client // that live
	ended    []*client
	work     sync.WaitGroup
	ctx      context.Context // of the work
	stop     context.CancelFunc
	step     int64 // by which fences rise at least: several holds of a lease share its 8 numbers
	faults   int

	mu    sync.Mutex
	draws *rand.Rand         // of the network
	calm  time.Time          // since when there are no faults; zero if there are some
	lives map[string]int     // tokens, by how many calls and holds rely on them
	of    map[string]*client // whose tokens they are
}

// A client is a process.
type client struct {
	*system
	name   string
	conn   *sim.Conn
	locker *rediscore.Locker
	lock   *dlock.Client
	dead   chan struct{} // closed when it was killed
	away   time.Time     // until then, nothing passes between it and the server
}

func newSystem(t *testing.T, seed uint64) *system {
	r := rand.New(rand.NewPCG(seed, 0))
	s := &system{
		T: t, seed: seed, server: sim.NewServer(), recorder: history.NewRecorder(time.Now()),
		ttl:   8*time.Second + upTo(r, 12*time.Second),
		trip:  []time.Duration{100 * time.Microsecond, time.Millisecond, 20 * time.Millisecond}[r.IntN(3)],
		lost:  []float64{0, 0.02, 0.1, 0.2}[r.IntN(4)],
		late:  r.IntN(3) == 0,
		keys:  []string{"a", "b", "{c}"}[:1+r.IntN(3)],
		step:  8,
		draws: rand.New(rand.NewPCG(seed, 1)),
		lives: make(map[string]int),
		of:    make(map[string]*client),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for range 2 + r.IntN(4) {
		s.clients = append(s.clients, s.newClient(r))
	}
	return s
}

// newClient starts a process.
func (s *system) newClient(r *rand.Rand) *client {
	c := &client{system: s, name: fmt.Sprint("client ", len(s.clients)+len(s.ended)), dead: make(chan struct{})}
	c.conn = sim.Dial(s.server, c.fate)
	c.locker = rediscore.New(c.conn)
	opts := []dlock.Option{dlock.WithTTL(s.ttl), dlock.WithOutage(time.Hour), dlock.WithMaxWait(time.Hour)}
	if r.IntN(3) == 0 {
		opts, s.step = append(opts, dlock.WithLocalTurns(1+r.IntN(3))), 1
	}
	c.lock = dlock.New(&watched{dlock.Forward{Locker: s.recorder.Locker(c.name, c.locker)}, c}, opts...)
	return c
}

// start lets workers of a client work.
func (c *client) start(r *rand.Rand) {
	for range 1 + r.IntN(3) {
		r := rand.New(rand.NewPCG(r.Uint64(), 0))
		c.system.work.Go(func() {
			for c.ctx.Err() == nil && !c.isDead() {
				c.work(r)
				time.Sleep(upTo(r, c.ttl/20))
			}
		})
	}
}

// kill ends a process. What it holds then ends with its TTL.
func (c *client) kill() {
	c.mu.Lock()
	for _, key := range c.keys {
		c.lives[c.holder(key)]++
	}
	c.mu.Unlock()
	close(c.dead)
	c.conn.Close()
	_ = c.lock.Close() // of a process that has ended, nothing goes on
	c.locker.Close()
}

func (c *client) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

// upTo draws a duration up to d.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return 1 + time.Duration(r.Int64N(int64(d))) }

// fate draws what becomes of a trip of c.
func (c *client) fate(sim.Trip) sim.Fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	leg := func() sim.Leg {
		l := sim.Leg{Delay: time.Duration(c.draws.ExpFloat64() * float64(c.trip))}
		if c.calm.IsZero() {
			l.Lost = c.draws.Float64() < c.lost || time.Now().Before(c.away)
			if c.late && c.draws.Float64() < c.lost/4 {
				l.Delay += upTo(c.draws, 3*c.ttl)
			}
		}
		return l
	}
	f := sim.Fate{Request: leg(), Reply: leg()}
	if c.late && f.Request.Lost && c.draws.IntN(2) == 0 {
		f.Twice, f.Again = true, sim.Leg{Delay: upTo(c.draws, 2*c.ttl)}
	}
	return f
}

func (s *system) run(total *tally) {
	end := time.Now().Add(2*time.Minute + upTo(s.draws, 3*time.Minute))
	var faults sync.WaitGroup
	r := rand.New(rand.NewPCG(s.seed, 2))
	for _, c := range s.clients {
		c.start(r)
	}
	faults.Go(func() {
		for time.Now().Before(end) {
			time.Sleep(upTo(r, 20*time.Second))
			s.fail(r)
			s.faults++
			s.rest(time.Now())
			if r.IntN(4) == 0 {
				s.replace(r)
			}
			time.Sleep(15 * time.Second)
			s.rest(time.Time{})
		}
	})
	over := make(chan struct{})
	defer close(over)
	go s.watch(over)
	faults.Wait()
	s.rest(time.Now())
	s.stop()
	s.settle()
	s.work.Wait()
	s.clean()
	s.judge()
	total.faults += s.faults
	total.holds += len(s.recorder.History().Holds)
	total.scripts += s.server.Cost().Scripts
}

// rest begins or ends a time without faults.
func (s *system) rest(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = since
}

// replace kills a process, and lets another take its place.
func (s *system) replace(r *rand.Rand) {
	i := r.IntN(len(s.clients))
	s.clients[i].kill()
	s.ended = append(s.ended, s.clients[i])
	s.clients[i] = s.newClient(r)
	s.clients[i].start(r)
}

// holder is the token that holds a key on the server.
func (s *system) holder(key string) string {
	reply, _ := s.server.Do("GET", key)
	token, _ := reply.(string)
	return token
}

// watch looks who holds the keys.
func (s *system) watch(over <-chan struct{}) {
	const soon = 6 * time.Second // a release gets no answer for 5 s, and is repeated
	since := make(map[string]time.Time)
	for {
		select {
		case <-over:
			return
		case <-time.After(100 * time.Millisecond):
		}
		s.mu.Lock()
		for _, key := range s.keys {
			token := s.holder(key)
			relied, calm := token == "" || s.lives[token] > 0, s.calm
			if _, ok := since[token]; relied || !ok || calm.IsZero() {
				delete(since, token)
			}
			if !relied && !calm.IsZero() {
				if since[token].IsZero() {
					since[token] = time.Now()
				}
				if gone := time.Since(since[token]); s.of[token].isDead() || gone > soon && !s.late {
					s.Errorf("seed %d: at %v %s of %s, on which nobody relies, holds %s for %v", s.seed, s.recorder.Now(), token, s.of[token].name, key, gone)
					s.lives[token]++ // once is enough
				}
			}
		}
		s.mu.Unlock()
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
	defer w.client.rely(token)()
	return w.Forward.TryAcquire(ctx, key, token, ttl)
}

func (w *watched) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	defer w.client.rely(token)()
	return w.Forward.Acquire(ctx, key, token, ttl)
}

// fail lets something happen, which is over when it returns.
func (s *system) fail(r *rand.Rand) {
	c, d := s.clients[r.IntN(len(s.clients))], upTo(r, 2*s.ttl)
	switch r.IntN(9) {
	case 7, 8:
		s.replace(r)
	case 0:
		c.conn.Cut()
	case 1, 2: // a client is cut off
		s.mu.Lock()
		c.away = time.Now().Add(d)
		s.mu.Unlock()
		time.Sleep(d)
		c.conn.Cut()
	case 3: // a restart without the data
		s.recorder.Wipe(func() {
			s.server.Restart()
			s.server.SetFaults(sim.Faults{Calls: "LOADING Redis is loading the dataset in memory"})
			time.Sleep(50*time.Millisecond + d/10)
			s.server.SetFaults(sim.Faults{})
		})
	default:
		s.server.SetFaults([]sim.Faults{
			{Calls: "LOADING Redis is loading the dataset in memory"}, {Writes: "READONLY You can't write against a read only replica."}, {Full: true},
		}[r.IntN(3)])
		time.Sleep(d)
		s.server.SetFaults(sim.Faults{})
	}
}

// work is one thing that a worker does with a key.
func (c *client) work(r *rand.Rand) {
	key, asked := c.keys[r.IntN(len(c.keys))], c.recorder.Now()
	ctx, cancel := context.WithTimeout(c.ctx, upTo(r, 4*c.ttl))
	defer cancel()
	lock := c.lock.With(dlock.WithRenewal(r.IntN(4) > 0))
	acquire := lock.Acquire
	if r.IntN(5) == 0 {
		acquire = lock.TryAcquire
	}
	lease, err := acquire(ctx, key)
	if err != nil {
		time.Sleep(upTo(r, c.ttl/4))
		return
	}
	end := c.rely(lease.Token())
	hold := c.recorder.Hold(c.name, lease, asked)
	d := upTo(r, c.ttl/4)
	if r.IntN(3) == 0 {
		d += upTo(r, c.ttl)
	}
	select {
	case <-time.After(d):
	case <-lease.Context(c.ctx).Done():
	}
	deadline := lease.Deadline()
	c.recorder.End(hold, lease)
	end()
	if err := lease.Release(); errors.Is(err, dlock.ErrLost) {
		if now := c.recorder.Now(); now < c.recorder.At(deadline) {
			hold.Lost = now
		}
	}
}

// settle demands that everybody gets each key soon, now that there are no faults.
func (s *system) settle() {
	soon := s.ttl + 5*time.Second
	var all sync.WaitGroup
	for _, c := range s.clients {
		for _, key := range s.keys {
			all.Go(func() {
				begun := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				lease, err := c.lock.Acquire(ctx, key)
				if err != nil {
					s.Errorf("seed %d: %s does not get %s without faults: %v", s.seed, c.name, key, err)
					return
				}
				if waited := time.Since(begun); waited > soon {
					s.Errorf("seed %d: %s got %s after %v without faults; want %v at most", s.seed, c.name, key, waited, soon)
				}
				_ = lease.Release()
			})
		}
	}
	all.Wait()
}

// clean demands that nothing is left in the end.
func (s *system) clean() {
	time.Sleep(3*s.ttl + time.Minute) // what is owed is repeated for a TTL, and records of waiters last for a minute
	for _, c := range s.clients {
		if owed := c.lock.Stats().ReleasesOwed; owed > 0 {
			s.Errorf("seed %d: %s owes %d releases", s.seed, c.name, owed)
		}
		if err := c.lock.Close(); err != nil {
			s.Errorf("seed %d: %s: Close: %v", s.seed, c.name, err)
		}
		c.locker.Close()
		c.conn.Close()
	}
	for _, key := range s.server.Keys() {
		if !strings.HasSuffix(key, "dlock1:fence") {
			s.Errorf("seed %d: %s is left on the server", s.seed, key)
		}
	}
}

// judge looks at what the recorder has. A request that arrives late may take the key for a TTL, though
// the call that it belongs to was answered long ago. So the answers say nothing then.
func (s *system) judge() {
	h := s.recorder.History()
	if s.late {
		h.Operations = slices.DeleteFunc(h.Operations, func(o *history.Operation) bool { return o.Method != history.Wipe })
	}
	late := func(ttl time.Duration) time.Duration { return history.Drift(ttl) + 2*time.Millisecond }
	v, err := history.Model{FenceStep: s.step, Late: late}.Check(h)
	if v != nil {
		s.Errorf("seed %d: %v", s.seed, v)
	}
	if err != nil && !errors.Is(err, history.ErrTooConcurrent) {
		s.Errorf("seed %d: %v", s.seed, err)
	}
}

package semaphore_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
	"github.com/dlock-go/dlock/semaphore"
)

const (
	ttl = 2 * time.Second
	rtt = 2 * time.Millisecond
)

var errAway = errors.New("connection refused")

// A world is a store in virtual time: memory, a Redis, or a majority of three of them.
type world struct {
	*testing.T
	memory  *memory.Locker
	servers []*sim.Server
}

func in(t *testing.T, kind string, f func(*world)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w := &world{T: t, memory: memory.New()}
		for range map[string]int{"redis": 1, "redlock": 3}[kind] {
			w.servers = append(w.servers, sim.NewServer())
		}
		f(w)
	})
}

// everywhere calls f with each kind of store.
func everywhere(t *testing.T, f func(*world)) {
	for _, kind := range []string{"memory", "redis", "redlock"} {
		in(t, kind, f)
	}
}

// A process uses the semaphore. It can be killed, and cut off from the servers.
type process struct {
	*semaphore.Semaphore
	client *dlock.Client
	conns  []*sim.Conn
	cut    atomic.Bool                                 // nothing passes
	fault  atomic.Pointer[func(context.Context) error] // of attempts for the permit 0
	gone   chan struct{}                               // closed when it is killed
}

func (w *world) process(permits int, opts ...dlock.Option) *process {
	p := &process{gone: make(chan struct{})}
	nodes := []dlock.Locker{w.memory}
	for i, server := range w.servers {
		p.conns = append(p.conns, sim.Dial(server, func(sim.Trip) sim.Fate {
			leg := sim.Leg{Delay: rtt / 2, Lost: p.cut.Load()}
			return sim.Fate{Request: leg, Reply: leg}
		}))
		nodes = append(nodes[:i], rediscore.New(p.conns[i]))
	}
	store := nodes[0]
	if len(nodes) > 1 {
		store = redlock.New(nodes, redlock.WithoutGuard())
	}
	p.client = dlock.New(link{dlock.Forward{Locker: store}, p}, append([]dlock.Option{dlock.WithTTL(ttl)}, opts...)...)
	p.Semaphore = semaphore.New(p.client, "sem", permits)
	w.Cleanup(func() {
		if err := p.client.Close(); !p.cut.Load() {
			assert.NoError(w, err)
		}
		for _, l := range append([]dlock.Locker{store}, nodes...) {
			if c, ok := l.(io.Closer); ok {
				_ = c.Close()
			}
		}
		p.disconnect()
	})
	return p
}

func (p *process) disconnect() {
	for _, c := range p.conns {
		c.Close()
	}
}

// kill ends a process: it sends nothing any more, and its connections are closed.
func (p *process) kill() {
	close(p.gone)
	p.disconnect()
	over, end := context.WithCancel(context.Background())
	end()
	go p.client.Shutdown(over)
}

// A link is what a process has of the store.
type link struct {
	dlock.Forward
	process *process
}

func (l link) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if fault := l.process.fault.Load(); fault != nil && key == slot(0) {
		return dlock.Attempt{}, (*fault)(ctx)
	}
	return l.Forward.TryAcquire(ctx, key, token, ttl)
}

func (l link) Release(ctx context.Context, key, token string) (bool, error) {
	select {
	case <-l.process.gone:
		return false, dlock.ErrClosed
	default:
		return l.Forward.Release(ctx, key, token)
	}
}

// An acquired is what a call of Acquire returned, and when.
type acquired struct {
	lease  *dlock.Lease
	permit int
	err    error
	at     time.Time
}

func (p *process) start(ctx context.Context) <-chan acquired {
	done := make(chan acquired, 1)
	go func() { lease, permit, err := p.Acquire(ctx); done <- acquired{lease, permit, err, time.Now()} }()
	return done
}

// fill takes all permits, and returns their leases by their numbers.
func (w *world) fill(p *process, permits int) []*dlock.Lease {
	leases := make([]*dlock.Lease, permits)
	for range leases {
		lease, i, err := p.Acquire(w.Context())
		require.NoError(w, err)
		require.Nil(w, leases[i])
		require.Equal(w, slot(i), lease.Key())
		leases[i] = lease
	}
	return leases
}

func slot(i int) string { return "sem#" + strconv.Itoa(i) }

func (w *world) status(p *process, key string) dlock.Status {
	status, err := p.client.Inspect(w.Context(), key)
	require.NoError(w, err)
	return status
}

// A judge counts who works at the same time.
type judge struct {
	mu        sync.Mutex
	now, most int
	last      time.Time // when somebody began to work
	waits     []time.Duration
	held      map[int]bool  // of each permit
	fences    map[int]int64 // likewise
}

func newJudge() *judge { return &judge{held: make(map[int]bool), fences: make(map[int]int64)} }

// work takes permits, and holds each for as long as hold says, or until its process is killed.
func (j *judge) work(w *world, p *process, until time.Time, hold func() time.Duration) {
	for begun := time.Now(); begun.Before(until); begun = time.Now() {
		lease, permit, err := p.Acquire(w.Context())
		if err != nil {
			return
		}
		j.change(1, func() {
			assert.False(w, j.held[permit], "two have permit %d", permit)
			assert.Greater(w, lease.Fence(), j.fences[permit], "the fence of permit %d", permit)
			j.held[permit], j.fences[permit], j.last = true, lease.Fence(), time.Now()
			j.waits = append(j.waits, time.Since(begun))
		})
		select {
		case <-time.After(hold()):
		case <-lease.Done():
		case <-p.gone:
		}
		j.change(-1, func() { j.held[permit] = false })
		_ = lease.Release()
	}
}

func (j *judge) change(by int, note func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now += by
	j.most = max(j.most, j.now)
	note()
}

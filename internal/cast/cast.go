// Package cast has what tests of several processes share: a store in virtual time, and Clients that can be killed and cut off.
package cast

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// RTT is how long a round trip to a server takes. Memory takes no time.
const RTT = 2 * time.Millisecond

// A World is a store in virtual time, and the faults of its Clients.
type World struct {
	*testing.T
	Memory  *memory.Locker
	Servers []*sim.Server
	Away    sync.Map // servers that nobody reaches

	Inspect func()  // before each look, if set
	Try     Attempt // each attempt, if set
}

// An Attempt makes an attempt, which is call, or something else.
type Attempt func(ctx context.Context, key string, call func() (dlock.Attempt, error)) (dlock.Attempt, error)

// In calls f with a store: memory, redis, or redlock, which is a majority of three servers.
func In(t *testing.T, store string, f func(*World)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w := &World{T: t, Memory: memory.New()}
		for range map[string]int{"redis": 1, "redlock": 3}[store] {
			w.Servers = append(w.Servers, sim.NewServer())
		}
		f(w)
	})
}

// A Process is a Client in a process of its own.
type Process struct {
	*dlock.Client
	Cut  atomic.Bool   // nothing passes
	Gone chan struct{} // closed when it is killed

	world *World
	conns []*sim.Conn
}

// Process begins a process. It is closed at the end of the test, and nothing is left of its leases then.
func (w *World) Process(opts ...dlock.Option) *Process {
	p := &Process{Gone: make(chan struct{}), world: w}
	nodes := []dlock.Locker{w.Memory}
	for i, server := range w.Servers {
		p.conns = append(p.conns, sim.Dial(server, func(sim.Trip) sim.Fate {
			_, away := w.Away.Load(server)
			leg := sim.Leg{Delay: RTT / 2, Lost: p.Cut.Load() || away}
			return sim.Fate{Request: leg, Reply: leg}
		}))
		nodes = append(nodes[:i], rediscore.New(p.conns[i]))
	}
	store := nodes[0]
	if len(nodes) > 1 {
		store = redlock.New(nodes, redlock.WithoutGuard())
	}
	p.Client = dlock.New(link{dlock.Forward{Locker: store}, p}, opts...)
	w.Cleanup(func() {
		if err := p.Close(); !p.Cut.Load() {
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

func (p *Process) disconnect() {
	for _, c := range p.conns {
		c.Close()
	}
}

// Kill ends a process: it sends nothing any more, and its connections are closed.
func (p *Process) Kill() {
	close(p.Gone)
	p.disconnect()
	over, end := context.WithCancel(context.Background())
	end()
	go p.Shutdown(over)
}

// A link is what a process has of the store.
type link struct {
	dlock.Forward
	process *Process
}

func (l link) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	call := func() (dlock.Attempt, error) { return l.Forward.TryAcquire(ctx, key, token, ttl) }
	if l.process.world.Try == nil {
		return call()
	}
	return l.process.world.Try(ctx, key, call)
}

func (l link) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	if l.process.world.Inspect != nil {
		l.process.world.Inspect()
	}
	return l.Forward.Inspect(ctx, key)
}

func (l link) Release(ctx context.Context, key, token string) (bool, error) {
	select {
	case <-l.process.Gone:
		return false, dlock.ErrClosed
	default:
		return l.Forward.Release(ctx, key, token)
	}
}

package semaphore_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/cast"
	"github.com/dlock-go/dlock/semaphore"
)

const (
	ttl = 2 * time.Second
	rtt = cast.RTT
)

var errAway = errors.New("connection refused")

// everywhere calls f with each kind of store.
func everywhere(t *testing.T, f func(*cast.World)) {
	for _, store := range []string{"memory", "redis", "redlock"} {
		cast.In(t, store, f)
	}
}

type process struct {
	*cast.Process
	*semaphore.Semaphore
}

func begin(w *cast.World, permits int, opts ...dlock.Option) *process {
	p := w.Process(append([]dlock.Option{dlock.WithTTL(ttl)}, opts...)...)
	return &process{p, semaphore.New(p.Client, "sem", permits)}
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
func fill(w *cast.World, p *process, permits int) []*dlock.Lease {
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

func status(w *cast.World, p *process, key string) dlock.Status {
	status, err := p.Inspect(w.Context(), key)
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
func (j *judge) work(w *cast.World, p *process, until time.Time, hold func() time.Duration) {
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
		case <-p.Gone:
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

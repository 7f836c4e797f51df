package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/sim"
)

var errFlaky = errors.New("the store is flaky")

// A crowd is 64 goroutines of three Clients that want one key, all with local turns, in all the ways that a Client has.
type crowd struct {
	*testing.T
	recorder *history.Recorder
	flaky    bool
	ttl      time.Duration
	clients  []*dlock.Client
	end      time.Time

	mu                     sync.Mutex
	tokens                 map[string]bool // that have held the key
	holds, turns, detached int
	longest                time.Duration
}

func TestRandomHistoryWithLocalTurns(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"memory, n=2":  func(t *testing.T) { onMemory(t, 2, 2*time.Second, false) },
		"memory, n=4":  func(t *testing.T) { onMemory(t, 4, 2*time.Second, false) },
		"memory, n=8":  func(t *testing.T) { onMemory(t, 8, 2*time.Second, false) },
		"flaky memory": func(t *testing.T) { onMemory(t, 8, 150*time.Millisecond, true) },
		"Redis":        onRedis,
	} {
		t.Run(name, func(t *testing.T) { bubble.Test(t, test) })
	}
}

func onMemory(t *testing.T, n int, ttl time.Duration, flaky bool) {
	store := memory.New()
	c := newCrowd(t, n, ttl, flaky, func() dlock.Locker { return store })
	faults := make(chan struct{})
	go func() {
		defer close(faults)
		for flaky && time.Now().Before(c.end) {
			time.Sleep(rand.N(50 * time.Millisecond))
			switch rand.N(3) {
			case 0:
				store.Fail(errFlaky)
			case 1:
				store.FailReplies(errFlaky)
			case 2:
				store.Delay(rand.N(5 * time.Millisecond))
			}
			time.Sleep(rand.N(20 * time.Millisecond))
			store.Fail(nil)
			store.FailReplies(nil)
			store.Delay(0)
		}
	}()
	c.run()
	<-faults
	time.Sleep(c.ttl)
	hold, err := store.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, hold.Held, "the key is not free in the end")
	require.Zero(t, hold.Waiting)
}

// onRedis has a network that takes up to a millisecond each way.
func onRedis(t *testing.T) {
	server := sim.NewServer()
	slow := func(sim.Trip) sim.Fate {
		return sim.Fate{Request: sim.Leg{Delay: rand.N(time.Millisecond)}, Reply: sim.Leg{Delay: rand.N(time.Millisecond)}}
	}
	c := newCrowd(t, 8, 2*time.Second, false, func() dlock.Locker {
		conn := sim.Dial(server, slow)
		l := rediscore.New(conn)
		t.Cleanup(func() { l.Close(); conn.Close() })
		return l
	})
	c.run()
	time.Sleep(c.ttl)
	keys := server.Keys()
	require.Len(t, keys, 1, "more than the fence counter is left")
	require.True(t, strings.HasSuffix(keys[0], "dlock1:fence"), keys[0])
}

func newCrowd(t *testing.T, n int, ttl time.Duration, flaky bool, dial func() dlock.Locker) *crowd {
	c := &crowd{T: t, recorder: history.NewRecorder(time.Now()), flaky: flaky, ttl: ttl, tokens: make(map[string]bool), end: time.Now().Add(2 * time.Second)}
	for i := range 3 {
		c.clients = append(c.clients, dlock.New(c.recorder.Locker(fmt.Sprint(i), dial()), dlock.WithTTL(ttl), dlock.WithLocalTurns(n)))
	}
	return c
}

// wrong fails the test because of an error, which only a flaky store excuses.
func (c *crowd) wrong(err error) {
	if err != nil && !c.flaky {
		c.Error(err)
	}
}

// run runs the crowd, and checks what it did. Nobody may wait for long.
func (c *crowd) run() {
	var all sync.WaitGroup
	for client, workers := range []int{40, 16, 8} {
		for range workers {
			all.Go(func() {
				for time.Now().Before(c.end) {
					c.acquire(client)
				}
			})
		}
	}
	all.Wait()
	for _, client := range c.clients {
		c.wrong(client.Close())
		require.Zero(c, client.Stats().Waiters)
	}
	late := func(ttl time.Duration) time.Duration { return history.Drift(ttl) + time.Second }
	violation, unchecked := history.Model{FenceStep: 1, Late: late}.Check(c.recorder.History())
	if violation != nil {
		c.Error(violation)
	}
	c.Logf("%d holds, %d turns, %d detached; the longest wait took %v; unchecked: %v", c.holds, c.turns, c.detached, c.longest, unchecked)
	require.Greater(c, c.turns, 20, "too little happened to prove anything")
	require.Greater(c, c.detached, 0, "too little happened to prove anything")
}

func (c *crowd) acquire(client int) {
	const limit = 20 * time.Second // of a wait that need not end
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	use := c.clients[client]
	if rand.N(5) == 0 {
		use = use.With(dlock.WithOwner("second class"))
	}
	acquire := use.Acquire
	switch rand.N(8) {
	case 0:
		acquire = use.TryAcquire
	case 1:
		ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		defer cancel()
	case 2:
		acquire = use.With(dlock.WithMaxWait(rand.N(20 * time.Millisecond))).Acquire
	}
	asked := c.recorder.Now()
	l, err := acquire(ctx, "k")
	waited := c.recorder.Now() - asked
	deadline, _ := ctx.Deadline()
	switch {
	case err == nil:
		c.hold(client, l, asked, false)
	case waited > limit/2:
		c.Errorf("waited for %v: %v", waited, err)
	case !errors.Is(err, dlock.ErrHeld) && time.Now().Before(deadline):
		c.wrong(fmt.Errorf("after %v: %w", waited, err))
	}
	c.mu.Lock()
	c.longest = max(c.longest, waited)
	c.mu.Unlock()
	if err != nil { // while a store fails, no other call takes time
		time.Sleep(rand.N(time.Millisecond))
	}
}

func (c *crowd) hold(client int, l *dlock.Lease, asked time.Duration, adopted bool) {
	h := c.recorder.Hold(fmt.Sprint(client), l, asked)
	c.mu.Lock()
	switch c.holds++; {
	case adopted:
		c.detached++
	case c.tokens[l.Token()]:
		c.turns++
	}
	c.tokens[l.Token()] = true
	c.mu.Unlock()
	if rand.N(3) == 0 {
		time.Sleep(rand.N(2 * time.Millisecond))
	}
	switch rand.N(30) {
	case 0:
		time.Sleep(rand.N(min(c.ttl/2, 150*time.Millisecond)))
	case 1, 2:
		c.wrong(l.Renew(context.Background()))
	case 3, 4:
		d, err := l.Detach()
		if err == nil {
			c.recorder.End(h, l)
			adopter, asked := rand.N(len(c.clients)), c.recorder.Now()
			if l, err = c.clients[adopter].Adopt(context.Background(), d); err == nil {
				c.hold(adopter, l, asked, true)
			}
			c.wrong(err)
			return
		}
		if !errors.Is(err, dlock.ErrInvalid) {
			c.wrong(err)
		}
	}
	c.recorder.End(h, l)
	for range 1 + rand.N(2) {
		c.wrong(l.Release())
	}
}

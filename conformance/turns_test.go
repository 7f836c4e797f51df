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

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/redistest"
)

var errFlaky = errors.New("the store is flaky")

// A crowd is 64 goroutines of three Clients that want one key, all with local turns, in all
// the ways that a Client has.
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
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, n := range []int{2, 4, 8} {
		t.Run(fmt.Sprint("memory, n=", n), func(t *testing.T) { onMemory(t, n, 2*time.Second, false) })
	}
	t.Run("flaky memory", func(t *testing.T) { onMemory(t, 8, 150*time.Millisecond, true) })
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
	require.Eventually(t, func() bool {
		hold, err := store.Inspect(context.Background(), "k")
		return err == nil && !hold.Held && hold.Waiting == 0
	}, 30*time.Second, time.Millisecond, "the key is not free in the end")
}

func TestRandomHistoryWithLocalTurnsOnRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	if !redistest.Installed() {
		t.Skip("no Redis server is installed")
	}
	for name, dial := range map[string]func(t *testing.T, addrs []string) (dlock.Locker, func()){
		"goredis": func(_ *testing.T, addrs []string) (dlock.Locker, func()) {
			client := goredislib.NewUniversalClient(&goredislib.UniversalOptions{Addrs: addrs, ContextTimeoutEnabled: true})
			l := goredis.New(client)
			return l, func() { l.Close(); client.Close() }
		},
		"rueidis": func(t *testing.T, addrs []string) (dlock.Locker, func()) {
			client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: addrs, DisableCache: true})
			require.NoError(t, err)
			l := rueidis.New(client)
			return l, func() { l.Close(); client.Close() }
		},
		"redigo": func(_ *testing.T, addrs []string) (dlock.Locker, func()) {
			pool := &redigolib.Pool{MaxIdle: 20, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
				return redigolib.DialContext(ctx, "tcp", addrs[0])
			}}
			l := redigo.New(pool)
			return l, func() { l.Close(); pool.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			onServers(t, []*redistest.Server{redistest.Start(t)}, dial)
		})
		if name != "redigo" { // which has no cluster
			t.Run(name+", cluster", func(t *testing.T) {
				onServers(t, redistest.StartCluster(t, 2, 0).Nodes, dial)
			})
		}
	}
}

func onServers(t *testing.T, servers []*redistest.Server, dial func(t *testing.T, addrs []string) (dlock.Locker, func())) {
	ignored := goleak.IgnoreCurrent()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	var closers []func()
	c := newCrowd(t, 8, 2*time.Second, false, func() dlock.Locker {
		l, closeAll := dial(t, addrs)
		closers = append(closers, closeAll)
		return l
	})
	c.run()
	for _, f := range closers {
		f()
	}
	require.Eventually(t, func() bool {
		var keys []any
		for _, s := range servers {
			reply, _ := s.Do("KEYS", "*")
			some, _ := reply.([]any)
			keys = append(keys, some...)
		}
		return len(keys) == 1 && strings.HasSuffix(keys[0].(string), "dlock1:fence")
	}, 30*time.Second, 10*time.Millisecond, "more than the fence counter is left")
	require.NoError(t, goleak.Find(ignored,
		goleak.IgnoreAnyFunction("github.com/dlock-go/dlock/internal/redistest.(*process).attend"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"), // which ends after 5 s
	))
}

func newCrowd(t *testing.T, n int, ttl time.Duration, flaky bool, dial func() dlock.Locker) *crowd {
	c := &crowd{T: t, recorder: history.NewRecorder(time.Now()), flaky: flaky, ttl: ttl, tokens: make(map[string]bool), end: time.Now().Add(time.Second)}
	for i := range 3 {
		c.clients = append(c.clients, dlock.New(c.recorder.Locker(fmt.Sprint(i), dial()), dlock.WithTTL(ttl), dlock.WithLocalTurns(n)))
	}
	return c
}

// run runs the crowd, and checks what it did. Nobody may wait for long.
func (c *crowd) run() {
	var all sync.WaitGroup
	for client, workers := range []int{40, 16, 8} {
		for range workers {
			all.Go(func() {
				for c.goesOn() {
					c.acquire(client)
				}
			})
		}
	}
	all.Wait()
	for _, client := range c.clients {
		if err := client.Close(); err != nil && !c.flaky {
			c.Error(err)
		}
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

// goesOn reports whether the second is not over, or too little has happened yet, as on a busy
// machine.
func (c *crowd) goesOn() (on bool) {
	late := time.Since(c.end)
	c.count(func() { on = late < 0 || late < 20*time.Second && (c.turns <= 20 || c.detached == 0) })
	return on
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
	c.count(func() { c.longest = max(c.longest, waited) })
	switch {
	case err == nil:
		c.hold(client, l, asked, false)
	case waited > limit/2:
		c.Errorf("waited for %v: %v", waited, err)
	case !c.flaky && !errors.Is(err, dlock.ErrHeld) && time.Now().Before(deadline):
		c.Errorf("after %v: %v", waited, err)
	}
}

func (c *crowd) hold(client int, l *dlock.Lease, asked time.Duration, adopted bool) {
	h := c.recorder.Hold(fmt.Sprint(client), l, asked)
	c.count(func() {
		if c.holds++; c.tokens[l.Token()] && !adopted {
			c.turns++
		}
		c.tokens[l.Token()] = true
	})
	if rand.N(3) == 0 {
		time.Sleep(rand.N(2 * time.Millisecond))
	}
	switch rand.N(30) {
	case 0:
		time.Sleep(rand.N(min(c.ttl/2, 150*time.Millisecond)))
	case 1, 2:
		if err := l.Renew(context.Background()); err != nil && !c.flaky {
			c.Error(err)
		}
	case 3, 4:
		if d, err := l.Detach(); err == nil {
			c.recorder.End(h, l)
			c.adopt(d)
			return
		} else if !c.flaky && !errors.Is(err, dlock.ErrInvalid) {
			c.Error(err)
		}
	}
	c.recorder.End(h, l)
	for range 1 + rand.N(2) {
		if err := l.Release(); err != nil && !c.flaky {
			c.Error(err)
		}
	}
}

func (c *crowd) adopt(d dlock.Detached) {
	client := rand.N(len(c.clients))
	asked := c.recorder.Now()
	l, err := c.clients[client].Adopt(context.Background(), d)
	if err == nil {
		c.count(func() { c.detached++ })
		c.hold(client, l, asked, true)
	} else if !c.flaky {
		c.Error(err)
	}
}

func (c *crowd) count(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

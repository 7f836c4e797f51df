package rediscore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// A pooledConn has a pool of so many connections.
type pooledConn struct {
	*sim.Conn
	size int
}

func (c pooledConn) PoolSize() int { return c.size }

// enterWithPool lets a Locker enter whose calls take a round trip, and more for each that goes along.
func (s *scene) enterWithPool(size int, roundTrip, execution time.Duration) *actor {
	a := s.enterOn(func(c *sim.Conn) rediscore.Conn { return pooledConn{c, size} })
	a.travelsBy(func(t sim.Trip) sim.Fate {
		return sim.Fate{Request: sim.Leg{Delay: roundTrip + time.Duration(len(t.Calls))*execution}}
	})
	return a
}

func (a *actor) sizes() (sizes []int) {
	for _, batch := range a.asked(0) {
		sizes = append(sizes, len(batch.Calls))
	}
	return sizes
}

// occupy lets n calls take lanes, whose answers the test holds back. Each is for a key of its own.
func (a *actor) occupy(n int) (held []*sim.Held) {
	for i := range n {
		token := fmt.Sprint("lane ", i)
		h := a.holdCall(rediscore.AcquireScript, token)
		go func() { _, _ = a.TryAcquire(a.Context(), token, token, ttl) }()
		held = append(held, h.Await())
	}
	return held
}

// begin calls a function in a goroutine, and returns when all has come to rest. The result is empty
// until the function has returned.
func begin[T any](f func() T) <-chan T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	synctest.Wait()
	return done
}

// try begins to try a free key.
func (a *actor) try(ctx context.Context, token string) <-chan error {
	return begin(func() error {
		attempt, err := a.TryAcquire(ctx, token, token, ttl)
		if err == nil && !attempt.Acquired {
			err = errors.New("not acquired")
		}
		return err
	})
}

// tokens returns whose calls travelled together.
func (n noted) tokens() (tokens []string) {
	for _, call := range n.Calls {
		tokens = append(tokens, strings.Join(call.Args[:min(1, len(call.Args))], ""))
	}
	return tokens
}

// A call that is alone goes at once, and needs one round trip. If it is not of a wait, it takes its ctx along, and
// nothing is allocated for it.
func TestLoneCallGoesAtOnce(t *testing.T) {
	inScene(t, func(s *scene, _ *actor) {
		a := s.enterWithPool(1, time.Millisecond, 0)
		for i := range 6 {
			start, key := time.Now(), fmt.Sprint("free", i)
			acquire := []func(context.Context, string, string, time.Duration) (dlock.Attempt, error){a.Acquire, a.TryAcquire}[i%2]
			must(acquire(s.Context(), key, "A", ttl))(s)
			require.Equal(s, time.Millisecond, time.Since(start))
		}
		require.Equal(s, []int{1, 1, 1, 1, 1, 1}, a.sizes())
	})

	c := new(plainConn)
	l := rediscore.New(c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	must(l.TryAcquire(ctx, "k", "A", ttl))(t)
	require.Equal(t, ctx, c.ctx)
	call := l.ScriptCall(rediscore.RenewScript, "k", "A", "1000")
	bare := testing.AllocsPerRun(100, func() { _, _ = c.Eval(ctx, call) })
	require.Equal(t, bare, testing.AllocsPerRun(100, func() { _, _ = l.EvalCall(ctx, call) }))
}

// A plainConn has one reply for all calls.
type plainConn struct {
	rediscore.Conn
	ctx context.Context
}

func (*plainConn) Cluster() bool { return false }

func (c *plainConn) Eval(ctx context.Context, _ rediscore.Call) (any, error) {
	c.ctx = ctx
	return int64(1), nil
}

// A Conn may keep the calls with a WAIT when it has returned.
func TestCallsAreKept(t *testing.T) {
	c := new(keepingConn)
	must(rediscore.New(c, rediscore.WithReplicas(1, time.Second)).TryAcquire(t.Context(), "k", "A", ttl))(t)
	require.Equal(t, rediscore.AcquireScript, c.kept[0].Script)
}

type keepingConn struct {
	plainConn
	kept []rediscore.Call
}

func (c *keepingConn) EvalReplicated(_ context.Context, calls []rediscore.Call, results []rediscore.Result, _ rediscore.Replication) {
	results[0] = rediscore.Result{Reply: int64(1), Replicas: 1}
	c.kept = calls
}

// A leavingConn has connections to a replica. Others lead to a master if it has moved.
type leavingConn struct {
	*sim.Conn
	stale, moved atomic.Bool
	first, left  atomic.Int64 // calls over the connections, and over others
}

var errReadOnly = errors.New("READONLY You can't write against a read only replica")

func (c *leavingConn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	if c.first.Add(1); c.stale.Load() && call.Script != rediscore.Scripts["inspect"] {
		return nil, errReadOnly
	}
	return c.Conn.Eval(ctx, call)
}

func (c *leavingConn) EvalAnew(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, _ *rediscore.Replication) int {
	c.left.Add(1)
	for i := range results {
		if results[i].Err = errReadOnly; c.moved.Load() {
			results[i].Reply, results[i].Err = c.Conn.Eval(ctx, calls[i])
		}
	}
	return 1
}

func (s *scene) enterOnStale() (*actor, *leavingConn) {
	c := new(leavingConn)
	return s.enterOn(func(conn *sim.Conn) rediscore.Conn { c.Conn = conn; return c }), c
}

// Releases of one lock that travel together are one call. All their tokens leave the queue before the lock is handed on,
// and each caller gets its own answer, as if its release had come alone. If the script fails, each is made alone.
func TestReleasesOfALockAreOneCall(t *testing.T) {
	for lacking, sent := range map[string]int{"": 1, "HDEL": 2, "ZREM": 2} {
		inScene(t, func(s *scene, a *actor) {
			other := s.enter()
			gone, stays := other.acquire("gone"), other.acquire("stays")
			lanes := a.occupy(2)
			n, held, failed := len(a.asked(0)), 0, 0
			var calls []<-chan dlock.RenewResult
			for _, token := range []string{"stranger", "H", "gone", "H"} {
				calls = append(calls, a.beginRelease(token))
			}
			if lacking != "" {
				s.forbid(lacking)
			}
			lanes[0].Answer()
			for _, done := range calls {
				if r := <-done; r.Held {
					held++
				} else if r.Err != nil {
					require.True(s, dlock.NoEffect(r.Err), r.Err)
					failed++
				}
			}
			require.Len(s, a.asked(n), sent)
			if lacking == "" {
				require.Equal(s, 1, held, "of two releases of the holder, one has ended its lease")
				require.Zero(s, failed)
				stays.granted()
				require.False(s, gone.over())
			} else {
				require.NotZero(s, held)
				require.NotZero(s, failed)
				require.NotEqual(s, "H", s.holder())
			}
			s.forbid()
			lanes[1].Answer()
			gone.cancel()
			stays.cancel()
		})
	}
}

// With replicas, renewals, grants and releases do not wait for each other, and one WAIT is for all
// calls of a flight. So no lease is lost while thousands of attempts wait for a replica that takes a second.
func TestReplicasOfFlights(t *testing.T) {
	inScene(t, func(s *scene, _ *actor) {
		s.server.NewReplica().SetLink(sim.Link{Delay: time.Second / 2})
		a := s.enter(rediscore.WithReplicas(1, time.Minute))
		methods := methodsOf(s.Context(), a.Locker, "lease", "lease", 5*time.Second)
		require.True(s, must(methods["TryAcquire"]())(s))
		require.NoError(s, <-a.try(s.Context(), "released"))
		var all sync.WaitGroup
		n, begun := len(a.asked(0)), time.Now()
		for i := range 3000 {
			all.Go(func() { must(a.TryAcquire(s.Context(), fmt.Sprint(i), "A", ttl))(s) })
		}
		time.Sleep(time.Millisecond)
		released := time.Now()
		require.True(s, must(a.Release(s.Context(), "released", "released"))(s))
		require.Zero(s, time.Since(released))
		for range 5 {
			renewed := time.Now()
			require.True(s, must(methods["Renew"]())(s))
			require.LessOrEqual(s, time.Since(renewed), time.Second)
			time.Sleep(time.Second)
		}
		all.Wait()
		require.Less(s, len(a.asked(n)), 60, "trips for 3,000 attempts")
		require.Less(s, time.Since(begun), 20*time.Second)
	})

	inScene(t, func(s *scene, _ *actor) { // a flight waits for as long as the replicas may take
		s.server.NewReplica().SetLink(sim.Link{Delay: 4 * time.Second})
		a := s.enter(rediscore.WithReplicas(1, 10*time.Second))
		for _, done := range []<-chan error{a.try(s.Context(), "alone"), a.try(s.Context(), "one"), a.try(s.Context(), "another")} {
			require.NoError(s, <-done)
		}
	})
}

// A wait that ends while its call waits for a lane has sent nothing, and says so. If its token is
// released meanwhile, the call is not sent: it would put the token back into the queue. Close takes back
// what waits for a lane, and waits for what is in flight.
func TestAskIsWithdrawn(t *testing.T) {
	for name, end := range map[string]func(s *scene, a *actor, w *waiting){
		"cancelled": func(s *scene, a *actor, w *waiting) {
			w.cancelled()
			require.True(s, dlock.NoEffect(w.err))
		},
		"released": func(s *scene, a *actor, w *waiting) {
			require.False(s, a.release("B"))
			time.Sleep(time.Minute / 2)
			w.failed(dlock.ErrReleased)
			require.True(s, dlock.NoEffect(w.err))
		},
		"closed": func(s *scene, a *actor, w *waiting) {
			require.NoError(s, a.Close())
			w.failed(dlock.ErrClosed)
		},
	} {
		inScene(t, func(s *scene, _ *actor) {
			a := s.enterWithPool(1, time.Second, 0)
			first, second := a.acquire("A"), a.acquire("B")
			end(s, a, second)
			first.cancel()
			require.True(s, first.over())
			require.Equal(s, name == "cancelled", !dlock.NoEffect(first.err), "its call is in flight")
			time.Sleep(time.Minute / 3)
			require.Zero(s, a.calls(rediscore.EnqueueScript, "B"), name)
		})
	}
}

// The calls for a master travel together if the Conn knows the masters, and otherwise those for a slot. A
// batch goes to all masters at the same time.
func TestCallsForAMaster(t *testing.T) {
	for _, routed := range []bool{true, false} {
		inScene(t, func(s *scene, _ *actor) {
			cluster := sim.NewCluster(2, 0)
			s.server = cluster.Nodes[0]
			a := s.enterOn(func(c *sim.Conn) rediscore.Conn {
				if routed {
					return c
				}
				return struct{ rediscore.Conn }{c}
			})
			a.travels(sim.Fate{Request: sim.Leg{Delay: time.Millisecond}})
			on := map[bool][]string{}
			for i := range 20 {
				key := fmt.Sprint(i)
				here := cluster.MasterOf(key) == cluster.Nodes[0]
				on[here] = append(on[here], key)
			}
			for _, key := range on[true][:2] {
				a.try(s.Context(), key)
			}
			n := len(a.asked(0))
			same, other := a.try(s.Context(), on[true][2]), a.try(s.Context(), on[false][0])
			want := 2
			if routed {
				want = 1
			}
			require.Len(s, a.asked(n), want, "at once; routed: %v", routed)
			require.NoError(s, <-same)
			require.NoError(s, <-other)

			begun, n := time.Now(), len(a.asked(0))
			results, err := a.RenewBatch(s.Context(), []dlock.Renewal{
				{Key: on[true][2], Token: on[true][2], TTL: ttl}, {Key: on[false][0], Token: on[false][0], TTL: ttl}, {Key: on[true][1], Token: "stranger", TTL: ttl},
			})
			require.NoError(s, err)
			require.Equal(s, []dlock.RenewResult{{Held: true}, {Held: true}, {}}, results)
			require.Equal(s, time.Millisecond, time.Since(begun))
			require.Len(s, a.asked(n), 2, "one to each master")
		})
	}
}

// The lanes are two, and at most half of the pool. With replicas, each kind of call has a third of that.
func TestLanes(t *testing.T) {
	for pool, want := range map[int][6]int{
		0: {2, 16, 64, 1, 5, 64}, 1: {1, 1, 1, 1, 1, 1}, 2: {1, 1, 2, 1, 1, 2}, 3: {2, 2, 3, 1, 1, 3}, 20: {2, 10, 20, 1, 3, 20},
	} {
		var got [6]int
		for i, n := range []int{0, 1} {
			l := rediscore.New(pooledConn{sim.Dial(sim.NewServer(), nil), pool}, rediscore.WithReplicas(n, time.Second))
			got[3*i], got[3*i+1], got[3*i+2] = rediscore.Lanes(l)
		}
		require.Equal(t, want, got, "pool of %d", pool)
	}
}

// What calls do that travel.
var flights = scenes{
	"A call that a replica has refused is made again where the address leads now, and the inbox is opened again there, once": func(s *scene, other *actor) {
		a, c := s.enterOnStale()
		must(other.TryAcquire(s.Context(), "k", "H", ttl))(s)
		w := a.acquire("A")
		time.Sleep(2 * time.Second)
		c.stale.Store(true)
		c.moved.Store(true)
		for i := range 10 {
			require.NoError(s, <-a.try(s.Context(), fmt.Sprint(i)))
		}
		time.Sleep(time.Second)
		require.Len(s, a.listened(), 2)
		require.True(s, other.release("H"))
		w.granted()
	},
	"Where leaving does not help, four connections are left in a second": func(s *scene, _ *actor) {
		// Then calls that write get the last answer, and nothing is sent.
		a, c := s.enterOnStale()
		c.stale.Store(true)
		for begun := time.Now(); time.Since(begun) < 3*rediscore.LeftPeriod; time.Sleep(5 * time.Millisecond) {
			err := <-a.try(s.Context(), "A")
			require.ErrorIs(s, err, errReadOnly)
			require.True(s, dlock.NoEffect(err) && !dlock.Refused(err))
		}
		require.EqualValues(s, 12, c.left.Load())
		require.EqualValues(s, 12, c.first.Load())
		_, err := a.Inspect(s.Context(), "k")
		require.NoError(s, err)
		c.moved.Store(true)
		time.Sleep(rediscore.LeftPeriod)
		require.NoError(s, <-a.try(s.Context(), "A"))
	},
	"Calls that find no lane free go together when one is, renewals first, and otherwise as they came": func(s *scene, a *actor) {
		// Each gets its own answer. The caller of the flight before returns meanwhile.
		ctx := s.Context()
		for _, key := range []string{"Release", "Renew", "RenewBatch", "Confirm", "Pass"} {
			require.NoError(s, <-a.try(ctx, key))
		}
		held := a.occupy(1)
		first := a.holdCall(rediscore.AcquireScript, "alone")
		alone := a.try(ctx, "alone")
		n := len(a.asked(0))
		var calls []<-chan error
		for _, c := range []struct {
			method, key string
			want        bool
		}{
			{"TryAcquire", "free", true}, {"TryAcquire", "k", false}, {"Release", "Release", true}, {"Renew", "Renew", true}, {"Inspect", "k", false},
			{"Vote", "Vote", true}, {"Pass", "Pass", true}, {"Acquire", "Acquire", true}, {"RenewBatch", "RenewBatch", true}, {"RenewBatch", "k", false},
			{"Confirm", "Confirm", true},
		} {
			calls = append(calls, begin(func() error {
				if got, err := methodsOf(ctx, a.Locker, c.key, c.key, ttl)[c.method](); err != nil || got != c.want {
					return fmt.Errorf("%v: %v, %w", c, got, err)
				}
				return nil
			}))
		}
		require.Len(s, a.asked(n), 0)
		shared := a.conn.Hold(s, func(t sim.Trip) bool { return len(t.Calls) > 1 })
		first.Answer()
		require.NoError(s, <-alone, "it does not carry the others")
		require.Equal(s, []string{"Renew", "RenewBatch", "k", "Confirm", "Release", "Pass", "free"}, noted{Trip: shared.Await().Trip}.tokens()[:7])
		require.Len(s, shared.Calls, 11)
		shared.Answer()
		for _, done := range calls {
			require.NoError(s, <-done)
		}
		require.Len(s, a.asked(n), 1)
		held[0].Answer()
	},
	"A call for several tokens that has removed many dead waiters, and nothing else, is made again for each": func(s *scene, a *actor) {
		s.crowd(5_100, "dead", "pgone")
		lanes := a.occupy(2)
		stranger, holder := a.beginRelease("stranger"), a.beginRelease("H")
		lanes[0].Answer()
		require.Equal(s, dlock.RenewResult{}, <-stranger)
		require.Equal(s, dlock.RenewResult{Held: true}, <-holder)
		require.Empty(s, s.holder())
		require.Zero(s, s.waiting())
		lanes[1].Answer()
	},
	"Close refuses the calls that wait for a lane, and waits for flights that have no caller. Those of callers go on": func(s *scene, a *actor) {
		held := a.occupy(2)
		flight := a.holdCall(rediscore.AcquireScript, "flies")
		flies := a.try(s.Context(), "flies")
		held[0].Answer()
		flight.Await()
		waits := a.try(s.Context(), "waits")
		closed := begin(a.Close)
		err := <-waits
		require.ErrorIs(s, err, dlock.ErrClosed)
		require.True(s, dlock.NoEffect(err))
		require.Empty(s, closed)
		flight.Answer()
		require.NoError(s, <-flies)
		require.NoError(s, <-closed)
		require.Zero(s, a.calls(rediscore.AcquireScript, "waits"))
		held[1].Answer()
	},
	"A call that must be made again, since it has only removed the dead, is not if nobody waits for it": func(s *scene, _ *actor) {
		a := s.enterWithPool(1, 0, 0)
		held := a.occupy(1)
		w := a.acquire("A")
		flight := a.holdCall(rediscore.EnqueueScript, "A")
		held[0].Answer()
		flight.Await()
		w.cancelled()
		flight.Return(rediscore.Unswept, nil)
		require.NoError(s, a.Close())
		require.Equal(s, 1, a.calls(rediscore.EnqueueScript, "A"))
	},
	"The failure of one call of a flight is that of one wait. A flight that is lost may have had all its effects": func(s *scene, _ *actor) {
		a := s.enterWithPool(1, time.Second, 0)
		a.answers(func(call rediscore.Call) (any, error) {
			switch call.Args[0] {
			case "refused":
				return nil, errors.New("READONLY You can't write against a read only replica.")
			case "lost":
				return nil, errLost
			}
			return waits(3, "H", -1), nil
		})
		a.acquire("A")
		refused, lost, waits := a.acquire("refused"), a.acquire("lost"), a.acquire("waits")
		time.Sleep(2 * time.Second)
		require.Contains(s, a.sizes(), 3)
		require.True(s, refused.over())
		require.Equal(s, temporary, verdictOf(refused.err))
		require.True(s, lost.over())
		require.Equal(s, unknown, verdictOf(lost.err))
		require.False(s, waits.over())
	},
}

func TestFlights(t *testing.T) { flights.play(t) }

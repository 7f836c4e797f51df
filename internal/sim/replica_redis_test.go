package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sim"
)

// A pair is a master and its replica, on both sides.
type pair struct {
	*twins  // the masters
	replica *twins
	process *redistest.Server // of the replica
}

func newPair(t *testing.T) *pair {
	master := redistest.Start(t, "--repl-ping-replica-period", "3600") // a ping would move the offset
	replica := redistest.StartReplica(t, master)
	_, err := master.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0") // so would a key that expires unseen
	require.NoError(t, err)
	p := &pair{twinsOf(t, master), twinsOf(t, replica), replica}
	p.restart()
	return p
}

// restart empties all.
func (p *pair) restart() {
	p.twins.restart()
	p.replica.sim = p.sim.NewReplica()
}

// info returns a field of INFO of both.
func (w *twins) info(field string) (values [2]string) {
	w.t.Helper()
	match := regexp.MustCompile(`\b` + field + `:(\S+)`)
	for i, do := range []func(args ...any) any{w.do, doing(w.t, w.sim)} {
		found := match.FindStringSubmatch(do("INFO", "replication").(string))
		require.NotNil(w.t, found, field)
		values[i] = found[1]
	}
	return values
}

// await returns when the real replica has what its master has.
func (p *pair) await() {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		return p.info("master_repl_offset")[0] == p.replica.info("master_repl_offset")[0]
	}, time.Minute, time.Millisecond)
}

// Random commands move the offset of the replication alike. A replica has the same keys in the end, and
// the same replies.
func TestReplicatedCommandsAsRedis(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	eval := func(w *twins, seed uint64, key string, call ...string) {
		t.Helper()
		before := p.info("master_repl_offset")
		real, simulated := w.eval("return redis.pcall(unpack(ARGV))", []string{key}, call)
		require.Equal(t, real, simulated, "seed %d: %q", seed, call)
		after := p.info("master_repl_offset")
		require.Equal(t, before[0] != after[0], before[1] != after[1], "seed %d: %q moves the offset", seed, call)
	}
	for seed := range sequences(40) {
		p.restart()
		r := rand.New(rand.NewPCG(seed, 4))
		for range 100 {
			key, call := randomCommand(r)
			if r.IntN(4) > 0 {
				eval(p.twins, seed, key, call...)
				continue
			}
			p.await()
			eval(p.replica, seed, key, call...)
		}
		p.await()
		p.replica.compareKeys("")
	}
	for range 2 { // the second changes nothing
		eval(p.twins, 0, "z2", "ZADD", "z2", "1", "m")
	}
	eval(p.twins, 0, "s", "SET", "s", "v", "PX", "1")
	p.await()
	time.Sleep(5 * time.Millisecond)
	eval(p.replica, 0, "s", "GET", "s")
	eval(p.twins, 0, "s", "GET", "s")
}

// A waitingConn asks both masters how many replicas have what a call wrote, each over a connection of its
// own. It notes both answers.
type waitingConn struct {
	*twinConn
	real, simulated string
}

func (c *waitingConn) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	answer := func(n any, err error) string {
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(n)
	}
	var both sync.WaitGroup
	both.Go(func() {
		c.Conn.EvalReplicated(ctx, calls, results, wait)
		c.simulated = answer(results[0].Replicas, results[0].NoWait)
	})
	both.Go(func() {
		options := *c.redis.Options()
		options.PoolSize = 1
		fresh := redis.NewClient(&options)
		defer fresh.Close()
		pipe := fresh.Pipeline()
		pipe.Do(context.Background(), calls[0].Append([]any{"EVAL", calls[0].Script.Source})...)
		n := pipe.Do(context.Background(), "WAIT", wait.Replicas, wait.Milliseconds(ctx))
		pipe.Exec(context.Background())
		c.real = answer(n.Result())
	})
	both.Wait()
}

// locker returns a client of both masters that waits for n replicas.
func (w *twins) locker(n int, timeout time.Duration) (*rediscore.Locker, *waitingConn) {
	conn := &waitingConn{twinConn: &twinConn{Conn: sim.Dial(w.sim, nil), twins: w}}
	l := rediscore.New(conn, rediscore.WithReplicas(n, timeout))
	w.t.Cleanup(func() {
		l.Close()
		conn.Conn.Close()
	})
	return l, conn
}

// waits compares the reply to WAIT, which begins with want, behind the call of a client that waits for n replicas. A real replica may
// need longer than the time-out, which then is doubled.
func (w *twins) waits(n int, timeout time.Duration, want string, call func(l *rediscore.Locker)) {
	w.t.Helper()
	for {
		l, conn := w.locker(n, timeout)
		if call(l); strings.HasPrefix(conn.real, want) || timeout > time.Minute {
			require.Regexp(w.t, "^"+want, conn.real)
			require.Equal(w.t, conn.real, conn.simulated)
			return
		}
		timeout *= 2
	}
}

// What WAIT replies. Before Redis 7.2, the real one also waits for what others have written, if the call
// has written nothing.
func TestWaitAsRedis(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	acquire := func(l *rediscore.Locker) { l.TryAcquire(t.Context(), "k", "A", time.Minute) }
	refused := func(l *rediscore.Locker) { l.TryAcquire(t.Context(), "k", "B", time.Minute) }
	const soon, late = 20 * time.Millisecond, time.Minute
	p.waits(1, late, "1", acquire)
	p.waits(2, soon, "1", acquire)
	p.replica.waits(1, late, "ERR WAIT cannot be used with replica instances", acquire)
	p.process.Suspend()
	p.replica.sim.SetLink(sim.Link{Cut: true})
	p.waits(1, soon, "0", acquire)
	if info := p.do("INFO", "server").(string); regexp.MustCompile(`redis_version:(6|7\.0)\.`).MatchString(info) {
		l, conn := p.locker(1, soon)
		refused(l)
		require.Equal(t, []string{"0", "1"}, []string{conn.real, conn.simulated})
	} else {
		p.waits(1, late, "1", refused)
	}
	p.process.Resume()
	p.replica.sim.SetLink(sim.Link{})
	p.waits(1, late, "1", acquire)
}

// states returns what both sides say of the replication, with numbers in place of IDs.
func (p *pair) states() (states [2]string) {
	numbers := []map[string]int{{}, {}}
	for _, w := range []*twins{p.twins, p.replica} {
		for _, field := range []string{"role", "connected_slaves", "master_replid", "master_replid2"} {
			for i, value := range w.info(field) {
				if replID.MatchString(value) && strings.Trim(value, "0") != "" {
					n, ok := numbers[i][value]
					if !ok {
						n = len(numbers[i])
						numbers[i][value] = n
					}
					value = fmt.Sprint("ID ", n)
				}
				states[i] += field + ":" + value + "\n"
			}
		}
	}
	return states
}

// A promotion, after which the old master goes on, and then follows: what the servers say of themselves, what
// becomes of the marker of votes, of a WAIT, and of what only the old master has.
func TestPromotionAsRedis(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	sameStates := func() {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			states := p.states()
			assert.Equal(c, states[0], states[1])
		}, 10*time.Second, time.Millisecond)
	}
	votes := func(w *twins, key string) {
		t.Helper()
		conn := &twinConn{Conn: sim.Dial(w.sim, nil), twins: w}
		l := rediscore.New(conn)
		_, err := l.Vote(t.Context(), key, "A", time.Minute, 0)
		require.NoError(t, err)
		l.Close()
		require.Empty(t, conn.end())
		real, simulated := w.eval("return tostring(redis.call('GET', KEYS[1]):match('^(%w+) ') == redis.call('INFO', 'replication'):match('master_replid:(%w+)'))", []string{"dlock1:birth"}, nil)
		require.Equal(t, []string{"string true", "string true"}, []string{real, simulated}, "the marker has the ID of the server")
	}
	sameStates()
	votes(p.twins, "k")
	p.await()
	l, conn := p.locker(2, time.Minute)
	var waiting sync.WaitGroup
	waiting.Go(func() { l.TryAcquire(t.Context(), "k2", "A", time.Minute) })
	require.Eventually(t, func() bool {
		return p.sim.Waits() && strings.Contains(p.do("INFO", "clients").(string), "blocked_clients:1\r")
	}, 10*time.Second, time.Millisecond)
	p.await()

	p.replica.do("REPLICAOF", "NO", "ONE")
	p.replica.sim.Promote()
	sameStates()
	votes(p.replica, "k3")
	votes(p.twins, "k4")
	p.replica.compareKeys("")
	p.twins.compareKeys("")

	host, port, _ := net.SplitHostPort(p.process.Addr())
	p.do("REPLICAOF", host, port)
	p.sim.Follow(p.replica.sim)
	waiting.Wait()
	require.Regexp(t, "^UNBLOCKED", conn.real)
	require.Equal(t, conn.real, conn.simulated)
	require.Eventually(t, func() bool {
		return strings.Contains(p.do("INFO", "replication").(string), "master_link_status:up")
	}, 10*time.Second, time.Millisecond)
	sameStates()
	p.twins.compareKeys("")
}

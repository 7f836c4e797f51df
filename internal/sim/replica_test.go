package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

const ms = time.Millisecond

// dial returns one more client, with a network that takes no time.
func dial(t *testing.T, s *sim.Server, opts ...rediscore.Option) (*rediscore.Locker, *sim.Conn) {
	return dialWith(t, s, nil, opts...)
}

func dialWith(t *testing.T, s *sim.Server, fate func(sim.Trip) sim.Fate, opts ...rediscore.Option) (*rediscore.Locker, *sim.Conn) {
	conn := sim.Dial(s, fate)
	l := rediscore.New(conn, opts...)
	t.Cleanup(func() {
		l.Close()
		conn.Close()
	})
	return l, conn
}

// get returns the text at a key, or "".
func get(t *testing.T, s *sim.Server, key string) string {
	t.Helper()
	text, _ := doing(t, s)("GET", key).(string)
	return text
}

func put(t *testing.T, s *sim.Server, key, value string) { doing(t, s)("SET", key, value) }

// A write is on a replica when the link has carried it there. What it carries comes in order.
func TestReplicaIsBehind(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		master := sim.NewServer()
		put(t, master, "k", "before")
		replica := master.NewReplica()
		assert.Equal(t, "before", get(t, replica, "k"))
		replica.SetLink(sim.Link{Delay: 10 * ms})
		put(t, master, "k", "slow")
		time.Sleep(9 * ms)
		assert.Equal(t, "before", get(t, replica, "k"))
		time.Sleep(ms)
		synctest.Wait()
		assert.Equal(t, "slow", get(t, replica, "k"))

		put(t, master, "k", "first")
		replica.SetLink(sim.Link{Delay: ms})
		put(t, master, "k", "second")
		time.Sleep(5 * ms)
		assert.Equal(t, "slow", get(t, replica, "k"), "the second does not overtake the first")
		time.Sleep(5 * ms)
		synctest.Wait()
		assert.Equal(t, "second", get(t, replica, "k"))

		replica.SetLink(sim.Link{Cut: true})
		put(t, master, "k", "cut")
		time.Sleep(time.Hour)
		assert.Equal(t, "second", get(t, replica, "k"))
		replica.SetLink(sim.Link{})
		assert.Equal(t, "cut", get(t, replica, "k"))

		_, err := replica.Do("SET", "k", "v")
		assert.EqualError(t, err, "READONLY You can't write against a read only replica.")
		l, _ := dial(t, replica)
		_, err = l.TryAcquire(context.Background(), "free", "A", time.Minute)
		assert.ErrorContains(t, err, "READONLY")
		assert.True(t, dlock.NoEffect(err))
		doing(t, master)("PEXPIRE", "k", "1000")
		replica.SetClock(time.Hour)
		assert.Empty(t, get(t, replica, "k"), "it has expired there")
		replica.SetClock(0)
		assert.Equal(t, "cut", get(t, replica, "k"), "a replica removes nothing by itself")
		time.Sleep(1001 * ms)
		assert.Empty(t, get(t, replica, "k"))
	})
}

// WAIT counts the replicas whose acknowledgements have come.
func TestWait(t *testing.T) {
	for name, c := range map[string]struct {
		links    []sim.Link
		want     int
		replicas int // that have the grant in time
		took     time.Duration
	}{
		"no replicas":  {nil, 1, 0, 100 * ms},
		"at once":      {[]sim.Link{{}, {}}, 2, 2, 0},
		"a round trip": {[]sim.Link{{Delay: 5 * ms}, {Delay: 20 * ms}}, 2, 2, 40 * ms},
		"the quicker":  {[]sim.Link{{Delay: 5 * ms}, {Delay: 20 * ms}}, 1, 1, 10 * ms},
		"too slow":     {[]sim.Link{{Delay: 5 * ms}, {Delay: 60 * ms}}, 2, 1, 100 * ms},
		"cut":          {[]sim.Link{{}, {Cut: true}}, 2, 1, 100 * ms},
		"more":         {[]sim.Link{{}, {}}, 3, 2, 100 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				master := sim.NewServer()
				for _, l := range c.links {
					master.NewReplica().SetLink(l)
				}
				l, _ := dial(t, master, rediscore.WithReplicas(c.want, 100*ms))
				begun := time.Now()
				a, err := try(l, "A")
				assert.Equal(t, c.took, time.Since(begun))
				if c.replicas == c.want {
					require.NoError(t, err)
					assert.True(t, a.Acquired)
					return
				}
				var few *rediscore.ReplicasError
				require.ErrorAs(t, err, &few)
				assert.Equal(t, &rediscore.ReplicasError{Got: c.replicas, Want: c.want, Timeout: 100 * ms}, few)
				assert.Equal(t, "A", get(t, master, "k"))
				_, err = try(l, "B")
				assert.NoError(t, err, "who holds it is no write")
			})
		})
	}
}

// An acknowledgement that is lost is repeated when the link is whole again.
func TestLostAcknowledgement(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		master := sim.NewServer()
		replica := master.NewReplica()
		replica.SetLink(sim.Link{Delay: 10 * ms})
		l, _ := dial(t, master, rediscore.WithReplicas(1, 100*ms))
		time.AfterFunc(15*ms, func() { replica.SetLink(sim.Link{Delay: 10 * ms, Cut: true}) })
		time.AfterFunc(50*ms, func() { assert.Equal(t, "A", get(t, replica, "k")) })
		time.AfterFunc(60*ms, func() { replica.SetLink(sim.Link{Delay: 10 * ms}) })
		begun := time.Now()
		answer(t, l, "A")
		assert.Equal(t, 70*ms, time.Since(begun))
	})
}

// A replica copies its master when one of the two has restarted. A master that is empty then empties it.
func TestRestarts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		master := sim.NewServer()
		replica := master.NewReplica()
		replica.SetLink(sim.Link{Delay: 10 * ms})
		put(t, master, "k", "v")
		time.Sleep(5 * ms)
		replica.Restart()
		time.Sleep(9 * ms)
		assert.Empty(t, replica.Keys(), "it waits for a copy")
		time.Sleep(ms)
		synctest.Wait()
		assert.Equal(t, "v", get(t, replica, "k"))
		assert.Equal(t, replicationID(t, master), replicationID(t, replica))
		master.Restart()
		assert.NotEqual(t, replicationID(t, master), replicationID(t, replica))
		time.Sleep(10 * ms)
		synctest.Wait()
		assert.Empty(t, replica.Keys())
		assert.Equal(t, replicationID(t, master), replicationID(t, replica))
	})
}

// After random commands, a replica has the keys and TTLs of its master, whatever its clock says.
func TestReplicaIsTheSame(t *testing.T) {
	for seed := range sequences(100) {
		bubble.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			master := sim.NewServer()
			replica := master.NewReplica()
			replica.SetLink(sim.Link{Delay: 10 * ms})
			replica.SetClock(time.Duration(r.IntN(3)-1) * time.Hour)
			for range 100 {
				_, call := randomCommand(r)
				_, _ = master.Do(call...)
				time.Sleep(time.Duration(r.IntN(5000)) * ms)
				if r.IntN(50) == 0 {
					master.FlushAll()
				}
			}
			time.Sleep(10 * ms)
			synctest.Wait()
			replica.SetClock(0)
			keys := master.Keys()
			require.Equal(t, keys, replica.Keys(), "seed %d", seed)
			for _, key := range keys {
				require.Equal(t, content(doing(t, master), key), content(doing(t, replica), key), "seed %d", seed)
			}
			time.Sleep(10 * time.Minute)
			keys = master.Keys()
			time.Sleep(10 * ms)
			synctest.Wait()
			replica.SetClock(-time.Hour)
			require.Equal(t, keys, replica.Keys(), "seed %d: what has expired on the master is gone", seed)
		})
	}
}

// A promoted replica does not have the last writes. Until it hears of it, the old master goes on. Then
// it loses what only it has.
func TestPromotion(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		old := sim.NewServer()
		next, other := old.NewReplica(), old.NewReplica()
		put(t, old, "k", "both")
		id := replicationID(t, old)
		assert.Equal(t, id, replicationID(t, next))
		next.SetLink(sim.Link{Delay: time.Hour})
		put(t, old, "k", "late")
		l, _ := dial(t, old, rediscore.WithReplicas(2, 24*time.Hour))
		waits := make(chan error, 1)
		go func() {
			_, err := l.TryAcquire(context.Background(), "lock", "A", 24*time.Hour)
			waits <- err
		}()
		synctest.Wait()
		next.Promote()
		time.Sleep(2 * time.Hour)
		assert.Equal(t, "both", get(t, next, "k"))
		assert.Equal(t, "late", get(t, other, "k"))
		put(t, old, "k", "old")
		put(t, next, "k", "new")
		assert.NotEqual(t, id, replicationID(t, next))
		assert.Equal(t, id, replicationID(t, old))
		assert.Contains(t, doing(t, next)("INFO", "replication"), "master_replid2:"+id)
		assert.Equal(t, "old", get(t, other, "k"))
		synctest.Wait()
		old.Follow(next)
		begun := time.Now()
		assert.ErrorContains(t, <-waits, "UNBLOCKED")
		assert.Zero(t, time.Since(begun))
		for _, s := range []*sim.Server{old, other} { // other still follows old
			assert.Equal(t, "new", get(t, s, "k"))
			assert.Empty(t, get(t, s, "lock"))
			assert.Equal(t, replicationID(t, next), replicationID(t, s))
		}
		other.SetLink(sim.Link{Cut: true})
		other.Follow(next)
		l, _ = dial(t, next, rediscore.WithReplicas(2, 100*ms))
		var few *rediscore.ReplicasError
		_, err := l.TryAcquire(context.Background(), "lock", "B", time.Minute)
		require.ErrorAs(t, err, &few)
		assert.Equal(t, 1, few.Got, "what a replica had of another master counts for nothing")
	})
}

func replicationID(t *testing.T, s *sim.Server) string {
	id, err := s.Eval("return redis.call('INFO', 'replication'):match('master_replid:(%w+)')", "replicationID", []string{"k"}, nil)
	require.NoError(t, err)
	return id.(string)
}

// A client follows to the new master. A call that is under way fails, and its effect is unknown. A
// subscription stays at the old master, where it hears nothing of handovers, or is cut.
func TestClientFollows(t *testing.T) {
	for name, deaf := range map[string]bool{"deaf": true, "cut": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				old := sim.NewServer()
				next := old.NewReplica()
				holder, conn := dial(t, old)
				waiter, conn2 := dial(t, old)
				answer(t, holder, "A")
				served := waits(t, waiter)
				time.Sleep(2500 * ms)
				next.Promote()
				conn.Hold(t, func(trip sim.Trip) bool { return trip.To == old && trip.Calls != nil })
				failed := make(chan error, 1)
				go func() { _, err := holder.Renew(context.Background(), "k", "A", time.Minute); failed <- err }()
				synctest.Wait()
				conn.Follow(next)
				conn2.Follow(next)
				err := <-failed
				assert.Error(t, err)
				assert.False(t, dlock.NoEffect(err))
				if !deaf {
					conn2.Cut()
				}
				time.Sleep(300 * ms)
				on := doing(t, next)("PUBSUB", "NUMSUB", inboxOf(t, next)).([]any)
				assert.Equal(t, int64(map[bool]int{true: 0, false: 1}[deaf]), on[1], "listeners at the new master")
				took := handsOver(t, holder, served)
				assert.Less(t, took, 5*time.Second)
				assert.Equal(t, deaf, took > 0, "%v", took)
				assert.Equal(t, "B", get(t, next, "k"))
			})
		})
	}
}

// inboxOf returns the channel that the only waiter for k has given.
func inboxOf(t *testing.T, s *sim.Server) string {
	t.Helper()
	for _, key := range s.Keys() {
		v, err := s.Do("HMGET", key, ":B")
		if err == nil {
			var seen, ttl, finish, inbox string
			_, err := fmt.Sscan(v.([]any)[0].(string), &seen, &ttl, &finish, &inbox)
			require.NoError(t, err)
			return inbox[1:]
		}
	}
	t.Fatal("nobody waits")
	return ""
}

package rediscore_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// These tests ask a real server, of any version, what internal/sim cannot know.

// A wire is a Locker on a server, with a minimal Conn.
type wire struct {
	rediscore.Conn
	*testing.T
	server *redistest.Server
	locker *rediscore.Locker
}

func onWire(t *testing.T, server *redistest.Server) *wire {
	w := &wire{T: t, server: server}
	w.locker = rediscore.New(w)
	return w
}

func (w *wire) Eval(_ context.Context, call rediscore.Call) (any, error) {
	keys := call.Keys()
	return w.server.Do(slices.Concat([]string{"EVAL", call.Script.Source, strconv.Itoa(len(keys))}, keys, call.Args)...)
}

func (*wire) Cluster() bool { return false }

// do executes a command.
func (w *wire) do(args ...string) any {
	reply := must(w.server.Do(args...))(w)
	return reply
}

// call calls a script for lock "k".
func (w *wire) call(s *rediscore.Script, args ...string) any {
	reply := must(w.locker.EvalScript(w.Context(), s, "k", args...))(w)
	return reply
}

// dial returns a connection to a server.
func dial(t testing.TB, server *redistest.Server) redis.Conn {
	conn := must(redis.Dial("tcp", server.Addr()))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// listens returns a connection that has subscribed by a method.
func (w *wire) listens(by func(redis.PubSubConn, ...any) error, channel string) redis.PubSubConn {
	sub := redis.PubSubConn{Conn: dial(w, w.server)}
	require.NoError(w, by(sub, channel))
	require.IsType(w, redis.Subscription{}, sub.Receive())
	return sub
}

// A script writes whenever it says that a token holds the lock. Since Redis 7.2, WAIT waits for what
// its own connection wrote last: behind a script that has only read, it would confirm a grant that
// another connection wrote and that no replica has yet.
func TestEachGrantWrites(t *testing.T) {
	w := onWire(t, redistest.Start(t))
	w.listens(redis.PubSubConn.Subscribe, "inbox")
	writes := func() string {
		return regexp.MustCompile(`rdb_changes_since_last_save:\d+`).FindString(w.do("INFO", "persistence").(string))
	}
	w.call(rediscore.AcquireScript, "a", "60000")
	w.call(rediscore.EnqueueScript, "b", "60000", "pinbox", "")
	w.call(rediscore.ReleaseScript, "a")
	for name, c := range map[string]struct {
		script *rediscore.Script
		args   []string
		want   string
	}{
		"a check-in that finds a grant":                    {rediscore.CheckInScript, []string{"b", "pinbox"}, `^\[2 \d+ \d+ \d+\]$`},
		"a renewal to the same deadline or an earlier one": {rediscore.RenewScript, []string{"b", "1"}, `^1$`},
		"an attempt of the holder":                         {rediscore.AcquireScript, []string{"b", "60000"}, `^\d{16}$`},
		"an enqueue of the holder":                         {rediscore.EnqueueScript, []string{"b", "60000", "", ""}, `^\[0 \d{16}\]$`},
	} {
		before := writes()
		require.Regexp(t, c.want, fmt.Sprint(w.call(c.script, c.args...)), name)
		require.NotEmpty(t, before)
		require.NotEqual(t, before, writes(), "%s writes nothing", name)
	}
	require.Greater(t, w.do("PTTL", "k"), int64(50_000), "a renewal has shortened the lease")
}

// What a server says to a user without a right depends on its version.
func TestForbidden(t *testing.T) {
	w := onWire(t, redistest.Start(t))
	w.call(rediscore.AcquireScript, "H", "60000")
	for _, rule := range []string{"-hset", "-publish", "resetchannels"} {
		if _, err := w.server.Do("ACL", "SETUSER", "default", rule); err != nil {
			t.Skipf("before Redis 6.2: %v", err)
		}
		_, err := w.locker.EvalScript(t.Context(), rediscore.EnqueueScript, "k", "A", "60000", "pinbox", "")
		require.True(t, rediscore.Forbidden(err), "%s: %v", rule, err)
		w.do("ACL", "SETUSER", "default", "+@all")
	}
}

// The Lua of a server takes as many values at once as the scripts give it.
func TestThousandsOfDeadWaitersOnAServer(t *testing.T) {
	w, keys := onWire(t, redistest.Start(t)), rediscore.KeysOf("", "k", false)
	w.call(rediscore.AcquireScript, "H", "60000")
	w.do("EVAL", `
		local now = redis.call('TIME')[1] - 120
		for i = 1, 7000 do
			redis.call('ZADD', KEYS[1], i, i)
			redis.call('HSET', KEYS[2], ':' .. i, now .. '000000 60000 0 pnobody')
		end
		redis.call('HSET', KEYS[2], 'pulse', (now + 119) .. '000000 ' .. now .. '000000')
		redis.call('PEXPIRE', KEYS[1], 60000)
		return redis.call('PEXPIRE', KEYS[2], 60000)`, "2", keys[2], keys[3])
	w.call(rediscore.EnqueueScript, "A", "60000", "", "")
	require.EqualValues(t, 6999, w.do("ZCARD", keys[2]))
	w.call(rediscore.CheckInScript, "A", "")
	require.EqualValues(t, 5999, w.do("ZCARD", keys[2]))
	w.call(rediscore.ReleaseScript, "H")
	require.EqualValues(t, 1, w.do("ZCARD", keys[2]))
}

// Who hears a channel by a pattern is not counted as a subscriber. So a waiter whose inbox only such hear is dead.
func TestPatternsAreNotCounted(t *testing.T) {
	w := onWire(t, redistest.Start(t))
	w.listens(redis.PubSubConn.PSubscribe, "*")
	require.Nil(t, w.handedOver())
}

// A full server hands a lock over.
func TestHandoverOnAFullServer(t *testing.T) {
	w := onWire(t, redistest.Start(t))
	sub := w.listens(redis.PubSubConn.Subscribe, "inbox")
	require.Equal(t, "A", w.handedOver("CONFIG", "SET", "maxmemory", "1"))
	require.IsType(t, redis.Message{}, sub.Receive())
}

// handedOver returns the holder after a release while a waiter with an inbox waits, and after a command if there is one.
func (w *wire) handedOver(command ...string) any {
	w.call(rediscore.AcquireScript, "H", "60000")
	w.call(rediscore.EnqueueScript, "A", "60000", "pinbox", "")
	if command != nil {
		w.do(command...)
	}
	w.call(rediscore.ReleaseScript, "H")
	return w.do("GET", "k")
}

// A server has another replication ID whenever it may have lost writes. That is what the marker of votes relies on.
func TestReplicationID(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		strike func(t *testing.T, server *redistest.Server) *redistest.Server
		same   bool // the replication ID
		kept   bool // the data
	}{
		"emptied": {same: true, strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			onWire(t, server).do("FLUSHALL")
			return server
		}},
		"restarted, empty": {strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			server.Restart()
			return server
		}},
		"restarted, with its data": {args: []string{"--appendonly", "yes", "--appendfsync", "always"}, kept: true, strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			server.Restart()
			return server
		}},
		"replaced by a replica": {kept: true, strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			replica := redistest.StartReplica(t, server)
			onWire(t, replica).do("REPLICAOF", "NO", "ONE")
			return replica
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			var ballots []quorum.Ballot
			for i := range 2 {
				l := onWire(t, server).locker
				for range 2 {
					ballot := must(l.Vote(t.Context(), "k", "A", time.Minute, 0))(t)
					ballots = append(ballots, ballot)
				}
				require.Zero(t, ballots[2*i].Age)
				require.EqualValues(t, ballots[2*i+1].Clock-ballots[2*i].Clock, ballots[2*i+1].Age.Microseconds())
				require.Equal(t, ballots[2*i].Store, ballots[2*i+1].Store)
				if i == 0 {
					server = c.strike(t, server)
					require.Equal(t, c.kept, slices.Contains(server.Keys(t), "dlock1:birth"))
				}
			}
			require.Equal(t, c.same, ballots[0].Store == ballots[2].Store)
		})
	}
}

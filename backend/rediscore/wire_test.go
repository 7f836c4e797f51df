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

// A wireConn is a minimal Conn to a server.
type wireConn struct {
	rediscore.Conn
	*redistest.Server
}

func (c wireConn) Eval(_ context.Context, call rediscore.Call) (any, error) {
	keys := call.Keys()
	return c.Do(slices.Concat([]string{"EVAL", call.Script.Source, strconv.Itoa(len(keys))}, keys, call.Args)...)
}

func (wireConn) Cluster() bool { return false }

func onWire(server *redistest.Server) *rediscore.Locker {
	return rediscore.New(wireConn{Server: server})
}

// dial returns a connection to a server.
func dial(t testing.TB, server *redistest.Server) redis.Conn {
	conn, err := redis.Dial("tcp", server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// A script writes whenever it says that a token holds the lock. Since Redis 7.2, WAIT waits for what
// its own connection wrote last: behind a script that has only read, it would confirm a grant that
// another connection wrote and that no replica has yet.
func TestEachGrantWrites(t *testing.T) {
	server := redistest.Start(t)
	sub := redis.PubSubConn{Conn: dial(t, server)}
	require.NoError(t, sub.Subscribe("inbox"))
	require.IsType(t, redis.Subscription{}, sub.Receive())
	l := onWire(server)
	call := func(s *rediscore.Script, args ...string) any {
		reply, err := l.EvalScript(t.Context(), s, "k", args...)
		require.NoError(t, err)
		return reply
	}
	writes := func() string {
		info, err := server.Do("INFO", "persistence")
		require.NoError(t, err)
		return regexp.MustCompile(`rdb_changes_since_last_save:\d+`).FindString(info.(string))
	}
	call(rediscore.AcquireScript, "a", "60000")
	call(rediscore.EnqueueScript, "b", "60000", "pinbox", "")
	call(rediscore.ReleaseScript, "a")
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
		require.Regexp(t, c.want, fmt.Sprint(call(c.script, c.args...)), name)
		require.NotEmpty(t, before)
		require.NotEqual(t, before, writes(), "%s writes nothing", name)
	}
	rest, err := server.Do("PTTL", "k")
	require.NoError(t, err)
	require.Greater(t, rest, int64(50_000), "a renewal has shortened the lease")
}

// What a server says to a user without a right depends on its version.
func TestForbidden(t *testing.T) {
	server := redistest.Start(t)
	l := onWire(server)
	held, err := l.TryAcquire(t.Context(), "k", "H", time.Minute)
	require.NoError(t, err)
	require.True(t, held.Acquired)
	for _, rule := range []string{"-hset", "-publish", "resetchannels"} {
		if _, err := server.Do("ACL", "SETUSER", "default", rule); err != nil {
			t.Skipf("before Redis 6.2: %v", err)
		}
		_, err := l.EvalScript(t.Context(), rediscore.EnqueueScript, "k", "A", "60000", "pinbox", "")
		require.True(t, rediscore.Forbidden(err), "%s: %v", rule, err)
		_, err = server.Do("ACL", "SETUSER", "default", "+@all")
		require.NoError(t, err)
	}
}

// The Lua of a server takes as many values at once as the scripts give it.
func TestThousandsOfDeadWaitersOnAServer(t *testing.T) {
	server := redistest.Start(t)
	l, keys := onWire(server), rediscore.KeysOf("", "k", false)
	call := func(s *rediscore.Script, args ...string) {
		_, err := l.EvalScript(t.Context(), s, "k", args...)
		require.NoError(t, err)
	}
	waiting := func() any {
		n, err := server.Do("ZCARD", keys[2])
		require.NoError(t, err)
		return n
	}
	call(rediscore.AcquireScript, "H", "60000")
	_, err := server.Do("EVAL", `
		local now = redis.call('TIME')[1] - 120
		for i = 1, 7000 do
			redis.call('ZADD', KEYS[1], i, i)
			redis.call('HSET', KEYS[2], ':' .. i, now .. '000000 60000 0 pnobody')
		end
		redis.call('HSET', KEYS[2], 'pulse', (now + 119) .. '000000 ' .. now .. '000000')
		redis.call('PEXPIRE', KEYS[1], 60000)
		return redis.call('PEXPIRE', KEYS[2], 60000)`, "2", keys[2], keys[3])
	require.NoError(t, err)
	call(rediscore.EnqueueScript, "A", "60000", "", "")
	require.EqualValues(t, 6999, waiting())
	call(rediscore.CheckInScript, "A", "")
	require.EqualValues(t, 5999, waiting())
	call(rediscore.ReleaseScript, "H")
	require.EqualValues(t, 1, waiting())
}

// Who hears a channel by a pattern is not counted as a subscriber. So a waiter whose inbox only such
// hear is dead.
func TestPatternsAreNotCounted(t *testing.T) {
	server := redistest.Start(t)
	sub := redis.PubSubConn{Conn: dial(t, server)}
	require.NoError(t, sub.PSubscribe("*"))
	require.IsType(t, redis.Subscription{}, sub.Receive())
	require.Nil(t, handedOver(t, server))
}

// A full server hands a lock over.
func TestHandoverOnAFullServer(t *testing.T) {
	server := redistest.Start(t)
	sub := redis.PubSubConn{Conn: dial(t, server)}
	require.NoError(t, sub.Subscribe("inbox"))
	require.IsType(t, redis.Subscription{}, sub.Receive())
	require.Equal(t, "A", handedOver(t, server, "CONFIG", "SET", "maxmemory", "1"))
	require.IsType(t, redis.Message{}, sub.Receive())
}

// handedOver returns the holder after a release while a waiter with an inbox waits, and after a command if there is one.
func handedOver(t *testing.T, server *redistest.Server, command ...string) any {
	l := onWire(server)
	for _, call := range []struct {
		script *rediscore.Script
		args   []string
	}{{rediscore.AcquireScript, []string{"H", "60000"}}, {rediscore.EnqueueScript, []string{"A", "60000", "pinbox", ""}}, {rediscore.ReleaseScript, []string{"H"}}} {
		if call.script == rediscore.ReleaseScript && command != nil {
			_, err := server.Do(command...)
			require.NoError(t, err)
		}
		_, err := l.EvalScript(t.Context(), call.script, "k", call.args...)
		require.NoError(t, err)
	}
	holder, err := server.Do("GET", "k")
	require.NoError(t, err)
	return holder
}

// A server has another replication ID whenever it may have lost writes. That is what the marker of votes
// relies on.
func TestReplicationID(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		strike func(t *testing.T, server *redistest.Server) *redistest.Server
		same   bool // the replication ID
		kept   bool // the data
	}{
		"emptied": {same: true, strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			_, err := server.Do("FLUSHALL")
			require.NoError(t, err)
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
			_, err := replica.Do("REPLICAOF", "NO", "ONE")
			require.NoError(t, err)
			return replica
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			var ballots []quorum.Ballot
			for i := range 2 {
				l := onWire(server)
				for range 2 {
					ballot, err := l.Vote(t.Context(), "k", "A", time.Minute, 0)
					require.NoError(t, err)
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

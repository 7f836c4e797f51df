package sim_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sim"
)

// Twins are a real server and one of this package, which get the same calls.
type twins struct {
	t     *testing.T
	redis *redis.Client
	sim   *sim.Server
}

func newTwins(t *testing.T) *twins { return twinsOf(t, redistest.Start(t)) }

func twinsOf(t *testing.T, server *redistest.Server) *twins {
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return &twins{t, client, sim.NewServer()}
}

// restart empties both.
func (w *twins) restart() {
	require.NoError(w.t, w.redis.FlushAll(w.t.Context()).Err())
	w.sim = sim.NewServer()
}

// eval runs a script on both, and returns the two results as texts.
func (w *twins) eval(source string, keys, args []string) (real, simulated string) {
	real = result(w.redis.Do(w.t.Context(), evalCommand(source, keys, args)...).Result())
	return real, result(w.sim.Eval(source, sha(source), keys, args))
}

// sha is the name of a script.
func sha(source string) string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}

func evalCommand(source string, keys, args []string) []any {
	all := []any{"EVAL", source, len(keys)}
	for _, v := range slices.Concat(keys, args) {
		all = append(all, v)
	}
	return all
}

// result is a reply, or the text of an error without the place that the server adds. Elements that
// are errors count by their text.
func result(reply any, err error) string {
	if err != nil && err != redis.Nil {
		text, _, _ := strings.Cut(err.Error(), " script: ")
		text, _, _ = strings.Cut(text, ", with args beginning with") // of a command that is unknown
		return "error " + text
	}
	return fmt.Sprintf("%T %v", reply, coarse(reply))
}

// coarse hides what differs: times, fences, ages, replication IDs, and what is left of a TTL.
func coarse(v any) any {
	switch v := v.(type) {
	case int64:
		return hide(v)
	case string:
		words := strings.Split(v, " ")
		for i, w := range words {
			if replID.MatchString(w) {
				words[i] = "ID"
			} else if n, err := strconv.ParseInt(w, 10, 64); err == nil {
				words[i] = fmt.Sprint(hide(n))
			}
		}
		return strings.Join(words, " ")
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = coarse(v[i])
			if all[i] == "ID" { // of a ballot, where the age stands before
				all[i-1] = "age"
			}
		}
		return all
	}
	return v
}

var replID = regexp.MustCompile("^[0-9a-f]{40}$")

func hide(n int64) any {
	switch {
	case n > 1e14:
		return "time"
	case n > 80_000_000: // the rest of a day
		return "day"
	case n > 1000:
		return fmt.Sprint("about ", (n+5000)/10000*10000)
	}
	return n / israce.Slower
}

// randomCommand draws a command, which is often wrong.
func randomCommand(r *rand.Rand) (key string, call []string) {
	values := []string{"a", "b", "7", "-1", "0", "1.5", "", "x y", "100000", "9223372036854775807"}
	ranks := []string{"0", "1", "-1", "-2", "5", "x"}
	ms := []string{"100000", "500000", "0", "-1", "x"}
	one := func(of []string) string { return of[r.IntN(len(of))] }
	key, key2 := one([]string{"s", "h", "z"}), one([]string{"s", "h", "z", "o"})
	if r.IntN(8) > 0 { // mostly a key of the right kind
		key2 = key
	}
	return key, [][]string{
		{"GET", key}, {"SET", "s", one(values)}, {"SET", key, one(values), "PX", one(ms)}, {"DEL", key, key2}, {"EXISTS", "s", "h", key},
		{"PEXPIRE", key, one(ms)}, {"PTTL", key}, {"PERSIST", key}, {"RENAMENX", key, key2},
		{"HSET", "h", one(values), one(values)}, {"HSET", key, one(values), one(values), one(values), one(values)}, {"HSET", key, "a"},
		{"HMGET", "h", one(values), one(values)}, {"HMGET", key, one(values)}, {"HLEN", key}, {"HDEL", "h", one(values), one(values)}, {"HDEL", key, ""},
		{"ZADD", "z", one(values), one(values)}, {"ZADD", "z", "XX", one(values), one(values)}, {"ZADD", key, one(ranks), one(values)},
		{"ZCARD", key}, {"ZRANGE", "z", one(ranks), one(ranks)}, {"ZRANGE", "z", one(ranks), one(ranks), "WITHSCORES"}, {"ZRANGE", key, "0", "-1"},
		{"ZRANK", "z", one(values)}, {"ZRANK", key, one(values)}, {"ZREM", "z", one(values), one(values)}, {"ZREM", key, one(values)},
		{"ZREMRANGEBYRANK", "z", one(ranks), one(ranks)}, {"ZREMRANGEBYRANK", key, "0", "0"}, {"ZSCORE", "z", one(values)}, {"ZSCORE", key, one(values)},
		{"PUBLISH", key, "m"}, {"SPUBLISH", key, "m"}, {"PUBSUB", "NUMSUB", key}, {"PUBSUB", "SHARDNUMSUB", key}, {"TYPE", key}, {"GET"},
	}[r.IntN(37)]
}

// What Redis makes of numbers and of other values.
func TestValuesAsRedis(t *testing.T) {
	w := newTwins(t)
	for _, source := range []string{
		"return tostring(1764000000123456)", "return 1764000000123456 .. ''", "return '' .. 2^53 .. 1 .. 1.5", "return 'a' .. 'b' .. 12345678901234",
		"return string.format('%s %s %d %.0f %5.1f%%', 1764000000123456, 'x', 7, 1764000000123456, 2.25)", "return 1764000000123456", "return 1.9", "return -1.9",
		"return {1, 'a', {2.5, true, false}, 3}", "return {1, nil, 3}", "return true", "return false", "return nil", "return {ok = 'fine'}", "return {err = 'ERR bad'}",
		"redis.call('SET', 'k', 1764000000123456) return redis.call('GET', 'k')", "redis.call('SET', 'k', 0.1) return redis.call('GET', 'k')",
		"redis.call('SET', 'k', 1e20) return redis.call('GET', 'k')", "redis.call('SET', 'k', 100000) return redis.call('GET', 'k')",
		"return redis.call('SET', 'k', 'v')", "return redis.call('SET', 'k', 'v').ok", "return redis.call('GET', 'none')", "return tostring(redis.call('GET', 'none'))",
		"return redis.call('ZADD', 'z', 1764000000123456, 'm') + redis.call('ZSCORE', 'z', 'm')", "return redis.call('ZSCORE', 'z', 'm')",
		"return redis.call('nonsense')", "return redis.pcall('nonsense').err", "return redis.call('GET', {})", "return redis.call('GET', 'z')", "return redis.pcall('GET', 'z')",
		"local ok, e = pcall(redis.call, 'GET', 'z') return {tostring(ok), type(e)}", "return ('7 8 x'):match('^(%d+) (%d+) (.*)$')", "return #redis.call('HMGET', 'none', 'a', 'b')",
		"return '10' + 5", "return math.ceil(1.2)", "return 7 % 4 .. ''", "return 1764000000123456 - 1764000000123456 % 10000", "return tonumber('x')", "return unpack({4, 5})",
		"x = 1", "return y", "return 'a' .. nil", "return 'a' .. {}", "error('oh')", "error({err = 'ERR table'})", "assert(nil, 'no ID')", "return 1 +", "return {KEYS[1], ARGV[2], KEYS[3]}",
		"return type(redis.call('TIME')[1])", "return redis.call('INFO', 'replication'):match('master_replid:(%w+)') ~= nil",
	} {
		real, simulated := w.eval(source, []string{"k", "k2"}, []string{"a1", "a2"})
		place := func(text string) string { // of an error of Lua, which names the line in words of its own
			if strings.HasPrefix(text, "error ERR user_script") || strings.HasPrefix(text, "error ERR Error compiling") {
				return text[:21]
			}
			return text
		}
		assert.Equal(t, place(real), place(simulated), source)
	}
}

// Random calls of a Locker, some of which wait, have the same effects on both, and on the replicas.
func TestLockerAsRedis(t *testing.T) {
	p := newPair(t)
	for seed := range sequences(200) {
		p.sim = sim.NewServer()
		p.replica.sim = p.sim.NewReplica()
		prefix := fmt.Sprintf("%d:", seed)
		conn := &twinConn{Conn: sim.Dial(p.sim, nil), twins: p.twins}
		l := rediscore.New(conn, rediscore.WithPrefix(prefix))
		r := rand.New(rand.NewPCG(seed, 2))
		var waits sync.WaitGroup
		for range 50 {
			randomCall(t.Context(), l, r, &waits)
		}
		waits.Wait()
		differ := conn.end() // before an inbox closes, which both servers do not see at one instant
		l.Close()
		require.Empty(t, differ, "seed %d", seed)
		p.compareKeys(prefix)
		p.await()
		p.replica.compareKeys(prefix)
	}
}

func randomCall(ctx context.Context, l *rediscore.Locker, r *rand.Rand, waits *sync.WaitGroup) {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	key, token, ttl := one("k", "{k}2"), one("A", "B", "C", "D"), time.Duration(2+r.IntN(4))*10*time.Second
	floor := time.Now().UnixMicro() + r.Int64N(2e6)
	switch r.IntN(11) {
	case 0, 1:
		l.TryAcquire(ctx, key, token, ttl)
	case 9:
		l.TryAcquireSet(ctx, []dlock.Acquisition{{Key: "k", Token: token, TTL: ttl}, {Key: "{k}2", Token: one("A", "B", "C", "D"), TTL: 2 * ttl}})
	case 2:
		l.Renew(ctx, key, token, ttl)
	case 3:
		l.Release(ctx, key, token)
	case 4:
		l.Inspect(ctx, key)
	case 5:
		l.Vote(ctx, key, token, ttl, floor)
	case 6:
		l.Confirm(ctx, []quorum.Confirmation{{Renewal: dlock.Renewal{Key: key, Token: token, TTL: ttl}, Fence: floor}})
	case 7:
		l.Pass(ctx, key, token, one("A", "B", "C", "D"), floor)
	case 8:
		l.RenewBatch(ctx, []dlock.Renewal{{Key: key, Token: token, TTL: ttl}, {Key: "k", Token: "E", TTL: ttl}})
	default:
		place, wait := r.Int64N(1e15), time.Duration(r.IntN(10))*time.Millisecond
		waits.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			ctx = endless{ctx}
			if place%2 == 0 {
				l.Acquire(ctx, key, token+"w", ttl)
			} else {
				l.AcquireVote(ctx, key, token+"w", ttl, floor, place)
			}
		})
	}
}

// endless hides the deadline of a context: waiters tell the server when they end, and two servers have two clocks.
type endless struct{ context.Context }

func (endless) Deadline() (end time.Time, ok bool) { return end, false }

// compareKeys compares what the servers have stored.
func (w *twins) compareKeys(prefix string) {
	names, err := w.redis.Keys(w.t.Context(), prefix+"*").Result()
	require.NoError(w.t, err)
	slices.Sort(names)
	require.True(w.t, slices.Equal(names, w.sim.Keys()), "%q, and here %q", names, w.sim.Keys())
	for _, name := range names {
		require.Equal(w.t, content(w.do, name), content(doing(w.t, w.sim), name), name)
	}
}

// do executes a command on the real server.
func (w *twins) do(args ...any) any {
	reply, err := w.redis.Do(w.t.Context(), args...).Result()
	require.NoError(w.t, err)
	return reply
}

// doing returns a function that executes commands.
func doing(t *testing.T, s *sim.Server) func(args ...any) any {
	return func(args ...any) any {
		t.Helper()
		texts := make([]string, len(args))
		for i, a := range args {
			texts[i] = a.(string)
		}
		reply, err := s.Do(texts...)
		require.NoError(t, err)
		return reply
	}
}

// content is the kind of a key, its TTL, and what it has.
func content(do func(args ...any) any, name string) []any {
	kind := do("TYPE", name)
	call := map[any][]any{"string": {"GET", name}, "hash": {"HGETALL", name}, "zset": {"ZRANGE", name, "0", "-1", "WITHSCORES"}}[kind]
	value := coarse(do(call...))
	if kind == "hash" { // whose fields have no order
		fields := make(map[any]any)
		for pair := range slices.Chunk(value.([]any), 2) {
			fields[pair[0]] = pair[1]
		}
		value = fields
	}
	return []any{kind, coarse(do("PTTL", name)), value}
}

// A twinConn is a Conn of twins. Both get each call, one after the other, and must answer alike.
type twinConn struct {
	*sim.Conn
	*twins

	mu     sync.Mutex
	over   bool
	differ []string
}

// end lets neither server get further calls, and returns what was different.
func (c *twinConn) end() []string {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.Conn.Close()
	return c.differ
}

func (c *twinConn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, rediscore.ClientClosed(redis.ErrClosed)
	}
	reply, err := c.Conn.Eval(context.WithoutCancel(ctx), call)
	real := result(c.redis.Do(context.Background(), call.Append([]any{"EVAL", call.Script.Source})...).Result())
	c.same(real, result(reply, err), fmt.Sprint(call.Keys(), call.Args, " ", call.Script.Source[:60]))
	return reply, err
}

func (c *twinConn) same(real, simulated, of string) {
	if real != simulated {
		c.differ = append(c.differ, fmt.Sprintf("Redis %s\nsim   %s\nof %s", real, simulated, of))
	}
}

func (c *twinConn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	for i, call := range calls {
		results[i].Reply, results[i].Err = c.Eval(ctx, call)
	}
}

// Listen subscribes on both while no call is made. Each message must come from both.
func (c *twinConn) Listen(ctx context.Context, name string, shard bool, on func(rediscore.Event)) error {
	c.mu.Lock()
	sub := c.redis.Subscribe(context.Background(), name)
	_, err := sub.Receive(context.Background())
	require.NoError(c.t, err)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		sub.Close()
		require.Eventually(c.t, func() bool { return c.redis.PubSubNumSub(context.Background(), name).Val()[name] == 0 }, time.Minute, time.Millisecond)
	}()
	return c.Conn.Listen(ctx, name, shard, func(e rediscore.Event) {
		if e.Kind == rediscore.Subscribed {
			c.mu.Unlock()
		} else {
			m, err := sub.ReceiveMessage(context.Background())
			require.NoError(c.t, err)
			c.mu.Lock()
			c.same(fmt.Sprint(coarse(m.Payload)), fmt.Sprint(coarse(e.Payload)), "a message on "+name)
			c.mu.Unlock()
		}
		on(e)
	})
}

// sequences is how many sequences are tried: n, fewer with the race detector, or as many as
// sequences of DLOCK_LONG says.
func sequences(n uint64) uint64 {
	if v, err := strconv.ParseUint(long.Of("sequences"), 10, 64); err == nil {
		return v
	}
	return n / israce.Slower
}

// What a full server refuses, and one whose user lacks rights, and what the scripts that ran until then
// have written.
func TestRefusalsAsRedis(t *testing.T) {
	w := newTwins(t)
	config := func(args ...any) {
		t.Helper()
		require.NoError(t, w.redis.Do(t.Context(), args...).Err(), "%q", args)
	}
	scripts := []string{
		"return redis.call('SET', 'k', 1)", "return redis.call('HSET', 'h', 'f', 1)", "return redis.call('ZADD', 'z', 1, 'm')",
		"return redis.call('GET', 'k')", "return redis.call('DEL', 'k')", "return redis.call('PEXPIRE', 'k', 100000)", "return redis.call('HDEL', 'h', '')",
		"redis.call('HDEL', 'none', '') return redis.call('SET', 'k', 2)", "redis.call('DEL', 'none') return redis.call('ZADD', 'z', 2, 'm2')",
		"redis.call('GET', 'k') return redis.call('SET', 'k', 3)", "redis.call('HDEL', 'none', '') return redis.call('HSET', 'h', 'g', 4)",
		"return redis.pcall('SET', 'k', 5)", "return {pcall(redis.call, 'SET', 'k', 6)}", "return redis.call('PUBLISH', 'c', 'm')", "return redis.call('PUBSUB', 'NUMSUB', 'c')[2]",
		"redis.call('HSET', 'h', 'late', 1) return redis.call('ZADD', 'z', 7, 'late')", "return redis.pcall('PUBSUB', 'NUMSUB', 'c')[2]",
	}
	const state = "return {redis.call('GET', 'k'), redis.call('HMGET', 'h', 'f', 'g', 'late'), redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')}"
	for name, c := range map[string]struct {
		real, back []any
		simulated  sim.Faults
	}{
		"full": {[]any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}, sim.Faults{Full: true}},
		"no rights": {
			[]any{"ACL", "SETUSER", "default", "-set", "-zadd", "-publish", "-pubsub", "-hdel"}, []any{"ACL", "SETUSER", "default", "+@all"},
			sim.Faults{Commands: map[string]string{"SET": noRight, "ZADD": noRight, "PUBLISH": noRight, "PUBSUB": noRight, "HDEL": noRight}},
		},
	} {
		w.restart()
		for _, script := range scripts {
			config(c.real...)
			w.sim.SetFaults(c.simulated)
			real, simulated := w.eval(script, []string{"k"}, nil)
			require.Equal(t, alike(real), alike(simulated), "%s: %s", name, script)
			config(c.back...)
			w.sim.SetFaults(sim.Faults{})
			real, simulated = w.eval(state, []string{"k"}, nil)
			require.Equal(t, real, simulated, "%s, after %s", name, script)
		}
	}
}

const noRight = "ERR The user executing the script can't run this command or subcommand"

// alike is a result with the same words for each version of the server.
func alike(result string) string {
	for _, words := range []string{"The user executing the script", "ACL failure in script"} {
		if strings.Contains(result, words) {
			return "no right"
		}
	}
	return result
}

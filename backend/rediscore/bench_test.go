package rediscore_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A bench calls the scripts of one lock one by one, on a server in a bubble, and looks at what they
// store.
type bench struct {
	*testing.T
	server *sim.Server
	conn   *sim.Conn
	locker *rediscore.Locker
	prefix string
	key    string
	keys   keys
}

const (
	second  = 1_000_000 // of a server's clock
	dayInMS = 24 * 60 * 60 * 1000
)

// keys are the names of a lock's keys.
type keys struct{ lock, counter, queue, waiters, birth string }

// atBench fails the test if a companion of a lock has no TTL in the end, except the marker of votes.
func atBench(t *testing.T, prefix, key string, test func(b *bench)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := &bench{T: t, key: key}
		b = b.at(sim.NewServer(), prefix)
		test(b)
		for _, key := range b.server.Keys() {
			if strings.Contains(key, rediscore.CompanionMark) && !strings.HasSuffix(key, "birth") {
				require.Positive(b, b.number("PTTL", key), "PTTL of %q", key)
			}
		}
	})
}

// at returns a bench for the lock on another server, or with another prefix.
func (b *bench) at(server *sim.Server, prefix string) *bench {
	other := *b
	other.server, other.prefix, other.conn = server, prefix, sim.Dial(server, nil)
	other.locker = rediscore.New(other.conn, rediscore.WithPrefix(prefix))
	b.Cleanup(func() {
		other.locker.Close()
		other.conn.Close()
	})
	return other.of(b.key)
}

// of returns a bench for another lock on the same server.
func (b *bench) of(key string) *bench {
	k := rediscore.KeysOf(b.prefix, key, false)
	other := *b
	other.key, other.keys = key, keys{k[0], k[1], k[2], k[3], k[4]}
	return &other
}

// do executes a command.
func (b *bench) do(args ...any) any {
	b.Helper()
	texts := make([]string, len(args))
	for i, arg := range args {
		texts[i] = fmt.Sprint(arg)
	}
	reply, err := b.server.Do(texts...)
	require.NoError(b, err, "%q", texts)
	return reply
}

func (b *bench) number(args ...any) int64 {
	b.Helper()
	n, ok := b.do(args...).(int64)
	require.True(b, ok, "%q", args)
	return n
}

// text is empty if there is none.
func (b *bench) text(args ...any) string {
	b.Helper()
	text, _ := b.do(args...).(string)
	return text
}

func (b *bench) texts(args ...any) []string {
	b.Helper()
	texts := []string{}
	for _, text := range b.do(args...).([]any) {
		texts = append(texts, text.(string))
	}
	return texts
}

// forbid lets commands fail, as for a user who lacks the right to them.
func (b *bench) forbid(commands ...string) {
	refused := make(map[string]string)
	for _, c := range commands {
		refused[c] = "ERR The user executing the script can't run this command or subcommand"
	}
	b.server.SetFaults(sim.Faults{Commands: refused})
}

// eval calls a script until it has done its work.
func (b *bench) eval(s *rediscore.Script, args ...string) (any, error) {
	return b.locker.EvalScript(b.Context(), s, b.key, args...)
}

func (b *bench) call(s *rediscore.Script, args ...string) any {
	b.Helper()
	reply, err := b.eval(s, args...)
	require.NoError(b, err, "%q", args)
	return reply
}

func (b *bench) try(token string) any     { return b.call(rediscore.AcquireScript, token, "60000") }
func (b *bench) release(token string) any { return b.call(rediscore.ReleaseScript, token) }

func (b *bench) enqueue(token, inbox string) any {
	return b.call(rediscore.EnqueueScript, token, "60000", inbox, "")
}

func (b *bench) checkIn(token, inbox string) any {
	return b.call(rediscore.CheckInScript, token, inbox)
}

// hold makes a token the holder, and returns its fence.
func (b *bench) hold(token string) int64 {
	b.Helper()
	fence, ok := b.try(token).(int64)
	require.True(b, ok, "%q gets the lock", token)
	return fence
}

// wait puts a token into the queue, and returns its ticket.
func (b *bench) wait(token, inbox string) int64 {
	b.Helper()
	reply := b.enqueue(token, inbox)
	require.Equal(b, rediscore.AnswerWaits, b.answer(reply), "%q waits", token)
	return reply.([]any)[1].(int64)
}

// answer is the first number of an answer to enqueue or checkIn.
func (b *bench) answer(reply any) (state int) {
	b.Helper()
	require.IsType(b, []any{}, reply)
	return int(reply.([]any)[0].(int64))
}

// expire ends a lease as its TTL would.
func (b *bench) expire() { b.do("DEL", b.keys.lock) }

// queue returns the tokens in the queue, in order.
func (b *bench) queue() []string {
	b.Helper()
	return b.texts("ZRANGE", b.keys.queue, 0, -1)
}

// waiters returns the records of the waiters and of the last handover, without those for sweep.lua.
func (b *bench) waiters() map[string]string {
	b.Helper()
	fields, all := b.texts("HGETALL", b.keys.waiters), map[string]string{}
	for i := 0; i < len(fields); i += 2 {
		if field := fields[i]; field[0] == ':' || field == "handover" {
			all[field] = fields[i+1]
		}
	}
	return all
}

// holder returns the token that holds the lock, or "".
func (b *bench) holder() string {
	b.Helper()
	return b.text("GET", b.keys.lock)
}

// field returns a record of the waiters.
func (b *bench) field(name string) string {
	b.Helper()
	value, _ := b.do("HMGET", b.keys.waiters, name).([]any)[0].(string)
	return value
}

// fence returns the last fence of the lock's slot.
func (b *bench) fence() int64 {
	b.Helper()
	fence, err := strconv.ParseInt(b.text("GET", b.keys.counter), 10, 64)
	require.NoError(b, err)
	return fence
}

// now is the time of the server, unless its clock was set.
func (b *bench) now() int64 { return time.Now().UnixMicro() }

// state returns all that is stored, without fences and TTLs.
func (b *bench) state() map[string]any {
	b.Helper()
	return map[string]any{"lock": b.holder(), "queue": b.queue(), "waiters": b.waiters()}
}

// An ear receives the messages to an inbox. The field inbox is its address for the scripts.
type ear struct {
	b     *bench
	name  string
	sub   *sim.Subscription
	inbox string
}

func (b *bench) listen(channel string) *ear {
	b.Helper()
	sub, err := b.server.Subscribe(channel, false)
	require.NoError(b, err)
	return &ear{b, channel, sub, "p" + channel}
}

func (e *ear) unsubscribe() { e.b.server.Unsubscribe(e.name, false, e.sub) }

// heard returns the messages that have been published since the last call.
func (e *ear) heard() (messages []string) {
	for _, m := range e.sub.Take() {
		messages = append(messages, m.Text)
	}
	return messages
}

// requireTold fails unless exactly one message has come, for a grant to token. It returns the fence.
func (e *ear) requireTold(token string) (fence int64) {
	e.b.Helper()
	messages := e.heard()
	require.Len(e.b, messages, 1)
	h, to, ok := rediscore.ParseHandover(messages[0])
	require.True(e.b, ok, "%q", messages[0])
	require.Equal(e.b, token, to)
	return h.Fence()
}

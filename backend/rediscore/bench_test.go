package rediscore_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A bench calls the scripts of one lock one by one, on a server in a bubble. Each script must reply, store and publish
// what the reference does.
type bench struct {
	*testing.T
	*bed
	prefix string
	key    string
	keys   keys
}

// A bed is a server, a client and a Locker, which the benches of several locks share.
type bed struct {
	server *sim.Server
	conn   *sim.Conn
	locker *rediscore.Locker
	run    func(s *rediscore.Script, keys, args []string) (any, error)
	faults sim.Faults
	ears   []*ear
	alone  bool            // nobody else calls the server: else nothing is compared
	cost   sim.Cost        // of the scripts
	ran    map[string]bool // scripts that were compared
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
	other := &bench{T: b.T, prefix: prefix, bed: &bed{server: server, alone: true, cost: sim.Cost{Calls: make(map[string]int)}, ran: make(map[string]bool)}}
	other.run = func(s *rediscore.Script, keys, args []string) (any, error) {
		return server.Eval(s.Source, s.SHA, keys, args)
	}
	other.conn = sim.Dial(server, func(t sim.Trip) (f sim.Fate) {
		for _, call := range t.Calls {
			if other.alone {
				f.Results = append(f.Results, other.compared(call))
			}
		}
		return f
	})
	other.locker = lockerOn(b.T, other.conn, rediscore.WithPrefix(prefix))
	return other.of(b.key)
}

// lockerOn returns a Locker. In the end it is closed, and its client.
func lockerOn(t *testing.T, conn interface {
	rediscore.Conn
	Close()
}, opts ...rediscore.Option) *rediscore.Locker {
	l := rediscore.New(conn, opts...)
	t.Cleanup(func() {
		l.Close()
		conn.Close()
	})
	return l
}

// compared makes a call. If that fails, nothing is compared.
func (b *bench) compared(call rediscore.Call) (r rediscore.Result) {
	b.Helper()
	before, known := b.stored(call)
	for _, ear := range b.ears {
		ear.listen()
	}
	cost := b.server.Cost()
	r.Reply, r.Err = b.run(call.Script, call.Keys(), call.Args)
	b.spent(cost)
	if r.Err != nil || !known || !b.harmless() {
		return r
	}
	var refs []*reference
	for _, s := range before {
		refs = append(refs, &reference{
			store: s, id: b.replicationID(), votes: len(call.Keys()) == birthKey+1, calls: make(map[string]int64), denied: b.faults.Commands, listens: b.listens,
		})
	}
	name := nameOf(call.Script)
	want := refs[0].call(name, call.Args)
	if call.Script == rediscore.SetScript {
		want = acquireSet(refs, call.Args)
	}
	b.ran[name] = true
	assert.Equal(b, want, r.Reply, "reply of %s %q", name, call.Args)
	after, _ := b.stored(call)
	for i := range refs {
		assert.Equal(b, refs[i].store, after[i], "what is stored after %s %q", name, call.Args)
	}
	for _, ear := range b.ears {
		var messages []string
		for _, m := range refs[0].messages {
			if text, its := strings.CutPrefix(m, ear.inbox+" "); its {
				messages = append(messages, text)
			}
		}
		assert.Equal(b, messages, ear.listen(), "messages to %q of %s %q", ear.inbox, name, call.Args)
	}
	return r
}

func (b *bench) replicationID() string {
	info, _ := b.server.Do("INFO", "replication")
	return replicationID.FindStringSubmatch(fmt.Sprint(info))[1]
}

var replicationID = regexp.MustCompile(`master_replid:(\w+)`)

// nameOf returns the name of a script.
func nameOf(s *rediscore.Script) string {
	for name, script := range rediscore.Scripts {
		if script == s {
			return name
		}
	}
	return ""
}

// harmless reports whether a script that fails in part for want of rights does what the reference does.
func (b *bed) harmless() bool {
	for command := range b.faults.Commands {
		if !slices.Contains([]string{"PUBLISH", "PUBSUB", "HLEN", "HGETALL", "ZCARD", "ZRANGE"}, command) {
			return false
		}
	}
	return !b.faults.Full && b.faults.Writes == ""
}

// stored returns what the server has for each lock of a call, whatever its faults are.
func (b *bench) stored(call rediscore.Call) (all []store, known bool) {
	b.server.SetFaults(sim.Faults{})
	defer b.server.SetFaults(b.faults)
	n := len(call.Keys())
	if call.Script == rediscore.SetScript {
		n = waitersKey + 1
	}
	known = true
	for keys := range slices.Chunk(call.Keys(), n) {
		s, ok := storeOf(b.server, keys)
		all, known = append(all, s), known && ok
	}
	return all, known
}

// spent notes what the server has done since.
func (b *bed) spent(since sim.Cost) {
	now := b.server.Cost()
	b.cost.Commands += now.Commands - since.Commands
	for name, n := range now.Calls {
		b.cost.Calls[name] += n - since.Calls[name]
	}
}

// listens reports whether somebody listens to an inbox.
func (b *bed) listens(inbox string) bool {
	command := map[bool]string{false: "NUMSUB", true: "SHARDNUMSUB"}[inbox[0] == 's']
	reply, err := b.server.Do("PUBSUB", command, inbox[1:])
	return err != nil || reply.([]any)[1] != int64(0)
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
	b.fails(sim.Faults{Commands: refused})
}

// fails sets what the server refuses.
func (b *bed) fails(f sim.Faults) {
	b.faults = f
	b.server.SetFaults(f)
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
	b      *bench
	name   string
	shard  bool
	sub    *sim.Subscription
	inbox  string
	unread []string
}

func (b *bench) listen(channel string) *ear { return b.listenTo(channel, false) }

func (b *bench) listenTo(channel string, shard bool) *ear {
	b.Helper()
	e := &ear{b: b, name: channel, shard: shard, inbox: map[bool]string{false: "p", true: "s"}[shard] + channel}
	e.subscribe()
	return e
}

func (e *ear) subscribe() {
	e.b.Helper()
	sub, err := e.b.server.Subscribe(e.name, e.shard)
	require.NoError(e.b, err)
	e.sub, e.b.ears = sub, append(e.b.ears, e)
}

func (e *ear) unsubscribe() {
	e.b.server.Unsubscribe(e.name, e.shard, e.sub)
	e.b.ears = slices.DeleteFunc(e.b.ears, func(other *ear) bool { return other == e })
}

// listen returns the messages that have been published since the last call.
func (e *ear) listen() (messages []string) {
	for _, m := range e.sub.Take() {
		messages = append(messages, m.Text)
	}
	e.unread = append(e.unread, messages...)
	return messages
}

// heard returns the messages since the last call of it.
func (e *ear) heard() (messages []string) {
	e.listen()
	messages, e.unread = e.unread, nil
	return messages
}

package rediscore_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
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
	before, known := b.stored(call)
	for _, ear := range b.ears {
		ear.listen()
	}
	cost := b.server.Cost()
	r.Reply, r.Err = b.run(call.Script, call.Keys(), call.Args)
	spent := b.spent(cost)
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
	if call.Script == rediscore.Scripts["acquire-set"] {
		want = acquireSet(refs, call.Args)
	}
	b.ran[name] = true
	assert.Equal(b, want, r.Reply, "reply of %s %q", name, call.Args)
	after, _ := b.stored(call)
	gone, tidied := 0, 0
	for i, ref := range refs {
		assert.Equal(b, ref.store, after[i], "what is stored after %s %q", name, call.Args)
		gone, tidied = gone+ref.gone, tidied+ref.tidied
	}
	assert.LessOrEqual(b, spent.Commands, 30+4*(gone/100), "commands of %s, which removes %d waiters: %v", name, gone, spent.Calls)
	assert.Equal(b, tidied, spent.Calls["HGETALL"], "all inboxes are read only to remove some of many")
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
	if call.Script == rediscore.Scripts["acquire-set"] {
		n = waitersKey + 1
	}
	known = true
	for keys := range slices.Chunk(call.Keys(), n) {
		s, ok := storeOf(b.server, keys)
		all, known = append(all, s), known && ok
	}
	return all, known
}

// spent notes and returns what the server has done since.
func (b *bed) spent(since sim.Cost) sim.Cost {
	did := b.server.Cost()
	did.Commands -= since.Commands
	b.cost.Commands += did.Commands
	for name := range did.Calls {
		did.Calls[name] -= since.Calls[name]
		b.cost.Calls[name] += did.Calls[name]
	}
	return did
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
	texts := make([]string, len(args))
	for i, arg := range args {
		texts[i] = fmt.Sprint(arg)
	}
	reply := must(b.server.Do(texts...))(b)
	return reply
}

// must returns what a call has returned, which must not fail: must(call())(t).
func must[T any](result T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		require.NoError(t, err)
		return result
	}
}

func (b *bench) number(args ...any) int64 {
	n, ok := b.do(args...).(int64)
	require.True(b, ok, "%q", args)
	return n
}

// text is empty if there is none.
func (b *bench) text(args ...any) string {
	text, _ := b.do(args...).(string)
	return text
}

func (b *bench) texts(args ...any) []string {
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
	reply := must(b.eval(s, args...))(b)
	return reply
}

func (b *bench) release(token string) any { return b.call(rediscore.ReleaseScript, token) }

func (b *bench) enqueue(token, inbox string) any {
	return b.call(rediscore.EnqueueScript, token, "60000", inbox, "")
}

func (b *bench) checkIn(token, inbox string) any {
	return b.call(rediscore.CheckInScript, token, inbox)
}

// hold makes a token the holder, and returns its fence.
func (b *bench) hold(token string) int64 {
	fence, ok := b.call(rediscore.AcquireScript, token, "60000").(int64)
	require.True(b, ok, "%q gets the lock", token)
	return fence
}

// wait puts a token into the queue, and returns its ticket.
func (b *bench) wait(token, inbox string) int64 {
	reply := b.enqueue(token, inbox)
	require.Equal(b, rediscore.AnswerWaits, b.answer(reply), "%q waits", token)
	return reply.([]any)[1].(int64)
}

// answer is the first number of an answer to enqueue or checkIn.
func (b *bench) answer(reply any) (state int) {
	require.IsType(b, []any{}, reply)
	return int(reply.([]any)[0].(int64))
}

// expire ends a lease as its TTL would.
func (b *bench) expire() { b.do("DEL", b.keys.lock) }

// queue returns the tokens in the queue, in order.
func (b *bench) queue() []string { return b.texts("ZRANGE", b.keys.queue, 0, -1) }

// store returns all that is stored.
func (b *bench) store() store {
	s, _ := storeOf(b.server, []string{b.keys.lock, b.keys.counter, b.keys.queue, b.keys.waiters, b.keys.birth})
	return s
}

// holder returns the token that holds the lock, or "".
func (b *bench) holder() string { return b.text("GET", b.keys.lock) }

// now is the time of the server, unless its clock was set.
func (b *bench) now() int64 { return time.Now().UnixMicro() }

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
	e := &ear{b: b, name: channel, shard: shard, inbox: map[bool]string{false: "p", true: "s"}[shard] + channel}
	e.subscribe()
	return e
}

func (e *ear) subscribe() {
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

// A scene is a bench whose lock "k" the token "H" holds, with Lockers. A test orders what happens.
type scene struct {
	*bench
	actors []*actor
}

// ttl is the TTL of all leases.
const ttl = time.Minute

func inScene(t *testing.T, play func(s *scene, a *actor)) {
	atBench(t, "", "k", func(b *bench) {
		b.alone = false
		b.hold("H")
		s := &scene{bench: b}
		play(s, s.enter())
	})
}

// Scenes are those of one subject. Each is a test.
type scenes map[string]func(s *scene, a *actor)

func (all scenes) play(t *testing.T) {
	for name, play := range all {
		t.Run(name, func(t *testing.T) { inScene(t, play) })
	}
}

// requireClean fails unless the lock is free and has no waiters, also after all Lockers have finished what they have begun.
func (s *scene) requireClean() {
	for _, a := range s.actors {
		require.NoError(s, a.Close())
	}
	require.Empty(s, s.holder())
	require.Empty(s, s.queue())
}

// An actor is a Locker, whose calls and messages a test can hold back, and answer in place of the server.
type actor struct {
	*rediscore.Locker
	*scene
	conn *sim.Conn

	mu      sync.Mutex
	trips   []noted
	answer  func(rediscore.Call) (any, error) // nil: the server answers
	refusal error                             // of subscriptions
	network func(sim.Trip) sim.Fate
}

// A noted is a trip that began at some time.
type noted struct {
	at time.Time
	sim.Trip
}

func (s *scene) enter(opts ...rediscore.Option) *actor {
	return s.enterOn(func(c *sim.Conn) rediscore.Conn { return c }, opts...)
}

// enterOn is enter with another Conn on the simulated one.
func (s *scene) enterOn(conn func(*sim.Conn) rediscore.Conn, opts ...rediscore.Option) *actor {
	a := &actor{scene: s, network: func(sim.Trip) sim.Fate { return sim.Fate{} }}
	a.conn = sim.Dial(s.server, a.fate)
	a.Locker = rediscore.New(conn(a.conn), opts...)
	s.actors = append(s.actors, a)
	s.Cleanup(func() {
		a.Close()
		a.conn.Close()
	})
	return a
}

func (a *actor) fate(t sim.Trip) sim.Fate {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trips = append(a.trips, noted{time.Now(), t})
	f := a.network(t)
	if a.answer != nil {
		for _, call := range t.Calls {
			reply, err := a.answer(call)
			f.Reply.Lost = f.Reply.Lost || err == errSilent
			f.Results = append(f.Results, rediscore.Result{Reply: reply, Err: err})
		}
	}
	if a.refusal != nil && t.Calls == nil && t.Message == "" {
		f.Results = []rediscore.Result{{Err: a.refusal}}
	}
	return f
}

// errSilent is in place of an answer that does not come.
var errSilent = errors.New("no answer comes")

// answers lets a function answer all calls from now on, or the server if it is nil.
func (a *actor) answers(answer func(rediscore.Call) (any, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// replies is answers with the same error or reply for all calls.
func (a *actor) replies(reply any, err error) {
	a.answers(func(rediscore.Call) (any, error) { return reply, err })
}

// travels sets the fate of all trips from now on.
func (a *actor) travels(f sim.Fate) { a.travelsBy(func(sim.Trip) sim.Fate { return f }) }

func (a *actor) travelsBy(network func(sim.Trip) sim.Fate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.network = network
}

// refuses lets all subscriptions fail from now on, or none if err is nil.
func (a *actor) refuses(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusal = err
}

// recovers undoes answers, refuses and travels.
func (a *actor) recovers() {
	a.answers(nil)
	a.refuses(nil)
	a.travels(sim.Fate{})
}

func (a *actor) noted(is func(sim.Trip) bool) (all []noted) {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.trips {
		if is(n.Trip) {
			all = append(all, n)
		}
	}
	return all
}

// asked returns the calls of a Locker that makes one at a time, without the first n.
func (a *actor) asked(n int) []noted {
	return a.noted(func(t sim.Trip) bool { return t.Calls != nil })[n:]
}

func (n noted) script() *rediscore.Script { return n.Calls[0].Script }
func (n noted) args() []string            { return n.Calls[0].Args }

// listened returns the subscriptions that the Locker has begun.
func (a *actor) listened() []noted {
	return a.noted(func(t sim.Trip) bool { return t.Calls == nil && t.Message == "" })
}

// inbox returns the name of the last inbox.
func (a *actor) inbox() sim.Trip {
	all := a.listened()
	return all[len(all)-1].Trip
}

// opened returns how many subscriptions to the last inbox there are.
func (a *actor) opened() int64 { return a.subscribers(a.inbox()) }

// subscribers returns how many subscriptions to the channel of a trip there are.
func (s *scene) subscribers(t sim.Trip) int64 {
	synctest.Wait()
	command := map[bool]string{false: "NUMSUB", true: "SHARDNUMSUB"}[t.Shard]
	return s.do("PUBSUB", command, t.Channel).([]any)[1].(int64)
}

// tell sends a message to the last inbox.
func (a *actor) tell(message string) {
	a.do("PUBLISH", a.inbox().Channel, message)
	synctest.Wait()
}

// grant sends the message of a grant that is newer than all answers.
func (a *actor) grant(fence int, token string) {
	a.tell(fmt.Sprint(fence, " ", time.Now().UnixMicro()+1, " ", token))
}

// callsOf returns the calls of a script for a token.
func (a *actor) callsOf(script *rediscore.Script, token string) (all []rediscore.Call) {
	for _, trip := range a.asked(0) {
		for _, call := range trip.Calls {
			if call.Script == script && call.Args[0] == token {
				all = append(all, call)
			}
		}
	}
	return all
}

// calls returns how often a script was called for a token.
func (a *actor) calls(script *rediscore.Script, token string) int {
	return len(a.callsOf(script, token))
}

// holdCall holds back the next call of a script for a token.
func (a *actor) holdCall(script *rediscore.Script, token string) *sim.Held {
	return a.conn.Hold(a, func(t sim.Trip) bool {
		return len(t.Calls) > 0 && t.Calls[0].Script == script && t.Calls[0].Args[0] == token
	})
}

// holdMessage holds back the next message to a token.
func (a *actor) holdMessage(token string) *sim.Held {
	return a.conn.Hold(a, func(t sim.Trip) bool { return strings.HasSuffix(t.Message, " "+token) })
}

// release releases a token, and reports whether it held the lock.
func (a *actor) release(token string) bool { return must(a.Release(a.Context(), "k", token))(a) }

// beginRelease is release in the background.
func (a *actor) beginRelease(token string) <-chan dlock.RenewResult {
	return begin(func() (r dlock.RenewResult) {
		r.Held, r.Err = a.Release(a.Context(), "k", token)
		return r
	})
}

// A waiting is an Acquire or an AcquireVote.
type waiting struct {
	*actor
	token  string
	began  time.Time
	cancel context.CancelFunc
	done   chan struct{}
	quorum.Ballot
	err error
}

// holdSubscription holds back the next subscription.
func (a *actor) holdSubscription() *sim.Held {
	return a.conn.Hold(a, func(t sim.Trip) bool { return t.Calls == nil && t.Message == "" })
}

// acquire begins to wait, and returns a millisecond later: if nothing is held back, the token is in the
// queue then, with an inbox, and a grant is later than what the server has answered.
func (a *actor) acquire(token string) *waiting { return a.acquireFor("k", token, ttl) }

func (a *actor) acquireFor(key, token string, ttl time.Duration) *waiting {
	return a.wait(token, func(ctx context.Context) (b quorum.Ballot, err error) {
		b.Attempt, err = a.Acquire(ctx, key, token, ttl)
		return b, err
	})
}

func (a *actor) acquireVote(token string, place int64) *waiting {
	return a.wait(token, func(ctx context.Context) (quorum.Ballot, error) { return a.AcquireVote(ctx, "k", token, ttl, 0, place) })
}

func (a *actor) wait(token string, acquire func(context.Context) (quorum.Ballot, error)) *waiting {
	ctx, cancel := context.WithTimeout(a.Context(), 24*time.Hour)
	w := &waiting{actor: a, token: token, began: time.Now(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.Ballot, w.err = acquire(ctx)
	}()
	time.Sleep(time.Millisecond)
	synctest.Wait()
	return w
}

// over reports whether the wait has ended.
func (w *waiting) over() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// granted waits for the grant. It fails unless the server keeps the lease at least until Since plus
// the TTL, and Since is no earlier than the call or the time of the grant, whatever is later.
func (w *waiting) granted() dlock.Attempt {
	<-w.done
	require.NoError(w, w.err, "wait of %q", w.token)
	require.True(w, w.Acquired)
	require.Equal(w, w.token, w.holder())
	require.Equal(w, fmt.Sprint(w.Fence), w.text("GET", w.keys.counter))
	end := time.Now().Add(time.Duration(w.number("PTTL", "k")+1) * time.Millisecond)
	require.False(w, w.Since.Add(ttl).After(end), "the lease ends %v before Since and the TTL", w.Since.Add(ttl).Sub(end))
	require.False(w, w.Since.Before(w.began.Add(-time.Millisecond)), "Since is before the wait")
	return w.Attempt
}

// grantedNow is granted without waiting.
func (w *waiting) grantedNow() dlock.Attempt {
	require.True(w, w.over(), "wait of %q", w.token)
	return w.granted()
}

// served waits for the grant, and releases the lock.
func (w *waiting) served() {
	w.granted()
	w.released()
}

// failed fails unless the wait has ended with an error.
func (w *waiting) failed(want error) {
	require.True(w, w.over(), "wait of %q", w.token)
	require.ErrorIs(w, w.err, want, "wait of %q", w.token)
}

// cancelled cancels the wait.
func (w *waiting) cancelled() {
	w.cancel()
	w.failed(context.Canceled)
	require.False(w, w.Acquired)
}

// released releases the lock that was granted.
func (w *waiting) released() { require.True(w, w.release(w.token), "%q held the lock", w.token) }

package rediscore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// A scene is a bench whose lock "k" the token "H" holds, with Lockers. A test orders what happens.
type scene struct {
	*bench
	actors []*actor
}

// ttl is the TTL of all leases.
const ttl = time.Minute

func inScene(t *testing.T, play func(s *scene, a *actor)) {
	t.Helper()
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

func (s *scene) ticket(token string) string {
	s.Helper()
	return s.text("ZSCORE", s.keys.queue, token)
}

// requireClean fails unless the lock is free and has no waiters, also after all Lockers have finished
// what they have begun.
func (s *scene) requireClean() {
	s.Helper()
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
func (a *actor) opened() int64 {
	a.Helper()
	return a.subscribers(a.inbox())
}

// subscribers returns how many subscriptions to the channel of a trip there are.
func (s *scene) subscribers(t sim.Trip) int64 {
	s.Helper()
	synctest.Wait()
	command := map[bool]string{false: "NUMSUB", true: "SHARDNUMSUB"}[t.Shard]
	return s.do("PUBSUB", command, t.Channel).([]any)[1].(int64)
}

// tell sends a message to the last inbox.
func (a *actor) tell(message string) {
	a.Helper()
	a.do("PUBLISH", a.inbox().Channel, message)
	synctest.Wait()
}

// grant sends the message of a grant that is newer than all answers.
func (a *actor) grant(fence int, token string) {
	a.Helper()
	a.tell(fmt.Sprint(fence, " ", time.Now().UnixMicro()+1, " ", token))
}

// calls returns how often a script was called for a token.
func (a *actor) calls(script *rediscore.Script, token string) (n int) {
	for _, trip := range a.asked(0) {
		for _, call := range trip.Calls {
			if call.Script == script && call.Args[0] == token {
				n++
			}
		}
	}
	return n
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
func (a *actor) release(token string) bool {
	a.Helper()
	held, err := a.Release(a.Context(), "k", token)
	require.NoError(a, err)
	return held
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
	return a.wait(token, func(ctx context.Context) (quorum.Ballot, error) {
		return a.AcquireVote(ctx, "k", token, ttl, 0, place)
	})
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
	w.Helper()
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
	w.Helper()
	require.True(w, w.over(), "wait of %q", w.token)
	return w.granted()
}

// served waits for the grant, and releases the lock.
func (w *waiting) served() {
	w.Helper()
	w.granted()
	w.released()
}

// failed fails unless the wait has ended with an error.
func (w *waiting) failed(want error) {
	w.Helper()
	require.True(w, w.over(), "wait of %q", w.token)
	require.ErrorIs(w, w.err, want, "wait of %q", w.token)
}

// cancelled cancels the wait.
func (w *waiting) cancelled() {
	w.Helper()
	w.cancel()
	w.failed(context.Canceled)
	require.False(w, w.Acquired)
}

// released releases the lock that was granted.
func (w *waiting) released() {
	w.Helper()
	require.True(w, w.release(w.token), "%q held the lock", w.token)
}

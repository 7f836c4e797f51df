package rediscore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A bench calls the scripts of one lock one by one, and looks at what they store.
type bench struct {
	*testing.T
	*wireConn
	addr   string
	locker *Locker
	lock   *lockKeys
	key    string
}

// newBench returns a bench for a lock on a server of its own. It fails if a companion of the lock
// has no TTL at the end of the test, except the marker of votes.
func newBench(t *testing.T, prefix, key string) *bench {
	t.Helper()
	return benchOn(t, redistest.Start(t), prefix, key)
}

func benchOn(t *testing.T, server *redistest.Server, prefix, key string) *bench {
	t.Helper()
	b := &bench{T: t, addr: server.Addr(), key: key, lock: newLockKeys(prefix, key, false)}
	b.wireConn = &wireConn{redis: b.dial()}
	b.locker = New(b.wireConn, WithPrefix(prefix))
	t.Cleanup(b.requireExpiry)
	return b
}

// of returns a bench for another lock on the same server.
func (b *bench) of(key string) *bench {
	other := *b
	other.key, other.lock = key, newLockKeys(b.locker.prefix, key, false)
	return &other
}

func (b *bench) dial() redis.Conn {
	b.Helper()
	conn, err := redis.Dial("tcp", b.addr)
	require.NoError(b, err)
	b.Cleanup(func() { conn.Close() })
	return conn
}

func (b *bench) requireExpiry() {
	b.Helper()
	for _, key := range b.all(b) {
		if strings.Contains(key, companionMark) && !strings.HasSuffix(key, birthSuffix) {
			require.Positive(b, b.integer(b, "PTTL", key), "PTTL of %q", key)
		}
	}
}

func (b *bench) call(s *Script, args ...string) any {
	b.Helper()
	reply, err := b.locker.eval(b.Context(), s, b.key, args...)
	require.NoError(b, err, "%q", args)
	return reply
}

func (b *bench) try(token string) any     { return b.call(acquireScript, token, "60000") }
func (b *bench) release(token string) any { return b.call(releaseScript, token) }

func (b *bench) enqueue(token, inbox string) any {
	return b.call(enqueueScript, token, "60000", inbox, "")
}

func (b *bench) checkIn(token, inbox string) any { return b.call(checkInScript, token, inbox) }

// hold makes a token the holder, and returns its fence.
func (b *bench) hold(token string) int64 {
	b.Helper()
	fence, ok := b.try(token).(int64)
	require.True(b, ok, "%q got the lock", token)
	return fence
}

// wait puts a token into the queue, and returns its ticket.
func (b *bench) wait(token, inbox string) int64 {
	b.Helper()
	state, n := b.answer(b.enqueue(token, inbox))
	require.EqualValues(b, answerWaits, state, "%q waits", token)
	return n[0]
}

// answer reads an answer to enqueue or checkIn: the first number, and the others.
func (b *bench) answer(reply any) (state int64, n []int64) {
	b.Helper()
	state, n, _, _, err := parseAnswer(&answer{reply: reply})
	require.NoError(b, err, "%v", reply)
	return state, n
}

// expire ends a lease as its TTL would.
func (b *bench) expire() { b.integer(b, "DEL", b.lock.texts[0]) }

// age moves a waiter's last check-in back by d.
func (b *bench) age(token string, d time.Duration) {
	b.Helper()
	seen, rest, ok := strings.Cut(b.text(b, "HGET", b.lock.texts[3], ":"+token), " ")
	require.True(b, ok)
	at, err := strconv.ParseInt(seen, 10, 64)
	require.NoError(b, err)
	b.integer(b, "HSET", b.lock.texts[3], ":"+token, fmt.Sprint(at-d.Microseconds(), " ", rest))
}

// queue returns the tokens in the queue, in order.
func (b *bench) queue() []string {
	b.Helper()
	tokens, err := redis.Strings(b.redis.Do("ZRANGE", b.lock.texts[2], 0, -1))
	require.NoError(b, err)
	return tokens
}

// waiters returns the records of the waiters and of the last handover.
func (b *bench) waiters() map[string]string {
	b.Helper()
	fields, err := redis.StringMap(b.redis.Do("HGETALL", b.lock.texts[3]))
	require.NoError(b, err)
	delete(fields, "pulse")
	return fields
}

// holder returns the token that holds the lock, or "".
func (b *bench) holder() string {
	b.Helper()
	token, err := redis.String(b.redis.Do("GET", b.lock.texts[0]))
	if !errors.Is(err, redis.ErrNil) {
		require.NoError(b, err)
	}
	return token
}

// state returns all that is stored, without fences and TTLs.
func (b *bench) state() map[string]any {
	b.Helper()
	state := map[string]any{"queue": b.queue(), "waiters": b.waiters()}
	if token := b.holder(); token != "" {
		state["lock"] = token
	}
	return state
}

// A subscriber receives the messages to an inbox. The field inbox is its address for the scripts.
type subscriber struct {
	b     *bench
	conn  redis.PubSubConn
	inbox string
}

func (b *bench) listen(channel string) *subscriber {
	b.Helper()
	e := &subscriber{b, redis.PubSubConn{Conn: b.dial()}, "p" + channel}
	require.NoError(b, e.conn.Subscribe(channel))
	require.IsType(b, redis.Subscription{}, e.next())
	return e
}

func (e *subscriber) next() any { return e.conn.ReceiveWithTimeout(10 * time.Second) }

// heard returns all messages that have been published.
func (e *subscriber) heard() (messages []string) {
	e.b.Helper()
	require.NoError(e.b, e.conn.Ping(""))
	for {
		switch m := e.next().(type) {
		case redis.Message:
			messages = append(messages, string(m.Data))
		case redis.Pong:
			return messages
		default:
			require.FailNow(e.b, "unexpected", "%v", m)
		}
	}
}

// unsubscribe ends the subscription, and waits until the server has confirmed it.
func (e *subscriber) unsubscribe() {
	e.b.Helper()
	require.NoError(e.b, e.conn.Unsubscribe())
	require.IsType(e.b, redis.Subscription{}, e.next())
}

// requireTold fails unless exactly one message has come, for a grant to token. It returns the
// grant.
func (e *subscriber) requireTold(token string) handover {
	e.b.Helper()
	messages := e.heard()
	require.Len(e.b, messages, 1)
	h, to, ok := parseHandover(messages[0])
	require.True(e.b, ok, "%q", messages[0])
	require.Equal(e.b, token, to)
	return h
}

const odd = "a\x00 b\r\n{}:%\xff 1 2"

// The queue, the records of waiters and the messages are part of the wire format. Their form must
// not change.
func TestStoredQueue(t *testing.T) {
	b := newBench(t, odd, odd)
	ear := b.listen(odd + "inbox")
	fence := b.hold("H")
	before := b.now(t)
	first := b.wait(odd, ear.inbox)
	second := b.wait("handover", "")
	after := b.now(t)
	require.GreaterOrEqual(t, first, fence+8)
	require.GreaterOrEqual(t, second, first+8)
	tickets, err := redis.Strings(b.redis.Do("ZRANGE", b.lock.texts[2], 0, -1, "WITHSCORES"))
	require.NoError(t, err)
	require.Equal(t, []string{odd, fmt.Sprint(first), "handover", fmt.Sprint(second)}, tickets)
	waiters := b.waiters()
	for token, want := range map[string]string{odd: "60000 " + ear.inbox, "handover": "60000 "} {
		seen, rest, _ := strings.Cut(waiters[":"+token], " ")
		at, err := strconv.ParseInt(seen, 10, 64)
		require.NoError(t, err)
		require.True(t, before <= at && at <= after, "seen at %d, between %d and %d", at, before, after)
		require.Equal(t, want, rest)
	}
	require.Len(t, waiters, 2)
	seen, _, _ := strings.Cut(waiters[":handover"], " ")
	since, _, _ := strings.Cut(waiters[":"+odd], " ")
	require.Equal(t, seen+" "+since, b.text(t, "HGET", b.lock.texts[3], "pulse"))

	before = b.now(t)
	require.EqualValues(t, 1, b.release("H"))
	require.Equal(t, odd, b.holder())
	require.Greater(t, b.integer(t, "PTTL", b.lock.texts[0]), int64(50_000))
	h := ear.requireTold(odd)
	require.GreaterOrEqual(t, h.fence, second+8)
	require.True(t, before <= h.time && h.time <= b.now(t))
	require.Equal(t, fmtInt(h.fence), b.text(t, "GET", b.lock.texts[1]))
	require.Equal(t, []string{"handover"}, b.queue())
	require.Equal(t, map[string]string{
		"handover":  fmt.Sprintf("%d %d %s", h.fence, h.time, odd),
		":handover": waiters[":handover"],
	}, b.waiters())
	state, n := b.answer(b.checkIn(odd, ear.inbox))
	require.EqualValues(t, answerFound, state)
	require.Equal(t, []int64{h.fence, h.time}, n[:2])
	require.EqualValues(t, 1, b.release(odd))
	require.Empty(t, b.holder())
	state, _ = b.answer(b.checkIn("handover", ""))
	require.EqualValues(t, answerGranted, state)
	require.Equal(t, "handover", b.holder())
}

// A waiter that gets a grant as an answer gets no message for it.
func TestAnswers(t *testing.T) {
	b := newBench(t, "p:", "k")
	ear := b.listen("inbox")
	require.Equal(t, []any{int64(3)}, b.checkIn("A", ear.inbox), "free, and not in the queue")
	b.hold("H")
	require.Equal(t, []any{int64(3)}, b.checkIn("A", ear.inbox), "held, and not in the queue")
	require.Equal(t, []any{int64(3)}, b.checkIn("H", ear.inbox), "held by itself, but not handed over")
	first, second := b.wait("A", ear.inbox), b.wait("B", ear.inbox)
	for _, reply := range []any{b.checkIn("B", ear.inbox), b.enqueue("B", ear.inbox)} {
		r := reply.([]any)
		require.Len(t, r, 6)
		require.Equal(t, []any{int64(1), second, int64(1)}, r[:3])
		require.InDelta(t, b.now(t), r[3], 10e6)
		require.Equal(t, "H", r[4])
		require.InDelta(t, 55_000, r[5], 5_000)
	}
	require.EqualValues(t, first, b.checkIn("A", "").([]any)[1])
	b.integer(t, "PERSIST", "p:k")
	require.EqualValues(t, -1, b.checkIn("A", ear.inbox).([]any)[5], "remaining TTL of a lock that never ends")
	b.checkIn("A", "")
	b.expire()
	for _, reply := range []any{b.checkIn("B", ear.inbox), b.enqueue("C", "")} {
		require.Len(t, reply, 6)
		require.Equal(t, []any{"", int64(-2)}, reply.([]any)[4:], "holder and rest of a lock that is kept for A")
	}
	require.Equal(t, []any{"", int64(-2)}, b.try("C"), "of the same for somebody else")
	require.EqualValues(t, 0, b.release("C"))
	before := b.now(t)
	reply := b.checkIn("A", ear.inbox).([]any)
	require.Len(t, reply, 2)
	require.EqualValues(t, 0, reply[0])
	require.GreaterOrEqual(t, reply[1], second+8)
	found := b.checkIn("A", ear.inbox).([]any)
	require.Len(t, found, 4)
	require.Equal(t, []any{int64(2), reply[1]}, found[:2])
	require.GreaterOrEqual(t, found[2], before)
	require.GreaterOrEqual(t, found[3], found[2])
	require.Empty(t, ear.heard(), "messages of grants that were answered")
	hold := b.try("C").([]any)
	require.Equal(t, "A", hold[0])
	require.InDelta(t, 55_000, hold[1], 5_000)
	state, n := b.answer(b.enqueue("A", ear.inbox))
	require.EqualValues(t, answerGranted, state)
	require.GreaterOrEqual(t, n[0], found[1].(int64)+8, "the fence of a second grant")
	require.Equal(t, []string{"B"}, b.queue())
}

func fmtInt(n int64) string { return strconv.FormatInt(n, 10) }

// Waiters are served in the order of arrival, with rising fences. Each gets a message for its own
// grant only.
func TestOrderOfService(t *testing.T) {
	b := newBench(t, "", "k")
	before := b.hold("H")
	tokens := []string{"z", "y", "x", "a", "b", "c"}
	ears := make(map[string]*subscriber)
	for _, token := range tokens {
		ears[token] = b.listen("inbox of " + token)
		b.wait(token, ears[token].inbox)
	}
	holder := "H"
	for _, token := range tokens {
		require.EqualValues(t, 1, b.release(holder))
		require.Equal(t, token, b.holder())
		h := ears[token].requireTold(token)
		require.GreaterOrEqual(t, h.fence, before+8)
		holder, before = token, h.fence
	}
	require.EqualValues(t, 1, b.release(holder))
	require.Empty(t, b.holder())
	require.Empty(t, b.queue())
	for token, ear := range ears {
		require.Empty(t, ear.heard(), "messages to %s, later", token)
	}
}

// A ticket is the next fence, whatever the clock shows. So the order is kept when the clock is set
// back.
func TestTicketsAreFences(t *testing.T) {
	b := newBench(t, "", "k")
	b.hold("H")
	ahead := b.now(t) + time.Hour.Microseconds()
	b.text(t, "SET", b.lock.texts[1], ahead, "PX", 2*dayInMS) // as after the clock was set back
	require.Equal(t, ahead+8, b.wait("A", ""))
	require.Equal(t, ahead+16, b.wait("B", ""))
	require.Equal(t, ahead+16, b.wait("B", ""), "ticket of one that is in the queue")
	require.Equal(t, ahead+24, b.wait("C", ""))
	require.Equal(t, []string{"A", "B", "C"}, b.queue())
}

// A waiter that has lost its place gets it back with its old ticket. A waiter that has a place
// keeps it, whatever ticket it sends.
func TestOldTicket(t *testing.T) {
	b := newBench(t, "", "k")
	b.hold("H")
	ear := b.listen("inbox")
	ticket := b.wait("A", ear.inbox)
	b.wait("B", ear.inbox)
	b.release("A")
	require.Equal(t, []string{"B"}, b.queue())
	old := fmtInt(ticket)
	state, n := b.answer(b.call(enqueueScript, "A", "60000", ear.inbox, old))
	require.EqualValues(t, answerWaits, state)
	require.Equal(t, []int64{ticket, 0}, n[:2], "ticket and rank")
	state, n = b.answer(b.call(enqueueScript, "B", "60000", ear.inbox, "1"))
	require.EqualValues(t, answerWaits, state)
	require.EqualValues(t, 1, n[1], "rank of one that shows another's ticket")
	require.Equal(t, []string{"A", "B"}, b.queue())
}

// Dead waiters are removed from the queue, and the first one that is alive is served.
func TestDeadWaiters(t *testing.T) {
	for name, kill := range map[string]func(b *bench, ear *subscriber){
		"nobody listens": func(b *bench, ear *subscriber) { ear.unsubscribe() },
		"silent":         func(b *bench, ear *subscriber) { b.age("dead", 5100*time.Millisecond) },
		"nothing known":  func(b *bench, ear *subscriber) { b.integer(b, "HDEL", b.lock.texts[3], ":dead") },
		"not to be read": func(b *bench, ear *subscriber) { b.integer(b, "HSET", b.lock.texts[3], ":dead", "?") },
		"no inbox, short TTL": func(b *bench, ear *subscriber) {
			b.checkIn("dead", "")
			b.integer(b, "HSET", b.lock.texts[3], ":dead", strings.Replace(b.waiters()[":dead"], " 60000 ", " 200 ", 1))
			b.age("dead", 201*time.Millisecond)
		},
		"clock set back":           func(b *bench, ear *subscriber) { b.age("dead", -time.Hour) },
		"no inbox, clock set back": func(b *bench, ear *subscriber) { b.checkIn("dead", ""); b.age("dead", -time.Hour) },
		"no inbox, silent":         func(b *bench, ear *subscriber) { b.checkIn("dead", ""); b.age("dead", 2100*time.Millisecond) },
		"somebody hears all": func(b *bench, ear *subscriber) {
			ear.unsubscribe()
			require.NoError(b, ear.conn.PSubscribe("*"))
			ear.next()
		},
		"listens to the other": func(b *bench, ear *subscriber) {
			ear.unsubscribe()
			require.NoError(b, ear.conn.Subscribe("p"+ear.inbox))
			ear.next()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "-")
			for how, free := range map[string]func(b *bench){
				"release":             func(b *bench) { require.EqualValues(b, 1, b.release("H")) },
				"release by a waiter": func(b *bench) { b.expire(); require.EqualValues(b, 0, b.release("-")) },
				"attempt":             func(b *bench) { b.expire(); require.IsType(b, []any{}, b.try("-")) },
				"enqueue":             func(b *bench) { b.expire(); b.wait("-", "") },
				"check-in":            func(b *bench) { b.expire(); b.checkIn("-", "") },
			} {
				b := b.of(how)
				ear, alive := b.listen("inbox"), b.listen("alive")
				b.hold("H")
				for _, token := range []string{"dead", "A", "B"} {
					b.wait(token, map[bool]string{true: ear.inbox, false: alive.inbox}[token == "dead"])
				}
				kill(b, ear)
				free(b)
				require.Equal(t, "A", b.holder(), how)
				require.Equal(t, "B", b.queue()[0], how)
				require.NotContains(t, b.waiters(), ":dead", how)
				alive.requireTold("A")
			}
		})
	}
}

// A waiter that has checked in lately is alive. The lock is reserved for a waiter without an inbox
// until it checks in.
func TestAliveWaiters(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	b.hold("H")
	b.wait("A", ear.inbox)
	b.age("A", 4*time.Second)
	require.EqualValues(t, 1, b.release("H"))
	ear.requireTold("A")

	b.wait("unsubscribed", "")
	b.wait("B", ear.inbox)
	b.age("unsubscribed", 500*time.Millisecond)
	require.EqualValues(t, 1, b.release("A"))
	require.Empty(t, b.holder())
	require.Equal(t, "", b.try("C").([]any)[0])
	require.EqualValues(t, 1, b.answerOf(b.enqueue("C", ear.inbox)))
	require.EqualValues(t, 1, b.answerOf(b.checkIn("B", ear.inbox)))
	require.EqualValues(t, 0, b.release("C"))
	require.Empty(t, b.holder())
	require.Equal(t, []string{"unsubscribed", "B"}, b.queue())
	require.EqualValues(t, 0, b.answerOf(b.checkIn("unsubscribed", "")))
	require.Equal(t, "unsubscribed", b.holder())
	require.Empty(t, ear.heard())

	require.EqualValues(t, 1, b.release("unsubscribed"))
	ear.requireTold("B")
	b.wait("unsubscribed", "")
	b.expire()
	require.EqualValues(t, 0, b.answerOf(b.enqueue("unsubscribed", "")), "it may come with an enqueue, too")
	b.wait("unsubscribed again", "")
	b.expire()
	b.hold("unsubscribed again")
	require.Empty(t, b.queue())
}

func (b *bench) answerOf(reply any) int64 {
	b.Helper()
	state, _ := b.answer(reply)
	return state
}

// A lock that is free while it has waiters goes to the first of them, whoever calls.
func TestNobodyBargesIn(t *testing.T) {
	for name, come := range map[string]func(b *bench){
		"attempt":  func(b *bench) { require.Equal(b, "A", b.try("C").([]any)[0]) },
		"enqueue":  func(b *bench) { b.wait("C", ""); require.Equal(b, []string{"B", "C"}, b.queue()) },
		"check-in": func(b *bench) { require.EqualValues(b, 1, b.answerOf(b.checkIn("B", ""))) },
		"check-in of a stranger": func(b *bench) {
			require.EqualValues(b, 3, b.answerOf(b.checkIn("C", "")))
		},
		"release of a waiter":   func(b *bench) { require.EqualValues(b, 0, b.release("B")) },
		"release of a stranger": func(b *bench) { require.EqualValues(b, 0, b.release("C")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			fence := b.hold("H")
			b.wait("A", ear.inbox)
			b.wait("B", ear.inbox)
			b.expire()
			come(b)
			require.Equal(t, "A", b.holder())
			require.Greater(t, ear.requireTold("A").fence, fence)
		})
	}
}

// If the first waiter finds the lock free, it is granted the lock in the answer.
func TestFirstServesItself(t *testing.T) {
	for name, come := range map[string]func(b *bench, inbox string) int64{
		"attempt":  func(b *bench, _ string) int64 { return b.hold("A") },
		"enqueue":  func(b *bench, inbox string) int64 { return b.enqueue("A", inbox).([]any)[1].(int64) },
		"check-in": func(b *bench, inbox string) int64 { return b.checkIn("A", inbox).([]any)[1].(int64) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			b.hold("H")
			ticket := b.wait("A", ear.inbox)
			b.wait("B", ear.inbox)
			b.expire()
			require.GreaterOrEqual(t, come(b, ear.inbox), ticket+8)
			require.Equal(t, "A", b.holder())
			require.Equal(t, []string{"B"}, b.queue())
			require.Empty(t, ear.heard())
		})
	}
}

// A token is in the queue only once, and not at all while it holds the lock.
func TestEnqueueTwice(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	b.hold("H")
	ticket := b.wait("A", "")
	b.wait("B", ear.inbox)
	require.Equal(t, ticket, b.wait("A", ear.inbox))
	require.Equal(t, []string{"A", "B"}, b.queue())
	require.EqualValues(t, 1, b.release("H"))
	first := ear.requireTold("A").fence
	reply := b.enqueue("A", ear.inbox).([]any)
	require.EqualValues(t, 0, reply[0])
	require.Greater(t, reply[1], first)
	require.Equal(t, []string{"B"}, b.queue())
	require.Equal(t, "A", b.holder())
}

// A script that is delivered late, after others, does no harm: not to a longer lease of its own
// token, nor to another token's, nor to a free lock. What a late attempt or enqueue takes, the owed
// release gives back.
func TestDeliveredLast(t *testing.T) {
	late := map[string]func(b *bench){
		"renew":    func(b *bench) { b.call(renewScript, "A", "1000") },
		"check-in": func(b *bench) { b.checkIn("A", "") },
		"release":  func(b *bench) { b.release("A") },
		"try":      func(b *bench) { b.call(acquireScript, "A", "1000") },
		"enqueue":  func(b *bench) { b.call(enqueueScript, "A", "1000", "", "") },
	}
	for name, deliver := range late {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			b.hold("H")
			b.wait("A", ear.inbox)
			require.EqualValues(t, 1, b.release("H"))
			if name != "release" {
				deliver(b)
				require.Equal(t, "A", b.holder())
				require.Greater(t, b.integer(t, "PTTL", "k"), int64(50_000), "rest of its own lease")
				require.Empty(t, b.queue())
			}

			require.EqualValues(t, 1, b.release("A"))
			before := b.state()
			deliver(b)
			if name == "try" || name == "enqueue" {
				require.LessOrEqual(t, b.integer(t, "PTTL", "k"), int64(1000))
				require.EqualValues(t, 1, b.release("A"))
			}
			require.Equal(t, before, b.state(), "of a lock that was free")

			b.hold("B")
			ticket := b.wait("C", ear.inbox)
			before = b.state()
			deliver(b)
			b.release("A")
			require.Equal(t, before, b.state(), "of a lock that another holds")
			require.Greater(t, b.integer(t, "PTTL", "k"), int64(50_000), "rest of another's lease")
			require.Equal(t, fmt.Sprint(ticket), b.text(t, "ZSCORE", b.lock.texts[2], "C"))
		})
	}
}

// A check-in creates and extends nothing but the waiter's own place.
func TestCheckInChangesNothing(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	b.checkIn("A", ear.inbox)
	require.Empty(t, b.all(t), "after a check-in on an empty server")
	b.hold("H")
	b.wait("A", ear.inbox)
	b.wait("B", ear.inbox)
	b.release("H")
	ear.requireTold("A")
	for _, key := range []string{b.lock.texts[0], b.lock.texts[1]} {
		b.integer(t, "PEXPIRE", key, 20_000)
	}
	before, fence := b.state(), b.text(t, "GET", b.lock.texts[1])
	for _, token := range []string{"A", "C", "H"} {
		b.checkIn(token, "p another")
	}
	require.Equal(t, before, b.state())
	require.Equal(t, fence, b.text(t, "GET", b.lock.texts[1]))
	require.LessOrEqual(t, b.integer(t, "PTTL", b.lock.texts[0]), int64(20_000))
	b.age("B", 3*time.Second)
	aged := b.waiters()[":B"]
	b.checkIn("B", "panother")
	require.Equal(t, b.queue(), before["queue"])
	now := b.waiters()
	require.Greater(t, now[":B"], aged)
	require.True(t, strings.HasSuffix(now[":B"], " 60000 panother"), now[":B"])
	delete(now, ":B")
	require.Equal(t, []string{"handover"}, slices.Collect(maps.Keys(now)))
	b.integer(t, "PEXPIRE", b.lock.texts[1], dayInMS)
}

// No call shortens a lease, or gives a TTL to one without.
func TestNothingShortens(t *testing.T) {
	b := newBench(t, "", "k")
	calls := map[string]func(){
		"renew":    func() { b.call(renewScript, "A", "1000") },
		"try":      func() { b.call(acquireScript, "A", "1000") },
		"enqueue":  func() { b.call(enqueueScript, "A", "1000", "", "") },
		"check-in": func() { b.checkIn("A", "") },
	}
	b.hold("A")
	for name, call := range calls {
		call()
		require.Greater(t, b.integer(t, "PTTL", "k"), int64(50_000), name)
	}
	b.integer(t, "PERSIST", "k")
	for name, call := range calls {
		call()
		require.EqualValues(t, -1, b.integer(t, "PTTL", "k"), name)
	}
	for name, script := range map[string]*Script{"renew": renewScript, "try": acquireScript, "enqueue": enqueueScript} {
		b.integer(t, "PEXPIRE", "k", 10_000)
		args := []string{"A", "60000"}
		if script == enqueueScript {
			args = append(args, "", "")
		}
		b.call(script, args...)
		require.Greater(t, b.integer(t, "PTTL", "k"), int64(50_000), "%s lengthens", name)
	}
}

// A release removes its token from the queue, whoever holds the lock.
func TestReleaseLeavesTheQueue(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	b.hold("H")
	for _, token := range []string{"A", "B", "C"} {
		b.wait(token, ear.inbox)
	}
	require.EqualValues(t, 0, b.release("B"))
	require.Equal(t, []string{"A", "C"}, b.queue())
	require.NotContains(t, b.waiters(), ":B")
	require.EqualValues(t, 0, b.release("stranger"))
	require.Equal(t, []string{"A", "C"}, b.queue())
	require.Equal(t, "H", b.holder())
	require.Empty(t, ear.heard())
}

// When the lock is free and has no waiters, only the fence counter is left, in whatever order the
// last holder and the last waiters left.
func TestNothingIsLeft(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	for name, end := range map[string]func(){
		"holder":              func() { b.release("A") },
		"lease, then holder":  func() { b.expire(); b.release("A") },
		"waiter, then holder": func() { b.wait("B", ""); b.release("B"); b.release("A") },
		"holder, then waiter": func() { b.wait("B", ""); b.release("A"); b.release("B") },
		"holder of the dead":  func() { b.wait("B", "pnobody"); b.release("A") },
		"lease, then waiter":  func() { b.wait("B", ""); b.expire(); b.release("B") },
	} {
		b.hold("H")
		b.wait("A", ear.inbox)
		b.release("H")
		ear.requireTold("A")
		end()
		require.Equal(t, []string{b.lock.texts[1]}, b.all(t), name)
	}
}

// If the release of a token that holds nothing finds the lock free, it hands the lock over with a
// TTL.
func TestReleaseOfAnother(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	b.hold("H")
	b.wait("A", ear.inbox)
	b.expire()
	require.EqualValues(t, 0, b.release("stranger"))
	require.Equal(t, "A", b.holder())
	require.Positive(t, b.integer(t, "PTTL", "k"))
}

// A release whose handover fails still frees the lock. The waiter is granted it when it checks in.
func TestHandoverFails(t *testing.T) {
	for name, rule := range map[string]string{
		"no counter": "-pttl",
		"no queue":   "-zrange",
		"no record":  "-hset",
		"no waiters": "-hmget",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			b.hold("H")
			b.wait("A", ear.inbox)
			before := b.queue()
			b.rule(rule)
			require.EqualValues(t, 1, b.release("H"))
			b.rule("+@all")
			require.Empty(t, b.holder())
			require.Empty(t, ear.heard())
			require.Equal(t, before, b.queue())
			require.EqualValues(t, answerGranted, b.answerOf(b.checkIn("A", ear.inbox)))
		})
	}
}

// If the handover of a free lock fails because the user lacks a right, nobody is granted the lock.
func TestServiceFails(t *testing.T) {
	for _, rule := range []string{"-hset", "-zremrangebyrank", "-hdel"} {
		for name, script := range map[string]*Script{"try": acquireScript, "enqueue": enqueueScript, "check-in": checkInScript} {
			t.Run(name+rule, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, "", "k")
				ear := b.listen("inbox")
				b.hold("H")
				b.wait("A", ear.inbox)
				b.expire()
				b.rule(rule)
				_, err := b.locker.eval(t.Context(), script, "k", "B", "60000", ear.inbox, "")
				require.True(t, forbidden(err), "%v", err)
				require.Empty(t, b.holder())
				require.Empty(t, ear.heard())
			})
		}
	}
}

// An enqueue that fails because the user lacks a right leaves nothing in the queue, and no companion
// when the lock is released.
func TestEnqueueFails(t *testing.T) {
	for _, rule := range []string{"-hset", "-pexpire", "-zadd", "-pttl", "-publish", "resetchannels"} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			b.hold("H")
			b.rule(rule)
			_, err := b.locker.eval(t.Context(), enqueueScript, "k", "A", "60000", ear.inbox, "")
			require.True(t, forbidden(err), "%v", err)
			b.rule("+@all")
			require.Empty(t, b.queue())
			b.release("H")
			require.Equal(t, []string{b.lock.texts[1]}, b.all(t), "what is left")
		})
	}
}

// A waiter without the right to publish finds that out when it registers its inbox.
func TestMayNotPublish(t *testing.T) {
	for _, rule := range []string{"-publish", "resetchannels"} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			b.hold("H")
			b.wait("A", "")
			b.rule(rule)
			_, err := b.locker.eval(t.Context(), checkInScript, "k", "A", "pinbox")
			require.True(t, forbidden(err), "%v", err)
			require.NotContains(t, b.waiters()[":A"], "inbox")
			require.EqualValues(t, answerWaits, b.answerOf(b.checkIn("A", "")), "without an inbox")
		})
	}
}

// A Client whose user lacks the rights for the queue gets an error that says so, and leaves nothing.
func TestMayNotWait(t *testing.T) {
	for _, rule := range []string{"-hset", "-zadd", "-zrank", "-publish"} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l, _ := s.enter()
			c := dlock.New(l)
			t.Cleanup(func() { c.Close() })
			s.rule(rule)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := c.Acquire(ctx, "k")
			require.ErrorIs(t, err, dlock.ErrInvalid)
			require.True(t, forbidden(err), "%v", err)
			require.NoError(t, ctx.Err())
			s.eventually(func() bool { return len(s.queue()) == 0 }, "nobody waits")
		})
	}
}

// rule changes what users may do, as in "-zrange".
func (b *bench) rule(rule string) {
	b.Helper()
	_, err := b.redis.Do("ACL", "SETUSER", "default", rule)
	if rule == "resetchannels" && err != nil {
		b.Skipf("no rights to channels: %v", err)
	}
	require.NoError(b, err)
}

// A full server hands the lock over, although it grants nothing else.
func TestHandoverWithoutMemory(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	b.hold("H")
	b.wait("A", ear.inbox)
	b.wait("B", ear.inbox)
	b.text(t, "CONFIG", "SET", "maxmemory", "1")
	_, err := b.locker.eval(t.Context(), acquireScript, "other", "C", "60000")
	require.ErrorContains(t, err, "OOM")
	require.EqualValues(t, 1, b.release("H"))
	require.Equal(t, "A", b.holder())
	ear.requireTold("A")
	held, err := b.locker.Pass(t.Context(), b.key, "A", "B", 0)
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, "B", b.holder())
	ear.requireTold("B")
}

// A user without the right to publish hands over without a message. For a user without the right to
// count subscribers, waiters that have checked in lately are alive.
func TestHandoverInSilence(t *testing.T) {
	for name, rule := range map[string]string{"no message": "-publish", "no count": "-pubsub"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			b.hold("H")
			b.wait("dead", "pnobody listens")
			b.age("dead", 6*time.Second)
			b.wait("A", ear.inbox)
			b.rule(rule)
			require.EqualValues(t, 1, b.release("H"))
			b.rule("+@all")
			require.Equal(t, "A", b.holder())
			if rule == "-publish" {
				require.Empty(t, ear.heard())
			} else {
				ear.requireTold("A")
			}
			state, n := b.answer(b.checkIn("A", ear.inbox))
			require.EqualValues(t, answerFound, state)
			require.Equal(t, b.text(t, "GET", b.lock.texts[1]), fmtInt(n[0]))
		})
	}
}

// The address of an inbox on a shard channel begins with "s". A plain channel of the same name is
// another one.
func TestShardedInbox(t *testing.T) {
	b := newBench(t, "", "k")
	conn, plain := b.dial(), b.listen("inbox")
	_, err := conn.Do("SSUBSCRIBE", "inbox")
	if err != nil && strings.Contains(err.Error(), "unknown command") {
		t.Skip("the server has no shard channels: ", err)
	}
	require.NoError(t, err)
	b.hold("H")
	b.wait("dead", "sanother")
	b.wait("A", "sinbox")
	b.release("H")
	require.Equal(t, "A", b.holder())
	message, err := redis.Strings(redis.ReceiveWithTimeout(conn, limit))
	require.NoError(t, err)
	handover := b.waiters()["handover"]
	require.Equal(t, []string{"smessage", "inbox", handover}, message)
	require.Empty(t, plain.heard())

	_, err = conn.Do("SUNSUBSCRIBE", "inbox")
	require.NoError(t, err)
	b.wait("unsubscribed", "sinbox")
	b.wait("B", plain.inbox)
	b.release("A")
	plain.requireTold("B")
}

// A waiter's place and record last as long as it checks in, and for at most a minute after that.
func TestQueueExpires(t *testing.T) {
	b := newBench(t, "", "k")
	b.hold("H")
	beside := b.lock.texts[2:4]
	requireRest := func(call string, least, most int64) {
		t.Helper()
		for _, key := range beside {
			rest := b.integer(t, "PTTL", key)
			require.True(t, least < rest && rest <= most, "PTTL of %q after %s: %d", key, call, rest)
		}
	}
	b.enqueue("A", "")
	requireRest("an enqueue", 5_000, 10_000)
	b.checkIn("A", "")
	requireRest("a check-in", 50_000, 60_000)
	b.enqueue("B", "")
	requireRest("an enqueue after it", 50_000, 60_000)
	for _, key := range beside {
		b.integer(t, "PEXPIRE", key, 2_000)
	}
	b.enqueue("B", "")
	requireRest("an enqueue", 5_000, 10_000)
	b.checkIn("A", "")
	requireRest("a check-in", 50_000, 60_000)
	for _, key := range beside { // evicted, or expired too early
		b.integer(t, "DEL", key)
		require.EqualValues(t, answerUnknown, b.answerOf(b.checkIn("A", "")))
		b.enqueue("A", "")
	}
}

// Tokens and inboxes may be any bytes. None is confused with another, or with the record of the last
// handover.
func TestTokensAreBytes(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("in box\x00\n\xff 1 2 ")
	tokens := []string{" ", "\x00", "handover", ":handover", "1 2 3", " 1", "1", "1 ", "A\n", "A", "A\x00B", "\xff\xfe", "%d%.0f", "(%d+) .*$", strings.Repeat("x", 5000)}
	b.hold("H")
	for _, token := range tokens {
		b.wait(token, ear.inbox)
	}
	require.Equal(t, tokens, b.queue())
	holder := "H"
	for _, token := range tokens {
		require.EqualValues(t, 1, b.release(holder), "%q", holder)
		h := ear.requireTold(token)
		state, n := b.answer(b.checkIn(token, ear.inbox))
		require.EqualValues(t, answerFound, state, "%q", token)
		require.Equal(t, h.fence, n[0])
		holder = token
	}
	require.Len(t, b.waiters(), 1)
}

// A script writes whenever it says that a token holds the lock. Since Redis 7.2, WAIT waits for what
// its own connection wrote last: behind a script that has only read, it would confirm a grant that
// another connection wrote and that no replica has yet.
func TestEachGrantWrites(t *testing.T) {
	b := newBench(t, "", "k")
	inbox := b.listen("inbox").inbox
	b.hold("a")
	b.wait("b", inbox)
	b.release("a")
	state := func(reply any) any {
		state, _ := b.answer(reply)
		return state
	}
	for _, c := range []struct {
		name string
		call func() any
		want any
	}{
		{"a check-in that finds a grant", func() any { return state(b.checkIn("b", inbox)) }, int64(answerFound)},
		{"a renewal to the same deadline or an earlier one", func() any { return b.call(renewScript, "b", "1") }, int64(1)},
		{"an attempt of the holder", func() any { _, ok := b.try("b").(int64); return ok }, true},
		{"an enqueue of the holder", func() any { return state(b.enqueue("b", inbox)) }, int64(answerGranted)},
	} {
		before := b.writes()
		require.Equal(t, c.want, c.call(), c.name)
		require.Greater(t, b.writes(), before, "%s writes nothing", c.name)
	}
	require.Greater(t, b.integer(t, "PTTL", "k"), int64(50_000), "a renewal has shortened the lease")
	b.release("b")
}

// writes returns how many writes the server has counted.
func (b *bench) writes() int {
	b.Helper()
	_, rest, ok := strings.Cut(b.text(b, "INFO", "persistence"), "rdb_changes_since_last_save:")
	require.True(b, ok)
	number, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(number)
	require.NoError(b, err)
	return n
}

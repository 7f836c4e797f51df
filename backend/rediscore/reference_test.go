package rediscore_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

// A store is what a server has for a lock, and its time.
type store struct {
	Time   int64    // in microseconds
	Rests  [5]int64 // the PTTL of each key
	Holder string
	Fence  int64
	Queue  []place
	Fields map[string]string // of the waiters
	Marker string
}

type place struct {
	token  string
	ticket int64
}

// The keys of a lock, and the PTTL of one that is not there, or that never ends.
const (
	lockKey = iota
	counterKey
	queueKey
	waitersKey
	birthKey

	absent, endless = -2, -1
)

// storeOf returns what a server has under the keys of a call. It is not ok if one is of another type.
func storeOf(server *sim.Server, keys []string) (s store, ok bool) {
	ok = true
	do := func(args ...string) any {
		reply, err := server.Do(args...)
		ok = ok && err == nil
		return reply
	}
	list := func(args ...string) (texts []string) {
		all, _ := do(args...).([]any)
		for _, text := range all {
			texts = append(texts, text.(string))
		}
		return texts
	}
	clock := list("TIME")
	s.Time, s.Fields = number(clock[0])*second+number(clock[1]), make(map[string]string)
	texts := map[int]*string{lockKey: &s.Holder, counterKey: new(string), birthKey: &s.Marker}
	for i, key := range keys {
		s.Rests[i] = do("PTTL", key).(int64)
		switch i {
		case queueKey:
			for pair := range slices.Chunk(list("ZRANGE", key, "0", "-1", "WITHSCORES"), 2) {
				s.Queue = append(s.Queue, place{pair[0], number(pair[1])})
			}
		case waitersKey:
			for pair := range slices.Chunk(list("HGETALL", key), 2) {
				s.Fields[pair[0]] = pair[1]
			}
		default:
			*texts[i], _ = do("GET", key).(string)
		}
	}
	s.Fence = number(*texts[counterKey])
	return s, ok
}

// number reads an integer, or 0.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// A reference does in Go what the scripts do: see the files in lua, whose names its methods have.
type reference struct {
	store
	id       string // of replication
	votes    bool
	floor    int64
	calls    map[string]int64 // of the inboxes of which it was read
	listens  func(inbox string) bool
	denied   map[string]string // commands whose errors no script returns
	messages []string          // each behind its inbox
	gone     int               // waiters that were removed
	tidied   int               // how often the inboxes were looked at, because there are many
}

// call returns the reply of a script.
func (r *reference) call(script string, args []string) any {
	args = append(slices.Clone(args), "", "", "", "", "")
	token, ttl := args[0], number(args[1])
	switch script {
	case "slots":
		return one(r.held()) + one(r.Rests[counterKey] != absent)
	case "acquire", "acquire-plain":
		return r.acquire(token, ttl, script == "acquire")
	case "enqueue":
		return r.enqueue(token, ttl, args[2], args[3], args[4])
	case "checkin":
		return r.checkIn(token, args[1])
	case "renew":
		return one(r.renew(token, ttl))
	case "release", "release-plain":
		return r.release(token, script == "release")
	case "releases":
		return r.releases(args[:len(args)-5])
	case "free":
		held := r.holds(token)
		if held {
			r.drop(lockKey)
		}
		return one(held)
	case "inspect", "holder":
		waiting := int64(len(r.Queue))
		if r.denied["ZCARD"] != "" {
			waiting = 0
		}
		if !r.held() {
			return waiting
		}
		return append([]any{r.Holder, r.Rests[lockKey], waiting}, []any{r.handover()}[:one(script == "inspect")]...)
	case "vote":
		r.floor = number(args[2])
		return r.vote(token, ttl)
	case "enlist":
		r.floor = number(args[5])
		ballot := r.survey(one(!r.holds(token)))
		if r.rank(token) >= 0 {
			r.enter(token, number(args[3]))
		}
		return with(ballot, r.enqueue(token, ttl, args[2], args[3], args[4]))
	case "attend":
		return with(r.survey(), r.checkIn(token, args[1]))
	case "confirm":
		ballot, fence := r.survey(), number(args[2])
		if r.holds(token) && fence > r.Fence {
			r.count(fence)
		}
		return []any{3 * one(!r.renew(token, ttl)), ballot}
	case "pass":
		r.floor = number(args[2])
		if to := args[1]; r.rank(to) >= 0 && (!r.held() || r.holds(token)) {
			r.enter(to, -r.Time)
		}
		return r.release(token, true)
	}
	return nil
}

// acquireSet returns the reply of acquire-set.
func acquireSet(of []*reference, args []string) any {
	var replies []any
	refused := false
	for i, r := range of {
		switch {
		case !r.held() && len(r.Queue) > 0:
			return int64(0)
		case r.held() && !r.holds(args[2*i]):
			replies, refused = append(replies, []any{r.Holder, r.Rests[lockKey], r.handover()}), true
		default:
			replies = append(replies, nil)
		}
	}
	if refused {
		return replies
	}
	first := of[0].mint()
	for i, r := range of {
		r.count(first + 8*int64(len(of)-1))
		if token, ttl := args[2*i], number(args[2*i+1]); !r.renew(token, ttl) {
			r.own(token, ttl)
		}
	}
	return first
}

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func with(ballot []any, reply any) any {
	if all, ok := reply.([]any); ok {
		return append(all, ballot)
	}
	return reply
}

func (r *reference) held() bool              { return r.Rests[lockKey] != absent }
func (r *reference) holds(token string) bool { return r.held() && r.Holder == token }

func (r *reference) own(token string, ttl int64) { r.Holder, r.Rests[lockKey] = token, ttl }

func (r *reference) drop(key int) {
	switch r.Rests[key] = absent; key {
	case lockKey:
		r.Holder = ""
	case waitersKey:
		clear(r.Fields)
	}
}

func (r *reference) expire(key int, rest int64) {
	if r.Rests[key] != absent {
		r.Rests[key] = rest
	}
}

func (r *reference) set(field, value string) {
	if r.Fields[field] = value; r.Rests[waitersKey] == absent {
		r.Rests[waitersKey] = endless
	}
}

func (r *reference) rank(token string) int {
	return slices.IndexFunc(r.Queue, func(p place) bool { return p.token == token })
}

// enter gives a token its place, in which it is not necessarily the only one.
func (r *reference) enter(token string, ticket int64) {
	if i := r.rank(token); i >= 0 {
		r.Queue = slices.Delete(r.Queue, i, i+1)
	} else if len(r.Queue) == 0 {
		r.Rests[queueKey] = endless
	}
	i := slices.IndexFunc(r.Queue, func(p place) bool { return p.ticket > ticket || p.ticket == ticket && p.token > token })
	if i < 0 {
		i = len(r.Queue)
	}
	r.Queue = slices.Insert(r.Queue, i, place{token, ticket})
}

// leave takes a token out of the queue.
func (r *reference) leave(token string) {
	if i := r.rank(token); i >= 0 {
		r.gone++
		if r.Queue = slices.Delete(r.Queue, i, i+1); len(r.Queue) == 0 {
			r.Queue, r.Rests[queueKey] = nil, absent
		}
	}
	if delete(r.Fields, ":"+token); len(r.Fields) == 0 {
		r.Rests[waitersKey] = absent
	}
}

// last is the ticket of the last in the queue, or 0.
func (r *reference) last() int64 { return append([]place{{}}, r.Queue...)[len(r.Queue)].ticket }

// handover is the last one, or nil.
func (r *reference) handover() any {
	if text, ok := r.Fields["handover"]; ok {
		return text
	}
	return nil
}

func (r *reference) mint() int64 {
	return r.count(max(r.Fence+8, min(max(r.floor, r.Time), r.Time+second)))
}

func (r *reference) count(fence int64) int64 {
	r.Fence, r.Rests[counterKey] = fence, max(dayInMS+int64(math.Ceil(float64(fence-r.Time)/1000)), 1)
	return fence
}

func (r *reference) grant(token string, ttl int64) int64 {
	if fence := r.mint(); r.renew(token, ttl) {
		return fence
	}
	r.own(token, ttl)
	return r.Fence
}

func (r *reference) renew(token string, ttl int64) bool {
	if r.holds(token) && r.Rests[lockKey] != endless {
		r.Rests[lockKey] = max(r.Rests[lockKey], ttl)
	}
	return r.holds(token)
}

// Who has a lock, or gets it.
type outcome int

const (
	nobody outcome = iota
	somebody
	reserved // for a waiter without an inbox
	unswept  // it has dead waiters, more than one call removes
)

// A record is what is known of a waiter.
type record struct {
	known             bool
	seen, ttl, finish int64
	inbox             string
}

var (
	waiterText   = regexp.MustCompile(`(?s)^(\d+) (\d+) (\d+) (.*)$`)
	handoverText = regexp.MustCompile(`(?s)^(\d+) (\d+) (.*)$`)
	pairText     = regexp.MustCompile(`^(\d+) (\d+)$`)
)

func (r *reference) record(token string) (w record) {
	if m := waiterText.FindStringSubmatch(r.Fields[":"+token]); m != nil {
		w = record{true, number(m[1]), number(m[2]), number(m[3]), m[4]}
	}
	return w
}

// called is when there was a call of any waiter with an inbox, or 0.
func (r *reference) called(inbox string) int64 {
	if _, read := r.calls[inbox]; !read && inbox != "" {
		r.calls[inbox] = number(r.Fields["@"+inbox])
	}
	return r.calls[inbox]
}

func (r *reference) near(then, limit int64) bool { return max(r.Time-then, then-r.Time) < limit }

func (r *reference) serve(caller string) (holder string, is outcome) {
	for range 1 + 50*100 {
		if len(r.Queue) == 0 {
			return "", nobody
		}
		token := r.Queue[0].token
		w, calls := r.record(token), token == caller
		switch {
		case !w.known, !calls && w.finish != 0 && r.Time > w.finish:
		case !calls && w.inbox == "" && r.near(w.seen, min(2*second, w.ttl*1000)):
			return "", reserved
		case calls, w.inbox != "" && (r.near(w.seen, 5*second) || r.near(r.called(w.inbox), 5*second)) && r.listens(w.inbox):
			r.leave(token)
			handover := fmt.Sprintf("%d %d %s", r.mint(), r.Time, token)
			r.set("handover", handover)
			if r.own(token, w.ttl); w.inbox != "" && !calls && (w.inbox[0] == 's' || r.denied["PUBLISH"] == "") {
				r.messages = append(r.messages, w.inbox+" "+handover)
			}
			return token, somebody
		}
		r.leave(token)
	}
	return "", unswept
}

// look returns who has the lock, after it was given to a waiter if it was free.
func (r *reference) look(caller string) (holder string, is outcome) {
	if r.held() {
		return r.Holder, somebody
	}
	return r.serve(caller)
}

func (r *reference) acquire(token string, ttl int64, whole bool) any {
	if !whole && !r.held() && len(r.Queue) > 0 {
		return "queue"
	}
	holder, is := r.look(token)
	switch {
	case is == unswept:
		return rediscore.Unswept
	case is == nobody, holder == token:
		return r.grant(token, ttl)
	}
	return []any{holder, r.Rests[lockKey], r.handover()}
}

func (r *reference) enqueue(token string, ttl int64, inbox, old, patience string) any {
	holder, is := r.look(token)
	switch {
	case is == unswept:
		return rediscore.Unswept
	case is == nobody, holder == token:
		return []any{int64(rediscore.AnswerGranted), r.grant(token, ttl)}
	}
	last, looked := r.last(), int64(-1)
	if m := pairText.FindStringSubmatch(r.Fields["arrival"]); m != nil {
		last, looked = number(m[1]), number(m[2])
	}
	_, known := r.Fields[":"+token]
	ticket, waits := max(r.Time, last+1), known && r.rank(token) >= 0
	if waits {
		ticket = r.Queue[r.rank(token)].ticket
	} else if old != "" {
		ticket = number(old)
	}
	last = max(last, ticket)
	finish, look := int64(0), looked < 0 || !r.near(looked, second)
	if patience != "" {
		finish = r.Time + number(patience)*1000
	}
	expires := look && r.Rests[waitersKey] < 5000
	since := r.note(token, ttl, finish, inbox)
	if look {
		looked = r.Time
	}
	r.set("arrival", fmt.Sprint(last, " ", looked))
	if !waits {
		r.enter(token, ticket)
	}
	if expires {
		r.expire(waitersKey, 10_000)
	}
	if expires || r.rank(token) == 0 {
		r.expire(queueKey, r.Rests[waitersKey])
	}
	if look && r.Time-since > minute && r.sweep(r.Queue[:min(2, len(r.Queue))]) > 0 {
		r.set("arrival", fmt.Sprint(last, " 0"))
	}
	return r.waits(rediscore.AnswerWaits, token, holder)
}

func (r *reference) waits(answer int64, token, holder string) any {
	rank, handover := r.rank(token), r.Fields["handover"]
	return []any{answer, r.Queue[rank].ticket, int64(rank), r.Time, holder, r.Rests[lockKey], handover}
}

func (r *reference) checkIn(token, inbox string) any {
	held := r.held()
	holder, is := r.look(token)
	switch {
	case is == unswept:
		return rediscore.Unswept
	case is == somebody && holder == token:
		m := handoverText.FindStringSubmatch(r.Fields["handover"])
		switch {
		case m == nil || m[3] != token:
			return []any{int64(rediscore.AnswerUnknown)}
		case !held:
			return []any{int64(rediscore.AnswerGranted), number(m[1])}
		case inbox != "" && !r.votes:
			r.set("@"+inbox, fmt.Sprint(r.Time))
		}
		r.expire(queueKey, 60_000)
		r.expire(waitersKey, 60_000)
		return []any{int64(rediscore.AnswerFound), number(m[1]), number(m[2]), r.Time}
	}
	w := r.record(token)
	if !w.known || r.rank(token) < 0 {
		return []any{int64(rediscore.AnswerUnknown)}
	}
	since := r.note(token, w.ttl, w.finish, inbox)
	r.expire(waitersKey, 60_000)
	r.expire(queueKey, 60_000)
	if r.Time-since > minute {
		r.patrol()
	}
	if inbox != "" && !r.listens(inbox) {
		return r.waits(rediscore.AnswerDeaf, token, holder)
	}
	return r.waits(rediscore.AnswerWaits, token, holder)
}

// note also returns since when calls have come without a pause.
func (r *reference) note(token string, ttl, finish int64, inbox string) (since int64) {
	since = r.Time
	if m := pairText.FindStringSubmatch(r.Fields["pulse"]); m != nil && r.near(number(m[1]), 10*second) {
		since = number(m[2])
	}
	r.set(":"+token, fmt.Sprint(r.Time, " ", ttl, " ", finish, " ")+inbox)
	r.set("pulse", fmt.Sprint(r.Time, " ", since))
	if inbox != "" && !r.votes {
		r.set("@"+inbox, fmt.Sprint(r.Time))
	}
	return since
}

const minute = 60 * second

func (r *reference) sweep(of []place) (dead int) {
	for _, p := range slices.Clone(of) {
		if w := r.record(p.token); !w.known || r.Time-w.seen > minute && r.Time-r.called(w.inbox) > minute {
			r.leave(p.token)
			dead++
		}
	}
	return dead
}

func (r *reference) patrol() {
	cursor, dead := int(number(r.Fields["cursor"])), 1
	for _, n := range []int{100, 900} {
		if dead == 0 {
			break
		}
		of := r.Queue[min(cursor, len(r.Queue)):min(cursor+n, len(r.Queue))]
		looked := len(of)
		dead = r.sweep(of)
		if cursor += looked - dead; looked < n {
			r.tidy(cursor)
			cursor, dead = 0, 0
		}
	}
	r.set("cursor", fmt.Sprint(cursor))
}

func (r *reference) tidy(waiting int) {
	if len(r.Fields) < 2*waiting+1000 || r.denied["HLEN"] != "" {
		return
	} else if r.tidied++; r.denied["HGETALL"] != "" {
		return
	}
	gone := 0
	for _, field := range slices.Sorted(maps.Keys(r.Fields)) {
		if strings.HasPrefix(field, "@") && r.Time-number(r.Fields[field]) > minute && gone < 1000 {
			delete(r.Fields, field)
			gone++
		}
	}
}

func (r *reference) release(token string, whole bool) any {
	held, free, denied := r.holds(token), !r.held(), r.denied["ZRANGE"] != ""
	if len(r.Queue) == 0 || denied {
		if held || free {
			if r.drop(lockKey); !denied {
				r.drop(waitersKey)
			}
		}
		return one(held)
	}
	if !whole {
		return "queue"
	}
	if !held {
		r.leave(token)
	}
	if (held || free) && !r.handOn(held) {
		return rediscore.Unswept
	}
	return one(held)
}

func (r *reference) releases(tokens []string) any {
	held, free, replies := false, !r.held(), []any{}
	for _, token := range tokens {
		ends := r.holds(token) && !held
		if held = held || ends; !ends {
			r.leave(token)
		}
		replies = append(replies, one(ends))
	}
	if (held || free) && !r.handOn(held) {
		return rediscore.Unswept
	}
	return replies
}

func (r *reference) handOn(held bool) bool {
	_, is := r.serve("")
	if is == nobody {
		r.drop(waitersKey)
	}
	if held && is != somebody && is != unswept {
		r.drop(lockKey)
	}
	return is != unswept
}

func (r *reference) survey(more ...any) []any {
	id, birth, _ := strings.Cut(r.Marker, " ")
	since := number(birth)
	if id != r.id || r.Time < since {
		since = r.Time
		r.Marker, r.Rests[birthKey] = fmt.Sprint(r.id, " ", since), endless
	}
	return append([]any{r.Time - since, r.id, r.Time}, more...)
}

func (r *reference) vote(token string, ttl int64) any {
	ballot := r.survey(one(!r.holds(token)))
	switch reply := r.acquire(token, ttl, true).(type) {
	case int64:
		return []any{int64(0), reply, ballot}
	case []any:
		return []any{int64(1), reply[1], reply[0], r.Fields["handover"], append(ballot, max(r.Time, r.last()+1))}
	default:
		return reply
	}
}

// Tokens and inboxes may be any bytes. None is confused with another, or with the record of the last handover.
var oddTokens = []string{
	" ", "\x00", "handover", ":handover", "1 2 3", " 1", "1", "1 ", "A\n", "A", "A\x00B", "\xff\xfe", "%d%.0f", "(%d+) .*$",
	"a\x00 b\r\n{}:%\xff 1 2", strings.Repeat("x", 500), "w1", "w2",
}

// The scripts do what the reference does, whatever is called and happens.
func TestReference(t *testing.T) {
	ran := make(map[string]bool)
	for seed := range uint64(80 / israce.Slower) {
		atBench(t, "", "k", func(b *bench) {
			i := int(seed) % (len(oddTokens) - 3)
			b.random(seed, 150, oddTokens[i:i+4], b.listen("in box\x00\n\xff 1 2 "))
			maps.Copy(ran, b.ran)
			require.False(b, b.Failed(), "with seed %d", seed)
		})
	}
	require.Len(t, ran, len(rediscore.Scripts), "scripts that have succeeded")
}

// What the arguments of the scripts are, in the order of ARGV, and their values. A number is added to the time.
var (
	luaArgs = map[string]string{
		"acquire": "token ttl", "acquire-plain": "token ttl", "acquire-set": "token ttl token ttl", "release": "token", "release-plain": "token", "free": "token",
		"releases": "token token token", "renew": "token ttl", "inspect": "", "holder": "", "slots": "",
		"enqueue": "token ttl inbox ticket patience", "checkin": "token inbox", "vote": "token ttl time", "attend": "token inbox",
		"enlist": "token ttl inbox time patience time", "confirm": "token ttl time", "pass": "token token time",
	}
	luaValues = map[string][]string{
		"ttl": {"200", "1000", "60000", "31536000000"}, "ticket": {"", "", "1764000000123456"}, "patience": {"", "", "0", "1500"},
		"time": {"0", "1", "900000", "3000000", "-5000000"},
	}
	publishing = []string{"enqueue", "enlist", "checkin", "attend"} // the scripts that fail without the right to PUBLISH,
	reading    = append(publishing, "acquire", "vote", "releases")  // or to ZRANGE
	pauses     = []time.Duration{
		time.Millisecond, 200 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute,
	}
)

// random makes calls of scripts and, now and then, lets something else happen.
func (b *bench) random(seed uint64, steps int, tokens []string, ears ...*ear) {
	ears = append(ears, b.listen("ear"), b.listen("other"), b.listenTo("ear", true))
	r := rand.New(rand.NewPCG(seed, 0))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	for _, name := range slices.Sorted(maps.Keys(rediscore.Scripts)) {
		require.Contains(b, luaArgs, name)
	}
	scripts := append(slices.Sorted(maps.Keys(luaArgs)), "enqueue", "enqueue", "enqueue", "checkin", "checkin", "release", "acquire")
	defer b.server.FlushAll() // some keys have no TTL
	for range steps {
		if r.IntN(4) == 0 {
			b.happens(r, one, tokens, ears)
			continue
		}
		name := one(scripts...)
		var args []string
		for _, kind := range strings.Fields(luaArgs[name]) {
			switch kind {
			case "token":
				args = append(args, one(tokens...))
			case "inbox":
				args = append(args, one(append([]string{"", "", "pnobody", "snobody", "pear", "pear"}, ears[0].inbox, ears[len(ears)-1].inbox)...))
			default:
				arg := one(luaValues[kind]...)
				if kind == "time" && arg != "0" {
					arg = fmt.Sprint(b.now() + number(arg))
				}
				args = append(args, arg)
			}
		}
		call := b.locker.ScriptCall(rediscore.Scripts[name], b.key, args...)
		if name == "acquire-set" {
			call = b.locker.SetCall([]string{b.key, "l"}, args...)
		}
		_, err := b.conn.Eval(b.Context(), call)
		mayFail := b.faults.Commands["PUBLISH"] != "" && slices.Contains(publishing, name) || b.faults.Commands["ZRANGE"] != "" && slices.Contains(reading, name)
		require.True(b, err == nil || mayFail, "%s %q: %v", name, args, err)
	}
}

// happens lets something happen that is no call of a script.
func (b *bench) happens(r *rand.Rand, one func(...string) string, tokens []string, ears []*ear) {
	now := b.now()
	switch r.IntN(24) {
	case 0:
		b.server.SetClock([]time.Duration{-time.Hour, -20 * time.Second, 0, 0, 20 * time.Second}[r.IntN(5)])
	case 1:
		b.forbid(one("PUBLISH", "PUBSUB", "HLEN", "HGETALL", "ZCARD", "ZRANGE"))
	case 2, 3:
		b.fails(sim.Faults{})
	case 4:
		b.do("DEL", one(b.keys.counter, b.keys.queue, b.keys.waiters, b.keys.birth))
	case 5, 6, 7, 8:
		b.do("DEL", b.keys.lock, "l")
	case 9:
		b.do("SET", b.keys.counter, now+[]int64{-8, -5, 992, 993, r.Int64N(1e9)}[r.IntN(5)], "PX", "100000000")
	case 10:
		b.do("PERSIST", b.keys.lock)
	case 11: // calls with many inboxes have come for long
		fields := []any{"HSET", b.keys.waiters, "pulse", fmt.Sprint(now, " ", now-70e6)}
		prefix := one("@i", "@z")
		for i := range 1500 {
			fields = append(fields, fmt.Sprint(prefix, i), fmt.Sprint(now-80e6))
		}
		b.do(fields...)
	case 12: // a crowd of waiters, nearly all of which are dead
		fields := []any{"HSET", b.keys.waiters}
		for i := range []int{5, 5, 5, 250, 250, 1200}[min(r.IntN(6), r.IntN(6))] {
			token := fmt.Sprint("w", i)
			b.do("ZADD", b.keys.queue, i, token)
			fields = append(fields, ":"+token, fmt.Sprint(now-60e6*r.Int64N(3), " 60000 ", r.Int64N(2)*now, " pnobody"), fmt.Sprint("@i", r.IntN(5000)), "1")
		}
		b.do(fields...)
	case 13:
		b.server.Do("SET", b.keys.birth, "another "+fmt.Sprint(now-1e6))
		b.server.Do("HSET", b.keys.waiters, ":"+one(tokens...), "?")
	case 14:
		b.server.Do("HDEL", b.keys.waiters, one(append([]string{"arrival", "pulse", "cursor"}, ":"+tokens[0], ":"+tokens[1])...))
	case 15:
		for _, key := range []string{b.keys.queue, b.keys.waiters} {
			b.do("PEXPIRE", key, 4999+r.IntN(2))
		}
	case 16:
		if e := ears[r.IntN(len(ears))]; slices.Contains(b.ears, e) {
			e.unsubscribe()
		} else {
			e.subscribe()
		}
	case 17, 18: // one waiter calls for a minute, and the others are silent
		b.fails(sim.Faults{})
		if waiting := b.queue(); len(waiting) > 0 {
			b.attend(time.Minute+time.Duration(r.IntN(2))*time.Millisecond, one("", "pear"), one(waiting...))
		}
	default:
		time.Sleep(pauses[r.IntN(len(pauses))] - time.Duration(r.IntN(2))*time.Microsecond)
	}
}

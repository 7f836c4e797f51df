package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

// A tick of the model is so long that the times in queue.lua, two and five seconds, are
// between one and two ticks, and two.
const tickLength = 2500 * time.Millisecond

// TestScripts compares the server of the model with the scripts on a real one, in
// random sequences of calls and ticks.
func TestScripts(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for seed := range uint64(150) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			for !newPair(t, client, seed).run() {
				t.Log("the machine was slow: once more")
			}
		})
	}
}

// A pair is a server of the model and a real one that are to do the same.
type pair struct {
	t       *testing.T
	client  *redis.Client
	rand    *rand.Rand
	world   world
	inboxes []*redis.PubSub
	tickets [2][maxTokens]string // the last of each token: in the model, and really
	scripts map[script]string

	patience int    // how often the holder renews and one waiter calls while time passes
	patient  script // that this waiter calls
}

func newPair(t *testing.T, client *redis.Client, seed uint64) *pair {
	p := &pair{t: t, client: client, rand: rand.New(rand.NewPCG(seed, 0)), scripts: map[script]string{}}
	require.NoError(t, client.FlushAll(t.Context()).Err())
	p.world = world{c: base("", 2).with(wipe, 1), plain: true} // so that tickets are never the same
	p.world.c.Silent, p.world.c.Sweep = 3, int(seed%2)
	p.patience = []int{0, 14, 15, 16}[seed/2%4]
	p.patient = []script{checkInScript, enqueueScript}[seed/8%2]
	p.world.State, _ = p.world.c.start()
	p.inboxes = make([]*redis.PubSub, 2)
	for i := range p.inboxes {
		p.subscribe(i)
	}
	var shared []string
	for _, name := range []string{"fence.lua", "queue.lua", "sweep.lua"} {
		source, err := os.ReadFile("../../backend/rediscore/lua/" + name)
		require.NoError(t, err)
		shared = append(shared, "--include "+name+"\n", p.shorten(string(source)))
	}
	for s, name := range map[script]string{tryScript: "acquire", enqueueScript: "enqueue", checkInScript: "checkin", renewScript: "renew", releaseScript: "release"} {
		source, err := os.ReadFile("../../backend/rediscore/lua/" + name + ".lua")
		require.NoError(t, err)
		p.scripts[s] = strings.NewReplacer(shared...).Replace(string(source))
	}
	return p
}

// shorten changes the limits of a script to those of the model.
func (p *pair) shorten(source string) string {
	changes := []string{"silence, pause, window = 60000000, 10000000,", fmt.Sprintf("silence, pause, window = %d, %d,",
		tickLength.Microseconds()*5/2, tickLength.Microseconds()*3/2)}
	if p.world.c.Sweep > 0 {
		changes = append(changes, "for batch = 0, 50 do", fmt.Sprintf("for batch = 0, %d do", p.world.c.Sweep-1))
	}
	return strings.NewReplacer(changes...).Replace(source)
}

func (p *pair) subscribe(i int) {
	p.inboxes[i] = p.client.Subscribe(p.t.Context(), inbox(i))
	_, err := p.inboxes[i].Receive(p.t.Context())
	require.NoError(p.t, err)
}

func inbox(client int) string { return fmt.Sprint("inbox ", client) }

// run makes a sequence of steps. It reports false if that has taken so long that ticks
// cannot be told apart.
func (p *pair) run() bool {
	defer func() {
		for _, s := range p.inboxes {
			s.Close()
		}
	}()
	began := time.Now()
	var history []string
	for range 30 {
		text, want, got := p.step()
		if time.Since(began) > tickLength/3 {
			return false
		}
		history = append(history, text)
		require.Equal(p.t, want, got, "model and Redis differ after %s", strings.Join(history, "; "))
	}
	return true
}

// step does the same to both, and returns what came of it.
func (p *pair) step() (text, want, got string) {
	switch n := p.rand.IntN(20); {
	case n < 4:
		p.world.Server.pass(p.world.c)
		p.tick()
		text = "tick"
	case n == 4:
		i := p.rand.IntN(2)
		sub := &p.world.Clients[i].Sub
		if *sub = !*sub; *sub {
			p.subscribe(i)
		} else {
			p.unsubscribe(i)
		}
		text = fmt.Sprintf("inbox %d listens: %v", i, *sub)
	case n < p.patience && p.world.Server.Holder != 0 && len(p.world.queue()) > 0:
		queue := p.world.queue()
		text, want, got = p.call(Call{Script: renewScript, Token: p.world.Server.Holder}, 3)
		p.world.Server.pass(p.world.c)
		p.tick()
		more, want2, got2 := p.call(Call{Script: p.patient, Token: queue[p.patience%len(queue)], Inbox: true}, 3)
		text, want, got = text+", tick, "+more, want+want2, got+got2
	default:
		text, want, got = p.call(Call{
			Script: script(1 + p.rand.IntN(5)),
			Token:  token(1 + p.rand.IntN(maxTokens)),
			Inbox:  p.rand.IntN(3) > 0,
		}, 1+p.rand.IntN(3))
	}
	return text, want + p.modelState(), got + p.realState()
}

// call makes a call. The TTL is that of try and renew.
func (p *pair) call(call Call, ttl int) (text, want, got string) {
	withTicket := p.rand.IntN(2) == 0
	p.world.c.TTL = ttl
	got = p.really(call, withTicket)
	return p.world.c.call(call), p.inModel(call, withTicket), got
}

func (p *pair) unsubscribe(i int) {
	require.NoError(p.t, p.inboxes[i].Close())
	require.Eventually(p.t, func() bool {
		n, err := p.client.PubSubNumSub(p.t.Context(), inbox(i)).Result()
		return err == nil && n[inbox(i)] == 0
	}, time.Minute, time.Millisecond)
}

// inModel makes a call in the model.
func (p *pair) inModel(call Call, withTicket bool) string {
	if ticket := p.tickets[0][call.Token-1]; withTicket && ticket != "" && call.Script == enqueueScript {
		n, _ := strconv.Atoi(ticket)
		call.Ticket = uint8(n)
	}
	p.world.execute(&call)
	text := fmt.Sprint("answer ", call.Answer)
	switch call.Answer {
	case answerWaits:
		p.tickets[0][call.Token-1] = strconv.Itoa(int(call.Ticket))
	case answerFound:
		text += fmt.Sprint(" granted ", call.Granted)
	}
	for i, m := range p.world.Msgs {
		if m.Token != 0 {
			text += " message " + name(m.Token)
		}
		p.world.Msgs[i] = Message{}
	}
	return text
}

// really makes a call of Redis.
func (p *pair) really(call Call, withTicket bool) string {
	args := []any{name(call.Token)}
	address := ""
	if call.Inbox {
		address = "p" + inbox(p.world.c.client(call.Token))
	}
	switch call.Script {
	case tryScript, renewScript:
		args = append(args, p.milliseconds(p.world.c.TTL))
	case enqueueScript:
		ticket := ""
		if withTicket {
			ticket = p.tickets[1][call.Token-1]
		}
		args = append(args, p.milliseconds(p.world.c.FirstTTL), address, ticket)
	case checkInScript:
		args = append(args, address)
	}
	reply, err := p.client.Eval(p.t.Context(), p.scripts[call.Script], []string{"lock", "fence", "queue", "waiters"}, args...).Result()
	require.NoError(p.t, err)
	return p.read(call, reply) + p.messages()
}

func (p *pair) milliseconds(ticks int) int64 { return int64(ticks) * tickLength.Milliseconds() }

// read makes the answer of the model of a reply.
func (p *pair) read(call Call, reply any) string {
	numbers, _ := reply.([]any)
	one, _ := reply.(int64)
	a := answerHeld
	switch {
	case reply == "unswept":
		a = answerUnswept
	case call.Script == renewScript || call.Script == releaseScript:
		if one == 0 {
			a = answerNotHeld
		}
	case call.Script == tryScript && one > 0:
		a = answerGranted
	case call.Script == tryScript:
	default:
		a = map[any]answer{int64(0): answerGranted, int64(1): answerWaits, int64(2): answerFound, int64(3): answerUnknown}[numbers[0]]
	}
	text := fmt.Sprint("answer ", a)
	switch a {
	case answerWaits:
		p.tickets[1][call.Token-1] = fmt.Sprint(numbers[1])
	case answerFound:
		ago := time.Duration(numbers[3].(int64)-numbers[2].(int64)) * time.Microsecond
		text += fmt.Sprint(" granted ", min(int(ago/tickLength), p.world.c.FirstTTL))
	}
	return text
}

// messages returns what was published. A message to an inbox that listens is there
// before a reply that is asked for later.
func (p *pair) messages() (text string) {
	for i, s := range p.inboxes {
		if !p.world.Clients[i].Sub {
			continue
		}
		require.NoError(p.t, s.Ping(p.t.Context(), "end"))
		for {
			e, err := s.Receive(context.Background())
			require.NoError(p.t, err)
			if _, ok := e.(*redis.Pong); ok {
				break
			}
			if m, ok := e.(*redis.Message); ok {
				_, rest, _ := strings.Cut(m.Payload, " ")
				_, to, _ := strings.Cut(rest, " ")
				text += " message " + to
			}
		}
	}
	return text
}

func name(t token) string { return fmt.Sprint("token ", t) }

// tick makes everything on the real server a tick older.
func (p *pair) tick() {
	ctx := p.t.Context()
	if rest, err := p.client.PTTL(ctx, "lock").Result(); err == nil && rest > 0 {
		if rest -= tickLength; rest > 0 {
			require.NoError(p.t, p.client.PExpire(ctx, "lock", rest).Err())
		} else {
			require.NoError(p.t, p.client.Del(ctx, "lock").Err())
		}
	}
	for field, value := range p.client.HGetAll(ctx, "waiters").Val() {
		parts := strings.SplitN(value, " ", 3)
		at := []int{0} // where the times are
		switch field {
		case "handover":
			at = []int{1}
		case "pulse":
			at = []int{0, 1}
		}
		for _, i := range at {
			n, err := strconv.ParseInt(parts[i], 10, 64)
			require.NoError(p.t, err)
			parts[i] = strconv.FormatInt(n-tickLength.Microseconds(), 10)
		}
		require.NoError(p.t, p.client.HSet(ctx, "waiters", field, strings.Join(parts, " ")).Err())
	}
}

// modelState is who holds the lock for how many ticks, and the queue.
func (p *pair) modelState() string {
	s := &p.world.Server
	text := ", free"
	if s.Holder != 0 {
		text = fmt.Sprintf(", held by %s for %d", name(s.Holder), s.Rest)
	}
	var queue []token
	for i, e := range s.Queue {
		if e.Ticket != 0 {
			queue = append(queue, token(i+1))
		}
	}
	slices.SortFunc(queue, func(a, b token) int {
		return int(p.world.entry(a).Ticket) - int(p.world.entry(b).Ticket)
	})
	for _, t := range queue {
		text += ", " + name(t)
	}
	return text
}

func (p *pair) realState() string {
	ctx := p.t.Context()
	text := ", free"
	if holder := p.client.Get(ctx, "lock").Val(); holder != "" {
		rest := p.client.PTTL(ctx, "lock").Val()
		text = fmt.Sprintf(", held by %s for %d", holder, (rest+tickLength-1)/tickLength)
	}
	for _, t := range p.client.ZRange(ctx, "queue", 0, -1).Val() {
		text += ", " + t
	}
	return text
}

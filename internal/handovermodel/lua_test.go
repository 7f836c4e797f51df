package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A tick of the model is so long that the times in queue.lua, two and five seconds, are
// between one and two ticks, and two.
const tickLength = 2500 * time.Millisecond

// TestScripts compares the server of the model with the scripts, in random sequences of calls and
// ticks. The calls of a sequence are all made at one instant, but for the ticks.
func TestScripts(t *testing.T) {
	servers := []*sim.Server{sim.NewServer(), sim.NewServer()} // each has scripts with other limits
	for seed := range uint64(150) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { newPair(t, servers[seed%2], seed).run() })
		})
	}
}

// A pair is a server of the model and one that runs the scripts, which are to do the same.
type pair struct {
	t       *testing.T
	server  *sim.Server
	rand    *rand.Rand
	world   world
	inboxes [2]*sim.Subscription
	tickets [2][maxTokens]string // the last of each token: in the model, and really
	scripts map[script]string

	patience int    // how often the holder renews and one waiter calls while time passes
	patient  script // that this waiter calls
}

func newPair(t *testing.T, server *sim.Server, seed uint64) *pair {
	p := &pair{t: t, server: server, rand: rand.New(rand.NewPCG(seed, 0)), scripts: map[script]string{}}
	server.FlushAll()
	p.world = world{c: base("", 2).with(wipe, 1), plain: true} // so that tickets are never the same
	p.world.c.Silent, p.world.c.Sweep = 3, int(seed%2)
	p.patience = []int{0, 14, 15, 16}[seed/2%4]
	p.patient = []script{checkInScript, enqueueScript}[seed/8%2]
	p.world.State, _ = p.world.c.start()
	for i := range p.inboxes {
		p.subscribe(i)
	}
	for s, parts := range map[script]string{ // as in rediscore.go
		tryScript:     "lone fence acquire-plain queue acquire acquire()",
		enqueueScript: "fence queue sweep enqueue enqueue()",
		checkInScript: "fence queue sweep checkin checkIn()",
		renewScript:   "proof renew renew()",
		releaseScript: "proof release-plain fence queue handon release",
	} {
		for _, name := range strings.Fields(parts) {
			if strings.HasSuffix(name, "()") {
				p.scripts[s] += "return " + name
				break
			}
			source, err := os.ReadFile("../../backend/rediscore/lua/" + name + ".lua")
			require.NoError(t, err)
			p.scripts[s] += p.shorten(string(source))
		}
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
	var err error
	p.inboxes[i], err = p.server.Subscribe(inbox(i), false)
	require.NoError(p.t, err)
}

func (p *pair) unsubscribe(i int) { p.server.Unsubscribe(inbox(i), false, p.inboxes[i]) }

func inbox(client int) string { return fmt.Sprint("inbox ", client) }

// run makes a sequence of steps.
func (p *pair) run() {
	defer p.unsubscribe(0)
	defer p.unsubscribe(1)
	var history []string
	for range 30 {
		text, want, got := p.step()
		history = append(history, text)
		require.Equal(p.t, want, got, "model and scripts differ after %s", strings.Join(history, "; "))
	}
}

// step does the same to both, and returns what came of it.
func (p *pair) step() (text, want, got string) {
	switch n := p.rand.IntN(20); {
	case n < 4:
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

// really makes a call of a script.
func (p *pair) really(call Call, withTicket bool) string {
	args := []string{name(call.Token)}
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
		args = append(args, p.milliseconds(p.world.c.FirstTTL), address, ticket, "")
	case checkInScript:
		args = append(args, address)
	}
	source := p.scripts[call.Script]
	reply, err := p.server.Eval(source, source, []string{"lock", "fence", "queue", "waiters"}, args)
	require.NoError(p.t, err)
	return p.read(call, reply) + p.messages()
}

func (p *pair) milliseconds(ticks int) string {
	return strconv.FormatInt(int64(ticks)*tickLength.Milliseconds(), 10)
}

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
		a = map[any]answer{int64(0): answerGranted, int64(1): answerWaits, int64(2): answerFound, int64(3): answerUnknown, int64(4): answerWaits}[numbers[0]]
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

// messages returns what was published.
func (p *pair) messages() (text string) {
	for i, s := range p.inboxes {
		for _, m := range s.Take() {
			require.True(p.t, p.world.Clients[i].Sub)
			text += " message " + strings.SplitN(m.Text, " ", 3)[2]
		}
	}
	return text
}

func name(t token) string { return fmt.Sprint("token ", t) }

// tick lets time pass for both. A lock is gone when more than its TTL has passed. The queue of the
// model does not expire.
func (p *pair) tick() {
	p.world.Server.pass(p.world.c)
	p.world.Time = min(p.world.Time+1, lastTick)
	p.do("PERSIST", "queue")
	p.do("PERSIST", "waiters")
	time.Sleep(tickLength + time.Millisecond)
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
	text := ", free"
	if holder := p.do("GET", "lock"); holder != nil {
		rest := time.Duration(p.do("PTTL", "lock").(int64)) * time.Millisecond
		text = fmt.Sprintf(", held by %s for %d", holder, (rest+tickLength-1)/tickLength)
	}
	for _, t := range p.do("ZRANGE", "queue", "0", "-1").([]any) {
		text += ", " + t.(string)
	}
	return text
}

func (p *pair) do(command ...string) any {
	reply, err := p.server.Do(command...)
	require.NoError(p.t, err)
	return reply
}

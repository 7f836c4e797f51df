package schedules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/sim"
)

// A config says who does what, and what may go wrong.
type config struct {
	actors []int // the process of each: actors of one process share a Client
	rounds int   // how many times each acquires the key
	ttl    time.Duration
	tick   time.Duration // how much time passes at once
	turns  int
	faults map[fault]int // how many of each may happen
	begin  []string      // the first choices: how their texts begin
	depth  int           // in how many choices a schedule differs from the usual one
	only   property      // that is looked at; "" for all
}

// A fault is something that goes wrong.
type fault int

const (
	cut      fault = iota // a call fails; its request arrives later, or never
	drop                  // a message is lost
	cancel                // a caller does not want the key any more
	subLoss               // a subscription is lost
	forget                // a Client owes too many releases, and drops one
	failover              // a replica that has all data and a clock that is ahead becomes the server
	pause                 // a wait stands still
	detach                // a lease is passed to another process, which never releases it
	wipe                  // the server loses all data
)

// A property is what must hold.
type property string

const (
	p1 property = "P1" // two clients are never certain at once that they hold the key
	p2 property = "P2" // fences rise in the order in which clients become certain
	p3 property = "P3" // while a client is certain, the server holds its token, at least until its deadline
	p4 property = "P4" // at last every waiter is served, and nothing stays behind
)

const key = "k"

// A world is a server, the processes that use it, and what is in flight between them.
type world struct {
	*config
	server    *sim.Server
	processes []*process
	actors    []*actor
	recorder  *history.Recorder
	text      []string // what has happened
	choices   int      // that were made

	mu     sync.Mutex
	legs   []*leg
	back   int               // the last place of what was put back
	names  map[string]string // of tokens
	relied map[string]int    // tokens, by the calls and leases that rely on them
	left   map[fault]int
	wiped  time.Time // when the server last lost its data
}

// A leg is something on its way: a request, a reply, a subscription, or a message.
type leg struct {
	text    string
	born    int // after how many choices
	back    int // its place among those that were put back, or 0
	process *process
	sent    time.Time
	arrive  func()
	call    *call         // of a request or a reply
	done    bool          // it is a reply
	sub     *subscription // of a message, or of the news that the subscription is over
	message bool
}

// A process has a Client.
type process struct {
	*world
	name   string
	locker *rediscore.Locker
	client *dlock.Client
	closed chan struct{}
	subs   []*subscription
	tokens int
	forget bool          // the next release
	pauses bool          // the next call of a wait stands still
	paused chan struct{} // closed when it goes on; nil if none stands still
}

func newWorld(c *config, server *sim.Server) *world {
	server.FlushAll()
	server.SetClock(0)
	w := &world{config: c, server: server, recorder: history.NewRecorder(time.Now()), names: map[string]string{}, relied: map[string]int{}, left: map[fault]int{}}
	for f, n := range c.faults {
		w.left[f] = n
	}
	for range slices.Max(c.actors) + 1 {
		p := &process{world: w, name: string(rune('A' + len(w.processes))), closed: make(chan struct{})}
		p.locker = rediscore.New(p)
		opts := []dlock.Option{dlock.WithTTL(c.ttl)}
		if c.turns > 0 {
			opts = append(opts, dlock.WithLocalTurns(c.turns))
		}
		p.client = dlock.New(&watched{dlock.Forward{Locker: p.locker}, p}, opts...)
		w.processes = append(w.processes, p)
	}
	for i, n := range c.actors {
		name := w.processes[n].name
		if j := slices.Index(c.actors, n); j < i {
			name += strings.Repeat("'", i-j)
		}
		a := &actor{process: w.processes[n], name: name, left: c.rounds, command: make(chan struct{})}
		w.actors = append(w.actors, a)
		go a.run()
	}
	return w
}

// close ends everything.
func (w *world) close() {
	for _, p := range w.processes {
		close(p.closed)
	}
	w.resume()
	for _, a := range w.actors {
		a.quit()
	}
	for _, p := range w.processes {
		p.client.Close()
		p.locker.Close()
	}
	synctest.Wait()
}

func (w *world) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.processes {
		if p.paused != nil {
			close(p.paused)
			p.paused = nil
		}
	}
}

// add puts a leg on its way.
func (w *world) add(l *leg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.born, l.sent = w.choices, time.Now()
	w.legs = append(w.legs, l)
}

func (w *world) remove(l *leg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.legs = slices.DeleteFunc(w.legs, func(other *leg) bool { return other == l })
}

// nameLocked is a short name for a token.
func (p *process) nameLocked(token string) string {
	if p.names[token] == "" {
		p.tokens++
		p.names[token] = fmt.Sprint(p.name, p.tokens)
	}
	return p.names[token]
}

// A call is some calls that travel together.
type call struct {
	calls   []rediscore.Call
	wanted  bool
	answers chan []rediscore.Result // of capacity 1
	failed  chan struct{}
}

var errCut = errors.New("the connection was cut")

// Eval implements [rediscore.Conn].
func (p *process) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	results := make([]rediscore.Result, 1)
	p.EvalAll(ctx, []rediscore.Call{call}, results)
	return results[0].Reply, results[0].Err
}

// EvalAll implements [rediscore.Conn].
func (p *process) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	c := &call{calls: calls, wanted: true, answers: make(chan []rediscore.Result, 1), failed: make(chan struct{})}
	l := &leg{process: p, text: "request: " + p.describe(calls), call: c}
	l.arrive = func() { p.execute(l) }
	p.add(l)
	var err error
	select {
	case done := <-c.answers:
		copy(results, done)
		return
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.failed:
		err = errCut
	case <-p.closed:
		err = rediscore.ClientClosed(errCut)
	}
	for i := range results {
		results[i].Err = err
	}
	p.unwant(l)
}

// unwant notes that nobody waits for an answer any more.
func (p *process) unwant(l *leg) {
	p.mu.Lock()
	l.call.wanted = false
	p.mu.Unlock()
	if l.done {
		p.remove(l)
	}
}

// describe is the text of calls.
func (p *process) describe(calls []rediscore.Call) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	texts := make([]string, len(calls))
	for i, c := range calls {
		texts[i] = script(c) + " " + p.nameLocked(c.Args[0])
	}
	return strings.Join(texts, ", ")
}

// script is the name of a script, by its last line.
func script(c rediscore.Call) string {
	lines := strings.Split(strings.TrimSpace(c.Script.Source), "\n")
	name, ok := map[string]string{
		"return acquire()": "try", "return enqueue()": "enqueue", "return checkIn()": "check-in", "return renew()": "renew",
		"return held and 1 or 0": "release", "return replies": "releases",
	}[lines[len(lines)-1]]
	if !ok {
		panic("a script that ends with " + lines[len(lines)-1])
	}
	return name
}

// execute lets the server run scripts. The reply is on its way then.
func (p *process) execute(l *leg) {
	c := l.call
	results := make([]rediscore.Result, len(c.calls))
	for i, call := range c.calls {
		results[i].Reply, results[i].Err = p.server.Eval(source(call), call.Script.SHA, call.Keys(), call.Args)
	}
	p.mu.Lock()
	wanted := c.wanted
	p.mu.Unlock()
	if wanted {
		l.done, l.back, l.text = true, 0, strings.Replace(l.text, "request", "reply", 1)
		l.arrive = func() { c.answers <- results }
		p.add(l)
	}
	p.collect()
}

// Cluster implements [rediscore.Conn]. A wait calls it before each call: here it stands still.
func (p *process) Cluster() bool {
	p.mu.Lock()
	pauses := p.pauses
	if pauses {
		p.pauses, p.paused = false, make(chan struct{})
	}
	paused := p.paused
	p.mu.Unlock()
	if pauses {
		<-paused
	}
	return false
}

// A subscription is one as the server knows it, until it is lost.
type subscription struct {
	*sim.Subscription
	channel string
	process *process
	events  chan rediscore.Event
	over    chan struct{} // closed when the process knows that it is lost
}

// Listen implements [rediscore.Conn].
func (p *process) Listen(ctx context.Context, channel string, _ bool, on func(rediscore.Event)) error {
	s := &subscription{channel: channel, process: p, events: make(chan rediscore.Event, 100), over: make(chan struct{})}
	l := &leg{process: p, text: "request: subscribe " + p.name}
	l.arrive = func() {
		s.Subscription, _ = p.server.Subscribe(channel, false)
		p.subs = append(p.subs, s)
		p.add(&leg{process: p, text: "reply: subscribe " + p.name, sub: s, arrive: func() { s.events <- rediscore.Event{Kind: rediscore.Subscribed} }})
	}
	p.add(l)
	defer func() {
		p.remove(l)
		p.lose(s)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.legs = slices.DeleteFunc(p.legs, func(l *leg) bool { return l.sub == s })
	}()
	for {
		select {
		case e := <-s.events:
			on(e)
		case <-s.over:
			return errCut
		case <-p.closed:
			return rediscore.ClientClosed(errCut)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lose makes the server forget a subscription.
func (p *process) lose(s *subscription) {
	if s.Subscription != nil {
		p.server.Unsubscribe(s.channel, false, s.Subscription)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = slices.DeleteFunc(p.subs, func(other *subscription) bool { return other == s })
}

// loseAll makes the server forget all subscriptions. The news is on its way.
func (p *process) loseAll() {
	for _, s := range slices.Clone(p.subs) {
		p.lose(s)
		p.add(&leg{process: p, text: "news: the subscription is lost " + p.name, sub: s, arrive: func() { close(s.over) }})
	}
}

// collect puts the messages on their way that were published.
func (w *world) collect() {
	for _, p := range w.processes {
		for _, s := range p.subs {
			for _, m := range s.Take() {
				w.mu.Lock()
				_, token, _ := strings.Cut(m.Text, " ")
				_, token, _ = strings.Cut(token, " ")
				text := "message: " + p.nameLocked(token)
				w.mu.Unlock()
				w.add(&leg{process: p, text: text, sub: s, message: true, arrive: func() { s.events <- rediscore.Event{Kind: rediscore.Message, Payload: m.Text} }})
			}
		}
	}
}

// A watched Locker notes which tokens are relied on, and can drop a release that is owed.
type watched struct {
	dlock.Forward
	process *process
}

func (p *process) rely(token string) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nameLocked(token)
	p.relied[token]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.relied[token]--
	}
}

func (w *watched) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	defer w.process.rely(token)()
	return w.Forward.TryAcquire(ctx, key, token, ttl)
}

func (w *watched) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	defer w.process.rely(token)()
	return w.Forward.Acquire(ctx, key, token, ttl)
}

func (w *watched) Release(ctx context.Context, key, token string) (bool, error) {
	p := w.process
	p.mu.Lock()
	dropped := p.forget && !slices.ContainsFunc(p.legs, func(l *leg) bool {
		return l.process == p && l.call != nil && !l.done && script(l.call.calls[0]) != "release" // which only a release could undo
	})
	p.forget = p.forget && !dropped
	p.mu.Unlock()
	if dropped {
		return false, errors.ErrUnsupported
	}
	return w.Forward.Release(ctx, key, token)
}

// An actor acquires the key and releases it.
type actor struct {
	process *process
	name    string
	command chan struct{} // to begin, and to release
	back    int

	// Guarded by the world's mutex.
	left   int // how many times it still acquires
	doing  doing
	lease  *dlock.Lease // while it is held
	asked  time.Time
	cancel context.CancelFunc
	detach bool
	away   string // the token of a lease that was detached, and until when it is certain
	until  time.Time
}

type doing int

const (
	idle doing = iota
	asking
	holding
	releasing
	gone
)

func (a *actor) run() {
	w := a.process.world
	for range a.command {
		ctx, cancel := context.WithCancel(context.Background())
		asked := w.recorder.Now()
		a.asked = time.Now()
		a.does(asking, nil, cancel)
		lease, err := a.process.client.Acquire(ctx, key)
		cancel()
		if err != nil {
			a.does(idle, nil, nil)
			continue
		}
		hold := w.recorder.Hold(a.name, lease, asked)
		end := a.process.rely(lease.Token())
		a.does(holding, lease, nil)
		<-a.command
		w.recorder.End(hold, lease)
		if a.detach {
			a.away, a.until = lease.Token(), lease.Deadline()
			a.does(releasing, nil, nil)
			_, err = lease.Detach()
		}
		if !a.detach || err != nil {
			end()
			a.does(releasing, nil, nil)
			lease.Release()
		}
		a.mu().Lock()
		a.left--
		a.mu().Unlock()
		a.does(idle, nil, nil)
	}
	a.does(gone, nil, nil)
}

func (a *actor) mu() *sync.Mutex { return &a.process.world.mu }

func (a *actor) does(d doing, lease *dlock.Lease, cancel context.CancelFunc) {
	a.mu().Lock()
	defer a.mu().Unlock()
	a.doing, a.lease, a.cancel, a.back = d, lease, cancel, 0
}

// quit ends an actor.
func (a *actor) quit() {
	a.mu().Lock()
	doing, cancel := a.doing, a.cancel
	a.mu().Unlock()
	if doing == asking {
		cancel()
	}
	close(a.command)
}

// A choice is something that may happen next.
type choice struct {
	text string
	do   func()
	back *int // where its place is noted when it is put back; nil if it never is the usual choice
	rank [3]int
}

// The ranks of choices: the usual choice is the first.
const (
	arrival = iota
	begins
	releases
	putBack
	passes
	wrong
)

// next returns what may happen next, the usual choice first.
func (w *world) next() []choice {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []choice
	add := func(c choice, rank ...int) {
		copy(c.rank[:], rank)
		if c.back != nil && *c.back > 0 {
			c.rank = [3]int{putBack, *c.back}
		}
		all = append(all, c)
	}
	heard := map[*subscription]bool{} // messages arrive in order
	alike := map[string]bool{}        // of calls that are the same, the oldest arrives first
	for _, l := range w.legs {
		same := fmt.Sprint(l.text, l.call != nil && l.call.wanted)
		if l.sub != nil && heard[l.sub] || alike[same] {
			continue
		}
		heard[l.sub], alike[same] = true, true
		add(choice{text: l.text, back: &l.back, do: func() { w.remove(l); l.arrive() }}, arrival, l.born)
	}
	for _, a := range w.actors {
		switch {
		case a.doing == idle && a.left > 0:
			add(choice{text: a.name + " begins", back: &a.back, do: func() { a.command <- struct{}{} }}, begins)
		case a.doing == holding:
			add(choice{text: a.name + " releases", back: &a.back, do: func() { a.command <- struct{}{} }}, releases)
			if w.left[detach] > 0 {
				add(choice{text: a.name + " detaches", do: func() { w.left[detach]--; a.detach = true; a.command <- struct{}{} }}, wrong)
			}
		case a.doing == asking && w.left[cancel] > 0:
			add(choice{text: a.name + " cancels", do: func() { w.left[cancel]--; a.left--; a.cancel() }}, wrong)
		}
	}
	for _, p := range w.processes {
		if p.paused != nil {
			add(choice{text: p.name + " goes on", back: new(int), do: w.resume}, putBack, 1<<30)
		}
	}
	add(choice{text: "time passes", do: func() { time.Sleep(w.tick); w.loseOld() }}, passes)
	add(choice{text: "much time passes", do: func() { time.Sleep(3 * w.tick); w.loseOld() }}, wrong)
	for _, l := range w.legs {
		w.mishaps(l, add)
	}
	for _, p := range w.processes {
		if w.left[subLoss] > 0 && len(p.subs) > 0 {
			add(choice{text: "the server loses the subscription of " + p.name, do: func() { w.left[subLoss]--; p.loseAll() }}, wrong)
		}
		if w.left[forget] > 0 && !p.forget {
			add(choice{text: p.name + " will drop the next release", do: func() { w.left[forget]--; p.forget = true }}, wrong)
		}
		if w.left[pause] > 0 && p.paused == nil {
			add(choice{text: p.name + " will pause", do: func() { w.left[pause]--; p.pauses = true }}, wrong)
		}
	}
	if w.left[failover] > 0 {
		add(choice{text: "another server, whose clock is ahead", do: func() {
			w.left[failover]--
			w.setClock(w.tick / 2)
			for _, p := range w.processes {
				p.loseAll()
			}
		}}, wrong)
	}
	if w.left[wipe] > 0 {
		add(choice{text: "the server loses all data", do: func() {
			w.left[wipe]--
			w.wiped = time.Now()
			w.recorder.Wipe(w.server.FlushAll)
		}}, wrong)
	}
	slices.SortStableFunc(all, func(a, b choice) int {
		return cmp.Or(slices.Compare(a.rank[:], b.rank[:]), cmp.Compare(a.text, b.text))
	})
	return all
}

// setClock sets the server's clock, and leaves the rest of all TTLs as it is.
func (w *world) setClock(d time.Duration) {
	rest := map[string]int64{}
	for _, key := range w.server.Keys() {
		ttl, _ := w.server.Do("PTTL", key)
		rest[key] = ttl.(int64)
		w.server.Do("PERSIST", key)
	}
	w.server.SetClock(d)
	for key, ttl := range rest {
		w.server.Do("PEXPIRE", key, fmt.Sprint(ttl))
	}
}

// mishaps are what may go wrong with a leg.
func (w *world) mishaps(l *leg, add func(choice, ...int)) {
	switch {
	case l.message && w.left[drop] > 0:
		add(choice{text: "lost: " + l.text, do: func() { w.left[drop]--; w.remove(l) }}, wrong)
	case l.call != nil && l.call.wanted && w.left[cut] > 0:
		add(choice{text: "fails and is lost: " + l.text, do: func() { w.left[cut]--; w.remove(l); close(l.call.failed) }}, wrong)
		if !l.done {
			add(choice{text: "fails: " + l.text, do: func() { w.left[cut]--; close(l.call.failed) }}, wrong)
		}
	}
}

// loseOld loses requests that nobody waits for, and that were sent more than a TTL ago.
func (w *world) loseOld() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.legs = slices.DeleteFunc(w.legs, func(l *leg) bool { return l.call != nil && !l.call.wanted && time.Since(l.sent) >= w.ttl })
}

// choose makes a choice. Those before it, which would have been the usual ones, are put back.
func (w *world) choose(all []choice, n int) {
	w.mu.Lock()
	for _, c := range all[:n] {
		if c.back != nil && *c.back == 0 {
			w.back++
			*c.back = w.back
		}
	}
	w.choices++
	w.mu.Unlock()
	w.text = append(w.text, all[n].text)
	all[n].do()
	time.Sleep(time.Millisecond) // no two things happen at one instant
	synctest.Wait()
}

// holder is the token that holds the key on the server, and for how long.
func (w *world) holder() (token string, rest time.Duration) {
	reply, _ := w.server.Do("GET", key)
	token, _ = reply.(string)
	ttl, _ := w.server.Do("PTTL", key)
	return token, time.Duration(ttl.(int64)) * time.Millisecond
}

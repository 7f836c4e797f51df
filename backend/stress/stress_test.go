package stress

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	shortStress = 2 * time.Second
	longRound   = 15 * time.Second
	mixLimit    = 3 * time.Minute // until each of wanted has happened
	perClient   = 5               // workers that share a Client
)

var (
	lockKeys = []string{"key0", "key1", "key2", "key3", "{key4}", "key\n5"}
	lockTTLs = []time.Duration{300 * time.Millisecond, 800 * time.Millisecond, 2 * time.Second}
)

// wanted are the things of which each must have happened before a round of TestStress may end.
var wanted = []string{
	"found held", "served from the queue", "cancelled in the queue", "MaxWait over", "expired", "abandoned",
	"lost early", "not answered", "detached", "server checked", "led", "permit taken", "sets", "handed over by script",
	"killed while holding and waiting",
	"FLUSHALL", "restart", "scripts forgotten", "server suspended", "server paused",
	"connections killed: normal", "connections killed: pubsub", "connections cut", "connections refused",
	"network blocked", "network slow", "reply lost", "request lost", "reply cut", "request late",
}

// TestStress runs rounds until stress of DLOCK_LONG has passed. See the package documentation.
func TestStress(t *testing.T) {
	redistest.Real(t)
	for end := time.Now().Add(lasts(t, "stress", shortStress)); !t.Failed(); {
		t.Run("", func(t *testing.T) { runRound(t, min(longRound, max(shortStress, time.Until(end)))) })
		if !time.Now().Before(end) {
			return
		}
	}
}

func runRound(t *testing.T, d time.Duration) {
	server := redistest.Start(t)
	awaitGoroutines := watchGoroutines(t)
	c := &chaos{round: newRound(t, func() []*redistest.Server { return []*redistest.Server{server} }), server: server}
	c.workers = c.newGroup()
	defer c.giveUp()
	on, calm := context.WithCancel(c.limit)
	defer calm()
	c.on, c.pace = on, min(d/50, []time.Duration{20, 60, 200, 600}[rand.IntN(4)]*time.Millisecond)
	for _, lib := range clients.All {
		p := adaptertest.Proxy(t, server.Addr())
		c.proxies = append(c.proxies, p)
		for path, addr := range map[string]string{"proxied/": p.Addr(), "direct/": server.Addr()} {
			_, err := c.workers.start(path+lib.Name, openWith(lib, clients.At(addr)), perClient, (*worker).anything)
			require.NoError(t, err)
		}
	}
	faults := make(chan struct{})
	go func() { defer close(faults); c.run() }()
	c.awaitMix(d)
	calm()
	<-faults
	c.abandonAll()
	c.settle()
	if !t.Failed() {
		awaitNil(t, "queues to be empty", calmLimit, c.emptyQueues)
		for _, lib := range clients.All {
			c.serveAll(lib)
		}
	}
	c.closeAll()
	awaitNil(t, "connections of subscribers to end", calmLimit, func() error {
		if list := c.do("CLIENT", "LIST", "TYPE", "pubsub"); list != "" {
			return fmt.Errorf("%s", list)
		}
		return nil
	})
	for _, p := range c.proxies {
		p.Close()
	}
	c.report(func(*history.Violation) bool { return false })
	awaitGoroutines()
}

// awaitMix returns when d has passed and each of wanted has happened.
func (c *chaos) awaitMix(d time.Duration) {
	missing := c.missing(wanted)
	for ; time.Since(c.begun) < d || len(missing) > 0; missing = c.missing(wanted) {
		if time.Since(c.begun) > mixLimit {
			c.t.Errorf("never happened: %q", missing)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// abandonAll acquires every lock and never releases it, and leaves time for others to
// queue up.
func (c *chaos) abandonAll() {
	for i, key := range lockKeys {
		client, err := c.workers.connect("abandoner", openWith(clients.All[i%len(clients.All)], clients.At(c.server.Addr())))
		require.NoError(c.t, err)
		w := &worker{workerGroup: c.workers, who: fmt.Sprint("abandoner/", i), client: client.With(dlock.WithTTL(lockTTLs[i%len(lockTTLs)]), dlock.WithRenewal(false))}
		w.wg.Go(func() {
			if lease := w.acquire(c.limit, w.client, key); lease != nil {
				w.abandon(lease)
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
}

// emptyQueues returns an error if a waiter stands in a queue that was not killed.
func (c *chaos) emptyQueues() error {
	for _, name := range c.server.Keys(c.t) {
		if !strings.Contains(name, "dlock1:queue:") {
			continue
		}
		tokens, _ := c.do("ZRANGE", name, "0", "-1").([]any)
		for _, token := range tokens {
			if !strings.HasSuffix(token.(string), ".crash") {
				return fmt.Errorf("%q stands in %q", token, name)
			}
		}
	}
	return nil
}

// serveAll acquires and releases every lock.
func (c *chaos) serveAll(lib clients.Library) {
	ctx, cancel := context.WithTimeout(c.t.Context(), calmLimit)
	defer cancel()
	locker, closeAll, err := patiently(ctx, openWith(lib, clients.At(c.server.Addr())))
	require.NoError(c.t, err)
	defer closeAll()
	client := dlock.New(locker)
	defer client.Close()
	for _, key := range lockKeys {
		lease, err := client.Acquire(ctx, key)
		require.NoError(c.t, err, "nobody waits for %q\n%s", key, c.state())
		require.NoError(c.t, lease.Release(), key)
	}
}

// A chaos is a round on one server, with faults of all kinds.
type chaos struct {
	*round
	pace    time.Duration // at most, from one fault to the next
	server  *redistest.Server
	proxies []*faultproxy.Proxy
	on      context.Context // faults end with it
	wg      sync.WaitGroup
}

// newGroup returns a group of workers with other connections.
func (c *chaos) newGroup() *workerGroup {
	return &workerGroup{journal: c.journal, keys: lockKeys, ttls: lockTTLs, stop: c.stop, limit: c.limit,
		peek: func(key string) (string, error) { // the holder of a lock that the server has
			reply, err := c.server.Do("GET", key)
			token, _ := reply.(string)
			return token, err
		},
	}
}

// faults are what can happen. Each happens as often in a deck as the table says.
var faults = []struct {
	what   string // added to the journal when it has happened; "": the function adds it
	times  int
	strike func(c *chaos)
}{
	{"", 1, func(c *chaos) { c.wipe("FLUSHALL", func() { c.do("FLUSHALL") }) }},
	{"", 1, func(c *chaos) {
		if counts, _ := c.do("INFO", "commandstats").(string); strings.Contains(counts, "cmdstat_publish:") {
			c.happened("handed over by script")
		}
		c.wipe("restart", c.server.Restart)
	}},
	{"scripts forgotten", 1, func(c *chaos) { c.do("SCRIPT", "FLUSH") }},
	{"server suspended", 1, func(c *chaos) {
		c.server.Suspend()
		c.sleepBelow(400 * time.Millisecond)
		c.server.Resume()
		c.fault("server resumed")
	}},
	{"server paused", 1, func(c *chaos) { c.do("CLIENT", "PAUSE", fmt.Sprint(rand.IntN(200)), "ALL") }},
	{"", 2, func(c *chaos) { c.kill("normal") }},
	{"", 3, func(c *chaos) { c.kill("pubsub") }},
	{"connections cut", 2, func(c *chaos) { c.proxy().Cut() }},
	{"network blocked", 2, func(c *chaos) {
		c.bad(1500*time.Millisecond, func(p *faultproxy.Proxy) {
			p.Block([]faultproxy.Direction{faultproxy.ToStore, faultproxy.ToClient, faultproxy.Both}[rand.IntN(3)])
		})
	}},
	{"connections refused", 1, func(c *chaos) { c.bad(700*time.Millisecond, (*faultproxy.Proxy).Refuse) }},
	{"network slow", 4, func(c *chaos) { // each connection by a time of its own, so that replies overtake messages, and messages replies
		c.bad(1500*time.Millisecond, func(p *faultproxy.Proxy) {
			p.Slow(faultproxy.Both, faultproxy.Pace{Jitter: 1 + rand.N(300*time.Millisecond)})
		})
	}},
	{"", 2, func(c *chaos) {
		c.meet("reply lost", func(p *faultproxy.Proxy) *faultproxy.Fault { return p.DropReply(match(), ending()) })
	}},
	{"", 1, func(c *chaos) {
		c.meet("request lost", func(p *faultproxy.Proxy) *faultproxy.Fault { return p.DropRequest(match(), ending()) })
	}},
	{"", 1, func(c *chaos) {
		c.meet("reply cut", func(p *faultproxy.Proxy) *faultproxy.Fault { return p.CutReply(match()) })
	}},
	{"", 3, (*chaos).delay},
	{"", 3, (*chaos).crash},
}

// run injects faults of all kinds until c.on ends: each kind once quickly, then at the
// pace of the round. It undoes them all before it returns.
func (c *chaos) run() {
	for pace := 20 * time.Millisecond; c.on.Err() == nil; pace = c.pace {
		var deck []int
		for i, f := range faults {
			deck = append(deck, slices.Repeat([]int{i}, f.times)...)
		}
		rand.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, i := range deck {
			if f := faults[i]; f.what != "" {
				c.fault("%s", f.what)
				f.strike(c)
				c.happened(f.what)
			} else {
				f.strike(c)
			}
			c.sleepBelow(pace)
		}
	}
	c.wg.Wait()
	for _, p := range c.proxies {
		c.heal(p)
	}
}

func (c *chaos) proxy() *faultproxy.Proxy { return c.proxies[rand.IntN(len(c.proxies))] }

func (c *chaos) sleepBelow(d time.Duration) { sleep(c.on, rand.N(d)) }

func (c *chaos) do(args ...string) any {
	reply, _ := c.server.Do(args...)
	return reply
}

// wipe calls f, which makes the server lose all data.
func (c *chaos) wipe(what string, f func()) {
	c.fault("%s begins", what)
	c.Wipe(f)
	c.fault("%s has ended", what)
	c.happened(what)
}

func (c *chaos) kill(kind string) {
	if n, ok := c.do("CLIENT", "KILL", "TYPE", kind).(int64); ok && n > 0 {
		c.fault("%d connections killed: %s", n, kind)
		c.happened("connections killed: " + kind)
	}
}

// bad makes a network bad for less than the given time.
func (c *chaos) bad(below time.Duration, spoil func(*faultproxy.Proxy)) {
	p := c.proxy()
	spoil(p)
	c.wg.Go(func() { c.sleepBelow(below); c.heal(p) })
}

func (c *chaos) heal(p *faultproxy.Proxy) {
	if err := p.Heal(); err != nil {
		c.wrong("a proxy: %v", err)
	}
}

// match matches calls of scripts, or, one time in five, any command.
func match() faultproxy.Match {
	if rand.IntN(5) == 0 {
		return faultproxy.Any
	}
	return faultproxy.Command("EVALSHA")
}

func ending() faultproxy.Ending {
	return []faultproxy.Ending{faultproxy.Cut, faultproxy.Stall}[rand.IntN(2)]
}

// meet waits until a fault has met a request, or lifts it at the end.
func (c *chaos) meet(what string, lie func(*faultproxy.Proxy) *faultproxy.Fault) {
	p := c.proxy()
	f := lie(p)
	c.wg.Go(func() {
		select {
		case <-f.Struck():
			c.happened(what)
			c.fault("%s", what)
		case <-c.on.Done():
			p.Lift(f)
		}
	})
}

// delay delivers a request after its client has given it up.
func (c *chaos) delay() {
	p, d := c.proxy(), rand.N(200*time.Millisecond)<<rand.IntN(5)
	f := p.Hold(faultproxy.Command("EVALSHA"), ending())
	c.wg.Go(func() {
		select {
		case <-f.Struck():
			sleep(c.on, d)
		case <-c.on.Done():
			if p.Lift(f) {
				return
			}
			<-f.Struck()
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if f.Deliver(ctx) == nil {
			c.happened("request late")
			c.fault("request delivered, late by %v", d)
		}
	})
}

// crash starts a group of workers, and cuts it off from the server for good while they
// hold and wait: to the server, a process has died.
func (c *chaos) crash() {
	c.wg.Go(func() {
		p, err := faultproxy.New(c.server.Addr())
		if err != nil {
			c.wrong("a proxy: %v", err)
			return
		}
		defer p.Close()
		lib, group := clients.All[rand.IntN(len(clients.All))], c.newGroup()
		limit, giveUp := context.WithCancel(c.limit)
		defer giveUp()
		group.limit, group.stop = limit, limit
		if _, err := group.start("crash/"+lib.Name, openWith(lib, clients.At(p.Addr())), perClient, (*worker).anything); err != nil {
			return
		}
		c.sleepBelow(500 * time.Millisecond)
		for c.on.Err() == nil && (group.holding.Load() == 0 || group.waiting.Load() == 0) {
			time.Sleep(pause)
		}
		if c.on.Err() == nil {
			c.happened("killed while holding and waiting")
		}
		p.Refuse()
		giveUp()
		group.close()
	})
}

const calmLimit = 2 * time.Minute // until all are served when the faults have ended

// A round is one run of workers while faults strike the servers.
type round struct {
	*journal
	t       *testing.T
	masters func() []*redistest.Server
	workers *workerGroup
	stop    context.Context // for the workers
	endWork context.CancelFunc
	limit   context.Context // of what they have begun; it ends when waiters are not served in time
	giveUp  context.CancelFunc
}

func newRound(t *testing.T, masters func() []*redistest.Server) *round {
	r := &round{journal: newJournal(), t: t, masters: masters}
	r.limit, r.giveUp = context.WithCancel(t.Context())
	r.stop, r.endWork = context.WithCancel(r.limit)
	r.workers = &workerGroup{journal: r.journal, stop: r.stop, limit: r.limit}
	return r
}

// settle ends the workers, who must all be served.
func (r *round) settle() {
	r.fault("calm")
	late := time.AfterFunc(calmLimit, func() {
		waiting := r.waiting(func(*wait) bool { return true })
		r.t.Errorf("not served within %v:\n%s\n%s", calmLimit, strings.Join(waiting, "\n"), r.state())
		r.giveUp()
	})
	defer late.Stop()
	r.endWork()
	r.workers.wg.Wait()
}

// state is what the servers have stored for locks.
func (r *round) state() (text string) {
	for _, m := range r.masters() {
		for _, args := range [][]string{{"KEYS", "*"}, {"PUBSUB", "CHANNELS"}} {
			reply, err := m.Do(args...)
			text += fmt.Sprintf("%s: %q: %q, %v\n", m.Addr(), args, reply, err)
		}
	}
	return text
}

// closeAll closes everything, and checks that the servers store nothing but fence counters, and that nobody subscribes.
func (r *round) closeAll() {
	r.giveUp()
	r.workers.close()
	for _, args := range [][]string{{"KEYS", "*"}, {"PUBSUB", "CHANNELS", "*dlock1*"}, {"PUBSUB", "SHARDCHANNELS", "*dlock1*"}} {
		awaitNil(r.t, strings.Join(args, " ")+" to be empty", calmLimit, func() error {
			for _, m := range r.masters() {
				reply, err := m.Do(args...)
				if _, old := err.(redistest.Error); old { // before Redis 7 there are no shard channels
					continue
				} else if err != nil {
					return err
				}
				names := slices.DeleteFunc(reply.([]any), func(name any) bool { // the counters of fences, and the marker of votes
					return strings.HasSuffix(name.(string), "}dlock1:fence") || name == "dlock1:birth"
				})
				if len(names) > 0 {
					return fmt.Errorf("%s has %q", m.Addr(), names)
				}
			}
			return nil
		})
	}
}

// report logs a summary, and fails the test for what must not be, except for a violation that may be.
func (r *round) report(mayBe func(*history.Violation) bool) {
	r.t.Log(r.summary())
	t := time.Now()
	if stepped := t.Round(0).Sub(r.begun.Round(0)) - t.Sub(r.begun); stepped.Abs() > 100*time.Millisecond {
		r.t.Logf("inconclusive: the clock of this machine, by which servers end leases, was set by %v during the round", stepped)
		return
	}
	h, violations := r.judged()
	for _, v := range violations {
		if mayBe(v) {
			r.t.Log(v)
		} else {
			r.t.Errorf("%v\n%s", v, r.around(h, v))
		}
	}
	for _, e := range r.errors {
		r.t.Error(e)
	}
}

// lasts returns how long a part of DLOCK_LONG lasts.
func lasts(t *testing.T, part string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := long.Of(part)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, part)
	return d
}

// watchGoroutines returns a function that waits until all goroutines that were started in
// between have ended, but for those that attend a server.
func watchGoroutines(t *testing.T) (await func()) {
	attend := goleak.IgnoreAnyFunction("github.com/dlock-go/dlock/internal/redistest.(*process).attend")
	current := goleak.IgnoreCurrent()
	return func() {
		awaitNil(t, "goroutines to end", calmLimit, func() error { return goleak.Find(current, attend) })
	}
}

// awaitNil waits until f returns nil, which must be within a time.
func awaitNil(t *testing.T, what string, within time.Duration, f func() error) {
	t.Helper()
	err := f()
	for limit := time.Now().Add(within); err != nil && time.Now().Before(limit); err = f() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("waiting for %s: %v", what, err)
	}
}

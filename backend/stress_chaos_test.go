package backend_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A chaos makes things difficult for the workers of a stress test. All it does is
// undone when it has ended.
type chaos struct {
	*journal
	rng     *rand.Rand
	pace    time.Duration // at most, from one fault to the next
	server  *redistest.Server
	proxies []*faultproxy.Proxy
	on      context.Context // faults end with it
	crew    func(process string) *stressCrew
	wg      sync.WaitGroup
	late    <-chan struct{} // closed when the test gives up
	crashes int
}

// run spreads faults of all kinds until the chaos is over: once quickly, then at the
// pace of the round.
func (c *chaos) run() {
	for pace := 20 * time.Millisecond; c.on.Err() == nil; pace = c.pace {
		deck := []func(){
			c.flush, c.restart, c.forgetScripts, c.suspend, c.pause, c.killNormal, c.killPubsub,
			c.cut, c.block, c.refuse, c.slow, c.loseReply, c.loseRequest, c.cutReply, c.delay,
			c.cut, c.block, c.loseReply, c.delay, c.delay, c.slow, c.slow, c.slow, c.killNormal, c.killPubsub, c.killPubsub,
			c.crash, c.crowd,
		}
		c.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, fault := range deck {
			fault()
			c.sleep(c.below(pace))
		}
	}
	c.wg.Wait()
	for _, p := range c.proxies {
		c.healed(p)
	}
}

func (c *chaos) below(d time.Duration) time.Duration { return time.Duration(c.rng.Int64N(int64(d))) }

func (c *chaos) proxy() *faultproxy.Proxy { return c.proxies[c.rng.IntN(len(c.proxies))] }

func (c *chaos) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.on.Done():
	}
}

// later does something after d, or at the end.
func (c *chaos) later(d time.Duration, f func()) {
	c.wg.Go(func() {
		c.sleep(d)
		f()
	})
}

// wipe has the store lose everything.
func (c *chaos) wipe(what string, f func()) {
	s := span{from: now()}
	f()
	s.to = now()
	c.wiped(s)
	c.fault("%s: %v", what, s)
	c.add(what, 1)
}

func (c *chaos) flush() { c.wipe("FLUSHALL", func() { _, _ = c.server.Do("FLUSHALL") }) }

func (c *chaos) restart() {
	c.add("handed over by script", c.published())
	c.wipe("restart", c.server.Restart)
}

// published returns how many grants the server has published since it started.
func (c *chaos) published() int {
	reply, _ := c.server.Do("INFO", "commandstats")
	text, _ := reply.(string)
	var n int
	for line := range lines(text) {
		_, _ = fmt.Sscanf(line, "cmdstat_publish:calls=%d", &n)
	}
	return n
}

func (c *chaos) forgetScripts() {
	_, _ = c.server.Do("SCRIPT", "FLUSH")
	c.add("scripts forgotten", 1)
}

func (c *chaos) suspend() {
	c.server.Suspend()
	c.fault("server suspended")
	c.sleep(c.below(400 * time.Millisecond))
	c.server.Resume()
	c.fault("server resumed")
	c.add("server suspended", 1)
}

func (c *chaos) pause() {
	d := c.below(200 * time.Millisecond)
	_, _ = c.server.Do("CLIENT", "PAUSE", fmt.Sprint(d.Milliseconds()), "ALL")
	c.fault("CLIENT PAUSE for %v", d)
	c.add("server paused", 1)
}

func (c *chaos) killNormal() { c.kill("normal") }
func (c *chaos) killPubsub() { c.kill("pubsub") }

func (c *chaos) kill(kind string) {
	if n, ok := c.ask("CLIENT", "KILL", "TYPE", kind).(int64); ok && n > 0 {
		c.fault("%d connections killed: %s", n, kind)
		c.add("connections killed: "+kind, int(n))
	}
}

func (c *chaos) ask(args ...string) any {
	reply, _ := c.server.Do(args...)
	return reply
}

func (c *chaos) cut() {
	c.proxy().Cut()
	c.fault("connections cut")
	c.add("connections cut", 1)
}

func (c *chaos) block() {
	p, d := c.proxy(), c.below(1500*time.Millisecond)
	p.Block([]faultproxy.Direction{faultproxy.ToStore, faultproxy.ToClient, faultproxy.Both}[c.rng.IntN(3)])
	c.fault("network blocked for %v", d)
	c.heal(p, d)
	c.add("network blocked", 1)
}

func (c *chaos) heal(p *faultproxy.Proxy, after time.Duration) {
	c.later(after, func() { c.healed(p) })
}

func (c *chaos) healed(p *faultproxy.Proxy) {
	if err := p.Heal(); err != nil {
		c.note("", event{Kind: broken, Who: "the test", At: now(), Text: err.Error()})
	}
}

func (c *chaos) refuse() {
	p, d := c.proxy(), c.below(700*time.Millisecond)
	p.Refuse()
	c.fault("connections refused for %v", d)
	c.heal(p, d)
	c.add("connections refused", 1)
}

// slow has each connection be slow in its own way: answers overtake messages, and
// messages answers.
func (c *chaos) slow() {
	p, d := c.proxy(), c.below(1500*time.Millisecond)
	p.Slow(faultproxy.Both, faultproxy.Pace{Jitter: 1 + c.below(300*time.Millisecond)})
	c.heal(p, d)
	c.add("network slow", 1)
}

// match chooses calls of scripts, or now and then whatever comes.
func (c *chaos) match() faultproxy.Match {
	if c.rng.IntN(5) == 0 {
		return faultproxy.Any
	}
	return faultproxy.Command("EVALSHA")
}

func (c *chaos) ending() faultproxy.Ending {
	return []faultproxy.Ending{faultproxy.Cut, faultproxy.Stall}[c.rng.IntN(2)]
}

func (c *chaos) loseReply() {
	p := c.proxy()
	c.strike("reply lost", p, p.DropReply(c.match(), c.ending()))
}

func (c *chaos) loseRequest() {
	p := c.proxy()
	c.strike("request lost", p, p.DropRequest(c.match(), c.ending()))
}

func (c *chaos) cutReply() {
	p := c.proxy()
	c.strike("reply cut", p, p.CutReply(c.match()))
}

// strike waits until a fault has met a request.
func (c *chaos) strike(what string, p *faultproxy.Proxy, f *faultproxy.Fault) {
	c.wg.Go(func() {
		select {
		case <-f.Struck():
			c.add(what, 1)
			c.fault("%s", what)
		case <-c.on.Done():
			p.Lift(f)
		}
	})
}

// delay has a request delivered late, when the client has given it up.
func (c *chaos) delay() {
	p, d := c.proxy(), c.below(200*time.Millisecond)<<c.rng.IntN(5)
	f := p.Hold(faultproxy.Command("EVALSHA"), c.ending())
	c.wg.Go(func() {
		select {
		case <-f.Struck():
			c.sleep(d)
		case <-c.on.Done():
			if p.Lift(f) {
				return
			}
			<-f.Struck()
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if f.Deliver(ctx) == nil {
			c.add("request late", 1)
			c.fault("request delivered, late by %v", d)
		}
	})
}

// crash has a process of its own, as it were, lose the server for ever while its workers
// hold and wait.
func (c *chaos) crash() {
	c.crashes++
	process, library, d := fmt.Sprintf("crash%d", c.crashes), c.rng.IntN(len(libraries)), c.below(500*time.Millisecond)
	c.wg.Go(func() {
		p, err := faultproxy.New(c.server.Addr())
		if err != nil {
			c.fault("no proxy: %v", err)
			return
		}
		defer p.Close()
		crew := c.crew(process)
		var giveUp context.CancelFunc
		crew.limit, giveUp = context.WithCancel(crew.limit)
		crew.stop = crew.limit
		defer giveUp()
		if crew.employ("crash", library, p.Addr(), 4) != nil {
			return
		}
		c.sleep(d)
		p.Refuse()
		giveUp()
		crew.retire()
		c.add("crashed", 1)
	})
}

// crowd has a hundred wait for one lock, and go away together.
func (c *chaos) crowd() {
	library, p, d := c.rng.IntN(len(libraries)), c.proxy(), c.below(300*time.Millisecond)
	c.wg.Go(func() {
		locker, closeClient, err := dialPatiently(c.on, library, p.Addr())
		if err != nil {
			return
		}
		defer closeClient()
		defer locker.Close()
		client := dlock.New(locker, dlock.WithOwner("crowd"), dlock.WithTTL(300*time.Millisecond))
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		var crowd sync.WaitGroup
		for range 100 {
			crowd.Go(func() {
				if lease, err := client.Acquire(ctx, "key0"); err == nil {
					_ = lease.Release()
				}
			})
		}
		crowd.Wait()
		c.add("crowds", 1)
	})
}

// stressKinds are what must have happened before a stress test may end.
var stressKinds = slices.Concat(childKinds, []string{
	"found held", "served from the queue", "cancelled in the queue", "MaxWait over", "expired", "abandoned",
	"lost early", "not answered", "detached", "server asked", "handed over by script", "crashed", "crowds",
	"FLUSHALL", "restart", "scripts forgotten", "server suspended", "server paused",
	"connections killed: normal", "connections killed: pubsub", "connections cut", "connections refused",
	"network blocked", "network slow", "reply lost", "request lost", "reply cut", "request late",
})

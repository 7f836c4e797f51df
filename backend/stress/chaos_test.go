package stress

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

// A chaos injects faults while the workers work. It undoes them all before run returns.
type chaos struct {
	*journal
	rng     *rand.Rand
	pace    time.Duration // at most, from one fault to the next
	server  *redistest.Server
	proxies []*faultproxy.Proxy
	on      context.Context // faults end with it
	group   func(process string) *workerGroup
	wg      sync.WaitGroup
	late    <-chan struct{} // closed when the round gives up
	crashes int
}

// run injects faults of all kinds until c.on ends: each kind once quickly, then at the
// pace of the round.
func (c *chaos) run() {
	for pace := 20 * time.Millisecond; c.on.Err() == nil; pace = c.pace {
		deck := []func(){
			c.flush, c.restart, c.forgetScripts, c.suspend, c.pause, c.killNormal, c.killPubsub,
			c.cut, c.block, c.refuse, c.slow, c.loseReply, c.loseRequest, c.cutReply, c.delay,
			c.cut, c.block, c.loseReply, c.delay, c.delay, c.slow, c.slow, c.slow, c.killNormal, c.killPubsub, c.killPubsub,
			c.crash, c.burst,
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

// later calls f after d, or when the chaos ends.
func (c *chaos) later(d time.Duration, f func()) {
	c.wg.Go(func() {
		c.sleep(d)
		f()
	})
}

// wipe calls f, which makes the server lose all data.
func (c *chaos) wipe(what string, f func()) {
	c.fault("%s begins", what)
	c.Wipe(f)
	c.fault("%s has ended", what)
	c.add(what, 1)
}

func (c *chaos) flush() { c.wipe("FLUSHALL", func() { _, _ = c.server.Do("FLUSHALL") }) }

func (c *chaos) restart() {
	c.add("handed over by script", c.published())
	c.wipe("restart", c.server.Restart)
}

// published returns how many messages the server has published since it started.
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
	if n, ok := c.do("CLIENT", "KILL", "TYPE", kind).(int64); ok && n > 0 {
		c.fault("%d connections killed: %s", n, kind)
		c.add("connections killed: "+kind, int(n))
	}
}

func (c *chaos) do(args ...string) any {
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

// slow delays each connection by a time of its own, so that replies overtake messages,
// and messages replies.
func (c *chaos) slow() {
	p, d := c.proxy(), c.below(1500*time.Millisecond)
	p.Slow(faultproxy.Both, faultproxy.Pace{Jitter: 1 + c.below(300*time.Millisecond)})
	c.heal(p, d)
	c.add("network slow", 1)
}

// match matches calls of scripts, or, one time in five, any command.
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

// strike waits until a fault has met a request, or lifts it at the end.
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

// delay delivers a request after its client has given it up.
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

// crash starts a group of workers, and cuts it off from the server for good while they
// hold and wait: to the server, a process has died.
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
		group := c.group(process)
		var giveUp context.CancelFunc
		group.limit, giveUp = context.WithCancel(group.limit)
		group.stop = group.limit
		defer giveUp()
		if group.start("crash", library, p.Addr(), 4) != nil {
			return
		}
		c.sleep(d)
		p.Refuse()
		giveUp()
		group.close()
		c.add("crashed", 1)
	})
}

// burst starts a hundred waits for one lock, and cancels them together.
func (c *chaos) burst() {
	library, p, d := c.rng.IntN(len(libraries)), c.proxy(), c.below(300*time.Millisecond)
	c.wg.Go(func() {
		locker, closeClient, err := dialPatiently(c.on, library, p.Addr())
		if err != nil {
			return
		}
		defer closeClient()
		defer locker.Close()
		client := dlock.New(locker, dlock.WithOwner("burst"), dlock.WithTTL(300*time.Millisecond))
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		var waits sync.WaitGroup
		for range 100 {
			waits.Go(func() {
				if lease, err := client.Acquire(ctx, "key0"); err == nil {
					_ = lease.Release()
				}
			})
		}
		waits.Wait()
		c.add("bursts", 1)
	})
}

// wantedKinds are the things of which each must have happened before a round may end.
var wantedKinds = slices.Concat(childKinds, []string{
	"found held", "served from the queue", "cancelled in the queue", "MaxWait over", "expired", "abandoned",
	"lost early", "not answered", "detached", "server checked", "handed over by script", "crashed", "bursts",
	"FLUSHALL", "restart", "scripts forgotten", "server suspended", "server paused",
	"connections killed: normal", "connections killed: pubsub", "connections cut", "connections refused",
	"network blocked", "network slow", "reply lost", "request lost", "reply cut", "request late",
})

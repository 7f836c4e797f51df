package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// A leg is something on its way: a request, a reply, a message, a write, or the news that a subscription is over.
type leg struct {
	*conn
	stage  stage
	call   *call         // of a request or a reply, but not of a subscription
	sub    *subscription // of the others
	token  string        // of a message or a write
	arrive func()

	// Of the driver.
	text       string
	trip       trip
	born, back int
	at         time.Time
}

type stage string

const (
	request stage = "request"
	reply   stage = "reply"
	message stage = "message"
	news    stage = "news"
	write   stage = "write" // to a resource
)

// A conn is the connection of a process to a server: a [rediscore.Conn].
type conn struct {
	*process
	store  int
	server *sim.Server
	calls  []*call // that wait for a reply
	subs   []*subscription
}

// A call is some calls that travel together.
type call struct {
	sim.Trip
	wanted  bool
	answers chan []rediscore.Result // of capacity 1
	failed  chan struct{}           // closed by fail
	fail    func()                  // when the connection was cut
}

var errCut = errors.New("the connection was cut")

// IsReply implements [rediscore.Replier].
func (*conn) IsReply(err error) bool {
	_, is := err.(sim.Error)
	return is
}

// Cluster implements [rediscore.Conn]. A wait calls it before each call: here it stands still, if the driver wants it.
func (c *conn) Cluster() bool {
	c.mu.Lock()
	pauses := c.pauses
	if pauses {
		c.pauses, c.paused = false, make(chan struct{})
	}
	paused := c.paused
	c.mu.Unlock()
	if pauses {
		<-paused
	}
	return false
}

// Eval implements [rediscore.Conn].
func (c *conn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	results := make([]rediscore.Result, 1)
	c.EvalAll(ctx, []rediscore.Call{call}, results)
	return results[0].Reply, results[0].Err
}

// EvalAll implements [rediscore.Conn].
func (c *conn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	c.send(ctx, sim.Trip{Calls: calls}, results)
}

// EvalReplicated implements [rediscore.Replicator].
func (c *conn) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	c.send(ctx, sim.Trip{Calls: calls, Wait: &wait}, results)
}

func (c *conn) send(ctx context.Context, t sim.Trip, results []rediscore.Result) {
	if err := c.exchange(ctx, t, results); err != nil {
		for i := range results {
			results[i] = rediscore.Result{Err: err}
		}
	}
}

// exchange sends calls, and waits for their results.
func (c *conn) exchange(ctx context.Context, t sim.Trip, results []rediscore.Result) error {
	name := fmt.Sprint(c.store, t.Calls[0].Script.SHA, t.Calls[0].Keys()[0], t.Calls[0].Args)
	c.driver.pause(c.process, name)
	switch {
	case c.isDead():
		return rediscore.ClientClosed(errCut)
	case ctx.Err() != nil:
		return &dlock.NoEffectError{Err: ctx.Err()}
	}
	k := &call{Trip: t, wanted: true, answers: make(chan []rediscore.Result, 1), failed: make(chan struct{})}
	k.fail = sync.OnceFunc(func() { close(k.failed) })
	l := &leg{conn: c, stage: request, call: k}
	l.arrive = func() { c.execute(ctx, l) }
	c.mu.Lock()
	k.To = c.server
	c.calls = append(c.calls, k)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		k.wanted = false
		c.calls = slices.DeleteFunc(c.calls, func(other *call) bool { return other == k })
	}()
	c.driver.sent(l)
	select {
	case done := <-k.answers:
		copy(results, done)
		return nil
	case <-ctx.Done():
		c.driver.pause(c.process, name+" ends")
		return ctx.Err()
	case <-k.failed:
		return errCut
	case <-c.dead:
		return rediscore.ClientClosed(errCut)
	}
}

// execute lets the server run scripts. The reply is on its way then.
func (c *conn) execute(ctx context.Context, l *leg) {
	results := l.call.Execute(ctx, c.dead)
	c.mu.Lock()
	wanted := l.call.wanted
	c.mu.Unlock()
	if wanted && l.stage == request {
		c.driver.sent(&leg{conn: c, stage: reply, call: l.call, trip: l.trip, arrive: func() { l.call.answers <- results }})
	}
	c.world.collect()
}

// A subscription is one as the server knows it, until it is lost.
type subscription struct {
	*sim.Subscription
	to      *sim.Server
	channel string
	sharded bool
	events  chan rediscore.Event
	over    chan error // has an element when the process knows that it is over
	last    time.Time  // when the last message arrives
	done    bool       // nobody listens any more
}

// Listen implements [rediscore.Conn].
func (c *conn) Listen(ctx context.Context, channel string, sharded bool, on func(rediscore.Event)) error {
	c.driver.pause(c.process, fmt.Sprint(c.store))
	c.mu.Lock()
	s := &subscription{to: c.server, channel: channel, sharded: sharded, events: make(chan rediscore.Event, 1000), over: make(chan error, 2)}
	c.subs = append(c.subs, s)
	c.mu.Unlock()
	l := &leg{conn: c, stage: request, sub: s}
	l.arrive = func() { c.subscribe(l) }
	c.driver.sent(l)
	defer func() {
		c.forget(s)
		c.mu.Lock()
		defer c.mu.Unlock()
		s.done = true
	}()
	for {
		select {
		case e := <-s.events:
			on(e)
		case err := <-s.over:
			return err
		case <-c.dead:
			return rediscore.ClientClosed(errCut)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// subscribe lets the server note a subscription, which the process may have given up.
func (c *conn) subscribe(l *leg) {
	s := l.sub
	sub, err := s.to.Subscribe(s.channel, s.sharded)
	c.mu.Lock()
	given := !slices.Contains(c.subs, s)
	if err == nil {
		s.Subscription = sub
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		s.over <- err
	case given:
		s.to.Unsubscribe(s.channel, s.sharded, sub)
	default:
		c.driver.sent(&leg{conn: c, stage: reply, sub: s, trip: l.trip, arrive: func() { s.events <- rediscore.Event{Kind: rediscore.Subscribed} }})
	}
}

// forget makes the server forget a subscription.
func (c *conn) forget(s *subscription) {
	c.mu.Lock()
	c.subs = slices.DeleteFunc(c.subs, func(other *subscription) bool { return other == s })
	sub := s.Subscription
	c.mu.Unlock()
	if sub != nil {
		s.to.Unsubscribe(s.channel, s.sharded, sub)
	}
}

// lose ends a subscription. The news is on its way.
func (c *conn) lose(s *subscription) {
	c.forget(s)
	c.driver.sent(&leg{conn: c, stage: news, sub: s, arrive: func() { s.over <- errCut }})
}

// cut breaks the connection. The requests in flight may still arrive. What follows goes to another server, unless it is nil.
func (c *conn) cut(next *sim.Server) {
	c.mu.Lock()
	if next != nil {
		c.server = next
	}
	calls, subs := slices.Clone(c.calls), slices.Clone(c.subs)
	c.mu.Unlock()
	for _, k := range calls {
		c.driver.sent(&leg{conn: c, stage: news, call: k, arrive: k.fail})
	}
	for _, s := range subs {
		c.lose(s)
	}
}

// collect puts messages on their way, and the news of subscriptions that the server has ended.
func (c *conn) collect() {
	c.mu.Lock()
	subs := slices.DeleteFunc(slices.Clone(c.subs), func(s *subscription) bool { return s.Subscription == nil })
	c.mu.Unlock()
	for _, s := range subs {
		for _, m := range s.Take() {
			_, token, _ := strings.Cut(m.Text, " ")
			token, _, _ = strings.Cut(token, " ")
			c.driver.sent(&leg{conn: c, stage: message, sub: s, token: token, arrive: func() {
				s.events <- rediscore.Event{Kind: rediscore.Message, Payload: m.Text}
			}})
		}
		select {
		case <-s.Ended:
			c.lose(s)
		default:
		}
	}
}

// scriptName is the name of a script. A planted fault changes its source only.
func scriptName(s *rediscore.Script) string {
	for name, sha := range sums() {
		if sha == s.SHA {
			return name
		}
	}
	panic("a script without a sum")
}

var sums = sync.OnceValue(func() map[string]string {
	text, err := os.ReadFile("../../../backend/rediscore/lua/sums.txt")
	if err != nil {
		panic(err)
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		name, sha, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = sha
	}
	return all
})

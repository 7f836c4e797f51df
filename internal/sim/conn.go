package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A Conn is a client of a [Server] or of a [Cluster]: a [rediscore.Conn]. Its methods return when their ctx ends, as those
// of a good client library do. What was sent goes on its way.
type Conn struct {
	fate func(Trip) Fate

	closed chan struct{}
	under  sync.WaitGroup // what is under way

	mu     sync.Mutex
	server *Server // or one of the nodes
	slots  slots   // who has them, as far as the client knows
	over   bool
	cuts   chan struct{} // closed by Cut
	left   chan struct{} // closed by Follow
	holds  []*Held
}

var (
	_ rediscore.Conn       = (*Conn)(nil)
	_ rediscore.Router     = (*Conn)(nil)
	_ rediscore.Locator    = (*Conn)(nil)
	_ rediscore.Replicator = (*Conn)(nil)
)

// A Trip is a script or a message that goes through the network.
type Trip struct {
	To      *Server          // or from, of a message
	Calls   []rediscore.Call // that travel together; nil for a message or a subscription
	Channel string           // of a message or a subscription
	Shard   bool             // it is a shard channel
	Message string

	Wait *rediscore.Replication // for which the reply waits

	asking bool // ASKING is before each call
}

// A Fate is what becomes of a [Trip]. The zero value is a network that takes no time.
type Fate struct {
	Request, Reply Leg // a message has no request

	// What the caller gets, if not nil, when the request would arrive. The server does not get it. Of
	// a subscription, only the error of the first counts.
	Results []rediscore.Result
}

// A Leg is one way through the network.
type Leg struct {
	Delay time.Duration
	Until <-chan struct{} // the leg ends no earlier than this is closed, if it is not nil
	Lost  bool
}

// IsReply implements [rediscore.Replier].
func (*Conn) IsReply(err error) bool {
	_, is := err.(Error)
	return is
}

// Dial returns a client of a server, or of the cluster that has it. fate decides about each trip, one at a time; it may be nil.
func Dial(s *Server, fate func(Trip) Fate) *Conn {
	if fate == nil {
		fate = func(Trip) Fate { return Fate{} }
	}
	c := &Conn{fate: fate, closed: make(chan struct{}), cuts: make(chan struct{}), left: make(chan struct{})}
	c.Follow(s)
	return c
}

// Follow is what the client of Sentinel does when it learns of another master. Calls go there from now
// on; those that are under way fail. Subscriptions stay where they are, until Cut.
//
// The client of a cluster learns which masters have which slots, as the node s knows. Nothing fails.
func (c *Conn) Follow(s *Server) {
	known := s.known()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.slots = s, known
	if s.cluster == nil {
		close(c.left)
		c.left = make(chan struct{})
	}
}

// errCut is the error of calls and subscriptions whose connection was cut. The effect of a call
// is unknown then.
var errCut = errors.New("sim: the connection was cut")

// Close ends all calls and subscriptions, whose requests may still arrive, unless they are held
// back. It returns when nothing of the Conn goes on.
func (c *Conn) Close() {
	c.mu.Lock()
	if !c.over {
		c.over = true
		close(c.closed)
	}
	c.mu.Unlock()
	c.under.Wait()
}

// Cut breaks all connections: the calls in flight and the subscriptions fail. Their requests may
// still arrive.
func (c *Conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.cuts)
	c.cuts = make(chan struct{})
}

// begin draws the fate of a trip, and counts it as under way. It reports false if the Conn is closed.
func (c *Conn) begin(t Trip) (f Fate, cut, left <-chan struct{}, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return Fate{}, nil, nil, false
	}
	c.under.Add(1)
	return c.fateLocked(t), c.cuts, c.left, true
}

// master returns the server that has the slot of a key or a channel, as far as the client knows.
func (c *Conn) master(key string) *Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.cluster == nil {
		return c.server
	}
	return c.server.cluster.Nodes[c.slots[rediscore.Slot(key)]]
}

// learn takes note of a redirection.
func (c *Conn) learn(err error) {
	var slot int
	var address string
	if err == nil {
		return
	}
	if n, _ := fmt.Sscanf(err.Error(), "MOVED %d %s", &slot, &address); n == 2 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.slots[slot] = c.server.cluster.at(address).number
	}
}

// travel takes the time of a leg, and reports whether what it carries arrives. It does not after end.
func travel(l Leg, end <-chan struct{}) bool {
	if l.Delay > 0 {
		timer := time.NewTimer(l.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-end:
			return false
		}
	}
	if l.Until != nil {
		select {
		case <-l.Until:
		case <-end:
			return false
		}
	}
	return !l.Lost
}

// Eval makes a call.
func (c *Conn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	results := make([]rediscore.Result, 1)
	c.EvalAll(ctx, []rediscore.Call{call}, results)
	return results[0].Reply, results[0].Err
}

// EvalAll makes calls. Those for one master travel together.
func (c *Conn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	c.evalAll(ctx, calls, results, nil)
}

// EvalReplicated implements [rediscore.Replicator]. The connection is new to the server: WAIT counts the
// replicas that have what these calls wrote, or all replicas if they wrote nothing.
func (c *Conn) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	c.evalAll(ctx, calls, results, &wait)
}

func (c *Conn) evalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) {
	if !c.Cluster() {
		c.send(ctx, Trip{To: c.master(""), Calls: calls, Wait: wait}, results)
		return
	}
	node := func(call rediscore.Call, address string) (*Server, error) {
		master := c.master(call.Keys()[0])
		if address != "" {
			master = master.cluster.at(address)
		}
		return master, nil
	}
	rediscore.EvalByMaster(calls, results, node, func(to *Server, asking bool, numbers []int) {
		t, answers := Trip{To: to, asking: asking, Wait: wait}, make([]rediscore.Result, len(numbers))
		for _, i := range numbers {
			t.Calls = append(t.Calls, calls[i])
		}
		c.send(ctx, t, answers)
		for n, i := range numbers {
			results[i] = answers[n]
			c.learn(answers[n].Err)
		}
	})
}

// send makes calls of one server.
func (c *Conn) send(ctx context.Context, t Trip, results []rediscore.Result) {
	fail := func(err error) {
		for i := range results {
			results[i] = rediscore.Result{Err: err}
		}
	}
	if err := ctx.Err(); err != nil {
		fail(&dlock.NoEffectError{Err: err})
		return
	}
	f, cut, left, ok := c.begin(t)
	if !ok {
		fail(rediscore.ClientClosed(errCut))
		return
	}
	answered := make(chan []rediscore.Result, 1)
	go func() {
		defer c.under.Done()
		if travel(f.Request, c.closed) {
			done := f.Results
			if done == nil {
				done = t.Execute(ctx, c.closed)
			}
			if travel(f.Reply, c.closed) {
				answered <- done
			}
		}
	}()
	select {
	case done := <-answered:
		copy(results, done)
	case <-ctx.Done():
		fail(ctx.Err())
	case <-cut:
		fail(errCut)
	case <-left:
		fail(errCut)
	case <-c.closed:
		fail(rediscore.ClientClosed(errCut))
	}
}

// Execute is what the server does when calls arrive. It waits for replicas until end is closed.
func (t Trip) Execute(ctx context.Context, end <-chan struct{}) []rediscore.Result {
	results, written := make([]rediscore.Result, len(t.Calls)), int64(0)
	for i, call := range t.Calls {
		var offset int64
		results[i].Reply, offset, results[i].Err = t.To.eval(call.Script.Source, call.Script.SHA, call.Keys(), call.Args, t.asking)
		written = max(written, offset)
	}
	if t.Wait != nil {
		limit := time.Duration(t.Wait.Milliseconds(ctx)) * time.Millisecond
		n, err := t.To.wait(written, t.Wait.Replicas, limit, end)
		for i := range results {
			results[i].Replicas, results[i].NoWait = n, err
		}
	}
	return results
}

// Cluster reports whether the server is a node of a cluster.
func (c *Conn) Cluster() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.cluster != nil
}

// Master implements [rediscore.Router].
func (c *Conn) Master(ctx context.Context, call rediscore.Call) any {
	return c.Locate(ctx, call.Keys()[0])
}

// Locate implements [rediscore.Locator], with what the client has learnt so far.
func (c *Conn) Locate(_ context.Context, key string) any {
	if !c.Cluster() {
		return nil
	}
	return c.master(key)
}

// Listen subscribes to a channel. Messages arrive in their order. One that is lost leaves the
// subscription as it is.
func (c *Conn) Listen(ctx context.Context, name string, shard bool, on func(rediscore.Event)) error {
	to := c.master(name)
	f, cut, _, ok := c.begin(Trip{To: to, Channel: name, Shard: shard})
	if !ok {
		return rediscore.ClientClosed(errCut)
	}
	defer c.under.Done()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		select {
		case <-cut:
			end(errCut)
		case <-c.closed:
			end(rediscore.ClientClosed(errCut))
		case <-ctx.Done():
		}
	}()
	if !travel(f.Request, ctx.Done()) {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if f.Results != nil {
		return f.Results[0].Err
	}
	sub, err := to.Subscribe(name, shard)
	if err != nil {
		c.learn(err)
		return err
	}
	defer to.Unsubscribe(name, shard, sub)
	if travel(f.Reply, ctx.Done()) {
		on(rediscore.Event{Kind: rediscore.Subscribed})
	}
	for ctx.Err() == nil {
		select {
		case <-sub.Came:
			for _, m := range sub.Take() {
				c.deliver(ctx, Trip{To: to, Channel: name, Shard: shard, Message: m.Text}, m.At, on)
			}
		case <-sub.Ended:
			end(errCut)
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// deliver lets a message arrive, which has been on its way since it was published.
func (c *Conn) deliver(ctx context.Context, t Trip, published time.Time, on func(rediscore.Event)) {
	f, _, _, ok := c.begin(t)
	if !ok {
		return
	}
	defer c.under.Done()
	f.Reply.Delay -= time.Since(published)
	if travel(f.Reply, ctx.Done()) && ctx.Err() == nil {
		on(rediscore.Event{Kind: rediscore.Message, Payload: t.Message})
	}
}

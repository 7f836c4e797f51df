package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A Conn is a client of a [Server]: a [rediscore.Conn]. Its methods return when their ctx ends, as those
// of a good client library do. What was sent goes on its way.
type Conn struct {
	server *Server
	fate   func(Trip) Fate

	closed chan struct{}
	under  sync.WaitGroup // what is under way

	mu    sync.Mutex
	over  bool
	cuts  chan struct{} // closed by Cut
	trips int
}

var _ rediscore.Conn = (*Conn)(nil)

// A Trip is a script or a message that goes through the network.
type Trip struct {
	N       int              // the how manieth of the Conn
	Calls   []rediscore.Call // that travel together; nil for a message or a subscription
	Channel string           // of a message or a subscription
	Message string
}

// A Fate is what becomes of a [Trip]. The zero value is a network that takes no time.
type Fate struct {
	Request, Reply Leg // a message has no request
	Again          Leg // of the second copy of a request
	Twice          bool
}

// A Leg is one way through the network.
type Leg struct {
	Delay time.Duration
	Until <-chan struct{} // the leg ends no earlier than this is closed, if it is not nil
	Lost  bool
}

// Dial returns a client of a server. fate decides about each trip, one at a time; it may be nil.
func Dial(s *Server, fate func(Trip) Fate) *Conn {
	if fate == nil {
		fate = func(Trip) Fate { return Fate{} }
	}
	return &Conn{server: s, fate: fate, closed: make(chan struct{}), cuts: make(chan struct{})}
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
func (c *Conn) begin(t Trip) (f Fate, cut <-chan struct{}, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return Fate{}, nil, false
	}
	c.trips++
	t.N = c.trips
	c.under.Add(1)
	return c.fate(t), c.cuts, true
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

// EvalAll makes calls, which travel together.
func (c *Conn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	fail := func(err error) {
		for i := range results {
			results[i] = rediscore.Result{Err: err}
		}
	}
	if err := ctx.Err(); err != nil {
		fail(&dlock.NoEffectError{Err: err})
		return
	}
	f, cut, ok := c.begin(Trip{Calls: calls})
	if !ok {
		fail(rediscore.ClientClosed(errCut))
		return
	}
	answered := make(chan []rediscore.Result, 1)
	go func() {
		defer c.under.Done()
		if f.Twice {
			c.under.Go(func() {
				if travel(f.Again, c.closed) {
					c.execute(calls)
				}
			})
		}
		if travel(f.Request, c.closed) {
			if done := c.execute(calls); travel(f.Reply, c.closed) {
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
	case <-c.closed:
		fail(rediscore.ClientClosed(errCut))
	}
}

func (c *Conn) execute(calls []rediscore.Call) []rediscore.Result {
	results := make([]rediscore.Result, len(calls))
	for i, call := range calls {
		r := &results[i]
		if r.Reply, r.Err = c.server.EvalSHA(call.Script.SHA, call.Keys(), call.Args); r.Err != nil && rediscore.IsNoScript(r.Err.Error()) {
			r.Reply, r.Err = c.server.Eval(call.Script.Source, call.Script.SHA, call.Keys(), call.Args)
		}
	}
	return results
}

// Cluster returns false: there is one master.
func (c *Conn) Cluster() bool { return false }

// Listen subscribes to a channel. Messages arrive in their order. One that is lost leaves the
// subscription as it is.
func (c *Conn) Listen(ctx context.Context, name string, shard bool, on func(rediscore.Event)) error {
	f, cut, ok := c.begin(Trip{Channel: name})
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
	sub, err := c.server.Subscribe(name, shard)
	if err != nil {
		return err
	}
	defer c.server.Unsubscribe(name, shard, sub)
	if travel(f.Reply, ctx.Done()) {
		on(rediscore.Event{Kind: rediscore.Subscribed})
	}
	for ctx.Err() == nil {
		select {
		case <-sub.Came:
			for _, m := range sub.Take() {
				c.deliver(ctx, name, m, on)
			}
		case <-sub.Ended:
			end(errCut)
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// deliver lets a message arrive, which has been on its way since it was published.
func (c *Conn) deliver(ctx context.Context, name string, m Message, on func(rediscore.Event)) {
	f, _, ok := c.begin(Trip{Channel: name, Message: m.Text})
	if !ok {
		return
	}
	defer c.under.Done()
	f.Reply.Delay -= time.Since(m.At)
	if travel(f.Reply, ctx.Done()) && ctx.Err() == nil {
		on(rediscore.Event{Kind: rediscore.Message, Payload: m.Text})
	}
}

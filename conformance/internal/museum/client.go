package museum

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A question is a call as it is sent: over a network, as a line of JSON. An answer comes back.
type question struct {
	Call       string
	Key, Token string
	TTL        time.Duration
	Batch      []dlock.Renewal
	Set        []dlock.Acquisition
	Sealed     []byte // in place of all others: what they are, in JSON, which encodes bytes
}

type answer struct {
	dlock.Attempt
	Held     bool
	Attempts []dlock.Attempt
	Results  []dlock.RenewResult
	Hold     dlock.Hold
	Err      string
	at       time.Time // by the server's clock
}

// A client sends questions to its server, directly or by a wire. Without an Acquire, the callers poll.
type client struct {
	*Store
	Exhibit
	wire  *wire
	name  string
	rtt   time.Duration // a question and its answer take half of it each
	notes sync.Map      // what its flaw remembers
}

// A queue is a client that can wait.
type queue struct{ *client }

// A request is a question on its way from a client.
type request struct {
	*client
	ctx context.Context
	question
}

func (c *client) do(ctx context.Context, q question) (answer, error) {
	r := request{c, ctx, q}
	if c.on != nil && !slices.Contains(c.on, q.Call) {
		return r.send()
	}
	return c.call(r)
}

// send returns the right answer, if the scripts are right. Over a network, it dates a grant when the
// call began, which is conservative, and too much so for a wait of more than a TTL.
func (r request) send() (answer, error) {
	switch {
	case r.ctx.Err() != nil:
		return answer{}, r.ctx.Err()
	case r.Call == "TryAcquireSet" && !r.takeable(), r.Key == "" && (r.Call == "TryAcquire" || r.Call == "Acquire"):
		return answer{}, dlock.ErrInvalid
	case r.wire != nil:
		a, err := r.wire.ask(r.ctx, r.question)
		a.Since = time.Time{} // is of another clock
		return a, err
	case r.Call == "Acquire":
		return r.queue()
	}
	return r.ask()
}

// takeable reports whether a set has elements, each with a key of its own, a token and a TTL.
func (r request) takeable() bool {
	keys := make(map[string]bool)
	for _, a := range r.Set {
		if a.Key == "" || a.Token == "" || a.TTL < time.Millisecond || keys[a.Key] {
			return false
		}
		keys[a.Key] = true
	}
	return len(keys) > 0
}

func (r request) ask() (answer, error) {
	return eval(r, func(d *db) answer { return d.reply(r.question) })
}

func (r request) get(key string) (string, error) {
	return eval(r, func(d *db) string { return d.get(key) })
}

func (c *client) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := c.do(ctx, question{Call: "TryAcquire", Key: key, Token: token, TTL: ttl})
	return a.Attempt, err
}

func (c *client) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	a, err := c.do(ctx, question{Call: "TryAcquireSet", Set: set})
	return a.Attempts, err
}

func (q *queue) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.do(ctx, question{Call: "Acquire", Key: key, Token: token, TTL: ttl})
	return a.Attempt, err
}

func (c *client) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	a, err := c.do(ctx, question{Call: "Renew", Key: key, Token: token, TTL: ttl})
	return a.Held, err
}

func (c *client) Release(ctx context.Context, key, token string) (bool, error) {
	a, err := c.do(ctx, question{Call: "Release", Key: key, Token: token})
	return a.Held, err
}

func (c *client) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	a, err := c.do(ctx, question{Call: "RenewBatch", Batch: batch})
	return a.Results, err
}

func (c *client) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	a, err := c.do(ctx, question{Call: "Inspect", Key: key})
	return a.Hold, err
}

// Serve answers those who connect to l, until that is closed.
func (s *Store) Serve(l net.Listener) {
	over, stop := context.WithCancel(context.Background())
	store := &client{Store: s, Exhibit: s.db.Exhibit}
	store.call = request.send // what a client does wrong, it does at the other end
	var all sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		all.Go(func() { store.serve(over, c) })
	}
	stop()
	all.Wait()
}

// serve answers the question of a connection. Only a wait ends if the client has gone: what has arrived is done.
func (s *client) serve(over context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(over, func() { c.Close() })()
	var q question
	in := json.NewDecoder(c)
	if in.Decode(&q) != nil {
		return
	}
	if q.Sealed != nil {
		_ = json.Unmarshal(q.Sealed, &q) // what is not a question has no answer
	}
	ctx, gone := context.WithCancel(over)
	defer gone()
	go func() {
		if in.Decode(new(question)) != nil && !s.deaf { // there is only one: the client has gone
			gone()
		}
	}()
	if q.Call != "Acquire" {
		ctx = context.WithoutCancel(ctx)
	}
	a, err := s.do(ctx, q)
	if err != nil {
		a.Err = err.Error()
	}
	_ = json.NewEncoder(c).Encode(a) // the client may have gone
}

// A wire leads to a server. Each question has a connection of its own.
type wire struct {
	addr   string
	sealed bool
}

func (w wire) ask(ctx context.Context, q question) (a answer, err error) {
	line, err := w.exchange(ctx, q)
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.Err != "" {
		err = errors.New(a.Err)
	}
	return a, err
}

// exchange sends q, and returns what came back, if only a part.
func (w wire) exchange(ctx context.Context, q question) ([]byte, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	if w.sealed {
		text, _ := json.Marshal(q) // has nothing that could fail
		q = question{Sealed: text}
	}
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return nil, err
	}
	return bufio.NewReader(c).ReadBytes('\n')
}

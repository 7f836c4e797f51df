package museum

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A question is a line of JSON that a client sends to a server, and an answer the line
// that comes back.
type question struct {
	Call       string
	Key, Token string
	TTL        time.Duration
	Batch      []dlock.Renewal
	Sealed     []byte // in place of all others: what they are, in JSON, which encodes bytes
}

type answer struct {
	Attempt     dlock.Attempt
	Held        bool
	Results     []dlock.RenewResult
	Hold        dlock.Hold
	Err         string
	Unsupported bool // the error is errors.ErrUnsupported
}

// Serve answers those who connect to l, until that is closed.
func (s *Store) Serve(l net.Listener) {
	over, stop := context.WithCancel(context.Background())
	store := dlock.Forward{Locker: s.build(conn{redis: s.redis, over: over})}
	var all sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		all.Go(func() { serve(over, store, c) })
	}
	stop()
	all.Wait()
}

// serve answers the questions of one connection. It notices that the client has gone while
// a question waits for its answer.
func serve(over context.Context, store dlock.Forward, c net.Conn) {
	ctx, gone := context.WithCancel(over)
	defer context.AfterFunc(over, func() { c.Close() })()
	questions := make(chan question, 100)
	go func() {
		defer gone()
		defer close(questions)
		for in := json.NewDecoder(c); ; {
			var q question
			if in.Decode(&q) != nil {
				return
			}
			if q.Sealed != nil {
				_ = json.Unmarshal(q.Sealed, &q) // what is not a question has no answer
			}
			questions <- q
		}
	}()
	defer c.Close()
	for q := range questions {
		_ = json.NewEncoder(c).Encode(q.put(ctx, store)) // the client may have gone
	}
}

// put makes the call that q asks for. Only a wait ends if the client has gone: what has
// arrived is done.
func (q question) put(ctx context.Context, store dlock.Forward) (a answer) {
	var err error
	switch always := context.WithoutCancel(ctx); q.Call {
	case "TryAcquire":
		a.Attempt, err = store.TryAcquire(always, q.Key, q.Token, q.TTL)
	case "Acquire":
		if _, waits := store.Locker.(dlock.Acquirer); waits {
			a.Attempt, err = store.TryAcquire(always, q.Key, q.Token, q.TTL)
		}
		if err == nil && !a.Attempt.Acquired {
			a.Attempt, err = store.Acquire(ctx, q.Key, q.Token, q.TTL)
		}
	case "Renew":
		a.Held, err = store.Renew(always, q.Key, q.Token, q.TTL)
	case "Release":
		a.Held, err = store.Release(always, q.Key, q.Token)
	case "RenewBatch":
		a.Results, err = store.RenewBatch(always, q.Batch)
	case "Inspect":
		a.Hold, err = store.Inspect(always, q.Key)
	}
	if err != nil {
		a.Err, a.Unsupported = err.Error(), errors.Is(err, errors.ErrUnsupported)
	}
	return a
}

// A wire leads to a server. Each question has a connection of its own.
type wire struct {
	addr   string
	sealed bool
}

func (w wire) ask(ctx context.Context, q question) (answer, error) {
	line, err := w.exchange(ctx, q)
	if err != nil {
		return answer{}, err
	}
	return read(line)
}

// exchange sends q, and returns what came back, if only a part.
func (w wire) exchange(ctx context.Context, q question) ([]byte, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return w.over(ctx, c, q)
}

// over is exchange with a connection that there is.
func (w wire) over(ctx context.Context, c net.Conn, q question) ([]byte, error) {
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

func read(line []byte) (a answer, err error) {
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, err
	}
	switch {
	case a.Unsupported:
		return answer{}, errors.ErrUnsupported
	case a.Err != "":
		return answer{}, errors.New(a.Err)
	}
	return a, nil
}

// An asker asks a server.
type asker func(context.Context, question) (answer, error)

// A remote is right: a client of a server over the network. It dates a grant when the call
// began, which is conservative, and too much so for a wait of more than a TTL.
type remote struct{ ask asker }

func (r *remote) call(ctx context.Context, q question) (answer, error) {
	if ctx.Err() != nil {
		return answer{}, ctx.Err()
	}
	a, err := r.ask(ctx, q)
	a.Attempt.Since = time.Time{} // is of another clock
	return a, err
}

func (r *remote) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.call(ctx, question{Call: "TryAcquire", Key: key, Token: token, TTL: ttl})
	return a.Attempt, err
}

func (r *remote) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := r.call(ctx, question{Call: "Acquire", Key: key, Token: token, TTL: ttl})
	return a.Attempt, err
}

func (r *remote) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	a, err := r.call(ctx, question{Call: "Renew", Key: key, Token: token, TTL: ttl})
	return a.Held, err
}

func (r *remote) Release(ctx context.Context, key, token string) (bool, error) {
	a, err := r.call(ctx, question{Call: "Release", Key: key, Token: token})
	return a.Held, err
}

func (r *remote) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	a, err := r.call(ctx, question{Call: "RenewBatch", Batch: batch})
	return a.Results, err
}

func (r *remote) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	a, err := r.call(ctx, question{Call: "Inspect", Key: key})
	return a.Hold, err
}

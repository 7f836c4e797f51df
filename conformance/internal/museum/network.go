package museum

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"
)

// Serve answers those who connect to l, until that is closed.
func (s *Store) Serve(l net.Listener) {
	over, stop := context.WithCancel(context.Background())
	store := &client{redis: s.redis, Exhibit: s.Exhibit, over: over}
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

// serve answers the questions of one connection. It notices that the client has gone while
// a question waits for its answer.
func (s *client) serve(over context.Context, c net.Conn) {
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
		_ = json.NewEncoder(c).Encode(s.put(ctx, q)) // the client may have gone
	}
}

// put makes the call that q asks for. Only a wait ends if the client has gone: what has
// arrived is done.
func (s *client) put(ctx context.Context, q question) answer {
	first := q
	if q.Call == "Acquire" {
		first.Call = "TryAcquire"
	}
	a, err := s.do(context.WithoutCancel(ctx), first)
	if q.Call == "Acquire" && err == nil && !a.Acquired {
		a, err = s.do(ctx, q)
	}
	if err != nil {
		a.Err = err.Error()
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
	if a.Err != "" {
		return answer{}, errors.New(a.Err)
	}
	return a, nil
}

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
	store := &client{Store: s, Exhibit: s.db.Exhibit, over: over}
	store.call = request.send // what a client does wrong, it does at the other end
	var all sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		all.Go(func() { store.serve(c) })
	}
	stop()
	all.Wait()
}

// serve answers the question of a connection. Only a wait ends if the client has gone: what
// has arrived is done.
func (s *client) serve(c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(s.over, func() { c.Close() })()
	var q question
	in := json.NewDecoder(c)
	if in.Decode(&q) != nil {
		return
	}
	if q.Sealed != nil {
		_ = json.Unmarshal(q.Sealed, &q) // what is not a question has no answer
	}
	ctx, gone := context.WithCancel(s.over)
	go func() {
		defer gone()
		_ = in.Decode(new(question)) // there is only one: this fails when the client has gone
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

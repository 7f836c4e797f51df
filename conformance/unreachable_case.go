package conformance

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

func unreachableStore(s *scene) error {
	p, err := newProxy(s.h.Addr)
	if err != nil {
		return err
	}
	defer p.close()
	c := s.clientOf(s.h.Via(s.t, p.addr()), "Harness.Via")
	g := s.grant(c, s.key(), s.token("holder"), long)
	p.silence()
	s.unanswered(c, g, "a store that is silent")
	p.refuse()
	s.unanswered(c, g, "a store that refuses connections")
	return s.result()
}

// unanswered makes every call of a store that cannot answer. Each must end with
// an error.
func (s *scene) unanswered(c *client, g grant, store string) {
	s.endsWithError(store, func(ctx context.Context) error {
		_, err := c.TryAcquire(ctx, g.key, g.token, long)
		return err
	})
	s.endsWithError(store, func(ctx context.Context) error {
		_, err := c.Acquire(ctx, g.key, s.token("waiter"), long)
		return err
	})
	s.endsWithError(store, func(ctx context.Context) error {
		_, err := c.Renew(ctx, g.key, g.token, long)
		return err
	})
	s.endsWithError(store, func(ctx context.Context) error {
		results, err := c.RenewBatch(ctx, []dlock.Renewal{{Key: g.key, Token: g.token, TTL: long}})
		if err == nil && len(results) == 1 {
			err = results[0].Err
		}
		return err
	})
	s.endsWithError(store, func(ctx context.Context) error {
		_, err := c.Inspect(ctx, g.key)
		return err
	})
	s.endsWithError(store, func(ctx context.Context) error {
		_, err := c.Release(ctx, g.key, g.token)
		return err
	})
}

// endsWithError makes a call with a second of time, and wants an error within
// that or the client's own time-out.
func (s *scene) endsWithError(store string, call func(context.Context) error) {
	if s.over() {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = call(ctx)
	}()
	switch {
	case !s.await(done):
		s.fail("a call of %s did not return within %v, though its ctx ended after 1s", store, s.h.patience())
	case err == nil:
		s.fail("a call of %s returned no error", store)
	case errors.Is(err, dlock.ErrHeld), errors.Is(err, dlock.ErrInvalid):
		s.fail("a call of %s returned %q, which says that it answered or was not asked", store, err)
	}
}

// A proxy stands between a client and its store. It passes everything on until
// it is told not to.
type proxy struct {
	listener net.Listener
	store    string
	copies   sync.WaitGroup

	mu     sync.Mutex
	silent bool
	closed bool
	conns  []net.Conn
}

func newProxy(store string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, store: store}
	p.copies.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// silence keeps connections open, and accepts new ones, but passes nothing on.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// refuse cuts all connections, and refuses new ones.
func (p *proxy) refuse() {
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		c.Close()
	}
}

func (p *proxy) close() {
	p.refuse()
	p.copies.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		store, err := net.Dial("tcp", p.store)
		if err != nil {
			client.Close()
			continue
		}
		if p.keep(client, store) {
			p.copies.Go(func() { p.copy(store, client) })
			p.copies.Go(func() { p.copy(client, store) })
		}
	}
}

// keep makes sure that connections are cut with the others.
func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.conns = append(p.conns, conns...)
		return true
	}
	for _, c := range conns {
		c.Close()
	}
	return false
}

func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if p.passes() {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) passes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.silent
}

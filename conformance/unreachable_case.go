package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func unreachableStore(s *scene) error {
	s.overNetworks(
		unreachable("is silent", func(n *network, _ grant) { n.Block(faultproxy.Both) }),
		unreachable("does not hear", func(n *network, _ grant) { n.Block(faultproxy.ToStore) }),
		unreachable("is not heard", func(n *network, _ grant) { n.Block(faultproxy.ToClient) }),
		unreachable("refuses connections", func(n *network, _ grant) { n.Refuse() }),
		func(n *network) {
			if n.clear {
				unreachable(breaksOff, (*network).breakOff)(n)
			}
		},
	)
	return s.result()
}

const breaksOff = "breaks off each reply"

// unreachable has a store become unreachable while a lease is held, and then makes all
// calls.
func unreachable(how string, become func(*network, grant)) part {
	return func(n *network) {
		g := n.grant(n.via, n.key(), n.token("holder"), long)
		become(n, g)
		n.unanswered(n.via, g, "a store that "+how, how == breaksOff)
	}
}

// breakOff cuts the connection in the middle of every reply that concerns the key of g,
// however often a client asks again.
func (n *network) breakOff(g grant) {
	for range 200 {
		n.CutReply(faultproxy.Contains(g.key))
	}
}

// unanswered makes every call of a store that cannot answer, all at the same time. Each
// must end with an error, which does not say that the call has no effect if it was sent.
func (s *scene) unanswered(c *client, g grant, store string, sent bool) {
	waiter := s.token("waiter")
	s.uses(g.key, waiter)
	var calls sync.WaitGroup
	for call, do := range map[string]func(context.Context) error{
		"TryAcquire": func(ctx context.Context) error {
			_, err := c.TryAcquire(ctx, g.key, g.token, long)
			return err
		},
		"Acquire": func(ctx context.Context) error {
			_, err := c.Acquire(ctx, g.key, waiter, long)
			return err
		},
		"Renew": func(ctx context.Context) error {
			_, err := c.Renew(ctx, g.key, g.token, long)
			return err
		},
		"RenewBatch": func(ctx context.Context) error {
			results, err := c.RenewBatch(ctx, []dlock.Renewal{{Key: g.key, Token: g.token, TTL: long}})
			if err == nil && len(results) == 1 {
				err = results[0].Err
			}
			return err
		},
		"Inspect": func(ctx context.Context) error {
			_, err := c.Inspect(ctx, g.key)
			return err
		},
		"Release": func(ctx context.Context) error {
			_, err := c.Release(ctx, g.key, g.token)
			return err
		},
	} {
		calls.Go(func() {
			s.endsWithError(fmt.Sprintf("%s.%s(%s), of %s,", c.name, call, brief(g.key), store), sent, do)
		})
	}
	calls.Wait()
}

// endsWithError makes a call with a second of time, and wants an error within
// that or the client's own time-out.
func (s *scene) endsWithError(name string, sent bool, call func(context.Context) error) {
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
		s.fail("%s did not return within %v, though its ctx ended after 1s; want an error soon after that, or after the client's time-out", name, s.h.patience())
	case err == nil:
		s.fail("%s returned no error; want one, because nobody can know the outcome", name)
	case errors.Is(err, dlock.ErrHeld):
		s.fail("%s returned %q, which says that the store answered; want any other error", name, err)
	case errors.Is(err, dlock.ErrClosed):
		s.fail("%s returned %q, which says that no later call can succeed; want any other error", name, err)
	case supported(err) && saysNoEffect(err) && (sent || errors.Is(err, dlock.ErrInvalid)):
		s.fail("%s returned %q, which says that the call has no effect, of which nobody can be sure; want any other error", name, err)
	}
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// A client is a Locker of the harness whose calls are traced. It has all
// optional methods, as a dlock.Forward has.
type client struct {
	inner dlock.Forward
	name  string
	trace *trace
}

var (
	_ dlock.Locker       = (*client)(nil)
	_ dlock.Acquirer     = (*client)(nil)
	_ dlock.BatchRenewer = (*client)(nil)
	_ dlock.Inspector    = (*client)(nil)
)

func (c *client) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return noted(c, key, token, c.text("TryAcquire", key, token, ttl), func() (dlock.Attempt, error) {
		return c.inner.TryAcquire(ctx, key, token, ttl)
	})
}

func (c *client) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return noted(c, key, token, c.text("Renew", key, token, ttl), func() (bool, error) {
		return c.inner.Renew(ctx, key, token, ttl)
	})
}

func (c *client) Release(ctx context.Context, key, token string) (bool, error) {
	return noted(c, key, token, c.text("Release", key, token), func() (bool, error) {
		return c.inner.Release(ctx, key, token)
	})
}

func (c *client) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return noted(c, key, token, c.text("Acquire", key, token, ttl), func() (dlock.Attempt, error) {
		return c.inner.Acquire(ctx, key, token, ttl)
	})
}

func (c *client) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return noted(c, "", "", c.text("RenewBatch", batch), func() ([]dlock.RenewResult, error) {
		return c.inner.RenewBatch(ctx, batch)
	})
}

func (c *client) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return noted(c, key, "", c.text("Inspect", key), func() (dlock.Hold, error) { return c.inner.Inspect(ctx, key) })
}

// noted makes a call, and notes it in the trace of c.
func noted[T any](c *client, key, token, text string, call func() (T, error)) (T, error) {
	made := c.trace.begin(key, token, "%s", text)
	answer, err := call()
	made.end(show(answer), fenceOf(answer), err)
	return answer, err
}

// text is a call as failures and traces name it.
func (c *client) text(method string, args ...any) string {
	shown := make([]string, len(args))
	for i, arg := range args {
		shown[i] = show(arg)
	}
	return fmt.Sprintf("%s.%s(%s)", c.name, method, strings.Join(shown, ", "))
}

// renewBy renews g with Renew or RenewBatch.
func (c *client) renewBy(ctx context.Context, call string, g grant) error {
	if call == "Renew" {
		return errOf(c.Renew(ctx, g.key, g.token, long))
	}
	return errOf(c.RenewBatch(ctx, []dlock.Renewal{{Key: g.key, Token: g.token, TTL: long}}))
}

// errOf is the error of a call whose answer does not matter.
func errOf[T any](_ T, err error) error { return err }

// An optionalMethod is the method of an optional interface of a Locker.
type optionalMethod struct {
	name        string
	implemented func(dlock.Locker) bool
	call        func(ctx context.Context, l dlock.Forward, key, token string) error
}

var (
	acquire = optionalMethod{"Acquirer.Acquire", is[dlock.Acquirer],
		func(ctx context.Context, l dlock.Forward, key, token string) error {
			return errOf(l.Acquire(ctx, key, token, long))
		}}
	renewBatch = optionalMethod{"BatchRenewer.RenewBatch", is[dlock.BatchRenewer],
		func(ctx context.Context, l dlock.Forward, key, token string) error {
			return errOf(l.RenewBatch(ctx, []dlock.Renewal{{Key: key, Token: token, TTL: long}}))
		}}
	inspect = optionalMethod{"Inspector.Inspect", is[dlock.Inspector],
		func(ctx context.Context, l dlock.Forward, key, _ string) error { return errOf(l.Inspect(ctx, key)) }}
	optionalMethods = []optionalMethod{acquire, renewBatch, inspect}
)

func is[T any](l dlock.Locker) bool {
	_, ok := l.(T)
	return ok
}

// probe calls o for no longer than the harness's patience.
func (s *scene) probe(o optionalMethod, l dlock.Locker, key, token string) error {
	s.uses(key, token)
	ctx, cancel := context.WithTimeout(s.ctx, s.h.patience())
	defer cancel()
	return o.call(ctx, dlock.Forward{Locker: l}, key, token)
}

// offers reports whether l has the method, and does not answer
// errors.ErrUnsupported.
func (s *scene) offers(l dlock.Locker, o optionalMethod) bool {
	return o.implemented(l) && supported(s.probe(o, l, s.key(), s.token("probe")))
}

// Abilities are the optional methods that a Locker has.
type abilities struct{ wait, batch, inspect bool }

func (s *scene) abilities(c *client) abilities {
	if s.over() {
		return abilities{}
	}
	l := c.inner.Locker
	return abilities{s.offers(l, acquire), s.offers(l, renewBatch), s.offers(l, inspect)}
}

// supported reports whether an optional method is there.
func supported(err error) bool { return !errors.Is(err, errors.ErrUnsupported) }

// acquirer, batchRenewer and inspector return one more client, and skip the case
// if it lacks the method.
func (s *scene) acquirer() *client { return s.clientThat(acquire) }

func (s *scene) batchRenewer() *client { return s.clientThat(renewBatch) }

func (s *scene) inspector() *client { return s.clientThat(inspect) }

func (s *scene) clientThat(o optionalMethod) *client {
	c := s.client()
	iface, method, _ := strings.Cut(o.name, ".")
	switch l := c.inner.Locker; {
	case s.over():
	case !o.implemented(l):
		s.skip("the Locker is no %s", iface)
	case !s.offers(l, o):
		s.skip("%s answers errors.ErrUnsupported", method)
	}
	return c
}

func isErr(err, target error) bool { return errors.Is(err, target) }

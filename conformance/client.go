package conformance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// A request is a call of a Locker, by the name of its method.
type request struct {
	name       string
	key, token string
	ttl        time.Duration
	batch      []dlock.Renewal
	set        []dlock.Acquisition
}

func (g grant) request(name string, ttl time.Duration) request {
	r := g.wish(ttl, true).renewal
	return request{name, g.key, g.token, ttl, []dlock.Renewal{r}, []dlock.Acquisition{dlock.Acquisition(r)}}
}

// send makes the call. The answer is what the method returns beside the error.
func (r request) send(ctx context.Context, l dlock.Forward) (answer any, err error) {
	switch r.name {
	case "TryAcquire":
		return l.TryAcquire(ctx, r.key, r.token, r.ttl)
	case "Acquire":
		return l.Acquire(ctx, r.key, r.token, r.ttl)
	case "TryAcquireSet":
		if s, ok := l.Locker.(dlock.SetAcquirer); ok {
			return s.TryAcquireSet(ctx, r.set)
		}
		return nil, errors.ErrUnsupported
	case "Renew":
		return l.Renew(ctx, r.key, r.token, r.ttl)
	case "RenewBatch":
		return l.RenewBatch(ctx, r.batch)
	case "Release":
		return l.Release(ctx, r.key, r.token)
	case "Inspect":
		return l.Inspect(ctx, r.key)
	}
	panic("no method is named " + r.name)
}

func (r request) String() string {
	switch r.name {
	case "RenewBatch":
		return callText(r.name, r.batch)
	case "TryAcquireSet":
		return callText(r.name, r.set)
	case "Release":
		return callText(r.name, r.key, r.token)
	case "Inspect":
		return callText(r.name, r.key)
	}
	return callText(r.name, r.key, r.token, r.ttl)
}

func callText(method string, args ...any) string {
	shown := make([]string, len(args))
	for i, arg := range args {
		shown[i] = show(arg)
	}
	return fmt.Sprintf("%s(%s)", method, strings.Join(shown, ", "))
}

// A hooked Locker leaves each call to its hook, which may lose, delay or repeat it. An answer of
// nil is the zero answer. It has all optional methods.
type hooked struct {
	hook func(context.Context, request) (answer any, err error)
}

var _ = []any{dlock.Acquirer(hooked{}), dlock.BatchRenewer(hooked{}), dlock.SetAcquirer(hooked{}), dlock.Inspector(hooked{})}

func (h hooked) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return ask[dlock.Attempt](ctx, h, request{name: "TryAcquire", key: key, token: token, ttl: ttl})
}

func (h hooked) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return ask[dlock.Attempt](ctx, h, request{name: "Acquire", key: key, token: token, ttl: ttl})
}

func (h hooked) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	return ask[[]dlock.Attempt](ctx, h, request{name: "TryAcquireSet", set: set})
}

func (h hooked) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return ask[bool](ctx, h, request{name: "Renew", key: key, token: token, ttl: ttl})
}

func (h hooked) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return ask[[]dlock.RenewResult](ctx, h, request{name: "RenewBatch", batch: batch})
}

func (h hooked) Release(ctx context.Context, key, token string) (bool, error) {
	return ask[bool](ctx, h, request{name: "Release", key: key, token: token})
}

func (h hooked) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return ask[dlock.Hold](ctx, h, request{name: "Inspect", key: key})
}

func ask[T any](ctx context.Context, h hooked, r request) (T, error) {
	a, err := h.hook(ctx, r)
	answer, _ := a.(T)
	return answer, err
}

// A client is a Locker of the harness whose calls are traced.
type client struct {
	hooked
	inner dlock.Forward
	name  string
	trace *trace
}

func newClient(l dlock.Locker, name string, tr *trace) *client {
	c := &client{inner: dlock.Forward{Locker: l}, name: name, trace: tr}
	c.hook = c.traced
	return c
}

func (c *client) traced(ctx context.Context, r request) (any, error) {
	asked := r // which may change after the call
	asked.batch, asked.set = slices.Clone(r.batch), slices.Clone(r.set)
	call := c.trace.begin(r.key, r.token, "%s.%v", c.name, asked)
	answer, err := r.send(ctx, c.inner)
	if results, ok := answer.([]dlock.RenewResult); ok {
		call.end(slices.Clone(results), err)
	} else {
		call.end(answer, err)
	}
	return answer, err
}

func (c *client) text(method string, args ...any) string {
	return c.name + "." + callText(method, args...)
}

// call makes a call in the name of g. If its answer is that the token of g holds the key, or held
// it until then, the Attempt is Acquired, whatever the call. The error may be that of an element of a batch.
func (c *client) call(ctx context.Context, name string, g grant, ttl time.Duration) (a dlock.Attempt, err error) {
	answer, err := c.hook(ctx, g.request(name, ttl))
	switch answer := answer.(type) {
	case dlock.Attempt:
		a = answer
	case bool:
		a.Acquired = answer
	case dlock.Hold:
		a.Acquired, a.Remaining = answer.Held, answer.Remaining
	case []dlock.Attempt:
		if len(answer) == 1 {
			a = answer[0]
		}
	case []dlock.RenewResult:
		if err == nil && len(answer) == 1 {
			a.Acquired, err = answer[0].Held, answer[0].Err
		}
	}
	return a, err
}

func (c *client) renewBy(ctx context.Context, call string, g grant) error {
	return errOf(c.call(ctx, call, g, long))
}

// errOf is the error of a call whose answer does not matter.
func errOf[T any](_ T, err error) error { return err }

// An optionalMethod is the method of an optional interface of a Locker.
type optionalMethod struct {
	iface reflect.Type
	name  string
}

var (
	acquire         = optionalMethod{reflect.TypeFor[dlock.Acquirer](), "Acquire"}
	renewBatch      = optionalMethod{reflect.TypeFor[dlock.BatchRenewer](), "RenewBatch"}
	inspect         = optionalMethod{reflect.TypeFor[dlock.Inspector](), "Inspect"}
	acquireSet      = optionalMethod{reflect.TypeFor[dlock.SetAcquirer](), "TryAcquireSet"}
	passedOn        = []optionalMethod{acquire, renewBatch, inspect} // by a dlock.Forward
	optionalMethods = append(passedOn, acquireSet)
)

func isOptional(name string) bool {
	return slices.ContainsFunc(optionalMethods, func(o optionalMethod) bool { return o.name == name })
}

func (o optionalMethod) String() string { return o.iface.Name() + "." + o.name }

func (o optionalMethod) implemented(l dlock.Locker) bool {
	return reflect.TypeOf(l).Implements(o.iface)
}

// probe calls o for no longer than the harness's patience.
func (s *scene) probe(o optionalMethod, l dlock.Locker, key, token string) error {
	s.uses(key, token)
	ctx, cancel := context.WithTimeout(s.ctx, s.h.patience())
	defer cancel()
	_, err := grant{key: key, token: token}.request(o.name, long).send(ctx, dlock.Forward{Locker: l})
	return err
}

// offers reports whether l has the method, and does not answer errors.ErrUnsupported.
func (s *scene) offers(c *client, o optionalMethod) bool { return s.hasMethod(c.inner.Locker, o) }

func (s *scene) hasMethod(l dlock.Locker, o optionalMethod) bool {
	return o.implemented(l) && supported(s.probe(o, l, s.key(), s.token("probe")))
}

type abilities struct{ wait, batch, inspect bool }

func (s *scene) abilities(c *client) abilities {
	return abilities{s.offers(c, acquire), s.offers(c, renewBatch), s.offers(c, inspect)}
}

func supported(err error) bool { return !errors.Is(err, errors.ErrUnsupported) }

func (s *scene) requires(c *client, o optionalMethod) {
	switch {
	case !o.implemented(c.inner.Locker):
		s.skip("the Locker is no %s", o.iface.Name())
	case !s.offers(c, o):
		s.skip("%s answers errors.ErrUnsupported", o.name)
	}
}

func isErr(err, target error) bool { return errors.Is(err, target) }

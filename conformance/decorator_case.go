package conformance

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/dlock-go/dlock"
)

// An optionalMethod is the method of an optional interface of a Locker.
type optionalMethod struct {
	name        string
	implemented func(dlock.Locker) bool
	call        func(ctx context.Context, l dlock.Forward, key, token string) error
}

var (
	acquire = optionalMethod{"Acquirer.Acquire", is[dlock.Acquirer],
		func(ctx context.Context, l dlock.Forward, key, token string) error {
			_, err := l.Acquire(ctx, key, token, long)
			return err
		}}
	renewBatch = optionalMethod{"BatchRenewer.RenewBatch", is[dlock.BatchRenewer],
		func(ctx context.Context, l dlock.Forward, key, token string) error {
			_, err := l.RenewBatch(ctx, []dlock.Renewal{{Key: key, Token: token, TTL: long}})
			return err
		}}
	inspect = optionalMethod{"Inspector.Inspect", is[dlock.Inspector],
		func(ctx context.Context, l dlock.Forward, key, _ string) error {
			_, err := l.Inspect(ctx, key)
			return err
		}}
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

func decoratorHidesNothing(s *scene) error {
	c := s.client()
	if s.over() {
		return s.result()
	}
	if n := s.hidesNothing(c.inner.Locker, 0); n == 0 {
		s.skip("the Locker is not built around another: no field of it holds a dlock.Locker")
	}
	return s.result()
}

// hidesNothing compares what l offers with what the Lockers in its fields do,
// and those with what is in theirs, and returns how many there are in l.
func (s *scene) hidesNothing(l dlock.Locker, depth int) int {
	const deepest = 8 // in case that they refer to each other
	if depth > deepest {
		return 0
	}
	inner := lockersIn(reflect.ValueOf(l), fmt.Sprintf("%T", l))
	for path, in := range inner {
		if names := s.hides(l, in); names != nil {
			s.fail("%T hides %s of the %T in its field %s; embed dlock.Forward, which passes every method on",
				l, strings.Join(names, ", "), in, path)
		}
		s.hidesNothing(in, depth+1)
	}
	return len(inner)
}

// hides returns which optional methods of inner l does not offer.
func (s *scene) hides(l, inner dlock.Locker) (names []string) {
	for _, o := range optionalMethods {
		if s.offers(inner, o) && !s.offers(l, o) {
			names = append(names, o.name)
		}
	}
	return names
}

// lockersIn returns the Lockers in the fields of the struct that v is or points
// to, unexported and embedded ones too, by the path of the field.
func lockersIn(v reflect.Value, path string) map[string]dlock.Locker {
	found := make(map[string]dlock.Locker)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return found
	}
	if !v.CanAddr() {
		addressable := reflect.New(v.Type()).Elem()
		addressable.Set(v)
		v = addressable
	}
	addLockers(found, v, path)
	return found
}

func addLockers(found map[string]dlock.Locker, v reflect.Value, path string) {
	for i := range v.NumField() {
		name := path + "." + v.Type().Field(i).Name
		if l := lockerAt(v.Field(i).Addr()); l != nil {
			found[name] = l
		} else if v.Field(i).Kind() == reflect.Struct {
			addLockers(found, v.Field(i), name)
		}
	}
}

// lockerAt returns the Locker that the field at p holds, or nil. It reads no
// fields but those whose type says that they hold one.
func lockerAt(p reflect.Value) dlock.Locker {
	locker := reflect.TypeFor[dlock.Locker]()
	p = reflect.NewAt(p.Type().Elem(), p.UnsafePointer()) // makes unexported fields readable
	field := p.Elem()
	switch {
	case field.Type().Implements(locker):
		if k := field.Kind(); (k == reflect.Interface || k == reflect.Pointer) && field.IsNil() {
			return nil
		}
		return field.Interface().(dlock.Locker)
	case p.Type().Implements(locker):
		return p.Interface().(dlock.Locker)
	}
	return nil
}

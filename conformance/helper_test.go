package conformance

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/museum"
	"github.com/dlock-go/dlock/internal/redistest"
)

type names = []string

// museumHarness puts the exhibit on a server of its own for each t, and around each of its clients what wrap returns.
func museumHarness(e museum.Exhibit, wrap ...func(dlock.Locker) dlock.Locker) Harness {
	var stores sync.Map
	of := func(t *testing.T) *museum.Store {
		s, _ := stores.LoadOrStore(t, e.Open())
		return s.(*museum.Store)
	}
	return Harness{
		New: func(t *testing.T) dlock.Locker {
			l := of(t).Client()
			for _, w := range wrap {
				l = w(l)
			}
			return l
		},
		Wipe:   func(t *testing.T) { of(t).Wipe() },
		Count:  func(t *testing.T) int { return of(t).Stored() },
		Bubble: true,
	}
}

// exhibit returns the lock that has this name.
func exhibit(name string) museum.Exhibit {
	for _, e := range slices.Concat(museum.Right, museum.Broken) {
		if e.Name == name {
			return e
		}
	}
	panic("no exhibit is named " + name)
}

// harnessOf is the museumHarness of the lock that has this name.
func harnessOf(name string, wrap ...func(dlock.Locker) dlock.Locker) Harness {
	return museumHarness(exhibit(name), wrap...)
}

// networkHarness has a store of its own, behind the network and beside it. The zero
// Exhibit has no flaw. The network is a real one, so t is skipped unless that was asked for.
func networkHarness(t *testing.T, e museum.Exhibit) Harness {
	redistest.Real(t)
	store := e.Open()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() { store.Serve(l) })
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	return Harness{
		New:  func(*testing.T) dlock.Locker { return store.Client() },
		Dial: func(_ *testing.T, addr string) dlock.Locker { return e.Dial(addr, false) },
		Addr: l.Addr().String(),
	}
}

func caseNamed(t *testing.T, name string) testCase {
	for _, c := range cases {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("no case is named %q", name)
	return testCase{}
}

func isSkip(err error) bool {
	var skip skipError
	return errors.As(err, &skip)
}

// plain is a Locker and nothing else, and shows no Locker in its fields.
type plain struct{ store any }

func (p plain) locker() dlock.Locker { return p.store.(dlock.Locker) }

func (p plain) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return p.locker().TryAcquire(ctx, key, token, ttl)
}

func (p plain) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return p.locker().Renew(ctx, key, token, ttl)
}

func (p plain) Release(ctx context.Context, key, token string) (bool, error) {
	return p.locker().Release(ctx, key, token)
}

// A hook is what a Locker does with a call in place of another Locker.
type hook func(ctx context.Context, r request, l dlock.Forward) (any, error)

// around puts a hook around each Locker.
func around(h hook) func(dlock.Locker) dlock.Locker {
	return func(l dlock.Locker) dlock.Locker {
		return hooked{func(ctx context.Context, r request) (any, error) { return h(ctx, r, dlock.Forward{Locker: l}) }}
	}
}

// distant is a store that is some way off: what was sent is done, also if its reply comes too late.
// Of every attempt whose ctx has ended it says that it had no effect.
func distant(by time.Duration) func(dlock.Locker) dlock.Locker {
	return around(func(ctx context.Context, r request, l dlock.Forward) (answer any, err error) {
		if r.name != "TryAcquire" {
			return r.send(ctx, l)
		}
		if ctx.Err() == nil {
			time.Sleep(by)
			answer, err = r.send(context.WithoutCancel(ctx), l)
			time.Sleep(by)
		}
		if ctx.Err() != nil {
			return nil, &dlock.NoEffectError{Err: ctx.Err()}
		}
		return answer, err
	})
}

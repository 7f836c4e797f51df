package conformance

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/dlock-go/dlock"
)

// Bench measures the operations of a store as sub-benchmarks, each with clients
// and keys of its own. It skips what the store cannot do. It uses only h.New. Calls go past the
// trace, which would be measured too.
func Bench(b *testing.B, h Harness) {
	withT(b, func(t *testing.T) {
		for _, m := range measures {
			b.Run(m.name, func(b *testing.B) {
				b.ReportAllocs()
				s := newScene(t, Harness{New: h.New}, 0)
				s.ctx = b.Context()
				m.run(b, s)
				b.StopTimer()
				s.cleanUp()
			})
		}
	})
}

// withT calls f once, with a T as Harness.New wants it.
func withT(b *testing.B, f func(*testing.T)) {
	procs := runtime.GOMAXPROCS(0)
	var once sync.Once // as RunTests repeats tests for -count and -cpu
	test := testing.InternalTest{Name: b.Name(), F: func(t *testing.T) {
		once.Do(func() {
			runtime.GOMAXPROCS(procs)
			f(t)
		})
	}}
	always := func(_, _ string) (bool, error) { return true, nil }
	if !testing.RunTests(always, []testing.InternalTest{test}) {
		b.Fail()
	}
	runtime.GOMAXPROCS(procs)
}

var measures = []struct {
	name string
	run  func(*testing.B, *scene)
}{
	{"AcquireRelease", benchAcquireRelease},
	{"AcquireReleaseParallel", benchAcquireReleaseParallel},
	{"Refused", benchCall((*scene).client, 1, func(ctx context.Context, l dlock.Forward, held []dlock.Renewal) error {
		_, err := l.TryAcquire(ctx, held[0].Key, "stranger", long)
		return err
	})},
	{"Renew", benchCall((*scene).client, 1, func(ctx context.Context, l dlock.Forward, held []dlock.Renewal) error {
		_, err := l.Renew(ctx, held[0].Key, held[0].Token, long)
		return err
	})},
	{"RenewBatch100", benchCall((*scene).batchRenewer, 100, func(ctx context.Context, l dlock.Forward, held []dlock.Renewal) error {
		_, err := l.RenewBatch(ctx, held)
		return err
	})},
	{"Inspect", benchCall((*scene).inspector, 1, func(ctx context.Context, l dlock.Forward, held []dlock.Renewal) error {
		_, err := l.Inspect(ctx, held[0].Key)
		return err
	})},
	{"Handover8", benchHandover},
	{"ClientAcquireRelease", benchClient},
	{"ClientContended8", benchContended},
}

// ready ends the benchmark if what it needs is not there.
func (s *scene) ready(b *testing.B) {
	b.Helper()
	err := s.result()
	if skip, ok := err.(skipError); ok {
		b.Skip(skip.reason)
	}
	must(b, err)
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

func benchAcquireRelease(b *testing.B, s *scene) {
	l, key, token := s.client().inner, s.key(), s.token("holder")
	s.uses(key, token)
	for b.Loop() {
		must(b, cycle(s.ctx, l, key, token))
	}
}

func cycle(ctx context.Context, l dlock.Locker, key, token string) error {
	if a, err := l.TryAcquire(ctx, key, token, long); err != nil || !a.Acquired {
		return fmt.Errorf("TryAcquire: acquired %v, %w", a.Acquired, err)
	}
	_, err := l.Release(ctx, key, token)
	return err
}

// benchAcquireReleaseParallel has 32 goroutines per processor share one client,
// each with a key of its own.
func benchAcquireReleaseParallel(b *testing.B, s *scene) {
	l := s.client().inner
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		key, token := s.key(), s.token("holder")
		s.uses(key, token)
		for pb.Next() {
			if err := cycle(s.ctx, l, key, token); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// benchCall measures a call of a client that has leases, as they are renewed.
func benchCall(open func(*scene) *client, leases int, call func(context.Context, dlock.Forward, []dlock.Renewal) error) func(*testing.B, *scene) {
	return func(b *testing.B, s *scene) {
		c := open(s)
		s.ready(b)
		held := make([]dlock.Renewal, leases)
		for i := range held {
			held[i] = s.grant(c, s.key(), s.token("holder"), long).wish(long, true).renewal
		}
		s.ready(b)
		for b.Loop() {
			must(b, call(s.ctx, c.inner, held))
		}
	}
}

// benchHandover passes one key around among 8 waiters of as many clients: an
// operation is one handover.
func benchHandover(b *testing.B, s *scene) {
	s.acquirer()
	s.ready(b)
	s.shared(b, func(l dlock.Locker) operation {
		return func(key, token string) error {
			if _, err := l.(dlock.Acquirer).Acquire(s.ctx, key, token, long); err != nil {
				return err
			}
			_, err := l.Release(s.ctx, key, token)
			return err
		}
	})
}

// An operation takes key and gives it back. The token is new.
type operation func(key, token string) error

// shared has 8 goroutines with a client each do b.N operations on one key.
func (s *scene) shared(b *testing.B, open func(dlock.Locker) operation) {
	const workers = 8
	key := s.key()
	var ops [workers]operation
	for i := range ops {
		ops[i] = open(s.client().inner)
	}
	var wg sync.WaitGroup
	b.ResetTimer()
	for i, do := range ops {
		token := s.token(fmt.Sprint("worker", i))
		wg.Go(func() {
			for n := i; n < b.N; n += workers {
				if err := do(key, fmt.Sprint(token, n)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

func benchClient(b *testing.B, s *scene) {
	do, key := clientOperation(b, s.client().inner), s.key()
	for b.Loop() {
		must(b, do(key, ""))
	}
}

// benchContended has 8 Clients take one key in turn.
func benchContended(b *testing.B, s *scene) {
	s.shared(b, func(l dlock.Locker) operation { return clientOperation(b, l) })
}

func clientOperation(b *testing.B, l dlock.Locker) operation {
	c := dlock.New(l)
	b.Cleanup(func() { c.Close() })
	return func(key, _ string) error {
		lease, err := c.Acquire(b.Context(), key)
		if err != nil {
			return err
		}
		return lease.Release()
	}
}

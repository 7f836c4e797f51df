package semaphore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/chance"
)

const (
	most    = 64                // permits
	longest = 1024 - len("#63") // bytes of a name: the longest key of a Locker has 1,024
	gateTTL = 3 * time.Second   // for which a dead process blocks the gate
	answer  = time.Second       // within which an attempt must be answered
)

// A Semaphore has a number of permits, which as many callers can hold at the same time, in any
// number of processes. Its methods are safe for concurrent use.
type Semaphore struct {
	name  string
	keys  []string      // of the permits
	gate  *dlock.Client // for the key name: its holder looks for a permit, and everybody else waits for it
	slots *dlock.Client // for the permits

	maxWait time.Duration // for the gate and the permit together
	wrong   error         // an argument or an option
}

// New returns the semaphore of all processes that use name in the store of c. It sends nothing.
// There are 1 to 64 permits. With another number, every call fails with [dlock.ErrInvalid]. The
// same holds for [dlock.WithMinHold], because a permit is free when it is released.
//
// Permits have the options of c. [dlock.WithMaxWait] limits a whole call of Acquire or Do. If it is
// 0, they do what TryAcquire does. [dlock.WithLocalTurns] applies to the gate only.
func New(c *dlock.Client, name string, permits int) *Semaphore {
	s := &Semaphore{
		name:    name,
		gate:    c.With(dlock.WithTTL(gateTTL), dlock.WithTTLFrom(nil), dlock.WithRenewal(true), dlock.WithMaxHold(0)),
		slots:   c.With(dlock.WithLocalTurns(1)),
		maxWait: c.MaxWait(),
	}
	switch {
	case permits < 1 || permits > most:
		s.wrong = invalid("permits: %d, not between 1 and %d", permits, most)
	case name == "" || len(name) > longest:
		s.wrong = invalid("name: %d bytes, not between 1 and %d", len(name), longest)
	case c.MinHold() > 0:
		s.wrong = invalid("WithMinHold(%v): a permit is free when it is released", c.MinHold())
	default:
		for i := range permits {
			s.keys = append(s.keys, name+"#"+strconv.Itoa(i))
		}
	}
	return s
}

// Acquire takes a permit, and returns its lease and its number, from 0 to one less than the number
// of permits. Nobody else has that number until the lease ends. [dlock.Lease.Release] gives the
// permit back.
//
// If all are held, Acquire waits behind those who came before, until a permit is free, ctx ends, or
// WithMaxWait has passed. What [dlock.Client.Acquire] says of its errors holds here, too. The
// [dlock.HeldError] then is about one of the permits, or about the gate, which the first waiter holds.
// Once the store has let the caller look for a permit, an outage does not end the wait, nor does a
// refusal because of the state of the store.
//
// If ctx carries a permit of a semaphore of this name, Acquire fails with [dlock.ErrNested]: callers
// that each hold a permit and wait for another could deadlock.
func (s *Semaphore) Acquire(ctx context.Context) (*dlock.Lease, int, error) {
	if s.maxWait == 0 {
		return s.TryAcquire(ctx)
	}
	return s.result(s.acquire(ctx))
}

// TryAcquire tries each permit once, one after the other, until it gets one. It does not wait, and
// does not ask who waits. If each was held when it was tried, the error matches [dlock.ErrHeld]. Any
// other error ends it at once.
func (s *Semaphore) TryAcquire(ctx context.Context) (*dlock.Lease, int, error) {
	g := grant{err: s.wrong}
	for _, g.permit = range s.order() {
		if g.lease, g.err = s.slots.TryAcquire(ctx, s.keys[g.permit]); !errors.Is(g.err, dlock.ErrHeld) {
			break
		}
	}
	return s.result(g)
}

// Do runs fn while it holds a permit. It acquires the permit like Acquire, and releases it when fn
// returns or panics. The context of fn ends with ctx or with the lease, whichever is first.
//
// If no permit was acquired, fn is not called, and Do returns the error of Acquire. Otherwise it
// returns the error of fn, which also matches [dlock.ErrLost] if the lease was lost before fn
// returned, as from [dlock.Client.Do].
func (s *Semaphore) Do(ctx context.Context, fn func(ctx context.Context, permit int, lease *dlock.Lease) error) error {
	if fn == nil {
		_, _, err := s.result(grant{err: invalid("function: nil")})
		return err
	}
	lease, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // but panicked, or ended its goroutine
			lease.Release()
		}
	}()
	err = fn(lease.Context(ctx), permit, lease)
	returned = true
	end := lease.Err()
	if lost := lease.Release(); errors.Is(lost, dlock.ErrLost) {
		end = lost
	} else if err == nil || end != dlock.ErrClosed { // else Shutdown has ended the work
		return err
	}
	switch {
	case err == nil:
		return end
	case errors.Is(err, end):
		return err
	case ctx.Err() == nil && errors.Is(err, context.Canceled): // which the loss has caused
		return fmt.Errorf("%w: %v", end, err)
	}
	return fmt.Errorf("%w: %w", end, err)
}

// A grant is a permit, or why there is none.
type grant struct {
	lease  *dlock.Lease
	permit int
	err    error
}

func (s *Semaphore) result(g grant) (*dlock.Lease, int, error) {
	if g.err != nil {
		return nil, 0, fmt.Errorf("semaphore: %q: %w", s.name, g.err)
	}
	return g.lease, g.permit, nil
}

// acquire looks for a permit while it holds the gate. If it loses the gate, another may be looking,
// so it waits for the gate again. By then the store has answered: neither an outage nor a refusal
// because of the state of the store ends the wait.
func (s *Semaphore) acquire(ctx context.Context) grant {
	if err := s.check(ctx); err != nil {
		return grant{err: err}
	}
	begun := time.Now()
	for queue := s.gate; ; queue = s.gate.With(dlock.WithOutage(dlock.NoLimit)) {
		gate, err := s.within(begun, queue).Acquire(ctx, s.name)
		if err != nil {
			return grant{err: err}
		}
		g, giveBack := s.look(ctx, gate, begun)
		end := gate.Err()
		go func() {
			giveBack() // first: the next who looks finds the permits free
			gate.Release()
		}()
		if g.lease == nil && end == dlock.ErrClosed && ctx.Err() == nil {
			g.err = end // Shutdown has cut the look short
		}
		if g.lease != nil || !errors.Is(end, dlock.ErrLost) {
			return g
		}
	}
}

func (s *Semaphore) check(ctx context.Context) error {
	for _, key := range s.keys {
		if _, holds := dlock.LeaseFromContext(ctx, key); holds {
			return dlock.ErrNested
		}
	}
	return s.wrong
}

// within returns c with what is left of the MaxWait.
func (s *Semaphore) within(begun time.Time, c *dlock.Client) *dlock.Client {
	if s.maxWait == dlock.NoLimit {
		return c
	}
	return c.With(dlock.WithMaxWait(max(0, s.maxWait-time.Since(begun))))
}

// order returns all permits, beginning with any of them.
func (s *Semaphore) order() []int {
	all := make([]int, len(s.keys))
	first := int(chance.N(time.Duration(max(1, len(all)))))
	for i := range all {
		all[i] = (first + i) % len(all)
	}
	return all
}

// look makes an attempt for one permit, then for the others at once. If all are held, it waits in
// all their queues. It returns the first grant, and a function that releases those that cross it.
//
// All is cut short when the gate is lost. A wait whose request is in flight leaves more work behind
// than one that stands in the queue. So if a permit is free as soon as look begins to wait, the other
// waits go on until they have had the time for an attempt, and for a place in the queue.
func (s *Semaphore) look(ctx context.Context, gate *dlock.Lease, begun time.Time) (g grant, giveBack func()) {
	waiting, end := context.WithCancel(ctx)
	context.AfterFunc(gate.Context(context.Background()), end)
	try := func(key string) (*dlock.Lease, error) {
		trying, cancel := context.WithTimeout(waiting, answer)
		defer cancel()
		return s.slots.TryAcquire(trying, key)
	}
	order, trip := s.order(), time.Duration(0)
	for _, some := range [][]int{order[:1], order[1:]} {
		sent := time.Now()
		if g, giveBack = s.ask(some, try, func() {}); g.lease != nil {
			return g, giveBack
		}
		trip = max(trip, time.Since(sent))
	}
	patient := s.within(begun, s.slots).With(dlock.WithOutage(dlock.NoLimit))
	early := time.Now().Add(4 * trip)
	g, giveBack = s.ask(order, func(key string) (*dlock.Lease, error) { return patient.Acquire(waiting, key) }, end)
	time.AfterFunc(time.Until(early), end)
	return g, giveBack
}

// ask makes a call for each of some permits at once. It returns the first grant. If there is none, it
// returns the first error when all calls have returned; failed is called before. giveBack releases
// further grants, without waiting for the store, and returns when all calls have.
func (s *Semaphore) ask(some []int, call func(key string) (*dlock.Lease, error), failed func()) (first grant, giveBack func()) {
	answers, left := make(chan grant, len(some)), len(some)
	for _, i := range some {
		go func() {
			lease, err := call(s.keys[i])
			answers <- grant{lease, i, err}
		}()
	}
	for ; left > 0 && first.lease == nil; left-- {
		g := <-answers
		if g.err != nil {
			failed()
		}
		if first.err == nil || g.err == nil {
			first = g
		}
	}
	return first, func() {
		for ; left > 0; left-- {
			if g := <-answers; g.lease != nil {
				go g.lease.Release()
			}
		}
	}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}

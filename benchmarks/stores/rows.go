package stores

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
)

// A row is what turns do.
type row struct {
	name    string
	callers int // at once; 0: one more than the crowd
	run     func(*turn, context.Context) error
	apart   bool // each caller has connections of its own, like a process, and is a slow network away
	once    bool // in the first round only
	fails   bool // the holder, with a short TTL; all contestants are measured at once, as they are idle
}

var table = []row{
	{name: "1 caller", callers: 1, run: (*turn).cycles},
	{name: "64 callers", callers: 64, run: (*turn).cycles},
	{name: "open loop", callers: 64, run: (*turn).openLoop},
	{name: "8 waiters", callers: 8, run: (*turn).handover, apart: true},
	{name: "32 waiters", callers: 32, run: (*turn).handover, apart: true},
	{name: "crowd", run: (*turn).wait, once: true},
	{name: "killed holder", callers: 1, run: func(t *turn, ctx context.Context) error { return t.strike(ctx, syscall.SIGKILL) }, once: true, fails: true},
	{name: "stopped holder", callers: 1, run: func(t *turn, ctx context.Context) error { return t.strike(ctx, syscall.SIGSTOP) }, once: true, fails: true},
}

const (
	rate = 300 // cycles a second in the open loop
	slow = 2 * time.Millisecond
)

// A turn is one contestant in one row.
type turn struct {
	*bench
	row
	contestant
	server server
	addr   string // of the server, or of the slow network before it
	stores []store
	others int // connections to the server, which are not the contestant's
	result *figures.Result
	during atomic.Bool // what happens counts
}

// note adds a figure, if there is one: nothing happened otherwise.
func (t *turn) note(figure string, x float64) {
	if !math.IsNaN(x) && !math.IsInf(x, 0) {
		t.result.Figures[figure] = append(t.result.Figures[figure], x)
	}
}

func (t *turn) key() int { return int(t.keys.Add(1)) }

func (s store) cycle(ctx context.Context, key int) error {
	release, err := s.acquire(ctx, key)
	if err != nil {
		return err
	}
	return release()
}

// each calls work for each caller at once.
func (t *turn) each(n int, work func(i int) error) error {
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range errs {
		all.Go(func() { errs[i] = work(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// busy has all callers work, again and again, for a window after a fifth of it, in which they come to work.
// It returns the seconds, and the CPU of the server in that time.
func (t *turn) busy(work func(i int) error) (seconds float64, cpu time.Duration, err error) {
	var end atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- t.each(t.callers, func(i int) (err error) {
			for !end.Load() && err == nil {
				err = work(i)
			}
			return err
		})
	}()
	window := t.window
	if t.apart {
		window += window / 2 // as many must have the lock often
	}
	time.Sleep(window / 5)
	from, before := time.Now(), t.server.cpu()
	t.during.Store(true)
	time.Sleep(window)
	t.during.Store(false)
	seconds, cpu = time.Since(from).Seconds(), t.server.cpu()-before
	end.Store(true)
	return seconds, cpu, <-done
}

func (t *turn) cycles(ctx context.Context) error {
	var done atomic.Int64
	seconds, cpu, err := t.busy(func(int) error {
		err := t.stores[0].cycle(ctx, t.key())
		if t.during.Load() {
			done.Add(1)
		}
		return err
	})
	n := float64(done.Load())
	t.note("rate", n/seconds)
	t.note("server µs", float64(cpu.Microseconds())/max(n, 1))
	return err
}

func (t *turn) openLoop(ctx context.Context) error {
	n := int(rate * t.window.Seconds())
	took, begun := make([]time.Duration, n+n/5), time.Now()
	err := t.each(len(took), func(i int) error {
		due := begun.Add(time.Duration(i) * time.Second / rate)
		time.Sleep(time.Until(due))
		err := t.stores[0].cycle(ctx, t.key())
		took[i] = time.Since(due)
		return err
	})
	t.note("p50 ms", quantile(took[n/5:], 0.5))
	t.note("p99 ms", quantile(took[n/5:], 0.99))
	return err
}

// handover compares the time from a release to the next waiter's grant with round trips at the same time.
func (t *turn) handover(ctx context.Context) error {
	key, pinger := t.key(), t.stores[t.callers]
	connected := t.each(t.callers, func(i int) error { return t.stores[i].cycle(ctx, key) })
	if err := errors.Join(connected, pinger.ping(ctx)); err != nil {
		return err
	}
	pings := make(chan []time.Duration)
	ctx, stop := context.WithCancel(ctx)
	go func() {
		var trips []time.Duration
		for ctx.Err() == nil {
			begun := time.Now()
			if pinger.ping(ctx) == nil {
				trips = append(trips, time.Since(begun))
			}
			time.Sleep(slow)
		}
		pings <- trips
	}()
	var held sync.Mutex // besides the lock
	var gaps []time.Duration
	served, last, done := make([]float64, t.callers), -1, time.Now()
	_, _, err := t.busy(func(i int) error {
		release, err := t.stores[i].acquire(ctx, key)
		if err != nil {
			return err
		}
		if !held.TryLock() {
			return errors.New("two hold the lock")
		}
		if t.during.Load() {
			if served[i]++; last != i {
				gaps = append(gaps, time.Since(done))
			}
		}
		time.Sleep(time.Millisecond)
		last, done = i, time.Now()
		held.Unlock()
		return release()
	})
	stop()
	trip := quantile(<-pings, 0.5)
	t.note("gap ms", quantile(gaps, 0.5))
	t.note("gap trips", quantile(gaps, 0.5)/trip)
	t.note("gap p99 trips", quantile(gaps, 0.99)/trip)
	t.note("trip ms", trip)
	t.note("most", slices.Max(served))
	t.note("least", slices.Min(served))
	return err
}

// wait counts the connections of a crowd that waits for one lock, and then lets each of it have the lock once. Before that, all hold
// locks of their own.
func (t *turn) wait(ctx context.Context) error {
	key, s := t.key(), t.stores[0]
	releases := make([]func() error, t.crowd)
	err := t.each(t.crowd, func(i int) (err error) { // opens connections: PostgreSQL is slow to while many wait
		releases[i], err = s.acquire(ctx, t.key())
		return err
	})
	if err != nil {
		return err
	}
	if err := t.each(t.crowd, func(i int) error { return releases[i]() }); err != nil {
		return err
	}
	release, err := s.acquire(ctx, key)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- t.each(t.crowd, func(int) error { return s.cycle(ctx, key) }) }()
	for n, before := 0, -1; n != before; n = t.server.connections() { // until all wait
		before = n
		time.Sleep(500 * time.Millisecond)
	}
	t.note("connections", float64(t.server.connections()-t.others))
	begun := time.Now()
	err = release()
	err = errors.Join(err, <-served)
	t.note("served s", time.Since(begun).Seconds())
	return err
}

// strike measures how long the next waits when a signal strikes the holder: twice the TTL if it waits longer.
func (t *turn) strike(ctx context.Context, signal syscall.Signal) error {
	key, limit, settle := t.key(), 2*t.ttl, t.ttl/5
	holder, _, err := startChild("hold", t.contestant.name, t.server.addr, holdArgument(t.ttl, key))
	if err != nil {
		return err
	}
	defer kill(holder)
	struck := time.Now().Add(settle)
	time.AfterFunc(settle, func() { holder.Process.Signal(signal) })
	ctx, cancel := context.WithTimeout(ctx, settle+limit)
	defer cancel()
	err = t.stores[0].cycle(ctx, key)
	waited := min(time.Since(struck), limit)
	if ctx.Err() != nil {
		waited, err = limit, nil
	}
	t.note("next s", waited.Seconds())
	return err
}

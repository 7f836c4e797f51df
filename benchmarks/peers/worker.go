package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// jobArgument is followed by the job of a process that this program started.
const jobArgument = "job"

// A job is what one process does in a turn. The process opens its client, answers that it is ready, works from a line on
// its standard input until that ends, and answers with a report.
type job struct {
	Contestant string
	Addrs      []string
	TTL        time.Duration
	Alone      bool          // nobody waits for a lock
	Hold       bool          // take Keys locks, and keep them; else contend
	Keys       int           // worker i wants key i modulo Keys; 0: a new key each time
	Workers    int           // goroutines
	First      int           // number of the first worker
	Pause      time.Duration // that a worker holds a lock
	Every      time.Duration // between two orders that arrive, whatever becomes of those before; 0: workers take one after another
	UsualPool  bool          // go-redis has a pool of its default size
}

// A report is the answer to a job.
type report struct {
	Err     string
	Tenures []tenure

	CPU time.Duration // of the process, while it contended or held all locks

	// What the locks of a job with Hold took, of which Lost were not held to the end.
	Heap, Stack int64 // bytes
	Goroutines  int
	Lost        int
}

// key is the name of a lock.
func key(i int) string { return "order:" + strconv.Itoa(i) }

// isWorker does the work of this process if another has started it for that.
func isWorker() bool {
	if len(os.Args) != 3 || os.Args[1] != jobArgument {
		return false
	}
	answer := json.NewEncoder(os.Stdout)
	r, err := work(os.Args[2], func() error { return answer.Encode(report{}) })
	if err != nil {
		r.Err = err.Error()
	}
	answer.Encode(r)
	return true
}

func work(text string, ready func() error) (r report, err error) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return r, err
	}
	logging.Disable() // of go-redis, that a server is down
	if j.UsualPool {
		goredisPool = 0
	}
	take, err := contestantOf(j.Contestant).open(j)
	if err != nil {
		return r, err
	}
	if err := j.warmUp(take); err != nil {
		return r, err
	}
	if j.Hold {
		return j.hold(take, ready)
	}
	if err := ready(); err != nil {
		return r, err
	}
	os.Stdin.Read(make([]byte, 1)) // the line
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	before := cpu()
	r.Tenures, err = j.contend(ctx, take)
	r.CPU = cpu() - before
	return r, err
}

// warmUp opens the connections of the client, and loads its scripts.
func (j job) warmUp(take acquire) error {
	errs := make([]error, j.Workers)
	j.each(func(i int) {
		begun := time.Now()
		h, err := take(context.Background(), fmt.Sprint("warm:", i))
		for err != nil && time.Since(begun) < 15*time.Second {
			time.Sleep(50*time.Millisecond + rand.N(200*time.Millisecond)) // many processes connect at once
			h, err = take(context.Background(), fmt.Sprint("warm:", i))
		}
		if errs[i-j.First] = err; err == nil {
			h.release()
		}
	})
	return errors.Join(errs...)
}

// each runs f for the number of each worker, in a goroutine of its own.
func (j job) each(f func(i int)) {
	var all sync.WaitGroup
	for i := range j.Workers {
		all.Go(func() { f(j.First + i) })
	}
	all.Wait()
}

// contend has all workers take and release their locks until ctx ends. It has no deadline,
// since rueidislock would end the lease with it.
func (j job) contend(ctx context.Context, take acquire) ([]tenure, error) {
	if j.Every > 0 {
		return j.arrive(ctx, take)
	}
	tenures := make([][]tenure, j.Workers)
	j.each(func(i int) { tenures[i-j.First] = j.one(ctx, take, i) })
	return slices.Concat(tenures...), nil
}

// one is the work of one worker.
func (j job) one(ctx context.Context, take acquire, who int) (all []tenure) {
	for n := who; ctx.Err() == nil; n += j.Workers {
		if j.Keys > 0 {
			n = who % j.Keys
		}
		t := j.cycle(ctx, take, tenure{Who: int32(who), Key: int32(n), Asked: time.Now().UnixNano()})
		if all = append(all, t); t.Got == 0 {
			return all
		}
	}
	return all
}

// arrive has an order arrive at each beat of a clock, until ctx ends. It asks for its lock when it is due, however late
// the process notices that.
func (j job) arrive(ctx context.Context, take acquire) (all []tenure, err error) {
	due := time.Now()
	beats, err := newClock(j.Every)
	var mu sync.Mutex
	var orders sync.WaitGroup
	for n, passed := 0, 0; err == nil && ctx.Err() == nil; {
		passed, err = beats.await()
		for range passed {
			due, n = due.Add(j.Every), n+1
			t := tenure{Key: int32(n), Asked: due.UnixNano()}
			orders.Go(func() {
				t := j.cycle(ctx, take, t)
				mu.Lock()
				all = append(all, t)
				mu.Unlock()
			})
		}
	}
	orders.Wait()
	return all, err
}

// cycle takes a lock and releases it. A failed attempt is part of the wait. An order that nobody else wants is finished when
// ctx ends, and has a context of its own, as in a service.
func (j job) cycle(ctx context.Context, take acquire, t tenure) tenure {
	call := ctx
	if j.Alone {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		call = own
	}
	h, err := take(call, key(int(t.Key)))
	for err != nil && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		h, err = take(call, key(int(t.Key)))
	}
	if err != nil {
		return t
	}
	t.Got = time.Now().UnixNano()
	if j.Pause > 0 {
		time.Sleep(j.Pause)
	}
	t.Done = time.Now().UnixNano()
	h.release()
	return t
}

// hold takes all locks, says that it is ready, and keeps them until the standard input ends. Where the
// library does not renew, each lock gets a goroutine that does, three times in a TTL.
func (j job) hold(take acquire, ready func() error) (r report, err error) {
	r.count(-1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	taken, errs := make([]held, j.Keys), make([]error, j.Keys)
	var keepers sync.WaitGroup
	j.share(func(i int) {
		if taken[i], errs[i] = take(context.Background(), key(i)); errs[i] == nil && taken[i].renew != nil {
			keepers.Go(func() { keep(ctx, taken[i], j.TTL/3) })
		}
	})
	if err := errors.Join(errs...); err != nil {
		return r, err
	}
	if err := ready(); err != nil {
		return r, err
	}
	before := cpu()
	io.Copy(io.Discard, os.Stdin)
	r.CPU = cpu() - before
	r.count(1)
	cancel()
	keepers.Wait()
	var lost atomic.Int64
	j.share(func(i int) {
		if !taken[i].release() {
			lost.Add(1)
		}
	})
	r.Lost = int(lost.Load())
	return r, nil
}

// count adds what is in use, or subtracts it if sign is negative.
func (r *report) count(sign int64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	r.Heap += sign * int64(m.HeapAlloc)
	r.Stack += sign * int64(m.StackInuse)
	r.Goroutines += int(sign) * runtime.NumGoroutine()
}

// share has the workers call f for each key.
func (j job) share(f func(i int)) {
	var next atomic.Int64
	j.each(func(int) {
		for i := int(next.Add(1)) - 1; i < j.Keys; i = int(next.Add(1)) - 1 {
			f(i)
		}
	})
}

// keep renews until ctx ends. A failed renewal is tried again at the next tick: the release
// tells whether the lock was lost.
func keep(ctx context.Context, h held, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.renew()
		}
	}
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

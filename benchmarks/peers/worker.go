package main

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredislib "github.com/redis/go-redis/v9"
)

// jobVariable holds the job of a process that this program started. Such a process opens its
// client, answers that it is ready, works from one line on its standard input to the next,
// answers with a report, and ends when its standard input does.
const jobVariable = "DLOCK_PEERS_JOB"

// A job is what one process does in a turn.
type job struct {
	Contestant string
	Addrs      []string
	TTL        time.Duration
	Alone      bool          // nobody waits for a lock
	Hold       bool          // take Keys locks, and keep them; else contend
	Keys       int           // worker i wants key i modulo Keys
	Workers    int           // goroutines
	First      int           // number of the first worker
	Pause      time.Duration // that a worker holds a lock
	Once       bool          // each worker takes one lock
	Patient    bool          // redsync polls after its default delay, 50 to 250 ms
	Warm       time.Duration // answer once more when each worker has had a lock, or after this
}

// A report is the answer to a job.
type report struct {
	Err     string
	Tenures []tenure
	Leases
}

// Leases says what the locks of a job with Hold took.
type Leases struct {
	Heap, Stack int64         // bytes of all
	Goroutines  int           // of all
	CPU         time.Duration // of the process while it held them
	Lost        int
	Renewed     bool // by the library
}

// key is the name of a lock.
func key(i int) string { return fmt.Sprintf("order:%d", i) }

// work is the whole of a process that has a job.
func work(text string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	answer := gob.NewEncoder(out)
	goredislib.SetLogger(silent{})
	l, err := j.ready()
	if err != nil {
		return errors.Join(err, answer.Encode(report{Err: err.Error()}))
	}
	defer l.close()
	lines := bufio.NewScanner(in)
	if j.Hold {
		return j.hold(l, lines, answer)
	}
	if err := answer.Encode(report{}); err != nil || !lines.Scan() {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lines.Scan()
		cancel()
		lines.Scan() // the end
	}()
	tenures := j.contend(ctx, l, func() { err = answer.Encode(report{}) })
	err = errors.Join(err, answer.Encode(report{Tenures: tenures}))
	<-ended
	return err
}

// ready opens the client, its connections and its scripts.
func (j job) ready() (locks, error) {
	l, err := contestantOf(j.Contestant).open(j)
	if err != nil {
		return l, err
	}
	errs := make([]error, j.Workers)
	var all sync.WaitGroup
	for i := range j.Workers {
		all.Go(func() {
			name := fmt.Sprintf("warm:%d", j.First+i)
			h, err := l.acquire(context.Background(), name)
			for begun := time.Now(); err != nil && time.Since(begun) < 15*time.Second; h, err = l.acquire(context.Background(), name) {
				time.Sleep(50*time.Millisecond + rand.N(200*time.Millisecond)) // many processes connect at once
			}
			if err == nil {
				h.release()
			}
			errs[i] = err
		})
	}
	all.Wait()
	return l, errors.Join(errs...)
}

// contend has all workers take and release their locks until ctx ends. It has no deadline,
// since rueidislock would end the lease with it. It calls warm when the job is warm.
func (j job) contend(ctx context.Context, l locks, warm func()) []tenure {
	tenures := make([][]tenure, j.Workers)
	var all, cold sync.WaitGroup
	for i := range j.Workers {
		cold.Add(1)
		served := sync.OnceFunc(cold.Done)
		all.Go(func() {
			defer served()
			tenures[i] = j.one(ctx, l, j.First+i, served)
		})
		if j.Warm > 0 {
			defer time.AfterFunc(j.Warm, served).Stop()
		}
	}
	if j.Warm > 0 {
		cold.Wait()
		warm()
	}
	all.Wait()
	var flat []tenure
	for _, t := range tenures {
		flat = append(flat, t...)
	}
	return flat
}

// one is the work of one worker. A failed attempt is part of the wait.
func (j job) one(ctx context.Context, l locks, who int, served func()) (all []tenure) {
	n := who % j.Keys
	for ctx.Err() == nil {
		t := tenure{Who: int32(who), Key: int32(n), Asked: time.Now().UnixNano()}
		h, err := l.acquire(ctx, key(n))
		for err != nil && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
			h, err = l.acquire(ctx, key(n))
		}
		if err != nil {
			return append(all, t)
		}
		t.Got = time.Now().UnixNano()
		t.Second = l.second != nil && l.second(h)
		if j.Pause > 0 {
			time.Sleep(j.Pause)
		}
		t.Done = time.Now().UnixNano()
		all = append(all, t)
		h.release()
		served()
		if j.Once {
			return all
		}
	}
	return all
}

// hold takes all locks, says that it is ready, and keeps them. Where the library does not
// renew, each lock gets a goroutine that does, three times in a TTL.
func (j job) hold(l locks, lines *bufio.Scanner, answer *gob.Encoder) error {
	heap, stack, goroutines := inUse()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	taken, errs := make([]held, j.Keys), make([]error, j.Keys)
	var keepers sync.WaitGroup
	j.share(func(i int) {
		if taken[i], errs[i] = l.acquire(context.Background(), key(i)); errs[i] == nil && taken[i].renew != nil {
			keepers.Go(func() { keep(ctx, taken[i], j.TTL/3) })
		}
	})
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, answer.Encode(report{Err: err.Error()}))
	}
	if err := answer.Encode(report{}); err != nil || !lines.Scan() {
		return err
	}
	before := cpu()
	lines.Scan()
	r := report{Leases: Leases{CPU: cpu() - before, Renewed: taken[0].renew == nil}}
	h, s, g := inUse()
	r.Heap, r.Stack, r.Goroutines = h-heap, s-stack, g-goroutines
	cancel()
	keepers.Wait()
	var lost atomic.Int64
	j.share(func(i int) {
		if !taken[i].release() {
			lost.Add(1)
		}
	})
	r.Lost = int(lost.Load())
	err := answer.Encode(r)
	lines.Scan()
	return err
}

// share has the workers call f for each key.
func (j job) share(f func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range j.Workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < j.Keys; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	all.Wait()
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

func inUse() (heap, stack int64, goroutines int) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse), runtime.NumGoroutine()
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

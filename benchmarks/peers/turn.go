package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A turn is one contestant in one scenario, on servers with addresses.
type turn struct {
	scenario
	of      contestant
	result  *result
	servers []*redistest.Server
	addrs   []string
	ping    *goredislib.Client
	workers workers // that have been started
}

// A worker is a process of this program.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// measure makes one turn, and adds what it shows to r.
func (b bench) measure(ctx context.Context, s scenario, c contestant, r *result) error {
	ctx, cancel := context.WithTimeout(ctx, s.window+30*time.Second) // with the start and the end of its processes
	defer cancel()
	t := &turn{scenario: s, of: c, result: r, servers: b.servers(s)}
	for i, server := range t.servers {
		if err := empty(server); err != nil {
			return err
		}
		addr := server.Addr()
		if s.rtt > 0 {
			proxy, err := faultproxy.New(addr)
			if err != nil {
				return err
			}
			defer proxy.Close()
			proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: s.rtt / 2})
			if i >= len(t.servers)-s.faulty {
				defer s.fault(server, proxy)()
			}
			addr = proxy.Addr()
		}
		t.addrs = append(t.addrs, addr)
	}
	t.ping = goredislib.NewClient(&goredislib.Options{Addr: t.addrs[0], PoolSize: 1})
	defer t.ping.Close()
	if err := t.ping.Ping(ctx).Err(); err != nil {
		return err
	}
	defer t.end()
	return s.run(t, ctx)
}

// empty removes what an earlier turn has left. A node that is emptied altogether does not vote.
func empty(server *redistest.Server) error {
	_, err := server.Do("EVAL", "for _, key in ipairs(redis.call('KEYS', '*order:*')) do redis.call('DEL', key) end", "0")
	return err
}

func (t *turn) note(figure string, x float64) {
	t.result.Figures[figure] = append(t.result.Figures[figure], x)
}

// start starts a process for each job, and returns when all are ready.
func (t *turn) start(ctx context.Context, jobs ...job) (started workers, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, j := range jobs {
		j.Contestant, j.Addrs, j.TTL = t.of.id(), t.addrs, t.ttl
		text, err := json.Marshal(j)
		if err != nil {
			return nil, err
		}
		w := &worker{cmd: exec.CommandContext(ctx, self)}
		w.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
		w.cmd.Stderr = os.Stderr
		in, err1 := w.cmd.StdinPipe()
		out, err2 := w.cmd.StdoutPipe()
		if err := errors.Join(err1, err2, w.cmd.Start()); err != nil {
			return nil, err
		}
		w.in, w.out = in, json.NewDecoder(out)
		started, t.workers = append(started, w), append(t.workers, w)
	}
	_, err = started.reports()
	return started, err
}

// end lets all processes end.
func (t *turn) end() {
	t.workers.stop()
	for _, w := range t.workers {
		limit := time.AfterFunc(10*time.Second, func() { w.cmd.Process.Kill() })
		w.cmd.Wait()
		limit.Stop()
	}
}

type workers []*worker

func (all workers) begin() {
	for _, w := range all {
		fmt.Fprintln(w.in)
	}
}

func (all workers) stop() {
	for _, w := range all {
		w.in.Close()
	}
}

// reports returns what each process answers next.
func (all workers) reports() ([]report, error) {
	answers, errs := make([]report, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, w := range all {
		wg.Go(func() {
			errs[i] = w.out.Decode(&answers[i])
			if text := answers[i].Err; text != "" {
				errs[i] = errors.New(text)
			}
		})
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// A load is what the servers had to do in a window, and how long a round trip took meanwhile.
type load struct {
	from, until int64 // on the clock of tenures
	commands    float64
	requests    float64 // of clients: what a server reads at once
	cpu         time.Duration
	rtt         time.Duration
}

func (l load) seconds() float64 { return time.Duration(l.until - l.from).Seconds() }

// watch measures the load of a window, while the processes work.
func (t *turn) watch(ctx context.Context) (l load, err error) {
	before, err := t.used()
	if err != nil {
		return l, err
	}
	from := time.Now()
	var trips []time.Duration
	for len(trips) == 0 || time.Since(from) < t.window {
		sent := time.Now()
		if err := t.ping.Ping(ctx).Err(); err != nil {
			return l, err
		}
		trips = append(trips, time.Since(sent))
		time.Sleep(t.window / 100)
	}
	until := time.Now()
	after, err := t.used()
	// The first INFO of each server is one command, and two reads: it, and the end of its connection.
	own, pings := float64(len(t.servers)), float64(len(trips))
	return load{
		from: from.UnixNano(), until: until.UnixNano(), rtt: median(trips), cpu: after.cpu - before.cpu,
		commands: after.commands - before.commands - pings - own,
		requests: after.requests - before.requests - pings - 3*own,
	}, err
}

// used returns what the servers have done so far.
func (t *turn) used() (l load, err error) {
	for _, s := range t.servers {
		reply, err := s.Do("INFO")
		if err != nil {
			return l, err
		}
		info, _ := reply.(string)
		number := func(name string) float64 {
			x, _ := strconv.ParseFloat(fieldOf(info, name), 64)
			return x
		}
		l.commands += number("total_commands_processed")
		l.requests += number("total_reads_processed")
		l.cpu += time.Duration((number("used_cpu_user:") + number("used_cpu_sys:")) * float64(time.Second))
	}
	return l, nil
}

// together has a process for each job work for the window.
func (t *turn) together(ctx context.Context, jobs ...job) (all []tenure, l load, err error) {
	workers, err := t.start(ctx, jobs...)
	if err != nil {
		return nil, l, err
	}
	workers.begin()
	time.Sleep(max(t.settle, t.window/20)) // until all are at work
	if l, err = t.watch(ctx); err != nil {
		return nil, l, err
	}
	workers.stop()
	answers, err := workers.reports()
	for _, r := range answers {
		all = append(all, r.Tenures...)
	}
	if t.nodes > 0 {
		t.note("second", seconds(all))
	}
	return all, l, err
}

// cycles measures acquisitions and releases without contention: n goroutines with a key each.
func (t *turn) cycles(ctx context.Context) error {
	all, l, err := t.together(ctx, job{Alone: true, Keys: t.n, Workers: t.n})
	if err != nil {
		return err
	}
	n := 0.0
	for _, t := range all {
		if t.Got >= l.from && t.Got < l.until {
			n++
		}
	}
	t.note("rate", n/l.seconds())
	if n == 0 {
		return nil
	}
	if t.n == 1 {
		t.note("p50 ms", milliseconds(cycle(all)))
	}
	each := l.seconds() * float64(t.n) / n
	t.note("µs", each*1e6)
	t.note("trips", each/l.rtt.Seconds())
	t.note("commands", l.commands/n)
	t.note("server µs", float64(l.cpu.Microseconds())/n)
	return nil
}

// threads has n goroutines of one process pass one lock on.
func (t *turn) threads(ctx context.Context) error {
	return t.contended(ctx, job{Keys: 1, Workers: t.n})
}

// crowd has n processes pass one lock on.
func (t *turn) crowd(ctx context.Context) error {
	jobs := make([]job, t.n)
	for i := range jobs {
		jobs[i] = job{Keys: 1, Workers: 1, First: i, Pause: t.hold, Patient: t.nodes > 0 && t.n > 16}
	}
	return t.contended(ctx, jobs...)
}

func (t *turn) contended(ctx context.Context, jobs ...job) error {
	all, l, err := t.together(ctx, jobs...)
	if err != nil {
		return err
	}
	served, gaps, waits := contend(all, t.n, l.from, l.until)
	t.result.waits = append(t.result.waits, waits...)
	handovers, starved := float64(len(gaps)), 0.0
	for _, n := range served {
		if n == 0 {
			starved++
		}
	}
	average := max(total(served), 1) / float64(t.n)
	t.note("rate", handovers/l.seconds())
	t.note("fairness", jain(served))
	t.note("starved", starved)
	t.note("least", 100*slices.Min(served)/average)
	t.note("most", 100*slices.Max(served)/average)
	if handovers > 0 {
		t.note("gap trips", float64(median(gaps))/float64(l.rtt))
		t.note("commands", l.commands/handovers)
	}
	return nil
}

// leases has one process hold n locks.
func (t *turn) leases(ctx context.Context) error {
	holders, err := t.start(ctx, job{Alone: true, Hold: true, Keys: t.n, Workers: 64})
	if err != nil {
		return err
	}
	l, err := t.watch(ctx)
	if err != nil {
		return err
	}
	holders.stop()
	answers, err := holders.reports()
	if err != nil {
		return err
	}
	r, n := answers[0], float64(t.n)
	t.note("heap", float64(r.Heap)/n)
	t.note("stack", float64(r.Stack)/n)
	t.note("goroutines", float64(r.Goroutines)/n)
	t.note("client cpu", 100*r.CPU.Seconds()/l.seconds())
	t.note("server cpu", 100*l.cpu.Seconds()/l.seconds())
	t.note("lost", float64(r.Lost))
	return nil
}

// idle has n goroutines of one process wait for a lock that another process keeps.
func (t *turn) idle(ctx context.Context) error {
	if _, err := t.start(ctx, job{Hold: true, Keys: 1, Workers: 1}); err != nil {
		return err
	}
	waiters, err := t.start(ctx, job{Keys: 1, Workers: t.n})
	if err != nil {
		return err
	}
	waiters.begin()
	time.Sleep(t.window / 5) // until all wait
	l, err := t.watch(ctx)
	if err != nil {
		return err
	}
	t.note("commands", l.commands/l.seconds()/float64(t.n))
	t.note("requests", l.requests/l.seconds()/float64(t.n))
	return nil
}

// takeover kills a process that holds n locks, each of which a goroutine of another waits for.
func (t *turn) takeover(ctx context.Context) error {
	holders, err := t.start(ctx, job{Hold: true, Keys: t.n, Workers: t.n})
	if err != nil {
		return err
	}
	waiters, err := t.start(ctx, job{Keys: t.n, Workers: t.n, Once: true})
	if err != nil {
		return err
	}
	waiters.begin()
	time.Sleep(t.ttl / 2)
	killed := time.Now().UnixNano()
	if err := holders[0].cmd.Process.Kill(); err != nil {
		return err
	}
	holders[0].cmd.Wait()
	expiry := make([]time.Time, t.n)
	for i := range expiry {
		reply, err := t.servers[0].Do("PTTL", t.of.prefix+key(i))
		left, ok := reply.(int64)
		if err != nil || !ok || left < 0 {
			return fmt.Errorf("%s has no TTL: %v, %w", key(i), reply, err)
		}
		expiry[i] = time.Now().Add(time.Duration(left) * time.Millisecond)
	}
	defer time.AfterFunc(t.window, waiters.stop).Stop()
	answers, err := waiters.reports()
	if err != nil {
		return err
	}
	var late []time.Duration
	for _, w := range answers[0].Tenures {
		if w.Got > 0 && w.Got < killed {
			return errors.New("the holder had lost its lock before it was killed")
		}
		if w.Got > 0 {
			late = append(late, time.Unix(0, w.Got).Sub(expiry[w.Key]))
		}
	}
	t.note("never", float64(t.n-len(late)))
	if len(late) > 0 {
		t.note("late ms", milliseconds(median(late)))
		t.note("latest ms", milliseconds(slices.Max(late)))
	}
	return nil
}

package peers

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

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A turn is one contestant in one scenario, on servers with addresses. When something has failed, its methods
// note nothing any more.
type turn struct {
	scenario
	of      contestant
	result  *figures.Result
	servers []*redistest.Server
	addrs   []string
	ping    *goredislib.Client
	workers workers // that have been started
	err     error   // the first
}

// A bench is the servers that contestants are measured on: one, and those of which a majority decides.
type bench struct{ one, nodes []*redistest.Server }

func (b bench) servers(s scenario) []*redistest.Server {
	if s.nodes > 0 {
		return b.nodes[:s.nodes]
	}
	return b.one
}

// A worker is a process of this program.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// measure makes one turn, and adds what it shows to r.
func (b bench) measure(ctx context.Context, s scenario, c contestant, r *figures.Result) error {
	ctx, cancel := context.WithTimeout(ctx, s.window+30*time.Second) // with the start and the end of its processes
	defer cancel()
	t := &turn{scenario: s, of: c, result: r, servers: b.servers(s)}
	for i, server := range t.servers {
		if err := empty(server, s.nodes > 0); err != nil {
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
				s.fault(proxy)
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
	s.run(t, ctx)
	return t.err
}

// empty removes what an earlier turn has left. A node that is emptied altogether does not vote.
func empty(server *redistest.Server, votes bool) error {
	command := []string{"FLUSHALL"}
	if votes {
		command = []string{"EVAL", "for _, key in ipairs(redis.call('KEYS', '*order:*')) do redis.call('DEL', key) end", "0"}
	}
	_, err := server.Do(command...)
	return err
}

func (t *turn) note(figure string, x float64) {
	if t.err == nil {
		t.result.Figures[figure] = append(t.result.Figures[figure], x)
	}
}

// start starts a process for each job, and returns when all are ready.
func (t *turn) start(ctx context.Context, jobs ...job) (started workers) {
	self, err := os.Executable()
	t.err = errors.Join(t.err, err)
	for _, j := range jobs {
		if t.err != nil {
			break
		}
		j.Contestant, j.Addrs, j.TTL = t.of.id(), t.addrs, t.ttl
		text, err1 := json.Marshal(j)
		cmd := exec.CommandContext(ctx, self, jobArgument, string(text))
		cmd.Stderr = os.Stderr
		in, err2 := cmd.StdinPipe()
		out, err3 := cmd.StdoutPipe()
		if t.err = errors.Join(err1, err2, err3, cmd.Start()); t.err == nil {
			started = append(started, &worker{cmd, in, json.NewDecoder(out)})
		}
	}
	t.workers = append(t.workers, started...)
	t.report(started)
	return started
}

// report awaits the next answer of each process. It has the tenures of all, and the rest of the last.
func (t *turn) report(from workers) (all report) {
	if t.err != nil {
		return all
	}
	answers, errs := make([]report, len(from)), make([]error, len(from))
	var wg sync.WaitGroup
	for i, w := range from {
		wg.Go(func() { errs[i] = w.out.Decode(&answers[i]) })
	}
	wg.Wait()
	for i, r := range answers {
		if r.Err != "" {
			errs[i] = errors.New(r.Err)
		}
		r.Tenures = append(all.Tenures, r.Tenures...)
		all = r
	}
	t.err = errors.Join(errs...)
	return all
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

// A load is what the servers had to do in a window, and how long a round trip took meanwhile.
type load struct {
	from, until int64 // on the clock of tenures
	commands    float64
	cpu         time.Duration
	rtt         time.Duration
}

func (l load) seconds() float64 { return time.Duration(l.until - l.from).Seconds() }

// watch measures the load of a window, while the processes work.
func (t *turn) watch(ctx context.Context) load {
	before := t.used()
	from := time.Now()
	var trips []time.Duration
	for t.err == nil && (len(trips) == 0 || time.Since(from) < t.window) {
		sent := time.Now()
		t.err = t.ping.Ping(ctx).Err()
		trips = append(trips, time.Since(sent))
		time.Sleep(t.window / 100)
	}
	until := time.Now()
	after := t.used()
	return load{
		from: from.UnixNano(), until: until.UnixNano(), rtt: figures.Median(trips), cpu: after.cpu - before.cpu,
		commands: after.commands - before.commands - float64(len(trips)+len(t.servers)), // without those of this function
	}
}

// used returns what the servers have done so far.
func (t *turn) used() (l load) {
	for _, s := range t.servers {
		reply, err := s.Do("INFO")
		if err != nil {
			t.err = errors.Join(t.err, err)
		}
		info, _ := reply.(string)
		number := func(name string) float64 {
			x, _ := strconv.ParseFloat(figures.Field(info, name), 64)
			return x
		}
		l.commands += number("total_commands_processed")
		l.cpu += time.Duration((number("used_cpu_user:") + number("used_cpu_sys:")) * float64(time.Second))
	}
	return l
}

// together has a process for each job work for the window.
func (t *turn) together(ctx context.Context, jobs ...job) (report, load) {
	workers := t.start(ctx, jobs...)
	workers.begin()
	time.Sleep(max(t.settle, t.window/20)) // until all are at work
	l := t.watch(ctx)
	workers.stop()
	r := t.report(workers)
	return r, l
}

// cycles measures acquisitions and releases without contention, each with a new key. n goroutines make them, or as many as
// are needed where orders arrive by a clock.
func (t *turn) cycles(ctx context.Context) {
	r, l := t.together(ctx, job{Alone: true, Workers: t.n, Every: t.every, UsualPool: t.usual})
	var waits []time.Duration
	for _, t := range r.Tenures {
		if t.Got >= l.from && t.Got < l.until {
			waits = append(waits, time.Duration(t.Got-t.Asked))
		}
	}
	n := float64(len(waits))
	t.note("rate", n/l.seconds())
	if n == 0 {
		return
	}
	if t.n == 1 {
		t.note("p50 ms", figures.Milliseconds(cycle(r.Tenures)))
	}
	t.note("p50 µs", 1000*figures.Milliseconds(figures.Median(waits)))
	t.note("p99 µs", 1000*figures.Milliseconds(figures.Quantile(waits, 0.99)))
	t.note("commands", l.commands/n)
	t.note("server µs", float64(l.cpu.Microseconds())/n)
	t.note("client µs", float64(r.CPU.Microseconds())/float64(len(r.Tenures)))
	if t.nodes == 0 {
		left, err := t.servers[0].Do("DBSIZE")
		t.err = errors.Join(t.err, err)
		keys, _ := left.(int64)
		t.note("keys", float64(keys))
	}
}

// threads has n goroutines of one process pass one lock on.
func (t *turn) threads(ctx context.Context) {
	t.contended(ctx, job{Keys: 1, Workers: t.n})
}

// crowd has n processes pass one lock on.
func (t *turn) crowd(ctx context.Context) {
	jobs := make([]job, t.n)
	for i := range jobs {
		jobs[i] = job{Keys: 1, Workers: 1, First: i, Pause: t.hold}
	}
	t.contended(ctx, jobs...)
}

func (t *turn) contended(ctx context.Context, jobs ...job) {
	r, l := t.together(ctx, jobs...)
	served, gaps, waits := contend(r.Tenures, t.n, l.from, l.until)
	t.result.Waits = append(t.result.Waits, waits...)
	handovers := float64(len(gaps))
	average := max(total(served), 1) / float64(t.n)
	t.note("rate", handovers/l.seconds())
	t.note("fairness", jain(served))
	t.note("least", 100*slices.Min(served)/average)
	t.note("most", 100*slices.Max(served)/average)
	if handovers > 0 {
		t.note("gap trips", float64(figures.Median(gaps))/float64(l.rtt))
		t.note("commands", l.commands/handovers)
	}
}

// leases has one process hold n locks.
func (t *turn) leases(ctx context.Context) {
	holder := t.start(ctx, job{Alone: true, Hold: true, Keys: t.n, Workers: 64})
	l := t.watch(ctx)
	holder.stop()
	r, n := t.report(holder), float64(t.n)
	t.note("heap", float64(r.Heap)/n)
	t.note("stack", float64(r.Stack)/n)
	t.note("goroutines", float64(r.Goroutines)/n)
	t.note("client cpu", 100*r.CPU.Seconds()/l.seconds())
	t.note("server cpu", 100*l.cpu.Seconds()/l.seconds())
	t.note("lost", float64(r.Lost))
}

// idle has n goroutines of one process wait for a lock that another process keeps.
func (t *turn) idle(ctx context.Context) {
	t.start(ctx, job{Hold: true, Keys: 1, Workers: 1})
	t.start(ctx, job{Keys: 1, Workers: t.n}).begin()
	time.Sleep(t.window / 5) // until all wait
	l := t.watch(ctx)
	t.note("commands", l.commands/l.seconds()/float64(t.n))
}

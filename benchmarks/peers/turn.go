package main

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A bench is the server that all contestants are measured on, or the nodes.
type bench struct {
	t      testing.TB
	server *redistest.Server
	farm   farm
}

// A turn is one contestant in one scenario, on servers with addresses.
type turn struct {
	bench
	contestant
	scenario
	servers []*redistest.Server
	addrs   []string
	ping    *goredislib.Client
}

// A worker is a process of this program.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *gob.Decoder
}

// measure makes one turn. What it returns are figures by name, and all waits.
func (b bench) measure(ctx context.Context, c contestant, s scenario) (figures map[string]float64, waits []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit())
	defer cancel()
	t := turn{bench: b, contestant: c, scenario: s, servers: b.serversOf(s)}
	for i, server := range t.servers {
		if err := s.empty(server); err != nil {
			return nil, nil, err
		}
		addr := server.Addr()
		if s.RTT > 0 || s.nodes > 0 {
			proxy, err := faultproxy.New(addr)
			if err != nil {
				return nil, nil, err
			}
			defer proxy.Close()
			proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: s.RTT / 2})
			if i >= len(t.servers)-s.faulty {
				defer s.fault(server, proxy, s.RTT)()
			}
			addr = proxy.Addr()
		}
		t.addrs = append(t.addrs, addr)
	}
	t.ping = goredislib.NewClient(&goredislib.Options{Addr: t.addrs[0], PoolSize: 1})
	defer t.ping.Close()
	if err := t.ping.Ping(ctx).Err(); err != nil {
		return nil, nil, err
	}
	figures = make(map[string]float64)
	waits, err = s.run(ctx, t, figures)
	if err != nil {
		err = fmt.Errorf("%s of %s with %d: %w", s.Name, c.id(), s.N, err)
	}
	return figures, waits, err
}

// start starts a process for each job, and returns when all are ready.
func (t turn) start(ctx context.Context, jobs ...job) (all []*worker, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, j := range jobs {
		j.Contestant, j.Addrs, j.TTL = t.id(), t.addrs, t.TTL
		text, err := json.Marshal(j)
		if err != nil {
			return all, err
		}
		w := &worker{cmd: exec.CommandContext(ctx, self)}
		w.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
		w.cmd.Stderr = os.Stderr
		in, err1 := w.cmd.StdinPipe()
		out, err2 := w.cmd.StdoutPipe()
		if err := errors.Join(err1, err2, w.cmd.Start()); err != nil {
			return all, err
		}
		w.in, w.out = in, gob.NewDecoder(out)
		all = append(all, w)
	}
	_, err = reports(all)
	return all, err
}

// tell makes the processes begin, and then stop.
func tell(all []*worker) {
	for _, w := range all {
		fmt.Fprintln(w.in)
	}
}

// reports returns what each process answers next.
func reports(all []*worker) (_ []report, err error) {
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

// end lets the processes close their clients and end.
func end(all []*worker) {
	for _, w := range all {
		w.in.Close()
	}
	for _, w := range all {
		limit := time.AfterFunc(10*time.Second, func() { w.cmd.Process.Kill() })
		w.cmd.Wait()
		limit.Stop()
	}
}

// A load is what the server had to do in a window, and how long a round trip took meanwhile.
type load struct {
	from, until int64 // on the clock of tenures
	commands    float64
	requests    float64 // of clients
	cpu         time.Duration
	rtt         time.Duration
}

func (l load) seconds() float64 { return time.Duration(l.until - l.from).Seconds() }

// percent is how much of one CPU the server used.
func (l load) percent() float64 { return 100 * l.cpu.Seconds() / l.seconds() }

// watch measures the load of a window, while the processes work.
func (t turn) watch(ctx context.Context) (l load, err error) {
	before, err := t.used()
	if err != nil {
		return l, err
	}
	l.from = time.Now().UnixNano()
	var trips []time.Duration
	for begun := time.Now(); len(trips) == 0 || time.Since(begun) < t.Window; {
		sent := time.Now()
		if err := t.ping.Ping(ctx).Err(); err != nil {
			return l, err
		}
		trips = append(trips, time.Since(sent))
		time.Sleep(t.Window / 100)
	}
	l.until = time.Now().UnixNano()
	after, err := t.used()
	if err != nil {
		return l, err
	}
	// The first INFO of each server is one command, and two reads: it, and the end of its connection.
	own, pings := float64(len(t.servers)), float64(len(trips))
	l.commands = after.commands - before.commands - pings - own
	l.requests = after.requests - before.requests - pings - 3*own
	l.cpu = after.cpu - before.cpu
	l.rtt = median(trips)
	return l, nil
}

// used returns what the servers have done so far. A request is what a server reads at once.
func (t turn) used() (l load, err error) {
	for _, s := range t.servers {
		reply, err := s.Do("INFO")
		if err != nil {
			return l, err
		}
		info, _ := reply.(string)
		l.commands += number(info, "total_commands_processed")
		l.requests += number(info, "total_reads_processed")
		l.cpu += time.Duration((number(info, "used_cpu_user:") + number(info, "used_cpu_sys:")) * float64(time.Second))
	}
	return l, nil
}

func number(info, name string) float64 {
	x, _ := strconv.ParseFloat(fieldOf(info, name), 64)
	return x
}

// together has a process for each job work for the window.
func (t turn) together(ctx context.Context, jobs ...job) (all []tenure, l load, err error) {
	workers, err := t.start(ctx, jobs...)
	defer end(workers)
	if err != nil {
		return nil, l, err
	}
	tell(workers)
	if jobs[0].Warm > 0 {
		if _, err := reports(workers); err != nil {
			return nil, l, err
		}
	}
	time.Sleep(t.Window / 20) // until all are at work
	l, err = t.watch(ctx)
	if err != nil {
		return nil, l, err
	}
	tell(workers)
	answers, err := reports(workers)
	for _, r := range answers {
		all = append(all, r.Tenures...)
	}
	return all, l, err
}

// cycles measures acquisitions and releases without contention: N goroutines with a key each.
func cycles(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	all, l, err := t.together(ctx, job{Alone: true, Keys: t.N, Workers: t.N})
	if err != nil {
		return nil, err
	}
	if t.nodes > 0 {
		figures["second"] = seconds(all)
	}
	n := 0.0
	for _, t := range all {
		if t.Got >= l.from && t.Got < l.until {
			n++
		}
	}
	figures["rate"] = n / l.seconds()
	if n == 0 {
		return nil, nil
	}
	if t.N == 1 {
		figures["p50 ms"] = milliseconds(cycle(all))
		figures["p50 trips"] = figures["p50 ms"] / milliseconds(l.rtt)
	}
	each := l.seconds() * float64(t.N) / n
	figures["µs"] = each * 1e6
	figures["trips"] = each / l.rtt.Seconds()
	figures["commands"] = l.commands / n
	figures["server µs"] = float64(l.cpu.Microseconds()) / n
	return nil, nil
}

// threads has N goroutines of one process pass one lock on.
func threads(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	return t.contended(ctx, figures, job{Keys: 1, Workers: t.N})
}

// processes has N processes pass one lock on. Each holds it for a millisecond.
func processes(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	jobs := make([]job, t.N)
	for i := range jobs {
		jobs[i] = job{Keys: 1, Workers: 1, First: i, Pause: time.Millisecond}
	}
	return t.contended(ctx, figures, jobs...)
}

func (t turn) contended(ctx context.Context, figures map[string]float64, jobs ...job) ([]time.Duration, error) {
	all, l, err := t.together(ctx, jobs...)
	if err != nil {
		return nil, err
	}
	if t.nodes > 0 {
		figures["second"] = seconds(all)
	}
	c := contend(all, t.N, l.from, l.until)
	figures["rate"] = float64(c.handovers) / l.seconds()
	figures["fairness"] = c.fairness
	figures["starved"] = float64(c.starved)
	if t.nodes > 0 {
		figures["least"], figures["most"] = c.least, c.most
	}
	figures["longest"] = milliseconds(c.longest)
	figures["open"] = 0
	if c.open {
		figures["open"] = 1
	}
	if c.handovers > 0 {
		gap := median(c.gaps)
		figures["gap ms"] = milliseconds(gap)
		figures["gap trips"] = float64(gap) / float64(l.rtt)
		figures["commands"] = l.commands / float64(c.handovers)
		figures["requests"] = l.requests / float64(c.handovers)
		figures["server µs"] = float64(l.cpu.Microseconds()) / float64(c.handovers)
	}
	return c.waits, nil
}

// leases has one process hold N locks.
func leases(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	holders, err := t.start(ctx, job{Alone: true, Hold: true, Keys: t.N, Workers: 64})
	defer end(holders)
	if err != nil {
		return nil, err
	}
	tell(holders)
	l, err := t.watch(ctx)
	if err != nil {
		return nil, err
	}
	tell(holders)
	answers, err := reports(holders)
	if err != nil {
		return nil, err
	}
	r, n := answers[0], float64(t.N)
	figures["heap"] = float64(r.Heap) / n
	figures["stack"] = float64(r.Stack) / n
	figures["goroutines"] = float64(r.Goroutines) / n
	figures["client cpu"] = 100 * r.CPU.Seconds() / l.seconds()
	figures["server cpu"] = l.percent()
	figures["commands"] = l.commands / l.seconds()
	figures["lost"] = float64(r.Lost)
	figures["renewed"] = 0
	if r.Renewed {
		figures["renewed"] = 1
	}
	return nil, nil
}

// idle has N goroutines of one process wait for a lock that another process keeps.
func idle(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	holders, err := t.start(ctx, job{Hold: true, Keys: 1, Workers: 1})
	defer end(holders)
	if err != nil {
		return nil, err
	}
	waiters, err := t.start(ctx, job{Keys: 1, Workers: t.N})
	defer end(waiters)
	if err != nil {
		return nil, err
	}
	tell(waiters)
	time.Sleep(t.Window / 5) // until all wait
	l, err := t.watch(ctx)
	if err != nil {
		return nil, err
	}
	figures["commands"] = l.commands / l.seconds() / float64(t.N)
	figures["requests"] = l.requests / l.seconds() / float64(t.N)
	figures["server cpu"] = l.percent()
	return nil, nil
}

// takeover kills a process that holds N locks, each of which a goroutine of another waits for.
func takeover(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error) {
	holders, err := t.start(ctx, job{Hold: true, Keys: t.N, Workers: t.N})
	defer end(holders)
	if err != nil {
		return nil, err
	}
	waiters, err := t.start(ctx, job{Keys: t.N, Workers: t.N, Once: true})
	defer end(waiters)
	if err != nil {
		return nil, err
	}
	tell(waiters)
	time.Sleep(t.TTL / 2)
	killed := time.Now().UnixNano()
	if err := holders[0].cmd.Process.Kill(); err != nil {
		return nil, err
	}
	holders[0].cmd.Wait()
	expiry := make([]time.Time, t.N)
	for i := range expiry {
		reply, err := t.server.Do("PTTL", t.prefix+key(i))
		left, ok := reply.(int64)
		if err != nil || !ok || left < 0 {
			return nil, fmt.Errorf("%s has no TTL: %v, %w", key(i), reply, err)
		}
		expiry[i] = time.Now().Add(time.Duration(left) * time.Millisecond)
	}
	defer time.AfterFunc(t.Window, func() { tell(waiters) }).Stop()
	answers, err := reports(waiters)
	if err != nil {
		return nil, err
	}
	late := make([]time.Duration, 0, t.N)
	for _, w := range answers[0].Tenures {
		if w.Got > 0 && w.Got < killed {
			return nil, errors.New("the holder had lost its lock before it was killed")
		}
		if w.Got > 0 {
			late = append(late, time.Unix(0, w.Got).Sub(expiry[w.Key]))
		}
	}
	figures["never"] = float64(t.N - len(late))
	if len(late) > 0 {
		figures["late ms"] = milliseconds(median(late))
		figures["latest ms"] = milliseconds(late[len(late)-1])
	}
	return nil, nil
}

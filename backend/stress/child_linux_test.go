package stress

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/proctest"
	"github.com/dlock-go/dlock/internal/redistest"
)

// childKinds are what must have happened to child processes.
var childKinds = []string{
	"process stopped", "process killed", "process ended",
	"stopped while waiting", "stopped while holding", "killed while waiting", "killed while holding",
}

const childPoll = 20 * time.Millisecond // between two checks whether a process is busy

// An order tells a child process what to do.
type order struct {
	Addrs   []string
	Keys    []string
	TTLs    []time.Duration
	Seed    uint64
	Library int // the only one, with sets; else three workers of each do anything
	Sets    bool
}

// TestChild is the main function of a child process. It works until it gets a SIGTERM, and ends when its workers have
// been served.
func TestChild(t *testing.T) {
	var o order
	require.NoError(t, json.Unmarshal([]byte(proctest.Args(t)[0]), &o))
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	defer watchGoroutines(t)()
	g := &workerGroup{keys: o.Keys, ttls: o.TTLs, seed: o.Seed, stop: stop, limit: context.Background(), note: func(e event) {
		text, _ := json.Marshal(e)
		proctest.Say(string(text))
	}}
	defer g.close()
	if o.Sets {
		_, _ = g.start("child/"+clients.All[o.Library].Name, openAt(o.Library, o.Addrs...), perClient, (*worker).set)
		return
	}
	for i, lib := range clients.All {
		_, _ = g.start("child/"+lib.Name, openAt(i, o.Addrs...), 3, (*worker).anything)
	}
}

// A family is some child processes, whose events are recorded.
type family struct {
	*proctest.Group
	*journal
}

func newFamily(t *testing.T, j *journal) *family {
	f := &family{proctest.New(t), j}
	f.Hear(func(l proctest.Line) {
		var e event
		if json.Unmarshal([]byte(l.Word), &e) == nil {
			name := f.name(l.PID)
			e.Who = name + "/" + e.Who
			f.note(name, e)
		}
	})
	return f
}

func (f *family) name(pid int) string { return fmt.Sprint("child", pid) }

func (f *family) start(o order) (pid int) {
	text, _ := json.Marshal(o)
	return f.Start("TestChild", string(text))
}

func (f *family) kill(pid int) {
	at := f.Now()
	f.Signal(pid, syscall.SIGKILL)
	f.died(f.name(pid), at)
	f.fault("%s killed", f.name(pid))
	f.add("process killed", 1)
}

// end asks a process to end, and waits until it has.
func (f *family) end(pid int, late context.Context) {
	f.Signal(pid, syscall.SIGTERM)
	defer context.AfterFunc(late, func() { _ = syscall.Kill(pid, syscall.SIGQUIT) })() // shows its goroutines
	f.Wait(pid)
	f.add("process ended", 1)
}

// startChildren keeps two processes running, one after the other each, until the chaos is over. Each is stopped and
// continued, and then killed or asked to end, in turn.
func (c *chaos) startChildren(t *testing.T, o order) (await func()) {
	var all sync.WaitGroup
	for i := range 2 {
		f := newFamily(t, c.journal)
		all.Go(func() {
			o := o
			o.Seed += uint64(i) << 32
			for n := i; c.on.Err() == nil; n++ {
				o.Seed++
				pid := f.start(o)
				if c.awaitBusy(f.name(pid)) {
					at := c.Now()
					f.Signal(pid, syscall.SIGSTOP)
					c.fault("%s stopped", f.name(pid))
					c.sleep(time.Duration(n%4+1) * 200 * time.Millisecond)
					c.interrupted(f.name(pid), "stopped", at)
					f.Signal(pid, syscall.SIGCONT)
					c.fault("%s continued", f.name(pid))
					c.add("process stopped", 1)
				}
				if c.awaitBusy(f.name(pid)) && n%2 == 0 {
					f.kill(pid)
				} else {
					f.end(pid, c.late)
				}
			}
		})
	}
	return all.Wait
}

// awaitBusy waits until a process holds one lock and waits for another. It returns
// false if the chaos ended first.
func (c *chaos) awaitBusy(process string) bool {
	for c.on.Err() == nil {
		c.sleep(childPoll)
		if c.busy(process) {
			return true
		}
	}
	return false
}

// TestSets has 32 workers hold random sets of 8 of 64 keys, with each client library, on a server and on a
// cluster whose slots move. After half of the time processes are killed. See the package documentation.
func TestSets(t *testing.T) {
	redistest.Real(t)
	var keys []string
	for i := range 64 {
		keys = append(keys, "key"+strconv.Itoa(i))
	}
	server, moving := redistest.Start(t), redistest.StartCluster(t, 3, 0)
	for i, lib := range clients.All {
		o := order{Keys: keys, TTLs: []time.Duration{time.Second}, Library: i, Sets: true}
		t.Run(lib.Name, func(t *testing.T) { o.Addrs = []string{server.Addr()}; runSets(t, o, func() { time.Sleep(pause) }) })
		if i < len(clients.Topologies) {
			t.Run("Cluster/"+lib.Name, func(t *testing.T) {
				o.Addrs = moving.Addrs()
				moves := 0
				runSets(t, o, func() {
					m := moving.StartMigration(t, keys[rand.IntN(len(keys))])
					m.MoveKeys(t)
					m.Finish(t)
					moves++
				})
				t.Logf("%d slots were moved", moves)
			})
		}
	}
}

// runSets runs eight processes. It kills one in each TTL of the second half of the time, and calls meanwhile for as long as
// that lasts.
func runSets(t *testing.T, o order, meanwhile func()) {
	d, ttl := lasts(t, "stress", shortStress), o.TTLs[0]
	j := newJournal()
	f, begun, end := newFamily(t, j), time.Now(), time.Now().Add(d)
	start := func() int { o.Seed = rand.Uint64(); return f.start(o) }
	var pids [8]int
	for i := range pids {
		pids[i] = start()
	}
	var busy sync.WaitGroup
	busy.Go(func() {
		for time.Now().Before(end) {
			meanwhile()
		}
	})
	sets, kills := 0, 0
	for next := begun.Add(d / 2); next.Before(end); next = next.Add(ttl) {
		time.Sleep(time.Until(next))
		if kills++; kills == 1 {
			sets = j.count("sets")
		}
		i := rand.IntN(len(pids))
		f.kill(pids[i])
		pids[i] = start()
	}
	time.Sleep(time.Until(end))
	busy.Wait()
	late, cancel := context.WithTimeout(t.Context(), calmLimit)
	defer cancel()
	for _, pid := range pids {
		f.end(pid, late)
	}
	time.Sleep(ttl)
	locker, closeClient := clients.All[o.Library].Dial(t, clients.Settings{Addrs: o.Addrs, Cluster: len(o.Addrs) > 1})
	defer closeClient()
	defer locker.Close()
	for _, key := range o.Keys {
		hold, err := locker.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Empty(t, hold.Token, "%q is still held", key)
	}
	t.Logf("%d sets in the calm half; %s; longest wait %v", sets, j.summary(), j.longestWait().Round(time.Millisecond))
	require.Greater(t, j.count("sets"), sets, "sets while processes were killed")
	_, violations := j.judged(8)
	for _, v := range violations[:min(3, len(violations))] {
		t.Errorf("%v\n%s", v, j.around(v.Key, v.Holds[0].End))
	}
	for _, e := range j.errors {
		t.Error(e)
	}
}

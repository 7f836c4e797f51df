// Package proctest runs test functions as processes, which a test kills, stops and continues. They
// say in a journal what happens, and the test reads it.
//
//	func TestWorker(t *testing.T) { // is skipped, unless Start runs it
//		args := proctest.Args(t)
//		proctest.Say("begins", 1)
//		…
//
//	func TestWorkers(t *testing.T) {
//		g := proctest.New(t)
//		pid := g.Start("TestWorker", "an argument")
//		g.Await(1, "begins", pid)
//		g.Signal(pid, syscall.SIGSTOP)
package proctest

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	envTest    = "DLOCK_PROCTEST" // the name of the test function that a process runs
	awaitLimit = time.Minute
)

// Args returns the arguments of the [Group.Start] that has started this process. If t is not the test
// that Start has named, Args skips it.
func Args(t *testing.T) []string {
	t.Helper()
	if os.Getenv(envTest) != t.Name() {
		t.Skip("is run as a process by another test")
	}
	return flag.Args()
}

// A Line is what a process has said.
type Line struct {
	PID    int
	Word   string
	At     time.Time
	Values []int64
}

var journal = sync.OnceValue(func() *os.File { return os.NewFile(3, "journal") })

// Say writes a line to the journal. It is for processes that Start has started.
func Say(word string, values ...int64) {
	line, _ := json.Marshal(Line{os.Getpid(), word, time.Now(), values})
	if _, err := journal().Write(append(line, '\n')); err != nil { // one write: it is not torn
		panic(err)
	}
}

// A Group is the processes of a test and their journal. Start, Signal and Wait are for the goroutine
// of the test.
type Group struct {
	t         *testing.T
	processes map[int]*process // by PID
	journal   *os.File
	read      chan struct{} // gets an element when all has been read that was in the journal
	mu        sync.Mutex
	lines     []Line
	hear      func(Line)
}

type process struct {
	*exec.Cmd
	ended chan struct{}
}

// New returns a group without a process. Before t ends, the processes that are left are killed.
func New(t *testing.T) *Group {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	g := &Group{t: t, processes: map[int]*process{}, journal: w, read: make(chan struct{})}
	go func() {
		defer close(g.read)
		for lines := json.NewDecoder(r); ; {
			var l Line
			if lines.Decode(&l) != nil {
				return
			}
			if l.PID == 0 { // of Wait
				g.read <- struct{}{}
				continue
			}
			g.mu.Lock()
			g.lines = append(g.lines, l)
			hear := g.hear
			g.mu.Unlock()
			if hear != nil {
				hear(l)
			}
		}
	}()
	t.Cleanup(func() {
		for pid, p := range g.processes {
			p.Process.Kill()
			g.Wait(pid)
		}
		w.Close()
		<-g.read
		r.Close()
	})
	return g
}

// Start starts a process that runs a test function of this test binary, and returns its PID. The
// process has no time limit. It is killed if the test binary dies.
func (g *Group) Start(test string, args ...string) (pid int) {
	g.t.Helper()
	args = append([]string{"-test.run=^" + test + "$", "-test.timeout=0", "--"}, args...)
	p := &process{exec.Command(os.Args[0], args...), make(chan struct{})}
	p.Env = append(os.Environ(), envTest+"="+test, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	p.Stdout, p.Stderr = os.Stderr, os.Stderr
	p.ExtraFiles = []*os.File{g.journal}
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the process dies with the thread that has started it
		defer runtime.UnlockOSThread()
		err := p.Cmd.Start()
		started <- err
		if err == nil {
			p.Cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		g.t.Fatal(err)
	}
	g.processes[p.Process.Pid] = p
	return p.Process.Pid
}

// Hear calls f with each line of processes that are started later, one after the other.
func (g *Group) Hear(f func(Line)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hear = f
}

// Signal sends a signal to a process. After SIGKILL, Signal also waits until the process has ended.
func (g *Group) Signal(pid int, s syscall.Signal) {
	g.t.Helper()
	p := g.processes[pid]
	if p == nil {
		g.t.Fatalf("process %d has not been started, or has ended", pid)
	}
	if err := p.Process.Signal(s); err != nil {
		g.t.Fatalf("process %d: %v: %v", pid, s, err)
	}
	if s == syscall.SIGKILL {
		g.Wait(pid)
	}
}

// Wait waits until a process has ended, and all that it has said was read. The test fails if the process has exited with a failure.
func (g *Group) Wait(pid int) {
	g.t.Helper()
	p := g.processes[pid]
	<-p.ended
	delete(g.processes, pid)
	line, _ := json.Marshal(Line{})
	if _, err := g.journal.Write(append(line, '\n')); err != nil {
		g.t.Fatal(err)
	}
	<-g.read
	if p.ProcessState.ExitCode() > 0 { // -1 after a signal
		g.t.Errorf("process %d: %v", pid, p.ProcessState)
	}
}

// Said returns the lines with word that one process has said, or any process if pid is 0, the oldest
// first.
func (g *Group) Said(word string, pid int) []Line {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.lines), func(l Line) bool {
		return l.Word != word || pid != 0 && l.PID != pid
	})
}

// Await is Said when there are n lines.
func (g *Group) Await(n int, word string, pid int) []Line {
	g.t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if said := g.Said(word, pid); len(said) >= n {
			return said
		} else if time.Since(begin) > awaitLimit {
			g.t.Fatalf("process %d has said %q %d times within %v, not %d times", pid, word, len(said), awaitLimit, n)
		}
	}
}

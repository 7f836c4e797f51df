package stress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// childKinds are what must have happened to child processes.
var childKinds = []string{
	"process stopped", "process killed", "process ended",
	"stopped while waiting", "stopped while holding", "killed while waiting", "killed while holding",
}

const (
	envChild  = "DLOCK_STRESS_CHILD"
	eventMark = "@event "
	childPoll = 20 * time.Millisecond // between two checks whether a process is busy
)

// An order tells a child process what to do.
type order struct {
	Addr string
	Keys []string
	Seed uint64
}

// TestStressChild is the main function of a child process of TestStress. It works until
// its standard input ends.
func TestStressChild(t *testing.T) {
	text := os.Getenv(envChild)
	if text == "" {
		t.Skip("a part of TestStress")
	}
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	stop, cancel := context.WithCancel(context.Background())
	defer watchGoroutines(t)()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	g := &workerGroup{keys: o.Keys, seed: o.Seed, note: reporter(), stop: stop, limit: context.Background()}
	for i := range libraries {
		if err := g.start("child", i, o.Addr, 3); err != nil {
			break
		}
	}
	g.close()
}

// reporter returns a function that reports events to the parent, each with one write.
func reporter() func(event) {
	var mu sync.Mutex
	return func(e event) {
		line, _ := json.Marshal(e)
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(os.Stdout, "\n%s%s\n", eventMark, line)
	}
}

// A child is a process that runs TestStressChild.
type child struct {
	name  string
	cmd   *exec.Cmd
	input io.Closer
	ended chan error
	out   bytes.Buffer // what is not an event; to be read after ended, as err
	err   bytes.Buffer
}

// startChild starts a process. The process dies with the thread that started it, so that
// thread waits for it.
func startChild(name string, o order, note func(event)) (*child, error) {
	text, _ := json.Marshal(o)
	cmd := exec.Command(os.Args[0], "-test.run=^TestStressChild$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), envChild+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c := &child{name: name, cmd: cmd, ended: make(chan error, 1)}
	cmd.Stderr = &c.err
	input, err1 := cmd.StdinPipe()
	output, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%v, %v", err1, err2)
	}
	c.input = input
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.read(output, note)
			c.ended <- cmd.Wait()
		}
	}()
	return c, <-started
}

// read passes the events on until the process has ended.
func (c *child) read(output io.Reader, note func(event)) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		text, ok := bytes.CutPrefix(lines.Bytes(), []byte(eventMark))
		var e event
		if ok && json.Unmarshal(text, &e) == nil {
			note(e)
		} else {
			c.out.Write(append(lines.Bytes(), '\n'))
		}
	}
}

func (c *child) said() string { return c.out.String() + c.err.String() }

func (c *child) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

// runChildren runs one process after the other until the chaos is over. Each is stopped and
// continued, and then killed (if n is even) or asked to end (if n is odd). It returns the
// error of a process that failed.
func (c *chaos) runChildren(name string, n int, o order) error {
	for ; c.on.Err() == nil; n++ {
		o.Seed++
		process := fmt.Sprintf("%s.%d", name, n)
		note := func(e event) {
			e.Who = process + "/" + e.Who
			c.note(process, e)
		}
		child, err := startChild(process, o, note)
		if err != nil {
			return err
		}
		if err := c.disturb(child, n); err != nil {
			return err
		}
	}
	return nil
}

// disturb stops a process and continues it, and then kills it or asks it to end.
func (c *chaos) disturb(p *child, n int) error {
	if c.awaitBusy(p) {
		c.stop(p, time.Duration(n%4+1)*200*time.Millisecond)
	}
	if c.awaitBusy(p) && n%2 == 0 {
		at := c.Now()
		p.signal(syscall.SIGKILL)
		<-p.ended
		c.died(p.name, at)
		c.fault("%s killed", p.name)
		c.add("process killed", 1)
		return nil
	}
	p.input.Close()
	select {
	case err := <-p.ended:
		c.add("process ended", 1)
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, err, p.said())
		}
		return nil
	case <-c.late:
		p.signal(syscall.SIGQUIT) // shows its goroutines
		<-p.ended
		return fmt.Errorf("%s did not end:\n%s", p.name, p.said())
	}
}

// awaitBusy waits until the process holds one lock and waits for another. It returns
// false if the chaos ended first.
func (c *chaos) awaitBusy(p *child) bool {
	for c.on.Err() == nil {
		c.sleep(childPoll)
		if c.busy(p.name) {
			return true
		}
	}
	return false
}

func (c *chaos) stop(p *child, d time.Duration) {
	at := c.Now()
	p.signal(syscall.SIGSTOP)
	c.fault("%s stopped for %v", p.name, d)
	c.sleep(d)
	c.interrupted(p.name, "stopped", at)
	p.signal(syscall.SIGCONT)
	c.fault("%s continued", p.name)
	c.add("process stopped", 1)
}

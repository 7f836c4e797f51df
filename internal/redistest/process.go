package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

const (
	stopLimit = 10 * time.Second // for a process to stop after a signal
	logShown  = 32 << 10         // bytes of a log, from its end; a crash report is long
	portTaken = "Address already in use"
)

var errPortTaken = errors.New("its port is taken")

// A process is one run of a server.
type process struct {
	cmd   *exec.Cmd
	log   string        // path of what it writes
	done  chan struct{} // closed when it has ended
	err   error         // why it has ended; set when done is closed
	asked bool          // whether its end was requested or reported
}

func run(dir, path string, args, env []string) (*process, error) {
	log, err := os.CreateTemp(dir, "server-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	p := &process{cmd: cmd, log: log.Name(), done: make(chan struct{})}
	started := make(chan error, 1)
	go p.attend(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// attend starts the process and waits for it, both on one thread: on Linux, the process dies with
// the thread that started it.
func (p *process) attend(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
		close(p.done)
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill kills the process and waits until it has ended. It returns an error, once, if the process had crashed before.
func (p *process) kill() error {
	asked := p.asked
	p.asked = true
	if p.running() {
		p.cmd.Process.Kill()
		<-p.done
	} else if !asked && p.err != nil {
		return fmt.Errorf("it has crashed: %w", p.err)
	}
	return nil
}

// suspend stops the process, and returns when it has stopped.
func (p *process) suspend() error {
	if err := p.cmd.Process.Signal(sigStop); err != nil {
		return err
	}
	for limit := time.Now().Add(stopLimit); p.running() && time.Now().Before(limit); {
		if stopped(p.pid()) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("it did not stop")
}

// explain adds the end of the log to err, which matches errPortTaken if that
// was the reason.
func (p *process) explain(err error) error {
	log, _ := os.ReadFile(p.log)
	text := string(log[max(0, len(log)-logShown):])
	if strings.Contains(text, portTaken) {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return fmt.Errorf("%w\nThe end of its log:\n%s", err, text)
}

package proctest

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestCounter locks a file, and counts until it is killed.
func TestCounter(t *testing.T) {
	if lock := Args(t)[0]; !locks(t, lock) {
		t.Fatalf("%s is locked", lock)
	}
	for n := int64(1); ; n++ {
		Say("counts", n, -n)
		time.Sleep(time.Millisecond)
	}
}

// TestParent is killed while a process of its own is stopped.
func TestParent(t *testing.T) {
	g := New(t)
	g.stopCounter(Args(t)[0])
	Say("ready")
	select {}
}

// locks reports whether it could lock a file. The lock ends with the process.
func locks(t *testing.T, file string) bool {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func (g *Group) stopCounter(lock string) (pid int) {
	pid = g.Start("TestCounter", lock)
	g.Await(3, "counts", pid)
	g.Signal(pid, syscall.SIGSTOP)
	return pid
}

func TestGroup(t *testing.T) {
	for name, f := range map[string]func(g *Group, lock string){
		"a process is killed with its test": func(g *Group, lock string) {
			pid := g.stopCounter(lock)
			time.Sleep(50 * time.Millisecond)
			before := len(g.Said("counts", 0))
			time.Sleep(50 * time.Millisecond)
			if n := len(g.Said("counts", 0)); n > before {
				t.Errorf("a stopped process counts from %d to %d", before, n)
			}
			g.Signal(pid, syscall.SIGCONT)
			lines := g.Await(before+3, "counts", pid)
			for i, l := range lines {
				if n := int64(i + 1); l.PID != pid || l.Values[0] != n || l.Values[1] != -n || l.At.Before(lines[0].At) {
					t.Errorf("line %d: %+v", n, l)
				}
			}
		},
		"a process is killed with its test binary": func(g *Group, lock string) {
			parent := g.Start("TestParent", lock)
			g.Await(1, "ready", parent)
			if locks(t, lock) {
				t.Error("the process of a process has not locked the file")
			}
			g.Signal(parent, syscall.SIGKILL)
		},
	} {
		lock := t.TempDir()
		t.Run(name, func(t *testing.T) { f(New(t), lock) })
		for end := time.Now().Add(10 * time.Second); !locks(t, lock); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(name + ": the process lives")
			}
		}
	}
}

package redistest

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/freeport"
	"github.com/dlock-go/dlock/internal/proctest"
)

// TestVictim starts a server, says where, and waits to be killed.
func TestVictim(t *testing.T) {
	state := proctest.Args(t)[0]
	s := Start(t)
	if state == "suspended" {
		s.Suspend()
	}
	proctest.Say("ready", int64(s.port))
	time.Sleep(time.Minute)
}

func TestServerDiesWithTheTestBinary(t *testing.T) {
	t.Parallel()
	find(t)
	g := proctest.New(t)
	for _, state := range []string{"running", "suspended"} {
		pid := g.Start("TestVictim", state)
		addr := freeport.Addr(int(g.Await(1, "ready", pid)[0].Values[0]))
		g.Signal(pid, syscall.SIGKILL)
		await(t, func() error {
			conn, err := net.Dial("tcp4", addr)
			if err != nil {
				return nil
			}
			conn.Close()
			return fmt.Errorf("the server still listens on %s", addr)
		})
	}
}

// The thread that called Start ends, and the server must not.
func TestServerOutlivesTheStartingThread(t *testing.T) {
	t.Parallel()
	find(t)
	started := make(chan *Server)
	var thread string
	go onMortalThread(func() {
		link, _ := os.Readlink("/proc/thread-self")
		thread = "/proc/" + link
		started <- Start(t)
	})
	s := <-started
	await(t, func() error {
		if _, err := os.Stat(thread); err == nil {
			return fmt.Errorf("thread %s still lives", thread)
		}
		return nil
	})
	require.Equal(t, "PONG", do(t, s, "PING"))
	require.True(t, s.proc.running())
}

// onMortalThread runs fn on a thread that ends with it. The main thread never
// does; but while one goroutine occupies it another has a different one.
func onMortalThread(fn func()) {
	runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
	if syscall.Gettid() != os.Getpid() {
		fn()
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onMortalThread(fn)
	}()
	<-done
}

package redistest

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestVictim is run as a process: it starts a server, says where, and waits to be killed.
func TestVictim(t *testing.T) {
	if flag.NArg() == 0 {
		t.Skip("is run as a process by another test")
	}
	s := Start(t)
	if flag.Arg(0) == "suspended" {
		s.Suspend()
	}
	fmt.Println(s.Addr())
	time.Sleep(time.Minute)
}

func TestServerDiesWithTheTestBinary(t *testing.T) {
	t.Parallel()
	find(t)
	for _, state := range []string{"running", "suspended"} {
		victim := exec.Command(os.Args[0], "-test.run=^TestVictim$", "--", state)
		out, err := victim.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, victim.Start())
		var addr string
		_, err = fmt.Fscanln(out, &addr)
		require.NoError(t, err)
		require.NoError(t, victim.Process.Kill())
		require.Error(t, victim.Wait())
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

package reproductions

import (
	"bytes"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A wire stands between clients and a server, and can fail.
type wire struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	lost  string     // the reply to the next request that contains it is lost, with the connection
	cut   bool       // nothing arrives any more, either way
	pairs []net.Conn // to be closed at the end
	wg    sync.WaitGroup
}

func newWire(t *testing.T, server string) *wire {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{listener: listener, server: server}
	w.wg.Go(w.accept)
	t.Cleanup(w.close)
	return w
}

func (w *wire) addr() string { return w.listener.Addr().String() }

// loseReplyTo loses the reply to the next request that contains text.
func (w *wire) loseReplyTo(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = text
}

// blackhole swallows everything from now on, and closes nothing.
func (w *wire) blackhole() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.server)
		if err != nil {
			client.Close()
			continue
		}
		w.mu.Lock()
		w.pairs = append(w.pairs, client, server)
		w.mu.Unlock()
		lose := make(chan struct{})
		w.wg.Go(func() { w.requests(client, server, lose) })
		w.wg.Go(func() { w.replies(client, server, lose) })
	}
}

func (w *wire) requests(client, server net.Conn, lose chan struct{}) {
	defer server.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		cut, lost := w.faults(buf[:n])
		if lost {
			close(lose)
		}
		if !cut {
			_, _ = server.Write(buf[:n])
		}
	}
}

func (w *wire) faults(request []byte) (cut, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost = w.lost != "" && bytes.Contains(request, []byte(w.lost))
	if lost {
		w.lost = ""
	}
	return w.cut, lost
}

func (w *wire) replies(client, server net.Conn, lose chan struct{}) {
	defer client.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-lose: // the server has executed the request
			return
		default:
		}
		if cut, _ := w.faults(nil); !cut {
			_, _ = client.Write(buf[:n])
		}
	}
}

func (w *wire) close() {
	w.listener.Close()
	w.mu.Lock()
	for _, c := range w.pairs {
		c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

package httplock

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
)

func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	t.Parallel()
	conformance.Run(t, harness(t, NewServer()))
}

func harness(t *testing.T, s *Server) conformance.Harness {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	addr := server.Listener.Addr().String()
	return conformance.Harness{
		New:  func(t *testing.T) dlock.Locker { return dial(t, addr) },
		Dial: func(t *testing.T, addr string) dlock.Locker { return dial(t, addr) },
		Addr: addr,
		Wipe: func(*testing.T) {
			s.mu.Lock()
			defer s.mu.Unlock()
			clear(s.locks)
			s.fence = 0
		},
		Count: func(*testing.T) int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.locks) + len(s.lapsed)
		},
	}
}

func dial(t *testing.T, addr string) *Locker {
	transport := &http.Transport{MaxIdleConnsPerHost: 512}
	t.Cleanup(transport.CloseIdleConnections)
	return New(addr, &http.Client{Transport: transport})
}

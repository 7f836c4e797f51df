package httplock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
)

// unaware has the handler learn late that a client has gone: when its poll ends.
func unaware(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	})
}

// hasty answers a poll with the lock itself, and takes nothing back.
func hasty(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/wait" {
			s.ServeHTTP(w, r)
			return
		}
		q := r.URL.Query()
		ms, _ := strconv.ParseInt(q.Get("ttl"), 10, 64)
		key, token, ttl := q.Get("key"), q.Get("token"), time.Duration(ms)*time.Millisecond
		a := s.wait(r.Context(), key, token, ttl, q.Get("id"))
		if a.Offered {
			a = s.claim(key, token, ttl)
		}
		_ = json.NewEncoder(w).Encode(a)
	})
}

// A hastyLocker is a client of a hasty server.
type hastyLocker struct{ *Locker }

func (l hastyLocker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	q := parameters(key, token, ttl)
	q.Set("id", rand.Text())
	for {
		sent := time.Now()
		a, err := l.call(ctx, "wait", q)
		if err != nil || a.Held {
			return dlock.Attempt{Acquired: a.Held, Since: sent, Fence: a.Fence}, err
		}
	}
}

const hastyVariable = "HTTPLOCK_HASTY"

// TestHasty fails. TestHastyIsCaught runs it in a process of its own.
func TestHasty(t *testing.T) {
	if os.Getenv(hastyVariable) == "" {
		t.Skip(hastyVariable + " is not set")
	}
	server := httptest.NewServer(unaware(hasty(NewServer())))
	t.Cleanup(server.Close)
	conformance.Run(t, conformance.Harness{New: func(t *testing.T) dlock.Locker {
		return hastyLocker{dial(t, server.Listener.Addr().String())}
	}})
}

// A waiter may have died, and the server not know it yet, when the key becomes free.
func TestHastyIsCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a quarter of a minute")
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHasty$/^DeadWaiterIsSkipped$")
	cmd.Env = append(os.Environ(), hastyVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a waiter that came before had died") {
		t.Errorf("DeadWaiterIsSkipped does not fail: %v\n%s", err, out)
	}
}

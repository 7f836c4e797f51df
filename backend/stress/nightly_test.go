package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A nightly is a job that the replicas of a service all start while a failover is under way.
type nightly struct {
	*load
	key  string
	runs atomic.Int64
	errs []error // of the replicas that did not run it
}

// startNightly starts a job on all Clients of the load as soon as a master is down, with a key of that
// master. The function that it returns checks that the job has run once, and that nobody failed: the
// others find the key held, because of its minimum hold.
func (l *load) startNightly() (check func()) {
	l.t.Helper()
	masters := l.bed.Masters(l.t)
	keys := make(map[*redistest.Server]string)
	for i := 0; len(keys) < len(masters); i++ {
		key := fmt.Sprintf("nightly%d/%d", ids.Add(1), i)
		keys[l.bed.MasterOf(l.t, key)] = key
	}
	n, ctx, cancel := &nightly{load: l}, l.limit, context.CancelFunc(nil)
	ctx, cancel = context.WithCancel(ctx)
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		n.key = keys[awaitDown(ctx, masters)]
		close(began)
		n.start(ctx)
	}()
	return func() {
		l.t.Helper()
		<-began
		awaitNil(l.t, "the job to run, and the others to wait", func() error {
			select {
			case <-ended:
				return nil
			default:
			}
			s, err := l.clients[0].Inspect(ctx, n.key)
			if runs := n.runs.Load(); err != nil || s.Waiting+int(runs) < len(l.clients) {
				return fmt.Errorf("%d runs, %d wait, %v", runs, s.Waiting, err)
			}
			return nil
		})
		cancel()
		<-ended
		if runs := n.runs.Load(); runs != 1 {
			l.t.Errorf("the nightly job ran %d times", runs)
		}
		for _, err := range n.errs {
			if !errors.Is(err, dlock.ErrHeld) {
				l.t.Errorf("the nightly job: %v", err)
			}
		}
		s, err := l.clients[0].Inspect(l.limit, n.key)
		if err == nil {
			err = l.clients[0].Break(l.limit, s)
		}
		if err != nil {
			l.t.Errorf("Break(%q): %v", n.key, err)
		}
	}
}

// awaitDown returns the first of the servers that refuses connections, or nil when ctx ends.
func awaitDown(ctx context.Context, servers []*redistest.Server) *redistest.Server {
	for ctx.Err() == nil {
		for _, s := range servers {
			if _, err := s.Do("PING"); errors.Is(err, syscall.ECONNREFUSED) {
				return s
			}
		}
		time.Sleep(pause)
	}
	return nil
}

// start runs the job on all Clients, and returns when no one waits any more.
func (n *nightly) start(ctx context.Context) {
	var mu sync.Mutex
	var replicas sync.WaitGroup
	for _, c := range n.clients {
		c = c.With(
			dlock.WithOutage(30*time.Second),
			dlock.WithTTL(dlock.DefaultTTL),
			dlock.WithMinHold(10*time.Minute),
		)
		replicas.Go(func() {
			sleep(ctx, rand.N(time.Second))
			err := c.Do(ctx, n.key, func(context.Context, *dlock.Lease) error {
				n.runs.Add(1)
				return nil
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				n.errs = append(n.errs, err)
			}
		})
	}
	replicas.Wait()
}

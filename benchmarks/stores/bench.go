package stores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// A bench has the servers, and how much is measured.
type bench struct {
	servers map[string]server
	window  time.Duration // of each turn
	ttl     time.Duration // of a holder that fails
	crowd   int           // waiters whose connections are counted
	rounds  int
	keys    atomic.Int64 // used so far
}

// run measures all contestants in all rows, and what notifications cost. The error says which turns failed.
func (b *bench) run(t testing.TB) (m *figures.Measurement, failed error) {
	var info string
	b.servers, info = startServers(t)
	m = figures.Describe(info)
	for name, s := range b.servers {
		m.Versions[name] = s.version
	}
	m.Of(fsync, "").Figures = timeFsync(t)
	begun := time.Now()
	fmt.Fprintln(os.Stderr, "load", figures.Read("/proc/loadavg"))
	for round := range b.rounds {
		for _, r := range table {
			if round > 0 && r.once {
				continue
			}
			fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), r.name)
			var all sync.WaitGroup
			errs := make([]error, len(contestants))
			for i, c := range contestants {
				to := m.Of(r.name, c.name)
				if all.Go(func() { errs[i] = b.turn(t.Context(), r, c, to) }); !r.fails {
					all.Wait()
				}
			}
			all.Wait()
			failed = errors.Join(failed, errors.Join(errs...))
		}
	}
	failed = errors.Join(failed, b.notifications(t.Context(), m))
	m.Took = time.Since(begun).Round(time.Second).String()
	m.Finish()
	return m, failed
}

func (b *bench) turn(ctx context.Context, r row, c contestant, to *figures.Result) (err error) {
	ctx, cancel := context.WithTimeout(ctx, b.window+2*time.Minute)
	defer cancel()
	t := &turn{bench: b, row: r, contestant: c, server: b.servers[c.server], addr: b.servers[c.server].addr, result: to}
	t.callers, t.others = cmp.Or(r.callers, b.crowd+1), t.server.connections()
	stores, use := 1, use{t.callers, 1, 30 * time.Second}
	if r.apart {
		proxy, err := faultproxy.New(t.addr)
		if err != nil {
			return err
		}
		defer proxy.Close()
		proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: slow / 2})
		t.addr, stores, use.callers = proxy.Addr(), t.callers+1, 1 // the last one is for pings
	}
	if r.fails {
		use.ttl = b.ttl
	}
	if r.callers == 0 { // a crowd
		use.rivals = t.callers
	}
	for range stores {
		s, failed := c.open(ctx, t.addr, use)
		if s.close != nil {
			defer s.close()
		}
		t.stores, err = append(t.stores, s), errors.Join(err, failed)
	}
	if err == nil {
		err = r.run(t, ctx)
	}
	if err != nil {
		err = fmt.Errorf("%s of %s: %w", r.name, c.name, err)
		fmt.Fprintln(os.Stderr, err)
	}
	return err
}

// quantile sorts all, and returns the milliseconds below which the share q lies.
func quantile(all []time.Duration, q float64) float64 {
	slices.Sort(all)
	return figures.Milliseconds(figures.Quantile(all, q))
}

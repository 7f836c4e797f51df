package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A trace remembers the calls of one case: the latest that have returned, and
// all that have not.
type trace struct {
	mu     sync.Mutex
	start  time.Time
	next   int
	latest []string
	open   map[int]string
}

// traced is how many calls are shown with a failure.
const traced = 30

func newTrace() *trace { return &trace{start: time.Now(), open: make(map[int]string)} }

// begin notes a call; the function that it returns notes the answer.
func (tr *trace) begin(format string, args ...any) (end func(answer any, err error)) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	id := tr.next
	tr.next++
	call := fmt.Sprintf("%10v  ", time.Since(tr.start).Round(10*time.Microsecond)) + fmt.Sprintf(format, args...)
	tr.open[id] = call
	return func(answer any, err error) { tr.end(id, call, answer, err) }
}

func (tr *trace) end(id int, call string, answer any, err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	delete(tr.open, id)
	if err != nil {
		answer = err
	}
	tr.latest = append(tr.latest, fmt.Sprintf("%s = %v", call, answer))
	if len(tr.latest) > 2*traced {
		tr.latest = slices.Clone(tr.latest[traced:])
	}
}

// hanging lists the calls that have not returned, oldest first.
func (tr *trace) hanging() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	ids := make([]int, 0, len(tr.open))
	for id := range tr.open {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	calls := make([]string, len(ids))
	for i, id := range ids {
		calls[i] = tr.open[id]
	}
	return calls
}

// String shows the latest calls, one a line.
func (tr *trace) String() string {
	hanging := tr.hanging()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	lines := tr.latest[max(0, len(tr.latest)-traced):]
	for _, call := range hanging[:min(len(hanging), traced)] {
		lines = append(slices.Clip(lines), call+" …has not returned")
	}
	return strings.Join(lines, "\n")
}

// A client is a Locker of the harness whose calls are traced. It has all
// optional methods, as a dlock.Forward has.
type client struct {
	inner dlock.Forward
	name  string
	trace *trace
}

var (
	_ dlock.Locker       = (*client)(nil)
	_ dlock.Acquirer     = (*client)(nil)
	_ dlock.BatchRenewer = (*client)(nil)
	_ dlock.Inspector    = (*client)(nil)
)

func (c *client) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	end := c.trace.begin("%s.TryAcquire(%s, %s, %v)", c.name, brief(key), brief(token), ttl)
	a, err := c.inner.TryAcquire(ctx, key, token, ttl)
	end(show(a), err)
	return a, err
}

func (c *client) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	end := c.trace.begin("%s.Renew(%s, %s, %v)", c.name, brief(key), brief(token), ttl)
	held, err := c.inner.Renew(ctx, key, token, ttl)
	end(held, err)
	return held, err
}

func (c *client) Release(ctx context.Context, key, token string) (bool, error) {
	end := c.trace.begin("%s.Release(%s, %s)", c.name, brief(key), brief(token))
	held, err := c.inner.Release(ctx, key, token)
	end(held, err)
	return held, err
}

func (c *client) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	end := c.trace.begin("%s.Acquire(%s, %s, %v)", c.name, brief(key), brief(token), ttl)
	a, err := c.inner.Acquire(ctx, key, token, ttl)
	end(show(a), err)
	return a, err
}

func (c *client) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	end := c.trace.begin("%s.RenewBatch(%s)", c.name, showBatch(batch))
	results, err := c.inner.RenewBatch(ctx, batch)
	end(showResults(results), err)
	return results, err
}

func (c *client) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	end := c.trace.begin("%s.Inspect(%s)", c.name, brief(key))
	h, err := c.inner.Inspect(ctx, key)
	end(showHold(h), err)
	return h, err
}

// brief quotes s, without its middle if it is long.
func brief(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q…%q(%d bytes)", s[:30], s[len(s)-20:], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// showBatch prints the elements of a batch, unless they are many.
func showBatch(batch []dlock.Renewal) string {
	if len(batch) > 4 {
		return fmt.Sprintf("%d renewals", len(batch))
	}
	shown := make([]string, len(batch))
	for i, r := range batch {
		shown[i] = showRenewal(r)
	}
	return strings.Join(shown, "; ")
}

func showRenewal(r dlock.Renewal) string {
	return fmt.Sprintf("%s, %s, %v", brief(r.Key), brief(r.Token), r.TTL)
}

func showResults(results []dlock.RenewResult) string {
	if len(results) > 4 {
		return fmt.Sprintf("%d results", len(results))
	}
	return fmt.Sprintf("%+v", results)
}

// show prints an Attempt without the fields that are zero.
func show(a dlock.Attempt) string {
	if a.Acquired {
		return fmt.Sprintf("acquired, fence %d", a.Fence)
	}
	holder := "?"
	if a.Holder != "" {
		holder = brief(a.Holder)
	}
	return fmt.Sprintf("held by %s for %v", holder, a.Remaining)
}

func showHold(h dlock.Hold) string {
	return fmt.Sprintf("{held = %v, by %s, for %v, waiting = %d}", h.Held, brief(h.Token), h.Remaining, h.Waiting)
}

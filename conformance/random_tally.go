package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/dlock-go/dlock"
)

// A tally counts what has happened, by what it is called.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *tally) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = make(map[string]int)
	}
	t.counts[what]++
}

// lacks says how often the wanted things have happened, or "" if each has so many times.
func (t *tally) lacks(want map[string]int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	enough := true
	for _, what := range slices.Sorted(maps.Keys(want)) {
		all = append(all, fmt.Sprintf("%s %d times, of at least %d", what, t.counts[what], want[what]))
		enough = enough && t.counts[what] >= want[what]
	}
	if enough {
		return ""
	}
	return strings.Join(all, "; ")
}

const (
	calls   = "calls of Acquire and TryAcquire"
	leases  = "leases that they returned"
	endLost = ", lost" // by the error of the release
)

// audited are counts that must be the same: first what workers have done, and then what the Observers
// of their Clients were told of it.
var audited = [][]string{
	{calls, "AcquireStart", "AcquireDone"},
	{leases, "AcquireDone without error", "LeaseDone", "ReleaseDone"},
	{leases + endLost, "LeaseDone" + endLost, "ReleaseDone" + endLost},
}

// audit says where the events of Clients that are closed do not agree with what workers have done.
func (t *tally) audit() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, same := range audited {
		for _, told := range same[1:] {
			if t.counts[told] != t.counts[same[0]] {
				return fmt.Errorf("the workers counted %d %s; Observers were told of %d: %s", t.counts[same[0]], same[0], t.counts[told], told)
			}
		}
	}
	return nil
}

// called counts an acquisition of a worker. A lease that is lost while the Observers are told of it,
// on a slow machine, is not returned, and nobody releases it.
func (t *tally) called(err error) {
	t.add(calls)
	diedAtOnce := errors.Is(err, dlock.ErrLost)
	if err == nil || diedAtOnce {
		t.ended(leases, err)
	}
	if diedAtOnce {
		t.ended("ReleaseDone", err)
	}
}

// ended counts what, and that it ended with the loss of the lease, if it did.
func (t *tally) ended(what string, err error) {
	t.add(what)
	t.addLost(what, err)
}

func (t *tally) addLost(what string, err error) {
	if errors.Is(err, dlock.ErrLost) {
		t.add(what + endLost)
	}
}

func (t *tally) observer() *dlock.Observer {
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context {
			t.add("AcquireStart")
			return ctx
		},
		AcquireDone: func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context {
			t.add("AcquireDone")
			if i.Err == nil {
				t.add("AcquireDone without error")
			}
			return ctx
		},
		LeaseDone:   func(_ context.Context, i dlock.LeaseDoneInfo) { t.ended("LeaseDone", i.Err) },
		ReleaseDone: func(_ context.Context, i dlock.ReleaseDoneInfo) { t.ended("ReleaseDone", i.Err) },
	}
}

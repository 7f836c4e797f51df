package conformance

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The verdicts are what Run knows of its cases. A nil one keeps nothing.
type verdicts struct {
	root    string // of their names
	mu      sync.Mutex
	skipped map[string][]string // by their reasons
	failed  []string            // with all that is said
	running []string
}

// begin notes that a case runs, until end is called.
func (v *verdicts) begin(name string) (end func()) {
	if v == nil {
		return func() {}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.running = append(v.running, name)
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		i := slices.Index(v.running, name)
		v.running = slices.Delete(v.running, i, i+1)
	}
}

func (v *verdicts) fail(message string) {
	if v != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.failed = append(v.failed, message)
	}
}

// printInTime prints what is known shortly before go test -timeout ends the process, which would print only where its
// goroutines are. The caller calls stop when all cases have ended.
func (v *verdicts) printInTime(t *testing.T) (stop func()) {
	deadline, limited := t.Deadline()
	if !limited {
		return func() {}
	}
	left := time.Until(deadline)
	timer := time.AfterFunc(left-min(5*time.Second, left/10), func() { fmt.Fprint(os.Stderr, v.soFar()) })
	return func() { timer.Stop() }
}

// soFar says which cases have failed, and which still run.
func (v *verdicts) soFar() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return fmt.Sprintf("go test -timeout is about to end %s\nstill running: %s\nfailed so far: %d\n%s",
		strings.TrimSuffix(v.root, "/"), strings.Join(v.running, ", "), len(v.failed), strings.Join(v.failed, ""))
}

// skip skips t, and says why in no line of this file, which need not interest anybody.
func (v *verdicts) skip(t *testing.T, reason string) {
	if v != nil {
		v.mu.Lock()
		v.skipped[reason] = append(v.skipped[reason], strings.TrimPrefix(t.Name(), v.root))
		v.mu.Unlock()
	}
	fmt.Fprintln(t.Output(), reason)
	t.SkipNow()
}

// String lists the reasons, each with its cases, and counts those that were inconclusive.
func (v *verdicts) String() string {
	var lines strings.Builder
	for _, reason := range slices.Sorted(maps.Keys(v.skipped)) {
		slices.Sort(v.skipped[reason])
		fmt.Fprintf(&lines, "  %s\n    %s\n", reason, strings.Join(v.skipped[reason], ", "))
	}
	if lines.Len() == 0 {
		return ""
	}
	if names := v.skipped[tooSlow.reason]; len(names) > 0 {
		fmt.Fprintf(&lines, "inconclusive cases: %d (%s)\n", len(names), strings.Join(names, ", "))
	}
	return "skipped, and why:\n" + lines.String()
}

// hint names a cause that explains failures of many cases, or nothing.
func (h Harness) hint(t *testing.T) (text string) {
	if h.PerCase != nil {
		h = h.PerCase(t)
	}
	_ = h.stage(t, func(t *testing.T) error {
		return newScene(t, h, 0).play(func(s *scene) {
			one, other := s.clients2()
			g := s.grant(one, s.key(), s.token("holder"), long)
			renewed, _ := other.Renew(s.ctx, g.key, g.token, long)
			released, _ := other.Release(s.ctx, g.key, g.token)
			if g.Acquired && !(renewed && released) {
				text = fmt.Sprintf("hint: a lease belongs to its token, and any client may renew or release it, not only the one that acquired it. "+
					"Of a lease of one client, another client's Renew said held = %v, and its Release held = %v. This makes many cases fail.\n", renewed, released)
			}
		})
	})
	return text
}

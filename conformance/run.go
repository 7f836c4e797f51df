package conformance

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/bubble"
)

// Run checks every clause of the contract as a subtest. A clause that does not apply to the store is skipped, with the
// reason. At the end, Run sums these up.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.New == nil && h.PerCase == nil {
		t.Fatal("conformance: Harness.New is nil")
	}
	if _, err := strict(); err != nil {
		t.Fatal(err)
	}
	h.verdicts = newVerdicts(t.Name() + "/")
	defer h.verdicts.printInTime(t)()
	runAll(t, h, cases)
	if t.Failed() {
		t.Run("Hint", func(t *testing.T) { fmt.Fprint(t.Output(), h.hint(t)) })
	}
	fmt.Fprint(t.Output(), h.verdicts)
}

// runAll runs the cases: one at a time those that must be alone, and then several of the others,
// however few tests go test would run in parallel. They wait for leases to expire most of the time.
func runAll(t *testing.T, h Harness, cases []testCase) {
	var others []testCase
	for _, c := range cases {
		if h.alone(c) {
			runCase(t, h, c)
		} else {
			others = append(others, c)
		}
	}
	together(12, len(others), func(i int) { runCase(t, h, others[i]) })
}

// together calls f with 0 to n-1, at most so many at the same time.
func together(most, n int, f func(i int)) {
	places := make(chan struct{}, most)
	var all sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			f(i)
		})
	}
	all.Wait()
}

func (h Harness) alone(c testCase) bool { return c.alone || h.Bubble }

func runCase(t *testing.T, h Harness, c testCase) {
	t.Run(c.name, func(t *testing.T) {
		h.verdicts.mu.locked(func() { h.verdicts.running[c.name] = true })
		defer h.verdicts.mu.locked(func() { delete(h.verdicts.running, c.name) })
		own := h
		if h.PerCase != nil {
			own = h.PerCase(t)
		}
		if own.New == nil {
			t.Fatal("conformance: Harness.PerCase returned a Harness whose New is nil")
		}
		h.report(t, c, play(t, own, c))
	})
}

// report fails or skips t. A failure names the line of the chapter, not one of this file.
func (h Harness) report(t *testing.T, c testCase, err error) {
	var skip skipError
	switch {
	case err == nil:
	case errors.As(err, &skip):
		name := strings.TrimPrefix(t.Name(), h.verdicts.root)
		h.verdicts.mu.locked(func() { h.verdicts.skipped[skip.reason] = append(h.verdicts.skipped[skip.reason], name) })
		fmt.Fprintln(t.Output(), skip.reason) // a call of Skip would name this file, which is of no interest
		t.SkipNow()
	default:
		text := fmt.Sprintf("%s%s\n", message(c, err), keepHistory(t, err))
		h.verdicts.mu.locked(func() { h.verdicts.failed = append(h.verdicts.failed, t.Name()+": "+text) })
		fmt.Fprint(t.Output(), text)
		t.Fail()
	}
}

// tries is how many times a case is played that is inconclusive.
const tries = 5

// play runs one case and returns what is wrong, a skipError, or nil.
func play(t *testing.T, h Harness, c testCase) error {
	if err := c.needs.missing(h); err != nil {
		return err
	}
	if c.whole != nil {
		return c.whole(t, h)
	}
	h.idles = c.idles
	strict, err := strict()
	if err != nil {
		return err
	}
	for attempt := range tries {
		err = h.stage(t, func(t *testing.T) error { return newScene(t, h, attempt).play(c.play) })
		if !errors.Is(err, errInconclusive) && (c.faults || !timedOut(err)) {
			return err
		}
	}
	switch {
	case !errors.Is(err, errInconclusive):
		return err
	case h.Bubble:
		return fmt.Errorf("%w, though no time passes in a bubble unless the store sleeps: raise Harness.TTL", err)
	case strict:
		return fmt.Errorf("%w, %d times, which %s=1 makes a failure: raise Harness.TTL", err, tries, strictVariable)
	}
	return tooSlow
}

// tooSlow skips a case that was inconclusive each time.
var tooSlow = skipError{fmt.Sprintf("%v, %d times: raise Harness.TTL", errInconclusive, tries)}

// strictVariable is the environment variable that makes tooSlow a failure.
const strictVariable = "DLOCK_CONFORMANCE_STRICT"

func strict() (bool, error) {
	switch v := os.Getenv(strictVariable); v {
	case "", "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, fmt.Errorf("conformance: %s is %q; want 1, 0 or nothing", strictVariable, v)
	}
}

// timedOut reports whether err is a time-out of the client, which a busy machine may cause.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// stage calls f where a case of this harness has to run.
func (h Harness) stage(t *testing.T, f func(*testing.T) error) error {
	if h.Bubble {
		return inBubble(t, f)
	}
	return f(t)
}

// inBubble calls f in a bubble. Goroutines that f leaves behind are an error. The bubble is watched from outside, because
// its own time stands still if f hangs in something that package synctest does not know.
func inBubble(t *testing.T, f func(*testing.T) error) error {
	const limit = 5 * time.Minute
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- errors.Join(err, leftBehind(recover())) }()
		bubble.Run(t, func(t *testing.T) { err = f(t) })
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("the bubble did not end within %v of real time: something in it waits for what is not a channel, a timer, or another goroutine of the bubble", limit)
	}
}

// leftBehind turns what package synctest panics with, when a bubble ends before
// its goroutines, into an error. Other panics go on.
func leftBehind(p any) error {
	if p == nil {
		return nil
	}
	err, ok := p.(error)
	if !ok || err.Error() != "deadlock: main bubble goroutine has exited but blocked goroutines remain" {
		panic(p)
	}
	return errors.New("goroutines are left behind after the clients were closed (NoLeaks)")
}

// errInconclusive says that the machine was too slow to tell right from wrong.
var errInconclusive = errors.New("the machine was too slow to tell")

// A skipError says why a case does not apply to a store.
type skipError struct{ reason string }

func (e skipError) Error() string { return "skipped: " + e.reason }

// The verdicts are what Run knows of its cases.
type verdicts struct {
	root    string // of their names
	mu      mutex
	skipped map[string][]string // by their reasons
	failed  []string            // with all that is said
	running map[string]bool
}

func newVerdicts(root string) *verdicts {
	return &verdicts{root: root, skipped: make(map[string][]string), running: make(map[string]bool)}
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

func (v *verdicts) soFar() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return fmt.Sprintf("go test -timeout is about to end %s\nstill running: %s\nfailed so far: %d\n%s",
		strings.TrimSuffix(v.root, "/"), strings.Join(slices.Sorted(maps.Keys(v.running)), ", "), len(v.failed), strings.Join(v.failed, ""))
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

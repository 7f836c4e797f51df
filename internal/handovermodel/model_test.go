//go:build !race

// The race detector would find nothing here, and takes many times as long.

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, c := range small() {
		t.Run(c.Name, func(t *testing.T) {
			if r := holds(t, c); r.Full > 0 {
				t.Errorf("%d steps were not taken for want of room", r.Full)
			}
		})
	}
}

// TestLarge takes a quarter of an hour: DLOCK_MODEL=large go test -timeout 0 ./internal/handovermodel
func TestLarge(t *testing.T) {
	if !wanted("large") {
		t.Skip("DLOCK_MODEL is not large")
	}
	for _, c := range large() {
		t.Run(c.Name, func(t *testing.T) { holds(t, c) })
	}
}

// wanted reports whether the environment asks for a size.
func wanted(size string) bool { return os.Getenv("DLOCK_MODEL") == size }

func holds(t *testing.T, c *Config) Result {
	r := Search(c)
	if r.Broken != 0 || !r.Complete {
		t.Errorf("got %v, want all states, and no property broken", r.Text(c))
	}
	t.Log(r.Text(c))
	return r
}

func TestBreaks(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, b := range breaks() {
		t.Run(fmt.Sprintf("%d %s", b.Rule, b.Config.Name), func(t *testing.T) {
			c := *b.Config.lacks(b.Rule)
			r := Search(&c)
			if r.Broken != c.Check {
				t.Fatalf("without rule %d: got %v, want a violation of %v", b.Rule, r.Text(&c), c.Check)
			}
			if text := r.Text(&c); !strings.Contains(text, "  1  A begins to acquire") || strings.Contains(text, "without faults") != (r.Broken == P4) {
				t.Errorf("got %v, want who did what, and for P4 what follows", text)
			}
			if !wanted("large") {
				return
			}
			c.Without &^= rule(b.Rule)
			if r := Search(&c); r.Broken != 0 {
				t.Errorf("with rule %d: got %v, want no violation", b.Rule, r.Text(&c))
			}
		})
	}
}

// Without replicas, the fences of two masters may be equal, and in the wrong order.
func TestFencesOfTwoMasters(t *testing.T) {
	for name, c := range map[string]struct {
		begin []string
		why   string
	}{
		"equal": {aHoldsSplit, "a lease begins under the fence of one before"},
		"in the wrong order": {
			slices.Concat(aHoldsSplit, []string{"A releases", "former server: release A", "A reads", "A begins", "former server: try A", "A reads"}),
			"a lease begins under a fence that is below that of one before",
		},
	} {
		config := base(name, 2).only(P2).with(split, 2).until(1).quick().again().after(c.begin)
		if r := Search(config); r.Why != c.why {
			t.Errorf("%s: got %v, want %q", name, r.Text(config), c.why)
		}
	}
}

// No rule is left out by mistake.
func TestEveryRuleHasABreak(t *testing.T) {
	shown := map[int]bool{}
	for _, b := range breaks() {
		shown[b.Rule] = true
		shown[oldIsAHint] = shown[oldIsAHint] || b.Config.without(oldIsAHint) // guards against the same history as another
	}
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31} {
		if !shown[n] {
			t.Errorf("no configuration shows what breaks without rule %d", n)
		}
	}
}

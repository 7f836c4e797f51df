//go:build !race

// The race detector would find nothing here, and takes many times as long.

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/internal/modelcheck"
)

var wantsLarge = os.Getenv("DLOCK_MODEL") == "large"

func TestHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, c := range small() {
		t.Run(c.Name, func(t *testing.T) { holds(t, c) })
	}
}

// TestLarge takes long: DLOCK_MODEL=large go test -timeout 0 ./internal/redlockmodel
func TestLarge(t *testing.T) {
	if !wantsLarge {
		t.Skip("DLOCK_MODEL is not large")
	}
	for _, c := range large() {
		t.Run(c.Name, func(t *testing.T) { holds(t, c) })
	}
}

func holds(t *testing.T, c *Config) {
	r := modelcheck.Search(c, c.Limit)
	if r.Err != nil || !r.Complete || r.Full > 0 {
		t.Errorf("got %v, want all states, and no property broken", c.Text(&r))
	}
	t.Log(c.Text(&r))
}

// A walk takes the same steps each time.
func TestWalks(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, c := range walks() {
		t.Run(c.Name, func(t *testing.T) {
			steps := 100_000
			if wantsLarge {
				steps = 300_000
			}
			if r := modelcheck.Walk(c, 1, steps, 120); r.Err != nil {
				t.Error(c.Text(&r))
			}
		})
	}
}

// Without each rule a property is broken. (TestLarge: and with all rules it is not broken so soon.)
func TestBreaks(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, c := range breaks() {
		t.Run(c.Title(), func(t *testing.T) {
			r := modelcheck.Search(c, c.Limit)
			text := c.Text(&r)
			if r.Err == nil || !strings.HasPrefix(text, string(c.Breaks)) || len(r.Trace) != c.Steps {
				t.Fatalf("got %v, want %v broken after %d steps", text, c.Breaks, c.Steps)
			}
			t.Log(text)
			if c.Without == 0 || !wantsLarge {
				return
			}
			c.Without = 0
			if r := modelcheck.Search(c, r.States); r.Err != nil {
				t.Errorf("with all rules: %v", c.Text(&r))
			}
		})
	}
}

// No rule is left out by mistake.
func TestEveryRuleHasABreak(t *testing.T) {
	var shown rules
	for _, c := range breaks() {
		shown |= c.Without
	}
	if want := rules(1)<<len(ruleNames) - 1; shown != want {
		t.Errorf("got %b, want %b", shown, want)
	}
}

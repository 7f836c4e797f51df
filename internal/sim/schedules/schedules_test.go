package schedules

import (
	"fmt"
	"os"
	"testing"

	"github.com/dlock-go/dlock/internal/israce"
)

// large is set every night, as for the models.
var large = os.Getenv("DLOCK_MODEL") == "large"

// TestSchedules demands that nothing breaks. Schedules that begin as a history of a rule, or that have
// more than two deviations, are run with DLOCK_MODEL=large, and so are most of those with two. The race detector sees one deviation.
func TestSchedules(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	seen := make(map[string]bool)
	for _, r := range rules() {
		c := r.config
		switch {
		case israce.Enabled:
			c.depth = 1
		case !large:
			c.depth = min(c.depth, 2)
		}
		name := fmt.Sprint(c.faults, c.ttl, c.rounds, c.turns, c.begin, c.depth)
		if seen[name] || !large && len(c.begin) > 3 {
			continue
		}
		seen[name] = true
		t.Run(r.text, func(t *testing.T) {
			if result := explore(t, c); result.broken != "" {
				t.Error(result)
			} else {
				t.Log(result)
			}
		})
	}
}

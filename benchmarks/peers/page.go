package peers

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
)

var performance = figures.Page{
	Path:  "../../docs/performance.md",
	Files: []string{"orders", "several", "majority"},
	Describe: func(m *figures.Measurement) [][2]string {
		v := m.Versions
		return [][2]string{
			{"Redis, Go", m.Redis + ", " + m.Go},
			{"redsync, redislock", v["github.com/go-redsync/redsync/v4"] + ", " + v["github.com/bsm/redislock"]},
			{"go-redis, redigo, rueidis and its rueidislock", v["github.com/redis/go-redis/v9"] + ", " + v["github.com/gomodule/redigo"] + ", " + v["github.com/redis/rueidis"]},
		}
	},
	Ratio: ratio,
}

// ratio is that of a figure of r to the bare client's or to the best peer's, on the same client.
func ratio(m *figures.Measurement, r *figures.Result, name string) string {
	name, beside, _ := strings.Cut(name, " / ")
	var others []float64
	for _, c := range alone {
		same := c.client == contestantOf(r.Contestant).client && (c.name == beside || beside == "best" && c.peer())
		if x := m.Find(r.Scenario, c.id()).Figure(name); same && !math.IsNaN(x) {
			others = append(others, x)
		}
	}
	if len(others) == 0 {
		return figures.Human(math.NaN())
	}
	best := slices.Min(others)
	if name == "rate" {
		best = slices.Max(others)
	}
	return strconv.FormatFloat(r.Figure(name)/best, 'f', 2, 64)
}

package stores

import (
	"math"
	"strconv"
	"strings"

	"github.com/dlock-go/dlock/benchmarks/internal/figures"
)

var performance = figures.Page{
	Path:  "../../docs/performance.md",
	Files: []string{"stores"},
	Describe: func(m *figures.Measurement) [][2]string {
		v, disk := m.Versions, m.Find(fsync, "")
		return [][2]string{
			{"Redis, PostgreSQL, etcd, Go", m.Redis + ", " + v["postgres"] + ", " + v["etcd"] + ", " + m.Go},
			{"go-redis, pgx, client of etcd", v["github.com/redis/go-redis/v9"] + ", " + v["github.com/jackc/pgx/v5"] + ", " + v["go.etcd.io/etcd/client/v3"]},
			{fsync, figures.Human(disk.Figure("p50 ms")) + " ms, 99th percentile " + figures.Human(disk.Figure("p99 ms")) + " ms"},
		}
	},
	Ratio: ratio,
}

// ratio is that of a figure of r to another one, or to the same figure of another contestant.
func ratio(m *figures.Measurement, r *figures.Result, name string) string {
	name, beside, _ := strings.Cut(name, " / ")
	by := r.Figure(beside)
	if math.IsNaN(by) {
		by = m.Find(r.Scenario, beside).Figure(name)
	}
	if x := r.Figure(name) / by; !math.IsNaN(x) {
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return figures.Human(math.NaN())
}

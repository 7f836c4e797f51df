package peers

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/internal/redistest"
)

// A measurement is a whole run.
type measurement struct {
	Date, Took, Command        string
	Machine, Kernel, Redis, Go string
	Versions                   map[string]string // of the libraries
	Results                    []*result
}

// A result is what all turns of a contestant in a scenario have shown.
type result struct {
	Scenario, Contestant string
	Figures              map[string][]float64 // one of each turn

	waits []time.Duration // of all turns, for a lock that others want
}

// describe says where and of what the run is.
func describe(server *redistest.Server) *measurement {
	info, _ := server.Do("INFO", "server")
	text, _ := info.(string)
	m := &measurement{
		Date:     time.Now().UTC().Format(time.DateOnly),
		Machine:  fmt.Sprintf("%d × %s", runtime.NumCPU(), fieldOf(read("/proc/cpuinfo"), "model name")),
		Kernel:   runtime.GOOS + " " + strings.TrimSpace(read("/proc/sys/kernel/osrelease")),
		Redis:    fieldOf(text, "redis_version"),
		Go:       runtime.Version(),
		Versions: make(map[string]string),
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, d := range build.Deps {
			m.Versions[d.Path] = d.Version
		}
	}
	return m
}

func read(path string) string {
	text, _ := os.ReadFile(path) // not every system has it
	return string(text)
}

// fieldOf returns what follows name and a colon at the start of a line.
func fieldOf(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Trim(rest, ": \t\r\n")
		}
	}
	return "unknown"
}

func (m *measurement) find(scenario, contestant string) *result {
	i := slices.IndexFunc(m.Results, func(r *result) bool { return r.Scenario == scenario && r.Contestant == contestant })
	if i < 0 {
		return nil
	}
	return m.Results[i]
}

// of returns the result that a turn adds to.
func (m *measurement) of(scenario, contestant string) *result {
	r := m.find(scenario, contestant)
	if r == nil {
		r = &result{Scenario: scenario, Contestant: contestant, Figures: make(map[string][]float64)}
		m.Results = append(m.Results, r)
	}
	return r
}

// finish turns waits into quantiles, and leaves no more digits than a run repeats.
func (m *measurement) finish() {
	for _, r := range m.Results {
		slices.Sort(r.waits)
		for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99, "longest": 1} {
			if len(r.waits) > 0 {
				r.Figures[name] = []float64{milliseconds(quantile(r.waits, q))}
			}
		}
		for _, all := range r.Figures {
			for i, x := range all {
				all[i] = round(x, 4)
			}
		}
	}
}

// round leaves so many digits.
func round(x float64, digits int) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64)
	return rounded
}

// save puts each result on a line of its own.
func (m *measurement) save(file string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	lines := strings.ReplaceAll(string(text), `{"Scenario"`, "\n"+`{"Scenario"`) + "\n"
	return os.WriteFile(file, []byte(lines), 0o644)
}

func readMeasurement(file string) (*measurement, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m := new(measurement)
	return m, json.Unmarshal(text, m)
}

// figure is the median of all turns. Without any, it is not a number.
func (r *result) figure(name string) float64 {
	if r == nil || len(r.Figures[name]) == 0 {
		return math.NaN()
	}
	return median(slices.Clone(r.Figures[name]))
}

// human writes two digits, and all of those before the point, with commas. Less than nothing is
// within what a measurement is wrong by.
func human(x float64) string {
	switch {
	case math.IsNaN(x):
		return "–"
	case x < 0.005:
		return "0"
	case x < 1:
		return strconv.FormatFloat(round(x, 2), 'f', -1, 64)
	case x < 9.95:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", x), ".0")
	}
	text := fmt.Sprintf("%.0f", x)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

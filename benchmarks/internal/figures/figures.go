// Package figures keeps what the programs in benchmarks have measured, and draws the tables of docs/performance.md.
package figures

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Measurement is a whole run.
type Measurement struct {
	Date, Took, Command        string
	Machine, Kernel, Redis, Go string
	Versions                   map[string]string // of the libraries
	Results                    []*Result
}

// A Result is what all turns of a contestant in a scenario have shown.
type Result struct {
	Scenario, Contestant string
	Figures              map[string][]float64 // one of each turn

	Waits []time.Duration `json:"-"` // of all turns, for a lock that others want
}

// Describe says where and of what a run is. info is what Redis says of itself.
func Describe(info string) *Measurement {
	m := &Measurement{
		Date:     time.Now().UTC().Format(time.DateOnly),
		Machine:  fmt.Sprintf("%d × %s", runtime.NumCPU(), Field(Read("/proc/cpuinfo"), "model name")),
		Kernel:   runtime.GOOS + " " + strings.TrimSpace(Read("/proc/sys/kernel/osrelease")),
		Redis:    Field(info, "redis_version"),
		Go:       runtime.Version(),
		Versions: make(map[string]string),
	}
	for line := range strings.Lines(Read("go.mod")) { // not every build of a test knows its dependencies
		if path, version, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "require "), " v"); ok && !strings.Contains(line, "// indirect") {
			m.Versions[path] = "v" + version
		}
	}
	return m
}

// Read returns the text of a file, which is empty if there is none: not every system has it.
func Read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

// Field returns what follows name and a colon at the start of a line.
func Field(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Trim(rest, ": \t\r\n")
		}
	}
	return "unknown"
}

// Find returns a result, or nil.
func (m *Measurement) Find(scenario, contestant string) *Result {
	i := slices.IndexFunc(m.Results, func(r *Result) bool { return r.Scenario == scenario && r.Contestant == contestant })
	if i < 0 {
		return nil
	}
	return m.Results[i]
}

// Of returns the result that a turn adds to.
func (m *Measurement) Of(scenario, contestant string) *Result {
	r := m.Find(scenario, contestant)
	if r == nil {
		r = &Result{Scenario: scenario, Contestant: contestant, Figures: make(map[string][]float64)}
		m.Results = append(m.Results, r)
	}
	return r
}

// Finish turns waits into quantiles, and leaves no more digits than a run repeats.
func (m *Measurement) Finish() {
	for _, r := range m.Results {
		slices.Sort(r.Waits)
		for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99, "longest": 1} {
			if len(r.Waits) > 0 {
				r.Figures[name] = []float64{Milliseconds(Quantile(r.Waits, q))}
			}
		}
		for _, all := range r.Figures {
			for i, x := range all {
				all[i] = round(x, 4)
			}
		}
	}
}

// Save puts each result on a line of its own.
func (m *Measurement) Save(file string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	lines := strings.ReplaceAll(string(text), `{"Scenario"`, "\n"+`{"Scenario"`) + "\n"
	return os.WriteFile(file, []byte(lines), 0o644)
}

func open(file string) (*Measurement, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m := new(Measurement)
	return m, json.Unmarshal(text, m)
}

// Figure is the median of all turns. Without any, it is not a number.
func (r *Result) Figure(name string) float64 {
	if r == nil || len(r.Figures[name]) == 0 {
		return math.NaN()
	}
	return Median(slices.Clone(r.Figures[name]))
}

// Quantile returns the element of sorted below which the share q lies.
func Quantile[T any](sorted []T, q float64) (x T) {
	if len(sorted) == 0 {
		return x
	}
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*q))]
}

// Median sorts all.
func Median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return Quantile(all, 0.5)
}

func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// round leaves so many digits.
func round(x float64, digits int) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64)
	return rounded
}

// Human writes two digits, and all of those before the point, with commas. Less than nothing is
// within what a measurement is wrong by.
func Human(x float64) string {
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

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A measurement is a whole run, as data.json has it.
type measurement struct {
	Date, Took, Command        string
	Machine, Kernel, Redis, Go string
	Versions                   map[string]string // of the libraries
	Cut                        bool              // turns were left out, since the time was up
	Majority                   bool              `json:",omitempty"` // the scenarios are those of onNodes
	Results                    []*result
}

// A result is what all turns of a contestant in a scenario have shown.
type result struct {
	Scenario, Contestant string
	RTT                  float64 // in ms
	N                    int
	Figures              map[string][]float64 // one of each turn
	Waits                []float64            `json:",omitempty"` // in ms: the quantiles 0, 1%, 2% … 100% of all turns

	waits []time.Duration
}

func (r *result) String() string {
	return fmt.Sprintf("%s, %d, RTT %v ms: %s: %v", r.Scenario, r.N, r.RTT, r.Contestant, r.Figures)
}

const steps = 100 // between the quantiles

// describe says where and of what the run is.
func describe(b bench) *measurement {
	m := &measurement{
		Date:     time.Now().UTC().Format(time.DateOnly),
		Machine:  fmt.Sprintf("%d × %s", runtime.NumCPU(), field("/proc/cpuinfo", "model name")),
		Kernel:   runtime.GOOS + " " + strings.TrimSpace(read("/proc/sys/kernel/osrelease")),
		Go:       runtime.Version(),
		Versions: make(map[string]string),
	}
	info, _ := b.server.Do("INFO", "server")
	text, _ := info.(string)
	m.Redis = fieldOf(text, "redis_version")
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

func field(path, name string) string { return fieldOf(read(path), name) }

// fieldOf returns what follows name and a colon at the start of a line.
func fieldOf(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Trim(rest, ": \t\r\n")
		}
	}
	return "unknown"
}

// add notes a turn.
func (m *measurement) add(s scenario, c contestant, figures map[string]float64, waits []time.Duration) {
	r := m.find(s.Name, s.RTT, s.N, c.id())
	if r == nil {
		r = &result{Scenario: s.Name, RTT: milliseconds(s.RTT), N: s.N, Contestant: c.id(), Figures: make(map[string][]float64)}
		m.Results = append(m.Results, r)
	}
	for name, x := range figures {
		r.Figures[name] = append(r.Figures[name], x)
	}
	r.waits = append(r.waits, waits...)
}

func (m *measurement) contestants() []contestant {
	if m.Majority {
		return majorities
	}
	return contestants
}

func (m *measurement) find(name string, rtt time.Duration, n int, contestant string) *result {
	i := slices.IndexFunc(m.Results, func(r *result) bool {
		return r.Scenario == name && r.RTT == milliseconds(rtt) && r.N == n && r.Contestant == contestant
	})
	if i < 0 {
		return nil
	}
	return m.Results[i]
}

// finish turns waits into quantiles.
func (m *measurement) finish() {
	for _, r := range m.Results {
		slices.Sort(r.waits)
		for i := 0; len(r.waits) > 0 && i <= steps; i++ {
			r.Waits = append(r.Waits, round(milliseconds(quantile(r.waits, float64(i)/steps)), 4))
		}
		for _, all := range r.Figures {
			for i, x := range all {
				all[i] = round(x, 4) // more than a run repeats
			}
		}
	}
}

// round leaves so many digits.
func round(x float64, digits int) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64)
	return rounded
}

// rtt is the round-trip time of the slow network, or 0 if there was none.
func (m *measurement) rtt() (d time.Duration) {
	for _, r := range m.Results {
		d = max(d, time.Duration(r.RTT*float64(time.Millisecond)))
	}
	return d
}

func (m *measurement) save(path string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(breakLines(text), '\n'), 0o644)
}

// breakLines puts each result on a line of its own.
func breakLines(text []byte) []byte {
	return []byte(strings.ReplaceAll(string(text), `{"Scenario"`, "\n"+`{"Scenario"`))
}

func readMeasurement(path string) (*measurement, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := new(measurement)
	return m, json.Unmarshal(text, m)
}

// file is the name of what a run writes, unless -data names another file.
func file(majority bool) string {
	if majority {
		return "majority.json"
	}
	return "data.json"
}

// write writes the page and the charts below the folder docs. The other part of the page comes from
// the file of the last run that has measured it.
func (m *measurement) write(docs string) error {
	other, err := readMeasurement(file(!m.Majority))
	if err != nil {
		return err
	}
	for name, content := range files(m, other) {
		if err := os.WriteFile(filepath.Join(docs, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files returns the page and the charts of both parts, by their names below docs.
func files(a, b *measurement) map[string]string {
	if a.Majority {
		a, b = b, a
	}
	all := map[string]string{"performance.md": a.text() + "\n" + b.text()}
	for _, m := range []*measurement{a, b} {
		for name, svg := range m.charts() {
			all["pictures/"+name+".svg"] = svg
		}
	}
	return all
}

package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// The page without its figures: the part about one server, and the chapter about several.
var (
	//go:embed performance.md.tmpl
	prose string
	//go:embed several.md.tmpl
	majorityProse string
)

// text returns the part of docs/performance.md with these figures.
func (m *measurement) text() string {
	prose := prose
	if m.Majority {
		prose = majorityProse
	}
	page := template.New("page").Funcs(template.FuncMap{
		"table": m.table, "columns": m.columns, "settings": m.settings, "picture": picture, "version": m.version, "ms": ms,
		"crowds": m.crowds, "figure": m.figure,
	})
	var b strings.Builder
	if err := template.Must(page.Parse(prose)).Execute(&b, m); err != nil {
		panic(err) // the test has written this text
	}
	return b.String()
}

// SlowNetwork is the round-trip time that was added, or 0.
func (m *measurement) SlowNetwork() time.Duration { return m.rtt() }

// table has a row for each contestant. A column is its title and the name of its figure, and "slow",
// for the slow network, or a scenario and the number of its processes, if the figure is from there.
func (m *measurement) table(scenario string, rtt time.Duration, n int, columns ...string) string {
	t := newTable()
	for _, c := range columns {
		title, _, _ := strings.Cut(c, "|")
		t.head(title)
	}
	for _, c := range m.contestants() {
		r := m.find(scenario, rtt, n, c.id())
		if r == nil {
			continue
		}
		t.row(c.id())
		for _, column := range columns {
			_, figure, _ := strings.Cut(column, "|")
			r := r
			if name, other, ok := strings.Cut(figure, "|"); ok {
				figure, r = name, m.elsewhere(other, scenario, rtt, n, c)
			}
			t.cell(r.text(figure))
		}
	}
	return t.String()
}

// elsewhere finds a result for a column that says where it is.
func (m *measurement) elsewhere(place, scenario string, rtt time.Duration, n int, c contestant) *result {
	if place == "slow" {
		return m.find(scenario, m.rtt(), n, c.id())
	}
	name, number, _ := strings.Cut(place, "|")
	if k, err := strconv.Atoi(number); err == nil {
		n = k
	}
	return m.find(name, rtt, n, c.id())
}

// columns has a row for each contestant, and a column for each number of processes.
func (m *measurement) columns(rtt time.Duration, figure string) string {
	t := newTable()
	for _, n := range crowds {
		t.head(fmt.Sprint(n, " processes"))
	}
	for _, c := range contestants {
		if m.find("processes", rtt, crowds[0], c.id()) == nil {
			continue
		}
		t.row(c.id())
		for _, n := range crowds {
			t.cell(m.find("processes", rtt, n, c.id()).text(figure))
		}
	}
	return t.String()
}

// crowds is a table of the scenarios in which processes want a lock on several servers.
func (m *measurement) crowds() string {
	t := newTable()
	figures := []string{"rate", "gap trips", "p50", "p99", "least", "most", "commands"}
	for _, title := range []string{"", "handovers a second", "a handover, in round trips", "wait p50, ms", "p99", "least", "most", "commands"} {
		t.head(title)
	}
	for _, s := range onNodes(m.rtt()) {
		if s.N <= 1 || !strings.HasSuffix(s.Name, " down") && !strings.HasPrefix(s.Name, "hold ") {
			continue
		}
		for i, c := range s.among {
			title := ""
			if i == 0 {
				title = fmt.Sprintf("%d, %s", s.N, s.Name)
			}
			t.row(title)
			t.cell(strings.TrimSuffix(c.id(), " (go-redis)"))
			for _, figure := range figures {
				t.cell(m.find(s.Name, m.rtt(), s.N, c.id()).text(figure))
			}
		}
	}
	return t.String()
}

// figure is one figure of redlock.
func (m *measurement) figure(scenario string, n int, name string) string {
	return m.find(scenario, m.rtt(), n, "redlock (go-redis)").text(name)
}

// settings has a row for each library, with the settings that are not its defaults.
func (m *measurement) settings() string {
	t := newTable()
	t.head("settings")
	t.head("why")
	seen := ""
	for _, c := range m.contestants() {
		if c.name == seen {
			continue
		}
		seen = c.name
		t.row(c.name)
		t.cell(c.settings)
		t.cell(c.why)
	}
	return t.String()
}

// picture is a chart, for light and dark pages.
func picture(name, alt string) string {
	return fmt.Sprintf(`<picture>
  <source media="(prefers-color-scheme: dark)" srcset="pictures/%[1]s-dark.svg">
  <img alt="%[2]s" src="pictures/%[1]s-light.svg">
</picture>`, name, alt)
}

func (m *measurement) version(path string) string {
	if v := m.Versions[path]; v != "" {
		return v
	}
	return "unknown"
}

func ms(d time.Duration) string { return human(milliseconds(d)) + " ms" }

// A table is one of Markdown.
type table struct{ titles, rules, rows strings.Builder }

func newTable() *table {
	t := new(table)
	t.titles.WriteString("| |")
	t.rules.WriteString("|---|")
	return t
}

func (t *table) head(title string) {
	t.titles.WriteString(" " + title + " |")
	t.rules.WriteString("---|")
}

func (t *table) row(name string)  { t.rows.WriteString("\n| " + name + " |") }
func (t *table) cell(text string) { t.rows.WriteString(" " + text + " |") }
func (t *table) String() string {
	return t.titles.String() + "\n" + t.rules.String() + t.rows.String()
}

// figure is the median of all turns.
func (r *result) figure(name string) (float64, bool) {
	if r == nil { // there was no turn
		return 0, false
	}
	quantiles := map[string]int{"p50": steps / 2, "p99": steps * 99 / 100}
	if i, ok := quantiles[name]; ok {
		if len(r.Waits) == 0 {
			return 0, false
		}
		return r.Waits[i], true
	}
	all := slices.Clone(r.Figures[name])
	if len(all) == 0 {
		return 0, false
	}
	if name == "longest" {
		return slices.Max(all), true
	}
	return median(all), true
}

// text is a figure as a table has it.
func (r *result) text(name string) string {
	x, ok := r.figure(name)
	switch {
	case !ok:
		return "–"
	case name == "longest" && slices.Max(r.Figures["open"]) > 0:
		return "over " + human(x)
	case name == "goroutines" && x < 0.5:
		return "none"
	case name == "renewed":
		return map[float64]string{0: "no", 1: "yes"}[x]
	}
	return human(x)
}

// human writes two digits, and all of those before the point, with commas. Less than nothing is
// within what a measurement is wrong by.
func human(x float64) string {
	switch {
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

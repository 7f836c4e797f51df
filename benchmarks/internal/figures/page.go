package figures

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Page is docs/performance.md. It is written by hand, but for its tables of figures. Each follows a comment that names its
// file, its scenarios and its columns: see table. One without scenarios says where and of what the measurement is.
type Page struct {
	Path     string
	Files    []string                                   // without ".json", in the current directory; tables of others stay
	Describe func(*Measurement) [][2]string             // what it says of a measurement besides its command, date and machine
	Ratio    func(*Measurement, *Result, string) string // of a figure whose name has a slash
}

var (
	tables = regexp.MustCompile(`(?m)^<!-- (\w+)\.json( ".*)? -->\n((?:\|.*\n)+)`)
	quoted = regexp.MustCompile(`"([^"]*)"`)
)

// Redrawn returns the page with the tables of the last measurements, and how many it has. It prints those of one.
func (p Page) Redrawn(measured string) (page string, drawn int, err error) {
	text, err := os.ReadFile(p.Path)
	return tables.ReplaceAllStringFunc(string(text), func(found string) string {
		mark, _, _ := strings.Cut(found, "\n")
		parts := tables.FindStringSubmatch(found)
		if !slices.Contains(p.Files, parts[1]) {
			return found
		}
		m, failed := open(parts[1] + ".json")
		if failed != nil {
			err = failed
			return found
		}
		drawn++
		table := p.marked(m, parts[2]) + "\n"
		if parts[1] == measured {
			fmt.Println(table)
		}
		return mark + "\n" + table
	}), drawn, err
}

// Write writes the page.
func (p Page) Write(text string) error { return os.WriteFile(p.Path, []byte(text), 0o644) }

// Check fails t unless the page has so many tables, and they are those of the last measurements. With update, it writes them.
func (p Page) Check(t testing.TB, tables int, update bool) {
	want, drawn, err := p.Redrawn("")
	require.NoError(t, err)
	require.Equal(t, tables, drawn)
	if update {
		require.NoError(t, p.Write(want))
	}
	got, err := os.ReadFile(p.Path)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "go test -run TestPage -update writes the page")
}

// marked returns the table of the rest of a mark.
func (p Page) marked(m *Measurement, mark string) string {
	var parts []string
	for _, q := range quoted.FindAllStringSubmatch(mark, -1) {
		parts = append(parts, q[1])
	}
	if len(parts) > 0 {
		return p.table(m, parts[0], parts[1:]...)
	}
	text := "| | |\n|---|---|"
	for _, row := range append([][2]string{
		{"command", "`" + m.Command + "`"},
		{"date", m.Date + ", in " + m.Took},
		{"machine", m.Machine + ", " + m.Kernel + "; server and clients share it"},
	}, p.Describe(m)...) {
		text += "\n| " + row[0] + " | " + row[1] + " |"
	}
	return text
}

// table has a row for each contestant of each of the scenarios, whose names have semicolons between them.
// A column is its title and the name of its figure, and the name of another scenario if that is from there. A figure may be
// a ratio, such as "rate / bare" or "rate / best".
func (p Page) table(m *Measurement, scenarios string, columns ...string) string {
	titles, rules, rows := "| |", "|---|", ""
	for _, column := range columns {
		title, _, _ := strings.Cut(column, "|")
		titles, rules = titles+" "+title+" |", rules+"---|"
	}
	names := strings.Split(scenarios, "; ")
	for _, scenario := range names {
		for _, r := range m.Results {
			if r.Scenario != scenario {
				continue
			}
			row := r.Contestant
			if len(names) > 1 {
				row = scenario + ": " + row
			}
			rows += "\n| " + row + " |"
			for _, column := range columns {
				parts, from := strings.Split(column, "|"), r
				if len(parts) > 2 {
					from = m.Find(parts[2], r.Contestant)
				}
				cell := Human(from.Figure(parts[1]))
				if strings.Contains(parts[1], " / ") {
					cell = p.Ratio(m, from, parts[1])
				}
				rows += " " + cell + " |"
			}
		}
	}
	return titles + "\n" + rules + rows
}

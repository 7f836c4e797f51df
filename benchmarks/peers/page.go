package peers

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const performance = "../../docs/performance.md"

// The page is written by hand, but for its tables of figures. Each follows a comment that names its file, its scenarios
// and its columns: see table. One without scenarios says where and of what the measurement is.
var (
	tables = regexp.MustCompile(`(?m)^<!-- (\w+)\.json( ".*)? -->\n((?:\|.*\n)+)`)
	quoted = regexp.MustCompile(`"([^"]*)"`)
)

// redrawn returns the page with the tables of the last measurements. It prints those of one.
func redrawn(measured string) (page string, err error) {
	text, err := os.ReadFile(performance)
	return tables.ReplaceAllStringFunc(string(text), func(found string) string {
		mark, _, _ := strings.Cut(found, "\n")
		parts := tables.FindStringSubmatch(found)
		m, failed := readMeasurement(parts[1] + ".json")
		if failed != nil {
			err = failed
			return found
		}
		table := m.marked(parts[2]) + "\n"
		if parts[1] == measured {
			fmt.Println(table)
		}
		return mark + "\n" + table
	}), err
}

// marked returns the table of the rest of a mark.
func (m *measurement) marked(mark string) string {
	var parts []string
	for _, q := range quoted.FindAllStringSubmatch(mark, -1) {
		parts = append(parts, q[1])
	}
	if len(parts) > 0 {
		return m.table(parts[0], parts[1:]...)
	}
	v, text := m.Versions, "| | |\n|---|---|"
	for _, row := range [][2]string{
		{"command", "`" + m.Command + "`"},
		{"date", m.Date + ", in " + m.Took},
		{"machine", m.Machine + ", " + m.Kernel + "; server and clients share it"},
		{"Redis, Go", m.Redis + ", " + m.Go},
		{"redsync, redislock", v["github.com/go-redsync/redsync/v4"] + ", " + v["github.com/bsm/redislock"]},
		{"go-redis, redigo, rueidis and its rueidislock", v["github.com/redis/go-redis/v9"] + ", " + v["github.com/gomodule/redigo"] + ", " + v["github.com/redis/rueidis"]},
	} {
		text += "\n| " + row[0] + " | " + row[1] + " |"
	}
	return text
}

// table has a row for each contestant of each of the scenarios, whose names have semicolons between them.
// A column is its title and the name of its figure, and the name of another scenario if that is from there. A figure may be
// a ratio, such as "rate / bare" or "rate / best".
func (m *measurement) table(scenarios string, columns ...string) string {
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
					from = m.find(parts[2], r.Contestant)
				}
				rows += " " + m.cell(from, parts[1]) + " |"
			}
		}
	}
	return titles + "\n" + rules + rows
}

// cell is a figure of r, or its ratio to that of the bare client or of the best peer, on the same client.
func (m *measurement) cell(r *result, name string) string {
	name, beside, ratio := strings.Cut(name, " / ")
	if !ratio {
		return human(r.figure(name))
	}
	var others []float64
	for _, c := range alone {
		same := c.client == contestantOf(r.Contestant).client && (c.name == beside || beside == "best" && c.peer())
		if x := m.find(r.Scenario, c.id()).figure(name); same && !math.IsNaN(x) {
			others = append(others, x)
		}
	}
	if len(others) == 0 {
		return human(math.NaN())
	}
	best := slices.Min(others)
	if name == "rate" {
		best = slices.Max(others)
	}
	return strconv.FormatFloat(r.figure(name)/best, 'f', 2, 64)
}

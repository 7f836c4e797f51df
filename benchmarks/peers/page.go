package main

import (
	_ "embed"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// The page without its figures.
//
//go:embed performance.md.tmpl
var prose string

// redraw writes the page and the charts of the last measurements.
func redraw() error {
	all, err := files()
	if err != nil {
		return err
	}
	for name, content := range all {
		if err := os.WriteFile(filepath.Join("../../docs", name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files returns the page and the charts of the last measurements, by their names below docs.
func files() (map[string]string, error) {
	ofOrders, err1 := readMeasurement(orders)
	one, err2 := readMeasurement(oneServer)
	several, err3 := readMeasurement(severalServers)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	all := charts(one, several)
	all["performance.md"] = page(ofOrders, one, several)
	return all, nil
}

func page(ofOrders, one, several *measurement) string {
	return part("page", struct{ Orders, One, Several *measurement }{ofOrders, one, several})
}

// part writes a part of the page.
func part(name string, data any) string {
	var b strings.Builder
	if err := template.Must(template.New("page").Parse(prose)).ExecuteTemplate(&b, name, data); err != nil {
		panic(err) // the test has written this text
	}
	return b.String()
}

// Figure is one figure of redlock.
func (m *measurement) Figure(scenario, name string) string {
	return human(m.find(scenario, "redlock (go-redis)").figure(name))
}

// Table has a row for each contestant of each of the scenarios, whose names have semicolons between them.
// A column is its title and the name of its figure, and the name of another scenario if that is from there. A figure may be
// a ratio, such as "rate / bare" or "rate / best".
func (m *measurement) Table(scenarios string, columns ...string) string {
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
	switch {
	case len(others) == 0:
		return human(math.NaN())
	case name == "rate":
		return strconv.FormatFloat(r.figure(name)/slices.Max(others), 'f', 2, 64)
	}
	return strconv.FormatFloat(r.figure(name)/slices.Min(others), 'f', 2, 64)
}

package main

import (
	_ "embed"
	"os"
	"path/filepath"
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
	one, err := readMeasurement(oneServer)
	if err != nil {
		return nil, err
	}
	several, err := readMeasurement(severalServers)
	if err != nil {
		return nil, err
	}
	all := charts(one, several)
	all["performance.md"] = page(one, several)
	return all, nil
}

func page(one, several *measurement) string {
	var b strings.Builder
	data := struct{ One, Several *measurement }{one, several}
	if err := template.Must(template.New("page").Parse(prose)).Execute(&b, data); err != nil {
		panic(err) // the test has written this text
	}
	return b.String()
}

// Figure is one figure of redlock.
func (m *measurement) Figure(scenario, name string) string {
	return human(m.find(scenario, "redlock (go-redis)").figure(name))
}

// Table has a row for each contestant of each of the scenarios, whose names have semicolons between them.
// A column is its title and the name of its figure, and the name of another scenario if that is from there.
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
				rows += " " + human(from.figure(parts[1])) + " |"
			}
		}
	}
	return titles + "\n" + rules + rows
}

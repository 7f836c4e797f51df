package main

import (
	"fmt"
	"math"
	"strings"
)

// A theme is the colours of a page, as its other pictures have them, and of the libraries. Those are
// the colours of Okabe and Ito, which colour-blind people distinguish.
type theme struct {
	page, ink, faint string
	library          map[string]string
}

var themes = map[string]theme{
	"light": {page: "#ffffff", ink: "#1f2328", faint: "#d1d9e0", library: map[string]string{
		"redsync": "#d55e00", "redislock": "#cc79a7", "rueidislock": "#009e73", "dlock": "#0072b2", "dlock, turns": "#56b4e9",
		"redlock": "#0072b2", "redsync, FailFast": "#cc79a7",
	}},
	"dark": {page: "#0d1117", ink: "#f0f6fc", faint: "#3d444d", library: map[string]string{
		"redsync": "#e69f00", "redislock": "#cc79a7", "rueidislock": "#2fbf93", "dlock": "#56b4e9", "dlock, turns": "#a8dcf8",
		"redlock": "#56b4e9", "redsync, FailFast": "#cc79a7",
	}},
}

// dashes are the line of a client.
var dashes = map[string]string{"go-redis": "none", "redigo": "6 4", "rueidis": "2 3"}

// charts returns the charts by their names below docs, each for a light and a dark page.
func charts(one, several *measurement) map[string]string {
	all := make(map[string]string)
	for name, t := range themes {
		file := func(chart string) string { return "pictures/" + chart + "-" + name + ".svg" }
		all[file("turns")] = t.bars(one, "Handovers a second among 32 goroutines of one process", "threads", "rate")
		all[file("waits")] = t.waits(one, "Waits for a lock that 32 processes want", "32 processes, slow")
		all[file("majority")] = t.waits(several, "Waits for a lock on 5 servers that 16 processes want", "16, 0 of 5 down")
	}
	return all
}

// svg has the size of the other pictures.
func (t theme) svg(title, content string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 440" width="880" height="440"
 font-family="-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif" font-size="14" fill="%s">
<rect width="880" height="440" fill="%s"/>
<text x="70" y="30" font-size="17">%s</text>
%s</svg>
`, t.ink, t.page, title, content)
}

// waits shows what share of the waits is over within which time, with the slow network.
func (t theme) waits(m *measurement, title, scenario string) string {
	var b strings.Builder
	low, high := 1.0, 10.0 // ms
	var all []*result
	for _, r := range m.Results {
		if r.Scenario == scenario && len(r.Waits) > 0 {
			all, low, high = append(all, r), min(low, max(r.Waits[0], 0.1)), max(high, r.Waits[100])
		}
	}
	x := func(ms float64) float64 { return 70 + 540*math.Log(max(ms, low)/low)/math.Log(high/low) }
	y := func(percent int) float64 { return 370 - 3.1*float64(percent) }
	for percent := 0; percent <= 100; percent += 25 {
		fmt.Fprintf(&b, `<path d="M70 %.1fH610" stroke="%s"/>`, y(percent), t.faint)
		fmt.Fprintf(&b, `<text x="60" y="%.1f" text-anchor="end">%d</text>`+"\n", y(percent)+5, percent)
	}
	for ms := 0.1; ms <= high; ms *= 10 {
		if ms >= low {
			fmt.Fprintf(&b, `<path d="M%.1f 60V370" stroke="%s"/>`, x(ms), t.faint)
			fmt.Fprintf(&b, `<text x="%.1f" y="390" text-anchor="middle">%s</text>`+"\n", x(ms), human(ms))
		}
	}
	b.WriteString(`<text x="340" y="420" text-anchor="middle">wait in ms</text>
<text transform="translate(20 215)rotate(-90)" text-anchor="middle">percent of the waits that are no longer</text>
`)
	for i, r := range all {
		c, below := contestantOf(r.Contestant), 60+22*i
		fmt.Fprintf(&b, `<g fill="none" stroke="%s" stroke-width="2.4" stroke-dasharray="%s">`, t.library[c.name], dashes[c.client])
		fmt.Fprintf(&b, `<path d="M630 %dh34"/><polyline points="`, below)
		for percent, wait := range r.Waits {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(wait), y(percent))
		}
		fmt.Fprintf(&b, `"/></g><text x="672" y="%d">%s</text>`+"\n", below+5, r.Contestant)
	}
	return t.svg(title+", at a round-trip time of 2 ms", b.String())
}

// bars shows a figure of each contestant, with its value.
func (t theme) bars(m *measurement, title, scenario, figure string) string {
	var b strings.Builder
	var all []*result
	longest := 0.0
	for _, r := range m.Results {
		if x := r.figure(figure); r.Scenario == scenario && !math.IsNaN(x) {
			all, longest = append(all, r), max(longest, x)
		}
	}
	for i, r := range all {
		x, top := r.figure(figure), 50+38*i
		long := 600 * x / longest
		fmt.Fprintf(&b, `<text x="180" y="%d" text-anchor="end">%s</text>`, top+18, r.Contestant)
		fmt.Fprintf(&b, `<rect x="190" y="%d" width="%.1f" height="26" fill="%s"/>`, top, long, t.library[contestantOf(r.Contestant).name])
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", 198+long, top+18, human(x))
	}
	return t.svg(title, b.String())
}

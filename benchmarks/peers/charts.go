package main

import (
	"bytes"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A theme is the colours of a page, as its other pictures have them, and of the libraries. Those are
// the colours of Okabe and Ito, which colour-blind people distinguish.
type theme struct {
	page, ink, faint color.RGBA
	library          map[string]color.RGBA
}

var themes = map[string]theme{
	"light": {page: rgb(0xffffff), ink: rgb(0x1f2328), faint: rgb(0xd1d9e0), library: map[string]color.RGBA{
		"redsync": rgb(0xd55e00), "redislock": rgb(0xcc79a7), "rueidislock": rgb(0x009e73), "dlock": rgb(0x0072b2), "dlock, turns": rgb(0x56b4e9),
		"redlock": rgb(0x0072b2), "redsync, FailFast": rgb(0xcc79a7),
	}},
	"dark": {page: rgb(0x0d1117), ink: rgb(0xf0f6fc), faint: rgb(0x3d444d), library: map[string]color.RGBA{
		"redsync": rgb(0xe69f00), "redislock": rgb(0xcc79a7), "rueidislock": rgb(0x2fbf93), "dlock": rgb(0x56b4e9), "dlock, turns": rgb(0xa8dcf8),
		"redlock": rgb(0x56b4e9), "redsync, FailFast": rgb(0xcc79a7),
	}},
}

// dashes are the line of a client.
var dashes = map[string][]vg.Length{"redigo": {vg.Points(5), vg.Points(3)}, "rueidis": {vg.Points(1.5), vg.Points(2.5)}}

func rgb(x uint32) color.RGBA {
	return color.RGBA{R: uint8(x >> 16), G: uint8(x >> 8), B: uint8(x), A: 255}
}

const (
	width, height = 660, 330 // points: 880 × 440 pixels, as the other pictures
	legendWidth   = 175
)

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

// waits shows what share of the waits is over within which time, with the slow network.
func (t theme) waits(m *measurement, title, scenario string) string {
	p := t.plot(title+", at a round-trip time of 2 ms", "wait in ms", "percent of the waits that are no longer")
	for _, r := range m.Results {
		if r.Scenario != scenario || len(r.Waits) == 0 {
			continue
		}
		points := make(plotter.XYs, len(r.Waits))
		for i, wait := range r.Waits {
			points[i] = plotter.XY{X: max(wait, 0.1), Y: float64(i)}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			panic(err) // the points are neither none nor infinite
		}
		c := contestantOf(r.Contestant)
		line.Color, line.Width, line.Dashes = t.library[c.name], vg.Points(1.8), dashes[c.client]
		p.Add(line)
		p.Legend.Add(r.Contestant, line)
	}
	if p.X.Min > p.X.Max { // nothing was drawn
		p.X.Min, p.X.Max = 1, 10
	}
	p.X.Min, p.X.Max = p.X.Min/1.15, p.X.Max*1.15
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 100
	return t.svg(p, legendWidth)
}

// bars shows a figure of each contestant, with its value.
func (t theme) bars(m *measurement, title, scenario, figure string) string {
	p := t.plot(title, "", "")
	p.Y.Width = 0
	var names []string
	longest := 0.0
	for _, r := range slices.Backward(m.Results) { // from below
		x := r.figure(figure)
		if r.Scenario != scenario || math.IsNaN(x) {
			continue
		}
		y := float64(len(names))
		names = append(names, r.Contestant+"    ") // room for wider fonts
		bar, err := plotter.NewPolygon(plotter.XYs{{X: 0, Y: y - 0.33}, {X: x, Y: y - 0.33}, {X: x, Y: y + 0.33}, {X: 0, Y: y + 0.33}})
		if err != nil {
			panic(err)
		}
		bar.LineStyle.Width, bar.Color = 0, t.library[contestantOf(r.Contestant).name]
		label, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: x, Y: y}}, Labels: []string{human(x)}})
		if err != nil {
			panic(err)
		}
		label.TextStyle[0], label.Offset.X = p.X.Tick.Label, vg.Points(4)
		label.TextStyle[0].XAlign, label.TextStyle[0].YAlign = draw.XLeft, draw.YCenter
		p.Add(bar, label)
		longest = max(longest, x)
	}
	if len(names) > 0 {
		p.NominalY(names...)
	}
	p.X.Min, p.X.Max = 0, longest*1.1+1
	p.HideX() // the bars have their values
	return t.svg(p, 0)
}

func (t theme) plot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = t.page
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(10)
	p.Title.TextStyle.Color, p.Title.TextStyle.Font.Variant, p.Title.TextStyle.Font.Size = t.ink, "Sans", 13
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.Color, axis.Padding = t.ink, t.ink, 0
		axis.Label.TextStyle.Color, axis.Label.TextStyle.Font.Variant, axis.Label.TextStyle.Font.Size = t.ink, "Sans", 11
		axis.Tick.Label.Color, axis.Tick.Label.Font.Variant, axis.Tick.Label.Font.Size = t.ink, "Sans", 10.5
		axis.Label.Padding = vg.Points(4)
	}
	p.Legend.TextStyle.Color, p.Legend.TextStyle.Font.Variant, p.Legend.TextStyle.Font.Size = t.ink, "Sans", 10.5
	p.Legend.Top, p.Legend.Left, p.Legend.ThumbnailWidth, p.Legend.Padding = true, true, vg.Points(26), vg.Points(5)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = t.faint, t.faint
	if x == "" { // bars
		grid.Horizontal.Width = 0
	}
	p.Add(grid)
	return p
}

// svg draws p with its legend on the right.
func (t theme) svg(p *plot.Plot, legend vg.Length) string {
	canvas := vgsvg.New(width, height)
	all := draw.New(canvas)
	all.SetColor(t.page)
	all.Fill(all.Rectangle.Path())
	all = draw.Crop(all, 10, -14, 8, -8)
	key := p.Legend
	p.Legend = plot.NewLegend()
	p.Draw(draw.Crop(all, 0, -legend, 0, 0))
	if legend > 0 {
		key.Draw(draw.Crop(all, all.Size().X-legend+12, 0, 0, -26))
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		panic(err) // a Buffer takes everything
	}
	return strings.ReplaceAll(b.String(), "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,Helvetica,sans-serif")
}

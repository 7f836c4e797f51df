package main

import (
	"bytes"
	"image/color"
	"math"
	"strconv"
	"strings"
	"time"

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

// The line and the mark of a client.
var (
	dashes = map[string][]vg.Length{"redigo": {vg.Points(5), vg.Points(3)}, "rueidis": {vg.Points(1.5), vg.Points(2.5)}}
	marks  = map[string]draw.GlyphDrawer{"go-redis": draw.CircleGlyph{}, "redigo": draw.BoxGlyph{}, "rueidis": draw.PyramidGlyph{}}
)

func rgb(x uint32) color.RGBA {
	return color.RGBA{R: uint8(x >> 16), G: uint8(x >> 8), B: uint8(x), A: 255}
}

const (
	width, height = 660, 330 // points: 880 × 440 pixels, as the other pictures
	legendWidth   = 155
)

// charts returns the charts by name, each for a light and a dark page.
func (m *measurement) charts() map[string]string {
	all := make(map[string]string)
	for name, t := range themes {
		if m.Majority {
			all["majority-"+name] = t.waits(m, "Waits for a lock on 5 servers that 16 processes want", "0 of 5 down", 16)
			continue
		}
		all["waits-"+name] = t.waits(m, "Waits for a lock that 32 processes want", "processes", 32)
		all["throughput-"+name] = t.byProcesses(m, "Handovers a second, by the number of processes that want the lock", "rate")
		all["commands-"+name] = t.byProcesses(m, "Commands on the server for each handover, with those of scripts", "commands")
		all["turns-"+name] = t.bars(m, "Handovers a second among 32 goroutines of one process", "threads", 32, "rate")
		all["memory-"+name] = t.bars(m, "Memory of the process for each held lock, in bytes: heap, and stacks (paler)", "leases", 10_000, "heap", "stack")
	}
	return all
}

// waits shows what share of the waits is over within which time.
func (t theme) waits(m *measurement, title, scenario string, n int) string {
	p := t.plot(title+network(m.rtt()), "wait in ms", "percent of the waits that are no longer")
	for _, c := range m.contestants() {
		r := m.find(scenario, m.rtt(), n, c.id())
		if r == nil || len(r.Waits) == 0 {
			continue
		}
		points := make(plotter.XYs, len(r.Waits))
		for i, wait := range r.Waits {
			points[i] = plotter.XY{X: max(wait, 0.1), Y: 100 * float64(i) / steps}
		}
		t.line(p, c, points, false)
	}
	logarithmic(&p.X, decades{})
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, 100, constant(0, 25, 50, 75, 100)
	return t.svg(p, legendWidth)
}

func network(rtt time.Duration) string {
	if rtt == 0 {
		return ", on one machine"
	}
	return ", at a round-trip time of " + ms(rtt)
}

// byProcesses shows a figure by the number of processes. The title names it: gonum leaves too
// much room for the label of a logarithmic axis.
func (t theme) byProcesses(m *measurement, title, figure string) string {
	p := t.plot(title, "processes", "")
	ticks := constant(crowds...)
	for _, c := range contestants {
		var points plotter.XYs
		for _, tick := range ticks {
			y, _ := m.find("processes", 0, int(tick.Value), c.id()).figure(figure)
			if y > 0 {
				points = append(points, plotter.XY{X: tick.Value, Y: y})
			}
		}
		if len(points) > 0 {
			t.line(p, c, points, true)
		}
	}
	logarithmic(&p.X, ticks)
	logarithmic(&p.Y, decades{})
	return t.svg(p, legendWidth)
}

func constant(values ...int) (ticks plot.ConstantTicks) {
	for _, x := range values {
		ticks = append(ticks, plot.Tick{Value: float64(x), Label: strconv.Itoa(x)})
	}
	return ticks
}

// logarithmic leaves a little room at both ends.
func logarithmic(axis *plot.Axis, ticks plot.Ticker) {
	if axis.Min > axis.Max { // nothing was drawn
		axis.Min, axis.Max = 1, 10
	}
	axis.Min, axis.Max = axis.Min/1.15, axis.Max*1.15
	axis.Scale, axis.Tick.Marker = plot.LogScale{}, ticks
}

func (t theme) line(p *plot.Plot, c contestant, points plotter.XYs, marked bool) {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		panic(err) // the points are neither none nor infinite
	}
	line.Color, line.Width, line.Dashes = t.library[c.name], vg.Points(1.8), dashes[c.client]
	dots.Color, dots.Shape, dots.Radius = t.library[c.name], marks[c.client], vg.Points(3.2)
	p.Add(line)
	thumbs := []plot.Thumbnailer{line}
	if marked {
		p.Add(dots)
		thumbs = append(thumbs, dots)
	}
	p.Legend.Add(c.id(), thumbs...)
}

// bars shows the sum of figures of each contestant, stacked and with its value.
func (t theme) bars(m *measurement, title, scenario string, n int, figures ...string) string {
	p := t.plot(title, "", "")
	p.Y.Width = 0
	var names []string
	longest := 0.0
	for i := len(contestants) - 1; i >= 0; i-- { // from below
		c := contestants[i]
		r := m.find(scenario, 0, n, c.id())
		if r == nil || r.Figures[figures[0]] == nil {
			continue
		}
		y, sum := float64(len(names)), 0.0
		names = append(names, c.id()+"    ") // room for wider fonts
		for j, f := range figures {
			x, _ := r.figure(f)
			bar, err := plotter.NewPolygon(plotter.XYs{{X: sum, Y: y - 0.33}, {X: sum + x, Y: y - 0.33}, {X: sum + x, Y: y + 0.33}, {X: sum, Y: y + 0.33}})
			if err != nil {
				panic(err)
			}
			shade := t.library[c.name]
			bar.LineStyle.Width = 0
			if j > 0 { // paler
				shade = mix(shade, t.page)
			}
			bar.Color = shade
			p.Add(bar)
			sum += x
		}
		label, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: sum, Y: y}}, Labels: []string{human(sum)}})
		if err != nil {
			panic(err)
		}
		label.TextStyle[0], label.Offset.X = p.X.Tick.Label, vg.Points(4)
		label.TextStyle[0].XAlign, label.TextStyle[0].YAlign = draw.XLeft, draw.YCenter
		p.Add(label)
		longest = max(longest, sum)
	}
	if len(names) > 0 {
		p.NominalY(names...)
	}
	p.X.Min, p.X.Max = 0, longest*1.1+1
	p.X.Tick.Marker = thousands{}
	return t.svg(p, 0)
}

func mix(a, b color.RGBA) color.RGBA {
	return color.RGBA{R: a.R/2 + b.R/2, G: a.G/2 + b.G/2, B: a.B/2 + b.B/2, A: 255}
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

// decades are the ticks of a logarithmic axis. If it is short, those at 2 and 5 have labels too.
type decades struct{}

func (decades) Ticks(low, high float64) (all []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		decade := math.Pow(10, e)
		for i := 1.0; i < 10; i++ {
			t := plot.Tick{Value: i * decade}
			if i == 1 || high/low < 300 && (i == 2 || i == 5) {
				t.Label = human(t.Value)
			}
			if t.Value >= low && t.Value <= high { // others would take room
				all = append(all, t)
			}
		}
	}
	return all
}

// thousands are the default ticks, with commas.
type thousands struct{}

func (thousands) Ticks(low, high float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(low, high)
	for i, t := range all {
		if t.Label != "" {
			all[i].Label = human(t.Value)
		}
	}
	return all
}

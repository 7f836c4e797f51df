package history

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Picture draws h as one page of HTML, which is XML too and needs no other file: first
// the violation, if there is one, and then all of each key, with a row for each client.
// The page has the title, and begins with the text.
func Picture(h *History, v *Violation, title, text string) []byte {
	p := &page{}
	p.add(pageHead, escape(title), escape(text))
	if v != nil {
		from, to := v.span()
		pad := max(h.ttl()/8, (to-from)/8)
		from, to = max(0, from-pad), to+pad
		p.draw("the violation", h, v, drawing{key: v.Key, from: from, to: to, scale: pageWidth / float64(to-from)})
	}
	for _, key := range h.keys() {
		p.draw("all of it", h, v, drawing{key: key, to: h.end(), scale: min(160/float64(h.ttl()), maxWidth/float64(h.end()))})
	}
	p.add("</body></html>")
	return []byte(p.String())
}

const (
	pageWidth = 1100.0  // of the violation, in pixels
	maxWidth  = 30000.0 // of everything
	labels    = 70.0    // the space to the left of the rows
	rowHeight = 40
	headroom  = 26
)

const pageHead = `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="UTF-8"/><title>%s</title>
<style>
body { font: 14px sans-serif; margin: 24px; color: #222; background: #fff }
pre { background: #f6f6f6; padding: 12px; overflow-x: auto }
div { overflow-x: auto; border: 1px solid #ddd; margin-bottom: 24px }
text { font: 11px sans-serif; fill: #222 }
.row { stroke: #eee } .tick { stroke: #ddd } .time { fill: #777 }
.hold { fill: #9cc5ec; stroke: #3f7fb8 } .wait { stroke: #999; stroke-width: 2 }
.call { fill: #555 } .fault { fill: #f2b65a; opacity: .45 } .loss { stroke: #8a3fb8; stroke-width: 2; stroke-dasharray: 5 3 }
.bad.hold { fill: #f0a09a; stroke: #c00; stroke-width: 2 } .bad.call { fill: #c00 } text.bad { fill: #c00 }
</style></head><body>
<pre>%s</pre>
<p>A row is a client. A bar is the time in which a hold was certain, with its fence; a thin line a wait for the key;
a square a call, a red one a call of the violation; orange a connection that failed; a dashed line the loss of all data.
Point at anything to read more.</p>
`

// A page is HTML in the making.
type page struct{ strings.Builder }

func (p *page) add(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// escape makes a text fit for XML.
func escape(text string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || r == unicode.ReplacementChar || r > 0xfffd {
			return '·'
		}
		return r
	}, text))
}

// A drawing is the timeline of one key.
type drawing struct {
	*page
	*History
	key        string
	operations []*Operation // on key
	violation  *Violation   // or nil
	from, to   time.Duration
	scale      float64 // pixels per nanosecond
}

// draw draws d, which is of h, below a heading.
func (p *page) draw(what string, h *History, v *Violation, d drawing) {
	p.add("<h2>%s, %s</h2>", escape(fmt.Sprintf("%q", d.key)), what)
	d.page, d.History, d.operations, d.violation = p, h, h.of(d.key), v
	width, height := labels+float64(d.to-d.from)*d.scale+20, headroom+d.clients()*rowHeight+10
	d.add(`<div><svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d">`, width, height)
	d.axis(height)
	for i := range d.clients() {
		y := headroom + i*rowHeight + rowHeight
		d.add(`<line class="row" x1="0" x2="%.0f" y1="%d" y2="%d"/><text x="4" y="%d">%s</text>`, width, y, y, y-12, clientName(i))
	}
	for _, o := range d.Outages {
		if d.visible(o.From, o.To) {
			d.bar("fault", o.Client, 4, rowHeight-8, o.From, o.To, "the connection fails")
		}
	}
	d.waits()
	for _, h := range d.Holds {
		if h.Key == d.key && d.visible(h.Start, h.End) {
			d.hold(h)
		}
	}
	for _, o := range d.operations {
		if d.visible(o.Called, o.Returned) {
			d.operation(o, height)
		}
	}
	d.add("</svg></div>")
}

func (d *drawing) visible(from, to time.Duration) bool { return to >= d.from && from <= d.to }

func (d *drawing) x(at time.Duration) float64 {
	return labels + float64(min(max(at, d.from), d.to)-d.from)*d.scale
}

// axis marks round instants, about 100 pixels apart.
func (d *drawing) axis(height int) {
	step := roundStep(80 / d.scale)
	for at := d.from.Truncate(step) + step; at < d.to; at += step {
		d.add(`<line class="tick" x1="%.1f" x2="%.1f" y1="18" y2="%d"/><text class="time" x="%.1f" y="12">%v</text>`,
			d.x(at), d.x(at), height, d.x(at)-12, at)
	}
}

// roundStep is the smallest of 1, 2, 5, 10, … µs that is at least so many
// nanoseconds.
func roundStep(least float64) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if float64(n*unit) >= least {
				return n * unit
			}
		}
	}
}

func (d *drawing) bar(class string, client, y, height int, from, to time.Duration, title string) {
	d.add(`<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`,
		class, d.x(from), headroom+client*rowHeight+y, max(1, d.x(to)-d.x(from)), height, escape(title))
}

func (d *drawing) hold(h *Hold) {
	class, number := "hold", "fence"
	if d.violation != nil && slices.Contains(d.violation.Holds, h) {
		class, number = "bad hold", "bad"
	}
	d.bar(class, h.Client, 8, 16, h.Start, h.End, h.line())
	d.add(`<text class="%s" x="%.1f" y="%d">%s</text>`, number, d.x(h.Start)+2, headroom+h.Client*rowHeight+20, shortFence(h.Fence))
}

// shortFence is a fence that fits into a bar.
func shortFence(fence int64) string {
	if fence < 1e8 {
		return fmt.Sprint(fence)
	}
	return fmt.Sprintf("…%06d", fence%1e6)
}

// waits draws, for each token, the time in which it tried to take the key.
func (d *drawing) waits() {
	type wait struct {
		client   int
		from, to time.Duration
	}
	var all []*wait
	byToken := make(map[string]*wait)
	for _, o := range d.operations {
		if !o.Method.takes() {
			continue
		}
		w := byToken[o.Token]
		if w == nil {
			w = &wait{o.Client, o.Called, o.Returned}
			byToken[o.Token], all = w, append(all, w)
		}
		w.to = max(w.to, o.Returned)
		if o.Outcome == Granted {
			byToken[o.Token] = nil
		}
	}
	for _, w := range all {
		if d.visible(w.from, w.to) {
			y := headroom + w.client*rowHeight + 30
			d.add(`<line class="wait" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, d.x(w.from), d.x(w.to), y, y)
		}
	}
}

// operation draws one call. Refusals are too many to be drawn, unless they matter.
func (d *drawing) operation(o *Operation, height int) {
	bad := d.violation != nil && slices.Contains(d.violation.Operations, o)
	title := o.line()
	switch {
	case o.Method == Wipe:
		d.add(`<line class="loss" x1="%.1f" x2="%.1f" y1="18" y2="%d"><title>%s</title></line>`, d.x(o.Called), d.x(o.Called), height, escape(title))
	case bad:
		d.bar("bad call", o.Client, 27, 7, o.Called, max(o.Returned, o.Called+time.Duration(6/d.scale)), title)
		d.add(`<text class="bad" x="%.1f" y="%d">%s</text>`, d.x(o.Called), headroom+o.Client*rowHeight+7, escape(o.String()))
	case o.Outcome != Refused:
		d.bar("call", o.Client, 28, 4, o.Called, o.Called+time.Duration(3/d.scale), title)
	}
}

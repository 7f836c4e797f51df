package history

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Picture draws h as one page of HTML, which is XML too and needs no other file: first the violation, if there is one, and
// then all of each key, with a row for each client. The page has the title, and begins with the text.
func Picture(h *History, v *Violation, title, text string) []byte {
	p := &page{History: h, rows: h.clients()}
	p.add(pageHead, escape(title), escape(text))
	if v != nil {
		p.bad = v.History
		from, to := v.span()
		pad := max(h.ttl()/8, (to-from)/8)
		p.draw(v.Key, "the violation", max(0, from-pad), to+pad, pageWidth)
	}
	_, end := h.span()
	for _, key := range h.keys() {
		p.draw(key, "all of it", 0, end, min(ttlWidth*float64(end)/float64(h.ttl()), maxWidth))
	}
	p.add("</body></html>")
	return []byte(p.String())
}

const (
	pageWidth = 1100.0  // of the violation, in pixels
	ttlWidth  = 160.0   // of a TTL, in a timeline of everything
	maxWidth  = 30000.0 // of such a timeline
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

// A page is HTML in the making: one timeline after the other.
type page struct {
	strings.Builder
	*History
	bad  History  // what is to blame
	rows []string // the clients

	// Of the timeline that is drawn.
	from, to time.Duration
	scale    float64 // pixels per nanosecond
	height   int
}

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

// draw draws what happened to a key, below a heading.
func (p *page) draw(key, what string, from, to time.Duration, width float64) {
	p.from, p.to, p.scale, p.height = from, to, width/float64(to-from), headroom+len(p.rows)*rowHeight+10
	p.add("<h2>%s, %s</h2>", escape(fmt.Sprintf("%q", key)), what)
	p.add(`<div><svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d">`, labels+width+20, p.height)
	p.axis()
	for i, name := range p.rows {
		y := headroom + i*rowHeight + rowHeight
		p.add(`<line class="row" x1="0" x2="%.0f" y1="%d" y2="%d"/><text x="4" y="%d">%s</text>`, labels+width+20, y, y, y-12, escape(name))
	}
	for _, o := range p.Operations {
		if o.Method == Outage {
			p.bar("fault", o.Client, 4, rowHeight-8, o.Called, o.Returned, o.line())
		}
	}
	for _, h := range p.Holds {
		if h.Key == key && h.certain() && p.visible(h.Start, h.End) {
			p.hold(h)
		}
	}
	for _, o := range p.of(key) {
		if p.visible(o.Called, o.Returned) {
			p.operation(o)
		}
	}
	p.add("</svg></div>")
}

func (p *page) visible(from, to time.Duration) bool { return to >= p.from && from <= p.to }

func (p *page) x(at time.Duration) float64 {
	return labels + float64(min(max(at, p.from), p.to)-p.from)*p.scale
}

// y is the top of a client's row.
func (p *page) y(client string) int { return headroom + slices.Index(p.rows, client)*rowHeight }

// axis marks round instants, at least 80 pixels apart.
func (p *page) axis() {
	step := time.Microsecond
	for float64(step)*p.scale < 80 {
		step *= 10
	}
	for at := p.from.Truncate(step) + step; at < p.to; at += step {
		p.add(`<line class="tick" x1="%.1f" x2="%[1]f" y1="18" y2="%d"/><text class="time" x="%.1f" y="12">%v</text>`,
			p.x(at), p.height, p.x(at)-12, at)
	}
}

func (p *page) bar(class, client string, y, height int, from, to time.Duration, title string) {
	p.add(`<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`,
		class, p.x(from), p.y(client)+y, max(1, p.x(to)-p.x(from)), height, escape(title))
}

func (p *page) hold(h *Hold) {
	class, number := "hold", "fence"
	if slices.Contains(p.bad.Holds, h) {
		class, number = "bad hold", "bad"
	}
	p.bar(class, h.Client, 8, 16, h.Start, h.End, h.String())
	p.add(`<text class="%s" x="%.1f" y="%d">%s</text>`, number, p.x(h.Start)+2, p.y(h.Client)+20, shortFence(h.Fence))
}

// shortFence is a fence that fits into a bar.
func shortFence(fence int64) string {
	if fence < 1e8 {
		return fmt.Sprint(fence)
	}
	return fmt.Sprintf("…%06d", fence%1e6)
}

// operation draws one call. Refusals are too many to be drawn, unless they matter: one sees the wait.
func (p *page) operation(o *Operation) {
	if o.Method.takes() {
		p.add(`<line class="wait" x1="%.1f" x2="%.1f" y1="%d" y2="%[3]d"/>`, p.x(o.Called), p.x(o.Returned), p.y(o.Client)+30)
	}
	switch {
	case o.Method == Wipe:
		p.add(`<line class="loss" x1="%.1f" x2="%[1]f" y1="18" y2="%d"><title>%s</title></line>`, p.x(o.Called), p.height, escape(o.line()))
	case slices.Contains(p.bad.Operations, o):
		p.bar("bad call", o.Client, 27, 7, o.Called, max(o.Returned, o.Called+time.Duration(6/p.scale)), o.line())
		p.add(`<text class="bad" x="%.1f" y="%d">%s</text>`, p.x(o.Called), p.y(o.Client)+7, escape(o.String()))
	case o.Outcome != Refused:
		p.bar("call", o.Client, 28, 4, o.Called, o.Called+time.Duration(3/p.scale), o.line())
	}
}

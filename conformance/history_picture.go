package conformance

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
	"unicode"
)

// picture draws the history as one page of HTML, which is XML too, and needs
// nothing else: for each key a row per client, first the offending piece and
// then everything.
func (e *historyError) picture() []byte {
	c, p := e.chronicle, &page{}
	p.add(pageHead, escape(c.s.t.Name()), escape(e.Error()))
	c.mu.Lock()
	defer c.mu.Unlock()
	end := c.end()
	for _, key := range c.byOffence(e.offence) {
		d := drawing{page: p, chronicle: c, ops: c.book.all(key), key: key, offence: e.offence}
		if e.offence != nil && e.offence.key == key {
			p.add("<h2>%s, the piece in question</h2>", escape(brief(key)))
			d.from, d.to = e.offence.span()
			pad := max(c.ttl/8, (d.to-d.from)/8)
			d.from, d.to = max(0, d.from-pad), d.to+pad
			d.draw(pageWidth / float64(d.to-d.from))
		}
		p.add("<h2>%s, all of it</h2>", escape(brief(key)))
		d.from, d.to = 0, end
		d.draw(min(160/float64(c.ttl), maxWidth/float64(d.to)))
	}
	p.add("</body></html>")
	return []byte(p.String())
}

const (
	pageWidth = 1100.0  // of the piece in question, in pixels
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
a square a call, a red one a call in question; orange a connection that failed; a dashed line the loss of all data.
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

// end is when the last call returned.
func (c *chronicle) end() time.Duration {
	end := time.Duration(1)
	for _, key := range c.keys {
		for _, o := range c.book.all(key) {
			end = max(end, o.called, o.returned)
		}
	}
	return end
}

// byOffence returns the keys, that of the offence first.
func (c *chronicle) byOffence(o *offence) []string {
	keys := c.keys[:]
	return slices.SortedStableFunc(slices.Values(keys), func(a, b string) int {
		return cmp.Compare(rank(o, a), rank(o, b))
	})
}

func rank(o *offence, key string) int {
	if o != nil && o.key == key {
		return 0
	}
	return 1
}

// span is the time that an offence takes.
func (o *offence) span() (from, to time.Duration) {
	from = 1 << 62
	for _, h := range o.holds {
		from, to = min(from, h.start), max(to, h.end)
	}
	for _, p := range o.ops {
		from, to = min(from, p.called), max(to, p.returned)
	}
	return from, to
}

// A drawing is the timeline of one key.
type drawing struct {
	*page
	*chronicle
	key      string
	ops      []*op
	offence  *offence
	from, to time.Duration
	scale    float64 // pixels per nanosecond
}

func (d *drawing) draw(scale float64) {
	d.scale = scale
	width, height := labels+float64(d.to-d.from)*scale+20, headroom+historyWorkers*rowHeight+10
	d.add(`<div><svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d">`, width, height)
	d.axis(height)
	for i := range historyWorkers {
		y := headroom + i*rowHeight + rowHeight
		d.add(`<line class="row" x1="0" x2="%.0f" y1="%d" y2="%d"/><text x="4" y="%d">%s</text>`, width, y, y, y-12, clientName(i))
	}
	for _, f := range d.faults {
		if d.visible(f.from, f.to) {
			d.bar("fault", f.client, 4, rowHeight-8, f.from, f.to, "the connection fails")
		}
	}
	d.waits()
	for _, h := range d.holds {
		if h.key == d.key && d.visible(h.start, h.end) {
			d.hold(h)
		}
	}
	for _, o := range d.ops {
		if d.visible(o.called, o.returned) {
			d.op(o, height)
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

func (d *drawing) hold(h *sureHold) {
	class, number := "hold", "fence"
	if d.offence != nil && slices.Contains(d.offence.holds, h) {
		class, number = "bad hold", "bad"
	}
	d.bar(class, h.client, 8, 16, h.start, h.end, piece(h.start, h.end, h.client, h))
	d.add(`<text class="%s" x="%.1f" y="%d">%s</text>`, number, d.x(h.start)+2, headroom+h.client*rowHeight+20, shortFence(h.fence))
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
	for _, o := range d.ops {
		if !o.action.takes() {
			continue
		}
		w := byToken[o.token]
		if w == nil {
			w = &wait{o.client, o.called, o.returned}
			byToken[o.token], all = w, append(all, w)
		}
		w.to = max(w.to, o.returned)
		if o.outcome == granted {
			byToken[o.token] = nil
		}
	}
	for _, w := range all {
		if d.visible(w.from, w.to) {
			y := headroom + w.client*rowHeight + 30
			d.add(`<line class="wait" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, d.x(w.from), d.x(w.to), y, y)
		}
	}
}

// op draws one call. Refusals are too many to be drawn, unless they matter.
func (d *drawing) op(o *op, height int) {
	bad := d.offence != nil && slices.ContainsFunc(d.offence.ops, func(p *op) bool { return p.call == o.call })
	title := piece(o.called, o.returned, o.client, o)
	switch {
	case o.action == doWipe:
		d.add(`<line class="loss" x1="%.1f" x2="%.1f" y1="18" y2="%d"><title>%s</title></line>`, d.x(o.called), d.x(o.called), height, escape(title))
	case bad:
		d.bar("bad call", o.client, 27, 7, o.called, max(o.returned, o.called+time.Duration(6/d.scale)), title)
		d.add(`<text class="bad" x="%.1f" y="%d">%s</text>`, d.x(o.called), headroom+o.client*rowHeight+7, escape(o.String()))
	case o.outcome != refused:
		d.bar("call", o.client, 28, 4, o.called, o.called+time.Duration(3/d.scale), title)
	}
}

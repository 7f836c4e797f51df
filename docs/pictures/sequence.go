package main

import (
	"fmt"
	"html"
	"strings"
)

// A palette is the colours of a page, as GitHub has them.
type palette struct{ page, ink, faint, hold, good, bad string }

var (
	light = palette{page: "#ffffff", ink: "#1f2328", faint: "#59636e", hold: "#0969da", good: "#1a7f37", bad: "#cf222e"}
	dark  = palette{page: "#0d1117", ink: "#f0f6fc", faint: "#9198a1", hold: "#4493f8", good: "#3fb950", bad: "#f85149"}
)

// The classes of a box.
const (
	plain = "plain"
	good  = "good"
	bad   = "bad"
)

const (
	width  = 880
	height = 440
	left   = 150 // of the first lane
	lane   = 200 // from one lane to the next
	head   = 34  // height of the lanes' titles
	foot   = 394 // of the lanes
)

// A sequence is a diagram of messages between lanes. Time runs downwards.
type sequence struct{ lanes, marks strings.Builder }

func newSequence(titles ...string) *sequence {
	s := new(sequence)
	for i, title := range titles {
		fmt.Fprintf(&s.lanes, "<line class=\"lane\" x1=\"%d\" y1=\"%d\" x2=\"%[1]d\" y2=\"%[3]d\"/>\n", x(i), head+8, foot)
		s.text(x(i), head, "title", "middle", title)
	}
	return s
}

// x is the middle of a lane.
func x(i int) int { return left + i*lane }

func (s *sequence) text(x, y int, class, anchor, text string) {
	fmt.Fprintf(&s.marks, "<text class=\"%s\" x=\"%d\" y=\"%d\" text-anchor=\"%s\">%s</text>\n",
		class, x, y, anchor, html.EscapeString(text))
}

// arrow draws a message that is sent at the height y and arrives a little later. Its text
// stands in the gap beside the sender.
func (s *sequence) arrow(y, from, to int, text string) {
	const later, gap = 8, 8
	side := 1
	if to < from {
		side = -1
	}
	fmt.Fprintf(&s.marks, "<line class=\"arrow\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" marker-end=\"url(#tip)\"/>\n",
		x(from)+side*gap, y, x(to)-side*gap, y+later)
	s.text(x(from)+side*lane/2, y-6, "label", "middle", text)
}

// bar shows that a lane holds the lock.
func (s *sequence) bar(from, to, i int, text string) { s.span("hold", from, to, i, text) }

// wait shows that a lane waits, or is stopped.
func (s *sequence) wait(from, to, i int, text string) { s.span("wait", from, to, i, text) }

// span has its text beside the lane: on the left of the first lane, on the right of others.
func (s *sequence) span(class string, from, to, i int, text string) {
	const half, gap = 5, 12
	fmt.Fprintf(&s.lanes, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\"/>\n",
		class, x(i)-half, from, 2*half, to-from)
	side, anchor := 1, "start"
	if i == 0 {
		side, anchor = -1, "end"
	}
	s.text(x(i)+side*gap, (from+to)/2+5, "note", anchor, text)
}

// box shows what a lane knows from the height y on.
func (s *sequence) box(y, i int, text, class string) {
	const half, high = 74, 22
	fmt.Fprintf(&s.marks, "<rect class=\"box %s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\"/>\n",
		class, x(i)-half, y-high/2, 2*half, high)
	s.text(x(i), y+5, "label "+class, "middle", text)
}

func (s *sequence) caption(text string) { s.text(width/2, height-16, "note", "middle", text) }

func (s *sequence) svg(p palette) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d">
<style>
text { font: 14px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: %[4]s; stroke: %[3]s; stroke-width: 4px; paint-order: stroke; }
.title { font-weight: 600; font-size: 15px; }
.note { fill: %[5]s; }
.lane { stroke: %[5]s; stroke-dasharray: 3 4; }
.arrow { stroke: %[4]s; stroke-width: 1.5; }
.tip { fill: %[4]s; }
.hold { fill: %[6]s; }
.wait { fill: %[3]s; stroke: %[5]s; stroke-width: 1.5; }
.box { fill: %[3]s; stroke: %[5]s; stroke-width: 1.5; }
.box.good { stroke: %[7]s; } text.good { fill: %[7]s; }
.box.bad { stroke: %[8]s; } text.bad { fill: %[8]s; }
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto"><path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>
<rect width="%[1]d" height="%[2]d" rx="8" fill="%[3]s"/>
%[9]s%[10]s</svg>
`, width, height, p.page, p.ink, p.faint, p.hold, p.good, p.bad, s.lanes.String(), s.marks.String())
}

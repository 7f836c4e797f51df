package main

import (
	"fmt"
	"strings"

	"github.com/dlock-go/dlock/internal/modelcheck"
)

// Text is a result as text: who did what, and after each step who holds the nodes, and who is certain.
func (c *Config) Text(r *modelcheck.Result[event]) string {
	if r.Err == nil {
		return r.Summary() + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v (%d states, %d steps)\n", r.Err, r.States, len(r.Trace))
	w := c.named()
	for i, e := range r.Trace {
		text := w.event(e)
		w.happen(e)
		w.canonical()
		fmt.Fprintf(&b, "%3d  %-52s %s\n", i+1, text, w.text())
	}
	return b.String()
}

var eventText = [...]string{
	passes: "time passes", loses: "no answer", delayed: "no answer yet", arrivesTwice: "twice",
	begins: "begins to acquire", asks: "asks again for the vote of", confirms: "keeps its vote on", givesBack: "gives its vote back to",
	cancels: "ends the attempt", givesUp: "gives up", renews: "renews", heals: "asks for a lacking vote of", repeated: "acquires again", ends: "releases",
	adopts: "'s lease is adopted", wiped: "loses all data", saves: "saves its data", restarted: "starts again with what it has saved", drifted: "has a fast clock",
}

func (w *world) event(e event) string {
	node := w.Nodes[e.n]
	name := fmt.Sprintf("node %d", node.Name)
	switch call := node.Calls[e.i%maxCalls]; e.kind {
	case passes:
		return eventText[e.kind]
	case executes:
		after := world{State: w.State, c: w.c}
		after.Nodes[e.n].Calls[e.i].Wanted = true
		after.execute(int(e.n), int(e.i))
		return name + ": " + w.call(after.Nodes[e.n].Calls[e.i])
	case receives:
		return fmt.Sprintf("%s reads from %s: %s", w.who(call.Token), name, w.call(call))
	case loses, delayed, arrivesTwice:
		return fmt.Sprintf("%s: %s: %s", name, w.call(call), eventText[e.kind])
	case wiped, saves, restarted, drifted:
		return name + " " + eventText[e.kind]
	case asks, confirms, givesBack, heals:
		return fmt.Sprintf("%c %s %s", w.Clients[e.i].Name, eventText[e.kind], name)
	}
	return strings.Replace(fmt.Sprintf("%c %s", w.Clients[e.i].Name, eventText[e.kind]), " '", "'", 1)
}

func (w *world) who(t token) string { return string(rune(w.Clients[client(t)].Name)) }

// name is A, B or C with the number of the acquisition.
func (w *world) name(t token) string {
	switch t {
	case 0:
		return "-"
	case ghost:
		return "?"
	}
	return fmt.Sprintf("%s%d", w.who(t), int(w.c.Acquire[w.who(t)[0]-'A'])-int(t-1)%sessions)
}

func (w *world) call(call Call) string {
	text := [...]string{"", "vote", "confirm", "release"}[call.Kind] + " " + w.name(call.Token)
	if call.Kind == confirm && call.Answer == unanswered {
		text += fmt.Sprintf(" (raise to %d)", call.Fence)
	}
	text += [...]string{"", " → queued", " → yes", " → no"}[call.Answer]
	if call.Kind == vote && call.Answer == yes || call.Kind == confirm && call.Answer != unanswered {
		text += fmt.Sprintf(", %d", call.Fence)
	}
	if call.Young && call.Answer != unanswered {
		text += ", young"
	}
	return text
}

// text is what the nodes hold, by their names, and who is certain.
func (w *world) text() string {
	var nodes [maxNodes + 1]string
	for _, node := range w.Nodes[:w.c.Nodes] {
		nodes[node.Name] = fmt.Sprintf("| %s", w.name(node.Holder))
		if node.Holder != 0 {
			nodes[node.Name] += fmt.Sprintf(" for %d", node.Rest)
		}
		nodes[node.Name] += fmt.Sprintf(", counter %d ", node.Counter)
	}
	text := strings.Join(nodes[:], "")
	for c := range w.c.Clients {
		if cl := &w.Clients[c]; cl.Rest > 0 {
			text += fmt.Sprintf("| %s certain for %d, fence %d", w.name(cl.Token), cl.Rest, cl.Fence)
		}
	}
	return text
}

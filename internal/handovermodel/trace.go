package main

import (
	"fmt"
	"slices"
	"strings"
)

// Text is a result as text: who did what, and after each step the server, the leases of
// which a client is certain, and what is owed.
func (r *Result) Text(c *Config) string {
	var b strings.Builder
	if r.Broken == 0 {
		fmt.Fprintf(&b, "%d states, depth %d", r.States, r.Depth)
		if !r.Complete {
			b.WriteString(", not complete")
		}
		if r.Full > 0 {
			fmt.Fprintf(&b, ", %d steps not taken or judged for want of room", r.Full)
		}
		b.WriteString("\n")
		return b.String()
	}
	fmt.Fprintf(&b, "%v is broken (%d states): %s\n", r.Broken, r.States, r.Why)
	for i, s := range c.plain(slices.Concat(r.Trace, r.After)) {
		if i == len(r.Trace) {
			b.WriteString("     and then without faults:\n")
		}
		fmt.Fprintf(&b, "%3d  %-68s %s\n", i+1, c.event(&s), c.state(&s.After))
	}
	return b.String()
}

// plain replays steps without making numbers smaller, so that they can be followed.
func (c *Config) plain(steps []Step) []Step {
	w := world{State: steps[0].Before, c: c, plain: true}
	replay := make([]Step, 0, len(steps))
	for _, s := range steps {
		before := w.State
		w.happen(s.Event)
		w.canonical()
		replay = append(replay, Step{s.Event, before, w.State})
	}
	return replay
}

// name is A, B or C with the number of the token.
func (c *Config) name(t token) string {
	if t == 0 {
		return "-"
	}
	return fmt.Sprintf("%c%d", 'A'+c.client(t), (int(t)-1)%c.Tokens+1)
}

var eventText = map[eventKind]string{
	begin:        "begins to acquire",
	checksIn:     "checks in",
	renewNow:     "renews",
	releaseNow:   "releases",
	cancels:      "cancels",
	swallows:     "cancels, with a message unread",
	crashes:      "crashes",
	sees:         "'s subscription ends after the crash",
	unsubscribes: "'s subscription is lost",
	hangUp:       "sees that the subscription is lost",
	notices:      "notices that its inbox has changed",
	opens:        "is subscribed",
	detaches:     "passes the lease to another process",
	passesOn:     "passes the lease on to the next in its line",
	wipes:        "the server loses all data",
	copies:       "the replica catches up",
	fails:        "the replica becomes the server",
}

func (c *Config) event(s *Step) string {
	e := s.Event
	switch e.kind {
	case tick:
		return "time passes"
	case execute:
		call := s.Before.Calls[e.n]
		w := world{State: s.Before, c: c}
		w.execute(&call)
		return "server: " + c.call(call) + c.reply(call)
	case receive:
		call := s.Before.Calls[e.n]
		return c.who(call.Token) + " reads the answer to " + c.call(call) + c.reply(call)
	case lost:
		return "lost: " + c.call(s.Before.Calls[e.n]) + " or its answer; the caller gives it up"
	case slow:
		return "the caller gives up " + c.call(s.Before.Calls[e.n]) + ", which is still in flight"
	case message, dropped:
		m := s.Before.Msgs[e.n]
		verb := " reads the message"
		if e.kind == dropped {
			verb = "'s message is lost"
		}
		return fmt.Sprintf("%s%s: %s was granted fence %d, %d ago", c.who(m.Token), verb, c.name(m.Token), m.Fence, m.Age)
	case retriesRelease:
		return c.who(token(e.n)) + " sends the owed release of " + c.name(token(e.n))
	case dropsRelease:
		return c.who(token(e.n)) + " owes too many releases, and drops that of " + c.name(token(e.n))
	case wipes, copies, fails:
		return eventText[e.kind]
	}
	return strings.Replace(fmt.Sprintf("%c %s", 'A'+e.n, eventText[e.kind]), " '", "'", 1)
}

func (c *Config) who(t token) string { return string(rune('A' + c.client(t))) }

func (c *Config) call(call Call) string {
	return [...]string{"", "try", "enqueue", "check-in", "renew", "release"}[call.Script] + " " + c.name(call.Token)
}

func (c *Config) reply(call Call) string {
	text := [...]string{"", "granted", "waits", "found granted", "unknown", "held", "not held"}[call.Answer]
	if call.Answer == answerGranted || call.Answer == answerFound {
		text += fmt.Sprintf(", fence %d", call.Fence)
	}
	if !call.Wanted {
		text += " (nobody listens)"
	}
	return " → " + text
}

// state is the server, what is in flight, and who is certain.
func (c *Config) state(s *State) string {
	w := world{State: *s, c: c}
	var b strings.Builder
	fmt.Fprintf(&b, "| lock %s", c.name(s.Server.Holder))
	if s.Server.Holder != 0 {
		fmt.Fprintf(&b, " for %d", s.Server.Rest)
	}
	if t := w.first(); t != 0 {
		b.WriteString(", queue")
		for ; t != 0; t = w.first() {
			e := w.entry(t)
			fmt.Fprintf(&b, " %s(seen %d", c.name(t), e.Seen)
			if !e.Inbox {
				b.WriteString(", no inbox")
			}
			b.WriteString(")")
			e.Ticket = 0
		}
	}
	w.leases(func(l Away) {
		fmt.Fprintf(&b, " | %s certain for %d, fence %d", c.name(l.Token), l.Rest, l.Fence)
	})
	for i, t := range s.Tokens {
		if t.Owed != nothingOwed {
			fmt.Fprintf(&b, " | %s owed", c.name(token(i+1)))
		}
	}
	return b.String()
}

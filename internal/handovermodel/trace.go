package main

import (
	"fmt"
	"slices"
	"strings"
)

// Text is a result as text: who did what, and after each step the server, the leases of
// which a client is certain, and what is owed. Numbers are not made smaller, so that they can
// be followed.
func (r *Result) Text(c *Config) string {
	if r.Broken == 0 {
		return r.Summary() + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v is broken (%d states): %s\n", r.Broken, r.States, r.Why)
	plain := *c
	plain.Begin = nil
	w := world{c: &plain, plain: true}
	w.State, _ = plain.start()
	for i, e := range slices.Concat(r.Trace, r.After) {
		if i == len(r.Trace) {
			b.WriteString("     and then without faults:\n")
		}
		text := c.event(e, &w.State)
		w.happen(e)
		w.canonical()
		fmt.Fprintf(&b, "%3d  %-68s %s\n", i+1, text, c.state(&w.State))
	}
	return b.String()
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
	splits:       "the replica becomes the server, and the former one goes on",
	writes:       "writes to the resource",
}

func (c *Config) event(e event, before *State) string {
	switch e.kind {
	case tick:
		return "time passes"
	case execute:
		call := before.Calls[e.n]
		w := world{State: *before, c: c}
		w.execute(&call)
		return "server: " + c.call(call) + c.reply(call)
	case receive:
		call := before.Calls[e.n]
		return c.who(call.Token) + " reads the answer to " + c.call(call) + c.reply(call)
	case lost:
		return "lost: " + c.call(before.Calls[e.n]) + " or its answer; the caller gives it up"
	case slow:
		return "the caller gives up " + c.call(before.Calls[e.n]) + ", which is still in flight"
	case message, dropped:
		m := before.Msgs[e.n]
		verb := " reads the message"
		if e.kind == dropped {
			verb = "'s message is lost"
		}
		return fmt.Sprintf("%s%s: %s was granted fence %d, %d ago", c.who(m.Token), verb, c.name(m.Token), m.Fence, m.Age)
	case retriesRelease:
		return c.who(token(e.n)) + " sends the owed release of " + c.name(token(e.n))
	case dropsRelease:
		return c.who(token(e.n)) + " owes too many releases, and drops that of " + c.name(token(e.n))
	case executeFormer:
		call := before.Calls[e.n]
		w := world{State: *before, c: c}
		w.atFormer(func() { w.execute(&call) })
		return "former server: " + c.call(call) + c.reply(call)
	case wipes, copies, fails, splits:
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
	if s.Split {
		fmt.Fprintf(&b, ", former %s", c.name(s.Former.Holder))
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

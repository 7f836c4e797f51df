package faultproxy

import "strings"

// pending has the unanswered requests of one connection, the oldest first. In a protocol other
// than RESP it has only those with faults.
type pending struct {
	resp       bool // this is RESP
	resp3      bool // in version 3
	subscribed bool // messages may come
	asked      []asked
}

type asked struct {
	fault *Fault
	verb  string // the command, in lower case
	parts int    // how many confirmations answer it, if it (un)subscribes
}

// push adds a request that is passed on to the store.
func (q *pending) push(args []string, f *Fault) {
	switch {
	case q.resp && len(args) == 0: // an empty line, which is not answered
	case q.resp:
		a := asked{fault: f, verb: strings.ToLower(args[0]), parts: 1}
		if subscribes(a.verb) {
			q.subscribed = true
			a.parts = max(1, len(args)-1)
		}
		q.asked = append(q.asked, a)
	case f != nil:
		q.asked = append(q.asked, asked{fault: f})
	}
}

// pop removes the oldest request, and returns its fault.
func (q *pending) pop() *Fault {
	if len(q.asked) == 0 {
		return nil
	}
	f := q.asked[0].fault
	q.asked = q.asked[1:]
	return f
}

// answer returns the fault of the request whose answer is complete with r. It returns nil if the
// request has no fault, or if r completes no answer.
func (q *pending) answer(r reply) *Fault {
	if len(q.asked) == 0 {
		return nil
	}
	oldest := &q.asked[0]
	switch pushed := q.pushed(r); {
	case pushed && r.first != oldest.verb:
		return nil
	case pushed && oldest.parts > 1:
		oldest.parts--
		return nil
	}
	if oldest.verb == "hello" {
		q.resp3 = r.kind == '%'
	}
	return q.pop()
}

// pushed reports whether r is a message, or confirms a subscription or its end.
func (q *pending) pushed(r reply) bool {
	if r.kind == '>' {
		return true
	}
	return r.kind == '*' && q.subscribed && !q.resp3 && (subscribes(r.first) || messages(r.first))
}

func subscribes(verb string) bool {
	switch verb {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return true
	}
	return false
}

func messages(first string) bool {
	return first == "message" || first == "pmessage" || first == "smessage"
}

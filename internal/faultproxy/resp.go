package faultproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A respReader reads RESP, value by value, and keeps the bytes of the last value.
// See https://redis.io/docs/latest/develop/reference/protocol-spec/.
type respReader struct {
	in  *bufio.Reader
	raw bytes.Buffer // of the current value
}

var errNotRESP = errors.New("faultproxy: not RESP")

// command reads a command: an array of strings, or a line of words.
func (r *respReader) command() ([]string, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	if line == "" || line[0] != '*' {
		return strings.Fields(line), nil
	}
	n, err := number(line)
	args := make([]string, 0, min(max(0, n), 1024))
	for range n {
		if err != nil {
			break
		}
		var arg string
		arg, err = r.argument()
		args = append(args, arg)
	}
	return args, err
}

// command is a command as it is sent.
func command(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

func (r *respReader) argument() (string, error) {
	line, err := r.line()
	if err != nil {
		return "", err
	}
	if line == "" || line[0] != '$' {
		return "", errNotRESP
	}
	return r.bulk(line)
}

// A reply is one value that a server sends.
type reply struct {
	kind  byte   // its first byte
	first string // the first element, if it has elements and that is a string
}

// reply reads a value, together with the attributes before it.
func (r *respReader) reply() (reply, error) {
	kind, first, err := r.value(0)
	return reply{kind, first}, err
}

// value reads a value. It returns its kind, and the string that it is or begins with.
func (r *respReader) value(depth int) (kind byte, text string, err error) {
	const deepest = 128
	line, err := r.line()
	if err != nil {
		return 0, "", err
	}
	if line == "" || depth > deepest {
		return 0, "", errNotRESP
	}
	switch kind = line[0]; kind {
	case '+':
		return kind, line[1:], nil
	case '-', ':', '_', ',', '#', '(':
		return kind, "", nil
	case '$', '=', '!':
		text, err = r.bulk(line)
		return kind, text, err
	case '*', '~', '>', '%':
		text, err = r.elements(line, depth)
		return kind, text, err
	case '|':
		if _, err = r.elements(line, depth); err != nil {
			return kind, "", err
		}
		return r.value(depth)
	}
	return 0, "", errNotRESP
}

// elements reads the values of an aggregate that begins with line, and returns the
// first, if it is a string.
func (r *respReader) elements(line string, depth int) (first string, err error) {
	n, err := number(line)
	if line[0] == '%' || line[0] == '|' {
		n *= 2
	}
	for i := range n {
		if err != nil {
			break
		}
		var text string
		if _, text, err = r.value(depth + 1); i == 0 {
			first = text
		}
	}
	return first, err
}

// bulk reads the string whose first line is line. It returns "" for a null.
func (r *respReader) bulk(line string) (string, error) {
	n, err := number(line)
	if err != nil || n < 0 {
		return "", err
	}
	start := r.raw.Len()
	if _, err := io.CopyN(&r.raw, r.in, int64(n)+2); err != nil {
		return "", err
	}
	return string(r.raw.Bytes()[start : start+n]), nil
}

func (r *respReader) line() (string, error) {
	line, err := r.in.ReadString('\n')
	r.raw.WriteString(line)
	return strings.TrimRight(line, "\r\n"), err
}

// number reads the number after the first byte of line. -1 means null.
func number(line string) (int, error) {
	const largest = 1 << 29 // bytes, in Redis
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < -1 || n > largest {
		return 0, errNotRESP
	}
	return n, nil
}

// take returns the bytes of the last value, or of the part of it that was read.
func (r *respReader) take() []byte {
	raw := bytes.Clone(r.raw.Bytes())
	r.raw.Reset()
	return raw
}

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
	return r.kind == '>' || r.kind == '*' && q.subscribed && !q.resp3 && (subscribes(r.first) || strings.HasSuffix(r.first, "message"))
}

// subscribes says it of (p|s)(un)subscribe.
func subscribes(verb string) bool { return strings.HasSuffix(verb, "subscribe") }

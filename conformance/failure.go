package conformance

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A trace remembers the calls of one case.
type trace struct {
	mu       sync.Mutex
	start    time.Time
	begun    int
	returned []*call // in the order of their answers
	open     map[*call]bool
}

// A call is put into words when a case has failed.
type call struct {
	trace  *trace
	n      int           // it is the nth that was made, and the nth that has returned when it has
	begun  time.Duration // since the case began
	key    string        // "" if it is about several
	token  string
	format string // of its text, with args
	args   []any
	answer any // or the error
}

func (c *call) text() string { return fmt.Sprintf(c.format, c.args...) }

const (
	traced     = 25 // calls that are shown, whatever they are about
	tracedKey  = 10 // calls that are shown on each key that the failure names
	tracedCall = 2  // calls that are shown of those that the failure names, by their text, token or fence
)

func newTrace() *trace { return &trace{start: time.Now(), open: make(map[*call]bool)} }

func (tr *trace) begin(key, token, format string, args ...any) *call {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.begun++
	c := &call{trace: tr, n: tr.begun, begun: time.Since(tr.start), key: key, token: token, format: format, args: args}
	tr.open[c] = true
	return c
}

// end notes the answer. It is not to change after that.
func (c *call) end(answer any, err error) {
	tr := c.trace
	tr.mu.Lock()
	defer tr.mu.Unlock()
	delete(tr.open, c)
	tr.returned = append(tr.returned, c)
	if c.n, c.answer = len(tr.returned), answer; err != nil {
		c.answer = err
	}
}

// hanging shows the calls that have not returned, oldest first, one a line. If they are
// many, it prefers those that the failure names.
func (tr *trace) hanging(named func(*call) bool) []string {
	open := slices.SortedFunc(maps.Keys(tr.open), func(a, b *call) int { return a.n - b.n })
	var lines []string
	for _, c := range open {
		if len(lines) < traced || named(c) && len(lines) < 2*traced {
			lines = append(lines, fmt.Sprintf("%v …has not returned", c))
		}
	}
	if more := len(open) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("%12s%d more have not returned", "", more))
	}
	return lines
}

func (tr *trace) unanswered() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return strings.Join(tr.hanging(func(*call) bool { return false }), "\n")
}

// about shows the latest calls, and, however many there were since, what a failure is about: the calls and the keys that its
// message names, and the last grant of each of these keys, with the last to another token.
func (tr *trace) about(message string) string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	names := func(text string) bool { return text != "" && text != brief("") && strings.Contains(message, text) }
	var shown []*call
	counts := make(map[string]int)        // of the calls that have a name, from the latest on
	grantees := make(map[string][]string) // by key
	for i, c := range slices.Backward(tr.returned) {
		show := len(tr.returned)-i <= traced
		fence := fenceOf(c.answer)
		for name, most := range map[string]int{brief(c.key): tracedKey, c.text(): tracedCall, brief(c.token): tracedCall, fence: tracedCall} {
			if names(name) {
				counts[name]++
				show = show || counts[name] <= most
			}
		}
		if got := grantees[c.key]; fence != "" && names(brief(c.key)) && len(got) < 2 && !slices.Contains(got, c.token) {
			grantees[c.key], show = append(got, c.token), true
		}
		if show {
			shown = append(shown, c)
		}
	}
	slices.Reverse(shown)
	var lines []string
	for i, c := range shown {
		if others := c.n - shown[max(i-1, 0)].n - 1; others == 1 {
			lines = append(lines, fmt.Sprintf("%12s… 1 other call", ""))
		} else if others > 1 {
			lines = append(lines, fmt.Sprintf("%12s… %d other calls", "", others))
		}
		lines = append(lines, c.String())
	}
	return strings.Join(append(lines, tr.hanging(func(c *call) bool { return names(brief(c.key)) })...), "\n")
}

func (c *call) String() string {
	line := fmt.Sprintf("%10v  %s", c.begun.Round(10*time.Microsecond), c.text())
	if c.answer != nil {
		line += " = " + show(c.answer)
	}
	return line
}

// brief quotes s, without its middle if it is long.
func brief(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q…%q(%d bytes)", s[:30], s[len(s)-20:], len(s))
	}
	return strconv.Quote(s)
}

// show prints an argument or the answer of a call, without what is many or zero.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return brief(v)
	case error:
		return v.Error()
	case []dlock.Renewal:
		return showBatch(v)
	case []dlock.Acquisition:
		return showAll(v, func(a dlock.Acquisition) string { return showRenewal(dlock.Renewal(a)) })
	case []dlock.Attempt:
		return showAll(v, func(a dlock.Attempt) string { return show(a) })
	case []dlock.RenewResult:
		if len(v) > 4 {
			return fmt.Sprintf("%d results", len(v))
		}
	case dlock.Hold:
		return fmt.Sprintf("{held = %v, by %s, for %v, waiting = %d}", v.Held, brief(v.Token), v.Remaining, v.Waiting)
	case dlock.Attempt:
		if v.Acquired {
			return fmt.Sprintf("acquired, fence %d", v.Fence)
		}
		if v.Free {
			return "free, but not acquired"
		}
		holder := "?"
		if v.Holder != "" {
			holder = brief(v.Holder)
		}
		return fmt.Sprintf("held by %s for %v", holder, v.Remaining)
	}
	return fmt.Sprintf("%+v", v)
}

func showBatch(batch []dlock.Renewal) string { return showAll(batch, showRenewal) }

// showAll prints the elements of a batch or of a set, unless they are many.
func showAll[T any](all []T, show func(T) string) string {
	if len(all) > 5 {
		return fmt.Sprintf("%d elements", len(all))
	}
	shown := make([]string, len(all))
	for i, one := range all {
		shown[i] = show(one)
	}
	return strings.Join(shown, "; ")
}

func showRenewal(r dlock.Renewal) string {
	return fmt.Sprintf("%s, %s, %v", brief(r.Key), brief(r.Token), r.TTL)
}

// fenceOf is the fence that a call has granted, as failures name it, or "".
func fenceOf(answer any) string {
	if a, ok := answer.(dlock.Attempt); ok && a.Acquired {
		return fmt.Sprintf("fence %d", a.Fence)
	}
	return ""
}

// A place is a line of this package.
type place struct {
	path string // opens from the user's module, unless -trimpath has cut it
	line int
}

func (p place) file() string { return path.Base(p.path) }

func (p place) String() string { return fmt.Sprintf("%s:%d", p.path, p.line) }

// A clause is a piece of the contract, and where it stands in its chapter's table.
type clause struct {
	place
	text string
}

// A violation is what a case found wrong, with the calls that show it.
type violation struct {
	err   error
	stack []uintptr // of the goroutine that found it; empty if unknown
	calls string
}

func (v *violation) Error() string { return v.err.Error() }
func (v *violation) Unwrap() error { return v.err }

// violation returns err with what is known at this moment: calls that follow may be many.
func (s *scene) violation(err error) *violation {
	stack := make([]uintptr, 64)
	return &violation{err, stack[:runtime.Callers(1, stack)], s.trace.about(err.Error())}
}

// at returns the innermost line of the stack that stands in a chapter.
func (v *violation) at() (p place, ok bool) {
	prefix := reflect.TypeFor[violation]().PkgPath() + "."
	frames := runtime.CallersFrames(v.stack)
	for more := len(v.stack) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if p := (place{f.File, f.Line}); strings.HasPrefix(f.Function, prefix) && isChapter(p.file()) {
			return p, true
		}
	}
	return place{}, false
}

// isChapter reports whether file belongs to a chapter: that of its table, as waiting.go, or
// a further one, as waiting_queue.go.
func isChapter(file string) bool {
	stem, _, _ := strings.Cut(strings.TrimSuffix(file, ".go"), "_")
	return !strings.HasSuffix(file, "_test.go") &&
		slices.ContainsFunc(chapters, func(c chapter) bool { return c.file() == stem+".go" })
}

// message says of the failure of a case where it was found, what it is, and which clause it violates.
func message(c testCase, err error) string {
	at := c.clause.place
	var v *violation
	if errors.As(err, &v) {
		if p, ok := v.at(); ok {
			at = p
		}
	}
	return fmt.Sprintf("%v: %v\nclause (%v): %s", at, err, c.clause.place, c.clause.text)
}

package conformance

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

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

package rediserr

import (
	"fmt"
	"runtime"
	"strings"
)

// A Panic is the error of a call in which the client panicked. Its outcome is unknown, whatever the client panicked with.
type Panic struct{ text string }

// Error returns a text with the value, and the line of code that panicked.
func (p *Panic) Error() string { return p.text }

// Try calls f. If f panics, Try returns a [*Panic].
func Try(f func()) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{fmt.Sprintf("the Redis client panicked at %s: %v", origin(), value)}
		}
	}()
	f()
	return nil
}

// Call calls f, and returns its error. If f panics, that is a [*Panic].
func Call(f func() error) (err error) {
	if panicked := Try(func() { err = f() }); panicked != nil {
		return panicked
	}
	return err
}

// origin returns the line that panicked. A deferred function calls it.
func origin() string {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(0, callers)])
	for panicked, more := false, true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if inRuntime := strings.HasPrefix(f.Function, "runtime."); panicked && !inRuntime {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		panicked = panicked || f.Function == "runtime.gopanic"
	}
	return "an unknown line"
}

// Package bubble runs tests in virtual time.
package bubble

import (
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Test is [synctest.Test], but a test that leaves goroutines blocked in its bubble fails, and the other tests run. With
// synctest alone, a require that fails while another goroutine waits ends the program.
func Test(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	defer func() {
		t.Helper()
		stuck := recover()
		if stuck == nil {
			return
		}
		err, ok := stuck.(error)
		if !ok || !strings.HasPrefix(err.Error(), "deadlock: ") {
			panic(stuck)
		}
		if !t.Failed() { // otherwise the goroutines are those of a test that was cut off
			t.Errorf("%v\n%s", err, blocked())
		}
		t.FailNow()
	}()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() {
			if t.Failed() {
				time.Sleep(time.Nanosecond) // the end of t.Context has woken others, who may fail the test, too
			}
		})
		f(t)
	})
}

var header = regexp.MustCompile(`^goroutine \d+ .*\[.*synctest bubble`)

// blocked returns the stacks of the goroutines in bubbles.
func blocked() string {
	var all []string
	stacks := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if header.MatchString(stack) {
			all = append(all, stack)
		}
	}
	return strings.Join(all, "\n\n")
}

// Package bubble runs tests in virtual time.
package bubble

import (
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/internal/israce"
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
	Run(t, func(t *testing.T) {
		t.Cleanup(func() {
			if t.Failed() {
				time.Sleep(time.Nanosecond) // the end of t.Context has woken others, who may fail the test, too
			}
		})
		f(t)
	})
}

// Run is [synctest.Test], but with the race detector the process uses one CPU meanwhile. In Go 1.26, a timer of a bubble
// that is set to the past runs at once, in a context of the detector that the whole bubble has: two at the same time end
// the process with a SIGSEGV.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if israce.Enabled {
		cpus.limit()
		defer cpus.restore()
	}
	synctest.Test(t, f)
}

var cpus limiter

// A limiter limits the process to one CPU while there are bubbles.
type limiter struct {
	mu      sync.Mutex
	bubbles int
	before  int
}

func (l *limiter) limit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bubbles++; l.bubbles == 1 {
		l.before = runtime.GOMAXPROCS(1)
	}
}

func (l *limiter) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bubbles--; l.bubbles == 0 {
		runtime.GOMAXPROCS(l.before)
	}
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

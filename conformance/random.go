package conformance

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"pgregory.net/rapid"
)

var randomCases = []testCase{
	is("History", func(s *scene, _, _ *client) { playHistory(s, (*randomRun).work) }, "A backend produces, under load, pauses and faults, a history in which no two holders are certain of a key at once and fences follow real time."),
	is("HistoryAcrossDataLoss", historyAcrossDataLoss, "A backend whose fences survive data loss produces, under load, pauses and faults, a history in which fences follow real time even if the store sometimes loses everything, and no two holders are certain of a key at once if each loss ends all leases.").single().needing(needsWipe),
	{name: "AgreesWithModel", whole: agreesWithModel, clause: is("", nil, "A backend answers any sequence of calls as a plain model of a lock does.").clause},
}

// agreesWithModel makes random calls, one after the other, and compares the answers with
// those of a model. Where they differ, package rapid looks for the shortest
// sequence of calls that shows it. There are several walks at once where time really passes.
func agreesWithModel(t *testing.T, h Harness) error {
	e := &explorer{t: t, h: h, scripts: 20, end: time.Now().Add(cmp.Or(h.explore, budget()))}
	walks := 1
	if !h.Bubble {
		e.h, e.scripts, walks = h.reusing(t), 1, 12
	}
	var wg sync.WaitGroup
	for range walks {
		wg.Go(e.walk)
	}
	wg.Wait()
	return e.result()
}

// budget is how long new sequences are begun. In a bubble all of them are done sooner, unless the machine is busy.
func budget() time.Duration {
	if testing.Short() {
		return 1500 * time.Millisecond
	}
	return 3 * time.Second
}

// shortening is how long a sequence that fails is made shorter, at most. It begins when the
// sequence has failed, so a sequence that takes long to fail is repeated a few times only.
const shortening = 30 * time.Second

// reusing is h with three clients altogether.
func (h Harness) reusing(t *testing.T) Harness {
	clients := []dlock.Locker{h.New(t), h.New(t), h.New(t)}
	var next atomic.Int64
	h.New = func(*testing.T) dlock.Locker { return clients[int(next.Add(1))%len(clients)] }
	return h
}

// An explorer looks for a sequence of calls for which store and model differ.
type explorer struct {
	t       *testing.T
	h       Harness
	scripts int       // of one sequence, at most
	end     time.Time // no new sequence is begun then

	mu    sync.Mutex
	first *finding  // the first walk that has found something; the others stop
	err   error     // of its latest sequence that failed, which is the shortest
	until time.Time // it is made shorter no longer than until then
}

// walk tries random sequences, and makes one that fails shorter.
func (e *explorer) walk() {
	f := &finding{TB: e.t}
	var wg sync.WaitGroup
	wg.Go(func() { rapid.Check(f, func(t *rapid.T) { e.try(t, f) }) }) // FailNow ends the goroutine
	wg.Wait()
}

func (e *explorer) try(t *rapid.T, f *finding) {
	if e.done(f) {
		return
	}
	scripts := rapid.SliceOfN(rapid.Custom(drawScript), 1, e.scripts).Draw(t, "scripts")
	err := e.h.stage(e.t, func(t *testing.T) error {
		return newScene(t, e.h, 0).play(func(s *scene) { compare(s, scripts) })
	})
	if err != nil && e.found(f, err) {
		t.Fatal("the store disagrees with the model") // the same words for whatever differs: it may be made shorter
	}
}

// done reports whether f is to begin no more sequences.
func (e *explorer) done(f *finding) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == nil {
		return time.Now().After(e.end)
	}
	return e.first != f || time.Now().After(e.until)
}

func (e *explorer) found(f *finding, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == nil {
		leaveNoFiles()
		e.first, e.until = f, time.Now().Add(cmp.Or(e.h.shorten, shortening))
	}
	if e.first == f {
		e.err = err
	}
	return e.first == f
}

// leaveNoFiles keeps package rapid from leaving files in the package that is tested, unless the user has decided on that.
var leaveNoFiles = sync.OnceFunc(func() {
	nofailfile := flag.Lookup("rapid.nofailfile")
	_, decided := os.LookupEnv("RAPID_NOFAILFILE")
	flag.Visit(func(f *flag.Flag) { decided = decided || f == nofailfile })
	if !decided {
		_ = nofailfile.Value.Set("true") // which is one
	}
})

func (e *explorer) result() error {
	if e.first == nil {
		return nil
	}
	return fmt.Errorf("%w\nwhat is shown is the shortest sequence of calls that was found to fail; in the words of package rapid:\n%s",
		e.err, e.first.said)
}

// A finding is a rapid.TB that keeps what rapid says of a failure.
type finding struct {
	rapid.TB
	said string
}

func (f *finding) Log(...any) {}

func (f *finding) Logf(string, ...any) {}

func (f *finding) Failed() bool { return f.said != "" }

func (f *finding) FailNow() { runtime.Goexit() }

func (f *finding) Errorf(format string, args ...any) {
	said := strings.TrimSuffix(fmt.Sprintf(format, args...), "\nFailed test output:")
	f.said += said
}

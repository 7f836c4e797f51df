package conformance

import (
	"cmp"
	"errors"
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
	"github.com/dlock-go/dlock/internal/history"
	"pgregory.net/rapid"
)

var randomCases = []testCase{
	{name: "History", check: randomHistory, needs: needsClock,
		clause: withSource("A backend produces, under load, pauses and faults, a history in which no two holders are certain of a key at once and fences follow real time.")},
	{name: "HistoryAcrossDataLoss", check: historyAcrossDataLoss, once: true, alone: true, needs: needsClockAndWipe,
		clause: withSource("A backend whose fences survive data loss produces, under load, pauses and faults, a history in which fences follow real time even if the store sometimes loses everything, and no two holders are certain of a key at once if each loss ends all leases.")},
	{name: "GuardedCounter", check: guardedCounter, once: true, needs: needsClock,
		clause: withSource("A backend lets at most one token hold a key at a time: a counter that only the lock protects loses no update.")},
	{name: "GuardedRegister", check: guardedRegister, once: true, needs: needsClock,
		clause: withSource("A backend gives each grant a larger fence: a register that refuses fences below the largest seen accepts no stale write, and refuses no fresh one.")},
	{name: "AgreesWithModel", whole: agreesWithModel,
		clause: withSource("A backend answers any sequence of calls as a plain model of a lock does.")},
}

// A workload is what locks are for: workers change the same data at the same time.
type workload struct {
	s    *scene
	key  string
	ttl  time.Duration
	seed uint64
}

const (
	workloadWorkers = 6
	workloadRounds  = 8
)

func newWorkload(s *scene) *workload {
	c := &workload{s, s.key(), s.h.coreTTL(), seed()}
	fmt.Fprintf(s.t.Output(), "%s=%d\n", seedVariable, c.seed)
	return c
}

// run has each worker do its rounds, and go on until enough says so, or it would
// never.
func (c *workload) run(enough func() bool, do func(*dlock.Client, *history.Plan), opts ...dlock.Option) {
	var wg sync.WaitGroup
	backoff := dlock.WithBackoff(func(int) time.Duration { return max(5*time.Millisecond, c.ttl/40) })
	for i := range workloadWorkers {
		l := c.s.client()
		wg.Go(func() {
			client := dlock.New(l, dlock.WithTTL(c.ttl), backoff).With(opts...)
			defer client.Close()
			p := history.NewPlan(c.seed, i, c.ttl)
			for n := range 20 * workloadRounds {
				if c.s.over() || n >= c.s.amount(workloadRounds) && enough() {
					return
				}
				do(client, p)
				time.Sleep(p.Within(c.ttl / 50))
			}
		})
	}
	wg.Wait()
}

// acquire returns a lease, or nil if the case is over.
func (c *workload) acquire(client *dlock.Client) *dlock.Lease {
	l, err := client.Acquire(c.s.ctx, c.key)
	switch {
	case err == nil:
	case tooLate(err):
		c.s.stop(errInconclusive)
		return nil
	default:
		c.s.fail("Client.Acquire(%s) = %w; want a lease", brief(c.key), err)
		return nil
	}
	return l
}

// An update is a change of the counter by one.
type update struct {
	fence    int64
	read     int64
	from, to time.Duration
}

func (u update) String() string {
	return fmt.Sprintf("%v to %v, fence %d: read %d, wrote %d", u.from.Round(time.Microsecond), u.to.Round(time.Microsecond), u.fence, u.read, u.read+1)
}

func guardedCounter(s *scene) error {
	c := &counter{workload: newWorkload(s), start: time.Now()}
	c.run(func() bool { return true }, c.add)
	if err := s.result(); err != nil {
		return err
	}
	return c.verdict()
}

// A counter is read and written by those who hold its lock. Nothing else
// protects it: two that work at the same time lose an update.
type counter struct {
	*workload
	start time.Time
	value atomic.Int64
	late  atomic.Bool // a lease was not renewed in time

	mu      sync.Mutex
	updates []update // in the order in which they were written
}

// add adds one, unless the lease is lost. Now and then that takes longer than a
// TTL, for which the lease must be renewed.
func (c *counter) add(client *dlock.Client, p *history.Plan) {
	pause := p.Within(c.ttl / 10)
	if p.Once(12) {
		pause += c.ttl + c.ttl/4
	}
	l := c.acquire(client)
	if l == nil {
		return
	}
	u := update{fence: l.Fence(), read: c.value.Load(), from: time.Since(c.start)}
	if c.keeps(l, pause) {
		c.value.Store(u.read + 1)
		u.to = time.Since(c.start)
		c.mu.Lock()
		c.updates = append(c.updates, u)
		c.mu.Unlock()
	}
	c.keeps(l, 0)
	_ = l.Release()
}

// keeps reports whether the lease still lasts when d has passed. If it was not
// renewed in time, the machine was too slow.
func (c *counter) keeps(l *dlock.Lease, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.Done():
	}
	if l.Err() == nil {
		return true
	}
	if !time.Now().Before(l.Deadline()) {
		c.late.Store(true)
	}
	return false
}

func (c *counter) verdict() error {
	got, want := c.value.Load(), int64(len(c.updates))
	if got == want {
		return nil
	}
	if c.late.Load() {
		return errInconclusive
	}
	lost := fmt.Sprintf("%d updates of a counter left it at %d: %d were lost, though every holder was certain of its lease", want, got, want-got)
	byValue := make(map[int64]update)
	for _, u := range c.updates {
		if other, ok := byValue[u.read]; ok {
			lost += fmt.Sprintf("\n  %v\n  %v", other, u)
			break
		}
		byValue[u.read] = u
	}
	return fmt.Errorf("%s\n%s=%d makes the same random choices again", lost, seedVariable, c.seed)
}

func guardedRegister(s *scene) error {
	r := &register{workload: newWorkload(s)}
	first := s.grant(s.client(), s.key(), s.token("first"), long)
	s.fenced(first)
	r.run(r.enough, r.change, dlock.WithRenewal(false))
	if err := s.result(); err != nil {
		var skip skipError
		if errors.As(err, &skip) {
			return err
		}
		return fmt.Errorf("%w\n%s=%d makes the same random choices again", err, seedVariable, r.seed)
	}
	if !r.enough() {
		return fmt.Errorf("too little happened to prove anything: %d writes were accepted and %d stale ones refused (%s=%d)",
			r.accepted, r.refused, seedVariable, r.seed)
	}
	return nil
}

// A register remembers the largest fence that it has seen, and refuses smaller
// ones. So its data are safe even from holders that work on after their lease.
type register struct {
	*workload

	mu       sync.Mutex
	fence    int64 // the largest that was seen
	version  int   // how many times it was written
	writer   int64 // the fence of the last write
	accepted int
	refused  int
}

// Enough writes, of either kind, to prove anything.
const (
	enoughAccepted = 12
	enoughRefused  = 4
)

func (r *register) enough() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted >= r.s.amount(enoughAccepted) && r.refused >= r.s.amount(enoughRefused)
}

// change reads the register and writes it. Some holders stop between the two for
// longer than their lease, and do not look at it again.
func (r *register) change(client *dlock.Client, p *history.Plan) {
	pause, stops := p.Within(r.ttl/8), p.Once(4)
	l := r.acquire(client)
	if l == nil {
		return
	}
	version, ok := r.read(l)
	if stops {
		pause += time.Until(l.Deadline()) // while the next holder works, or the one after it
	}
	time.Sleep(pause)
	if ok {
		r.write(l, version)
	}
	_ = l.Release() // lost, for those who stopped
}

func (r *register) read(l *dlock.Lease) (version int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.admits(l) {
		return 0, false
	}
	return r.version, true
}

// write writes what was made of the given version.
func (r *register) write(l *dlock.Lease, version int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.admits(l) {
		r.refused++
		return
	}
	r.accepted++
	if version != r.version {
		r.s.fail("a register that refuses smaller fences than it has seen accepted a stale write: fence %d wrote what it had made of version %d, over version %d, which fence %d had written meanwhile",
			l.Fence(), version, r.version, r.writer)
	}
	r.version, r.writer = r.version+1, l.Fence()
}

// admits checks the fence of a holder. One that is certain of its lease is the
// latest, and so has the largest.
func (r *register) admits(l *dlock.Lease) bool {
	if l.Fence() < r.fence {
		if l.Err() == nil {
			r.s.fail("a holder that is certain of its lease has fence %d, below %d, which an earlier holder of the key had", l.Fence(), r.fence)
		}
		return false
	}
	r.fence = cmp.Or(l.Fence(), r.fence)
	return true
}

// agreesWithModel makes random calls, one after the other, and compares the answers with
// those of a model. Where they differ, package rapid looks for the shortest
// sequence of calls that shows it. There are several walks at once where time really passes.
func agreesWithModel(t *testing.T, h Harness) error {
	e := &explorer{t: t, h: h, scripts: 20, end: time.Now().Add(cmp.Or(h.explore, budget()))}
	walks := 1
	if !h.Bubble {
		e.h, e.scripts = h.reusing(t), 1
	}
	if !h.Bubble && h.Advance == nil {
		walks = 12
	}
	var wg sync.WaitGroup
	for range walks {
		wg.Go(e.walk)
	}
	wg.Wait()
	return e.result()
}

// budget is how long new sequences are begun. In a bubble all of them are done sooner, unless
// the machine is busy.
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
		return newScene(t, e.h, 0).play(func(s *scene) error { return compare(s, scripts) })
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

// leaveNoFiles keeps package rapid from leaving files in the package that is tested, unless the user
// has decided on that.
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

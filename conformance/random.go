package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
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

// A modelScript is what happens to three keys that are much alike.
type modelScript struct {
	keys  int // the index of the first in differentKeys
	steps []modelStep
}

// A modelStep is one call, or a time to wait.
type modelStep struct {
	action   string         // a method, or a time to wait
	by       int            // the client
	requests []modelRequest // one, or any number in a batch
	ended    bool           // the call is made with a ctx that has ended
}

// A modelRequest is what a call is about: indices of the keys of the script, modelTokens, and modelTTLs.
type modelRequest struct{ key, token, ttl int }

var modelTokens = []string{"user-1", "user-10", "USER-1", "user-1\x00"}

func (h Harness) modelTTLs() []time.Duration {
	return []time.Duration{h.ttl(), (h.ttl() * 3 / 2).Truncate(time.Millisecond), 3 * h.ttl(), long}
}

const (
	sleeps = "for a part of the TTL"
	lapses = "until the lease is over"
)

// modelActions are in the order in which package rapid takes them for simpler, and then there are more of some.
var modelActions = []string{"TryAcquire", "Release", "Renew", "Inspect", "Acquire", sleeps, lapses, "RenewBatch", "TryAcquireSet",
	"TryAcquire", "TryAcquire", "TryAcquire", "TryAcquire", "Renew", "Inspect", lapses, "RenewBatch"}

// lastKeys are the last three of differentKeys.
var lastKeys = len(differentKeys("0123456789")) - 3

// drawScript draws what package rapid makes shorter when it fails, and simpler: what comes
// first in its lists is the simplest.
func drawScript(t *rapid.T) modelScript {
	return modelScript{
		keys:  rapid.IntRange(0, lastKeys).Draw(t, "keys"),
		steps: slices.Concat(rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(drawStep), 1, 8), 1, 8).Draw(t, "steps")...),
	}
}

func drawStep(t *rapid.T) modelStep {
	s := modelStep{action: rapid.SampledFrom(modelActions).Draw(t, "action")}
	least, most := 1, 1
	switch s.action {
	case "RenewBatch":
		least, most = 0, 4
	case "TryAcquireSet":
		least, most = 1, 3
	}
	s.by = rapid.IntRange(0, 2).Draw(t, "client")
	s.requests = rapid.SliceOfN(rapid.Custom(drawRequest), least, most).Draw(t, "requests")
	s.ended = rapid.IntRange(0, 15).Draw(t, "ended") == 15
	return s
}

func drawRequest(t *rapid.T) modelRequest {
	return modelRequest{
		key:   rapid.SampledFrom([]int{0, 1, 2, 0, 0, 0}).Draw(t, "key"),
		token: rapid.SampledFrom([]int{0, 1, 2, 3, 0, 0, 0}).Draw(t, "token"),
		ttl:   rapid.SampledFrom([]int{0, 1, 2, 3, 0}).Draw(t, "ttl"),
	}
}

// A comparison lets a store and its model go through the same steps.
type comparison struct {
	*scene
	clients []*client
	keys    []string
	name    string        // begins its tokens: others use the same clients at the same time, and a token waits for one key at a time
	spent   map[hold]bool // the tokens that have waited for a key: whether they were released since
	models  map[string]*model
	ttls    []time.Duration
}

func compare(s *scene, scripts []modelScript) {
	c := &comparison{scene: s, clients: []*client{s.client(), s.client(), s.client()}, name: rand.Text()[:6] + "-",
		spent: make(map[hold]bool), models: make(map[string]*model), ttls: s.h.modelTTLs()}
	end := time.Now().Add(s.h.sequenceTime())
	for _, script := range scripts {
		c.keys = differentKeys(s.key())[script.keys:][:3]
		for _, step := range script.steps {
			if time.Now().Before(end) {
				c.take(step)
			}
		}
	}
}

// sequenceTime is after how much time a sequence is cut off.
func (h Harness) sequenceTime() time.Duration {
	if h.Bubble {
		return h.limit() / 4
	}
	return max(budget(), 6*h.ttl())
}

func (c *comparison) take(s modelStep) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	if s.ended {
		cancel(errCause)
	}
	r := request{name: s.action}
	for _, a := range s.requests {
		e := c.renewal(a)
		r.key, r.token, r.ttl = e.Key, e.Token, e.TTL
		r.batch = append(r.batch, e)
		if !slices.ContainsFunc(r.set, func(other dlock.Acquisition) bool { return other.Key == e.Key }) {
			r.set = append(r.set, dlock.Acquisition(e))
		}
	}
	if s.action == renewBatch.name || s.action == acquireSet.name {
		r.key, r.token = "", "" // it is about several
	}
	switch by := c.clients[s.by]; s.action {
	case sleeps:
		c.pause(c.h.ttl() / time.Duration(1+s.requests[0].ttl))
	case lapses: // unless that takes too long
		if remaining := time.Until(c.model(r.key).most); remaining < 5*c.h.ttl()+c.h.grace() {
			c.pause(remaining)
		}
	case "Acquire":
		c.acquire(ctx, by, r)
	default:
		c.compare(ctx, by, r, "")
	}
}

func (c *comparison) renewal(a modelRequest) dlock.Renewal {
	r := dlock.Renewal{Key: c.keys[a.key], Token: c.name + modelTokens[a.token], TTL: c.ttls[a.ttl]}
	for c.spent[hold{r.Key, r.Token}] {
		r.Token = "next-" + r.Token
	}
	c.uses(r.Key, r.Token)
	return r
}

func (c *comparison) model(key string) *model {
	if c.models[key] == nil {
		c.models[key] = &model{grace: c.h.grace()}
	}
	return c.models[key]
}

// call makes a call, and returns when it took effect.
func (c *comparison) call(ctx context.Context, by *client, r request) (answer any, s span, err error) {
	s.start = time.Now()
	answer, err = by.hook(ctx, r)
	s.end = time.Now()
	return answer, s, err
}

// compare makes a call, and checks its answer. A release may end a wait.
func (c *comparison) compare(ctx context.Context, by *client, r request, after string) {
	of := hold{r.key, r.token}
	if _, waited := c.spent[of]; waited && r.name == "Release" {
		c.spent[of] = true
	}
	answer, when, err := c.call(ctx, by, r)
	c.check(ctx, by, r, answer, when, err, after)
}

// check fails the case if a call has returned an error, or has not though its ctx had ended, or if the model does not
// like the answer.
func (c *comparison) check(ctx context.Context, by *client, r request, answer any, when span, err error, after string) {
	call := fmt.Sprintf("%s.%v%s", by.name, r, after)
	switch ended := ctx.Err(); {
	case isOptional(r.name) && !supported(err):
	case ended != nil && !isEndOf(ctx, err):
		c.fail("%s = %v; its ctx has ended: want %w, and not the cause of that", call, err, ended)
	case ended != nil:
	case err != nil:
		c.fail("%s = %w", call, err)
	default:
		if err := c.agrees(r, answer, when, after != ""); err != nil {
			c.fail("%s: %w", call, err)
		}
	}
}

// acquire waits for a key that is held for a short time only, and then gives up, and does what is owed after a wait
// that has ended without a grant.
func (c *comparison) acquire(ctx context.Context, by *client, r request) {
	m, short := c.model(r.key), ctx
	wait := r.token != m.holder && m.state(span{time.Now(), time.Now()}) != isFree
	if wait {
		var cancel context.CancelFunc
		short, cancel = context.WithTimeout(ctx, c.h.ttl()/4)
		defer cancel()
	}
	c.spent[hold{r.key, r.token}] = false
	answer, when, err := c.call(short, by, r)
	if supported(err) && wait && err != nil && ctx.Err() == nil {
		r.name = "Release"
		c.compare(ctx, by, r, " after a wait")
		return
	}
	c.check(ctx, by, r, answer, when, err, "")
}

// agrees says what the model does not like of an answer. The release after a wait may find a grant, if the lease of the
// holder has run out by its end.
func (c *comparison) agrees(r request, answer any, when span, waited bool) error {
	m := c.model(r.key)
	switch answer := answer.(type) {
	case dlock.Attempt:
		return m.tryAcquire(when, r.token, r.ttl, answer)
	case dlock.Hold:
		return m.inspect(when, answer)
	case bool:
		switch {
		case r.name == "Renew":
			return m.renew(when, r.token, r.ttl, answer)
		case !waited:
			return m.release(when, r.token, answer)
		case answer && m.state(when) == isHeld:
			return m.disagree(when, "held = true")
		}
		return nil
	case []dlock.RenewResult:
		if len(answer) != len(r.batch) {
			return fmt.Errorf("%d results; want %d", len(answer), len(r.batch))
		}
		for i, b := range r.batch {
			if err := cmp.Or(answer[i].Err, c.model(b.Key).renew(when, b.Token, b.TTL, answer[i].Held)); err != nil {
				return fmt.Errorf("result %d: %w", i, err)
			}
		}
		return nil
	}
	return c.tried(r.set, answer.([]dlock.Attempt), when)
}

// tried checks the answers to an attempt at a set: if one key is not acquired, all others are Free or held.
func (c *comparison) tried(set []dlock.Acquisition, attempts []dlock.Attempt, when span) error {
	if len(attempts) != len(set) {
		return fmt.Errorf("%d attempts; want %d", len(attempts), len(set))
	}
	none := slices.ContainsFunc(attempts, func(a dlock.Attempt) bool { return !a.Acquired && !a.Free })
	for i, a := range attempts {
		m, r := c.model(set[i].Key), set[i]
		err := fmt.Errorf("it was acquired: %v, free: %v", a.Acquired, a.Free)
		switch {
		case a.Free && none && !a.Acquired:
			err = m.free(when, r.Token)
		case a.Acquired != none:
			err = m.tryAcquire(when, r.Token, r.TTL, a)
		}
		if err != nil {
			return fmt.Errorf("attempt %d: %w", i, err)
		}
	}
	return nil
}

func (c *comparison) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	pause := c.trace.begin("", "", "time passes")
	c.sleep(d)
	pause.end(d, nil)
}

// A model is what the contract says of one key, for a store that gets one call
// after the other: who holds it, since which grant, and until when.
type model struct {
	grace  time.Duration // of the store
	holder string        // the token of the latest grant that was not released; its lease may have ended
	least  time.Time     // the lease lasts until then at least
	most   time.Time     // and has ended then
	fence  int64         // of the latest grant
	grants int
}

type span struct{ start, end time.Time }

// What can be said of a key at the time of a call.
type standing int

const (
	isFree standing = iota
	isHeld
	isUnsure // the lease may have ended, or not yet: time is short, or the grace runs
)

func (m *model) state(c span) standing {
	switch {
	case m.holder == "" || !c.start.Before(m.most):
		return isFree
	case c.end.Before(m.least):
		return isHeld
	}
	return isUnsure
}

// tryAcquire checks an answer, and goes on from there.
func (m *model) tryAcquire(c span, token string, ttl time.Duration, a dlock.Attempt) error {
	switch now := m.state(c); {
	case a.Acquired && now == isHeld && token != m.holder:
		return m.disagree(c, "it was acquired")
	case !a.Acquired && (now == isFree || token == m.holder):
		return m.disagree(c, "it was refused")
	case !a.Acquired:
		return m.reports(c, a.Holder, a.Remaining)
	}
	return m.grant(c, token, ttl, a.Fence)
}

// free checks the answer that a key is free for token, though another key of its set is not.
func (m *model) free(c span, token string) error {
	if m.state(c) == isHeld && token != m.holder {
		return m.disagree(c, "it is free")
	}
	return nil
}

func (m *model) grant(c span, token string, ttl time.Duration, fence int64) error {
	if m.grants > 0 && cmp.Or(fence, m.fence) != 0 && fence < m.fence+numbers {
		return m.disagree(c, "it was acquired with fence %d, after %d; want at least %d more", fence, m.fence, numbers)
	}
	m.grants++
	m.fence = fence
	if token != m.holder {
		m.holder, m.least, m.most = token, time.Time{}, time.Time{}
	}
	m.extend(c, ttl)
	return nil
}

// extend has the lease end ttl from now, unless it ends later.
func (m *model) extend(c span, ttl time.Duration) {
	m.least = later(m.least, c.start.Add(ttl))
	m.most = later(m.most, c.end.Add(ttl+m.grace+time.Millisecond))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// still checks an answer of Renew or Release, and returns whether token held the key.
func (m *model) still(c span, token string, answer bool) error {
	now := m.state(c)
	if token != m.holder {
		now = isFree
	}
	if now == isUnsure || answer == (now == isHeld) {
		return nil
	}
	return m.disagree(c, "held = %v", answer)
}

func (m *model) renew(c span, token string, ttl time.Duration, answer bool) error {
	if err := m.still(c, token, answer); err != nil {
		return err
	}
	switch {
	case answer:
		m.extend(c, ttl)
	case token == m.holder:
		m.holder = ""
	}
	return nil
}

func (m *model) release(c span, token string, answer bool) error {
	if err := m.still(c, token, answer); err != nil {
		return err
	}
	if token == m.holder {
		m.holder = ""
	}
	return nil
}

func (m *model) inspect(c span, h dlock.Hold) error {
	switch now := m.state(c); {
	case h.Held && now == isFree, !h.Held && now == isHeld:
		return m.disagree(c, "held = %v", h.Held)
	case !h.Held:
		m.holder = ""
		return nil
	}
	return m.reports(c, h.Token, h.Remaining)
}

// reports checks what the store reports of the present lease, if it does. That may be as imprecise as its expiry.
func (m *model) reports(c span, holder string, remaining time.Duration) error {
	least, most := m.least.Sub(c.end)-m.grace-rounding, m.most.Sub(c.start)
	switch {
	case holder != "" && holder != m.holder:
		return m.disagree(c, "its holder is %s", brief(holder))
	case remaining != 0 && (remaining < least || remaining > most):
		return m.disagree(c, "the remaining time is %v; want %v to %v", remaining, max(0, least), most)
	}
	return nil
}

func (m *model) disagree(c span, format string, args ...any) error {
	return fmt.Errorf("%s; but by then %s", fmt.Sprintf(format, args...), m.tell(c))
}

// tell says what the model knows.
func (m *model) tell(c span) string {
	switch m.state(c) {
	case isFree:
		return "nobody holds the key"
	case isHeld:
		rest := m.least.Sub(c.end)
		return fmt.Sprintf("%s holds the key for at least %v more%s", brief(m.holder), rest, hint(rest))
	}
	return fmt.Sprintf("%s may hold the key still", brief(m.holder))
}

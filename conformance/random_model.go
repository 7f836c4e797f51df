package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"pgregory.net/rapid"
)

// A modelScript is what happens to three keys that are much alike.
type modelScript struct {
	keys  int // the index of the first in differentKeys
	steps []modelStep
}

// A modelStep is one call, or a time to wait.
type modelStep struct {
	action   modelAction
	by       int            // the client
	requests []modelRequest // one, or any number in a batch
	ended    bool           // the call is made with a ctx that has ended
}

// A modelRequest is what a call is about: indices of the keys of the script, modelTokens, and
// modelTTLs.
type modelRequest struct{ key, token, ttl int }

var modelTokens = []string{"user-1", "user-10", "USER-1", "user-1\x00"}

func (h Harness) modelTTLs() []time.Duration {
	return []time.Duration{h.ttl(), (h.ttl() * 3 / 2).Truncate(time.Millisecond), 3 * h.ttl(), long}
}

type modelAction int

const (
	stepTry modelAction = iota
	stepRelease
	stepRenew
	stepInspect
	stepAcquire
	stepSleep // for a part of the TTL
	stepLapse // until the lease is over
	stepBatch
	stepSet // of different keys
)

// drawScript draws what package rapid makes shorter when it fails, and simpler: what comes
// first in its lists is the simplest.
func drawScript(t *rapid.T) modelScript {
	return modelScript{
		keys:  rapid.IntRange(0, len(differentKeys("0123456789"))-3).Draw(t, "keys"),
		steps: slices.Concat(rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(drawStep), 1, 8), 1, 8).Draw(t, "steps")...),
	}
}

func drawStep(t *rapid.T) modelStep {
	s := modelStep{action: rapid.SampledFrom([]modelAction{stepTry, stepRelease, stepRenew, stepInspect, stepAcquire, stepSleep, stepLapse, stepBatch, stepSet,
		stepTry, stepTry, stepTry, stepTry, stepRenew, stepInspect, stepLapse, stepBatch}).Draw(t, "action")}
	least, most := 1, 1
	switch s.action {
	case stepBatch:
		least, most = 0, 4
	case stepSet:
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
	name    string       // begins its tokens: others use the same clients at the same time, and a token waits for one key at a time
	spent   map[use]bool // the tokens that have waited for a key: whether they were released since
	models  map[string]*model
	ttls    []time.Duration
	slept   time.Duration // where the store's clock is moved by hand
	callCtx context.Context
}

type use struct{ key, token string }

func compare(s *scene, scripts []modelScript) error {
	c := &comparison{scene: s, clients: []*client{s.client(), s.client(), s.client()}, name: rand.Text()[:6] + "-",
		spent: make(map[use]bool), models: make(map[string]*model), ttls: s.h.modelTTLs()}
	end := c.now().Add(s.h.sequenceTime())
	for _, script := range scripts {
		c.keys = differentKeys(s.key())[script.keys:][:3]
		for _, step := range script.steps {
			if !c.over() && c.now().Before(end) {
				c.take(step)
			}
		}
	}
	return c.result()
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
	c.callCtx = ctx
	by := c.clients[s.by]
	switch s.action {
	case stepBatch:
		c.renewMany(by, s.requests)
		return
	case stepSet:
		c.trySet(by, s.requests)
		return
	}
	request := s.requests[0]
	switch r := c.renewal(request); s.action {
	case stepTry:
		c.try(by, r)
	case stepRelease:
		c.release(by, r)
	case stepRenew:
		c.renew(by, r)
	case stepInspect:
		c.inspect(by, r.Key)
	case stepAcquire:
		c.acquire(by, r)
	case stepSleep:
		c.pause(c.h.ttl() / time.Duration(1+request.ttl))
	case stepLapse:
		c.lapse(r.Key)
	}
}

func (c *comparison) renewal(a modelRequest) dlock.Renewal {
	r := dlock.Renewal{Key: c.keys[a.key], Token: c.name + modelTokens[a.token], TTL: c.ttls[a.ttl]}
	for c.spent[use{r.Key, r.Token}] {
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

// slow is a clock that the store's is not behind.
func (c *comparison) slow() time.Time {
	if c.h.Advance == nil {
		return time.Now()
	}
	return time.Time{}.Add(c.slept)
}

// call returns when f took effect.
func (c *comparison) call(f func()) (s span) {
	s.fast.start, s.slow.start = c.now(), c.slow()
	f()
	s.fast.end, s.slow.end = c.now(), c.slow()
	return s
}

// check fails the case if the call that is named has returned an error, or has not though its
// ctx had ended, or if the model does not like the answer.
func (c *comparison) check(err error, agrees func() error, format string, args ...any) {
	call := fmt.Sprintf(format, args...)
	if ended := c.callCtx.Err(); ended != nil {
		if !isEndOf(c.callCtx, err) {
			c.fail("%s = %v; its ctx has ended: want %w, and not the cause of that", call, err, ended)
		}
		return
	}
	if err != nil {
		c.fail("%s = %w", call, err)
		return
	}
	if err := agrees(); err != nil {
		c.fail("%s: %w", call, err)
	}
}

func (c *comparison) try(by *client, r dlock.Renewal) {
	var a dlock.Attempt
	var err error
	when := c.call(func() { a, err = by.TryAcquire(c.callCtx, r.Key, r.Token, r.TTL) })
	agrees := func() error { return c.model(r.Key).tryAcquire(when, r.Token, r.TTL, a) }
	c.check(err, agrees, "%s.TryAcquire(%s)", by.name, showRenewal(r))
}

// acquire waits for a key that is held for a short time only, and then gives up.
func (c *comparison) acquire(by *client, r dlock.Renewal) {
	m := c.model(r.Key)
	ctx := c.callCtx
	wait := r.Token != m.holder && m.state(c.call(func() {})) != isFree
	if wait {
		short, cancel := context.WithTimeout(ctx, c.h.ttl()/4)
		defer cancel()
		ctx = short
	}
	var a dlock.Attempt
	var err error
	c.spent[use{r.Key, r.Token}] = false
	when := c.call(func() { a, err = by.Acquire(ctx, r.Key, r.Token, r.TTL) })
	switch {
	case !supported(err):
	case wait && err != nil && c.callCtx.Err() == nil:
		c.giveUp(by, r)
	default:
		agrees := func() error { return m.tryAcquire(when, r.Token, r.TTL, a) }
		c.check(err, agrees, "%s.Acquire(%s)", by.name, showRenewal(r))
	}
}

// giveUp does what is owed after a wait that has ended without a grant. There may have been
// one if the lease of the holder has run out by the end of the release.
func (c *comparison) giveUp(by *client, r dlock.Renewal) {
	var held bool
	var err error
	when := c.end(func() { held, err = by.Release(c.callCtx, r.Key, r.Token) }, r)
	agrees := func() error {
		if m := c.model(r.Key); held && m.state(when) == isHeld {
			return m.disagree(when, "held = true")
		}
		return nil
	}
	c.check(err, agrees, "%s.Release(%s, %s) after a wait", by.name, brief(r.Key), brief(r.Token))
}

// end is call for a release.
func (c *comparison) end(release func(), r dlock.Renewal) span {
	of := use{r.Key, r.Token}
	if _, waited := c.spent[of]; waited {
		c.spent[of] = true
	}
	return c.call(release)
}

func (c *comparison) release(by *client, r dlock.Renewal) {
	var held bool
	var err error
	when := c.end(func() { held, err = by.Release(c.callCtx, r.Key, r.Token) }, r)
	agrees := func() error { return c.model(r.Key).release(when, r.Token, held) }
	c.check(err, agrees, "%s.Release(%s, %s)", by.name, brief(r.Key), brief(r.Token))
}

func (c *comparison) renew(by *client, r dlock.Renewal) {
	var held bool
	var err error
	when := c.call(func() { held, err = by.Renew(c.callCtx, r.Key, r.Token, r.TTL) })
	agrees := func() error { return c.model(r.Key).renew(when, r.Token, r.TTL, held) }
	c.check(err, agrees, "%s.Renew(%s)", by.name, showRenewal(r))
}

func (c *comparison) inspect(by *client, key string) {
	var h dlock.Hold
	var err error
	when := c.call(func() { h, err = by.Inspect(c.callCtx, key) })
	if supported(err) {
		c.check(err, func() error { return c.model(key).inspect(when, h) }, "%s.Inspect(%s)", by.name, brief(key))
	}
}

func (c *comparison) renewMany(by *client, requests []modelRequest) {
	batch := make([]dlock.Renewal, len(requests))
	for i, a := range requests {
		batch[i] = c.renewal(a)
	}
	var results []dlock.RenewResult
	var err error
	when := c.call(func() { results, err = by.RenewBatch(c.callCtx, batch) })
	if supported(err) {
		agrees := func() error { return c.renewed(batch, results, when) }
		c.check(err, agrees, "%s.RenewBatch(%s)", by.name, showBatch(batch))
	}
}

// renewed checks the results of a batch.
func (c *comparison) renewed(batch []dlock.Renewal, results []dlock.RenewResult, when span) error {
	if len(results) != len(batch) {
		return fmt.Errorf("%d results; want %d", len(results), len(batch))
	}
	for i, r := range results {
		b := batch[i]
		if err := cmp.Or(r.Err, c.model(b.Key).renew(when, b.Token, b.TTL, r.Held)); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
	}
	return nil
}

func (c *comparison) trySet(by *client, requests []modelRequest) {
	var set []dlock.Acquisition
	for _, a := range requests {
		r := dlock.Acquisition(c.renewal(a))
		if !slices.ContainsFunc(set, func(other dlock.Acquisition) bool { return other.Key == r.Key }) {
			set = append(set, r)
		}
	}
	var attempts []dlock.Attempt
	var err error
	when := c.call(func() { attempts, err = by.TryAcquireSet(c.callCtx, set) })
	if supported(err) {
		c.check(err, func() error { return c.tried(set, attempts, when) }, "%s.TryAcquireSet(%s)", by.name, show(set))
	}
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

// lapse lets a lease expire, unless that takes too long.
func (c *comparison) lapse(key string) {
	if remaining := c.model(key).most.Sub(c.slow()); remaining < 5*c.h.ttl()+c.h.grace() {
		c.pause(remaining)
	}
}

func (c *comparison) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	pause := c.trace.begin("", "", "time passes")
	c.sleep(d)
	c.slept += d
	pause.end(d, "", nil)
}

// A model is what the contract says of one key, for a store that gets one call
// after the other: who holds it, since which grant, and until when.
type model struct {
	grace  time.Duration // of the store
	holder string        // the token of the latest grant that was not released; its lease may have ended
	least  time.Time     // the lease lasts until then at least, by the fast clock
	most   time.Time     // and has ended then, by the slow clock
	fence  int64         // of the latest grant
	grants int
}

// A span is the time in which a call took effect, on two clocks: the store's time
// passes no faster than the one and no more slowly than the other.
type span struct {
	fast, slow struct{ start, end time.Time }
}

// What can be said of a key at the time of a call.
type standing int

const (
	isFree standing = iota
	isHeld
	isUnsure // the lease may have ended, or not yet: time is short, or the grace runs
)

func (m *model) state(c span) standing {
	switch {
	case m.holder == "" || !c.slow.start.Before(m.most):
		return isFree
	case c.fast.end.Before(m.least):
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
	m.least = later(m.least, c.fast.start.Add(ttl))
	m.most = later(m.most, c.slow.end.Add(ttl+m.grace+time.Millisecond))
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

// reports checks what the store reports of the present lease, if it does. That may be as
// imprecise as its expiry.
func (m *model) reports(c span, holder string, remaining time.Duration) error {
	least, most := m.least.Sub(c.fast.end)-m.grace-rounding, m.most.Sub(c.slow.start)
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
		rest := m.least.Sub(c.fast.end)
		return fmt.Sprintf("%s holds the key for at least %v more%s", brief(m.holder), rest, hint(rest))
	}
	return fmt.Sprintf("%s may hold the key still", brief(m.holder))
}

package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
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
	action modelAction
	by     int        // the client
	asks   []modelAsk // one, or any number in a batch
	ended  bool       // the call is made with a ctx that has ended
}

// A modelAsk is what a call is about: indices of the keys of the script, modelTokens, and
// modelTTLs.
type modelAsk struct{ key, token, ttl int }

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
	s := modelStep{action: rapid.SampledFrom([]modelAction{stepTry, stepRelease, stepRenew, stepInspect, stepAcquire, stepSleep, stepLapse, stepBatch,
		stepTry, stepTry, stepTry, stepTry, stepRenew, stepInspect, stepLapse, stepBatch}).Draw(t, "action")}
	least, most := 1, 1
	if s.action == stepBatch {
		least, most = 0, 4
	}
	s.by = rapid.IntRange(0, 2).Draw(t, "client")
	s.asks = rapid.SliceOfN(rapid.Custom(drawAsk), least, most).Draw(t, "asks")
	s.ended = rapid.IntRange(0, 15).Draw(t, "ended") == 15
	return s
}

func drawAsk(t *rapid.T) modelAsk {
	return modelAsk{
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
	name    string // begins its tokens: others ask the same clients meanwhile, and a token waits for one key at a time
	models  map[string]*model
	ttls    []time.Duration
	slept   time.Duration // where the store's clock is moved by hand
	asked   context.Context
}

func (s *scene) compare(scripts []modelScript) error {
	c := &comparison{scene: s, clients: []*client{s.client(), s.client(), s.client()}, name: rand.Text()[:6] + "-",
		models: make(map[string]*model), ttls: s.h.modelTTLs()}
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

// sequenceTime is after how much time the rest of a sequence is left out.
func (h Harness) sequenceTime() time.Duration {
	if h.Bubble {
		return h.limit() / 4
	}
	return max(budget(), 6*h.ttl())
}

func (c *comparison) take(s modelStep) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	if s.ended {
		cancel()
	}
	c.asked = ctx
	by := c.clients[s.by]
	if s.action == stepBatch {
		c.renewMany(by, s.asks)
		return
	}
	ask := s.asks[0]
	switch r := c.renewal(ask); s.action {
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
		c.pause(c.h.ttl() / time.Duration(1+ask.ttl))
	case stepLapse:
		c.lapse(r.Key)
	}
}

func (c *comparison) renewal(a modelAsk) dlock.Renewal {
	r := dlock.Renewal{Key: c.keys[a.key], Token: c.name + modelTokens[a.token], TTL: c.ttls[a.ttl]}
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

// call tells when f took effect.
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
	if ended := c.asked.Err(); ended != nil {
		if !errors.Is(err, ended) {
			c.fail("%s = %v; its ctx has ended: want %w", call, err, ended)
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
	when := c.call(func() { a, err = by.TryAcquire(c.asked, r.Key, r.Token, r.TTL) })
	agrees := func() error { return c.model(r.Key).tryAcquire(when, r.Token, r.TTL, a) }
	c.check(err, agrees, "%s.TryAcquire(%s)", by.name, showRenewal(r))
}

// acquire waits for a key that is held for a short time only, and then gives up.
func (c *comparison) acquire(by *client, r dlock.Renewal) {
	m := c.model(r.Key)
	ctx := c.asked
	wait := r.Token != m.holder && m.state(c.call(func() {})) != isFree
	if wait {
		short, cancel := context.WithTimeout(ctx, c.h.ttl()/4)
		defer cancel()
		ctx = short
	}
	var a dlock.Attempt
	var err error
	when := c.call(func() { a, err = by.Acquire(ctx, r.Key, r.Token, r.TTL) })
	switch {
	case !supported(err):
	case wait && err != nil && c.asked.Err() == nil:
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
	when := c.call(func() { held, err = by.Release(c.asked, r.Key, r.Token) })
	agrees := func() error {
		if m := c.model(r.Key); held && m.state(when) == isHeld {
			return m.disagree(when, "held = true")
		}
		return nil
	}
	c.check(err, agrees, "%s.Release(%s, %s) after a wait", by.name, brief(r.Key), brief(r.Token))
}

func (c *comparison) release(by *client, r dlock.Renewal) {
	var held bool
	var err error
	when := c.call(func() { held, err = by.Release(c.asked, r.Key, r.Token) })
	agrees := func() error { return c.model(r.Key).release(when, r.Token, held) }
	c.check(err, agrees, "%s.Release(%s, %s)", by.name, brief(r.Key), brief(r.Token))
}

func (c *comparison) renew(by *client, r dlock.Renewal) {
	var held bool
	var err error
	when := c.call(func() { held, err = by.Renew(c.asked, r.Key, r.Token, r.TTL) })
	agrees := func() error { return c.model(r.Key).renew(when, r.Token, r.TTL, held) }
	c.check(err, agrees, "%s.Renew(%s)", by.name, showRenewal(r))
}

func (c *comparison) inspect(by *client, key string) {
	var h dlock.Hold
	var err error
	when := c.call(func() { h, err = by.Inspect(c.asked, key) })
	if supported(err) {
		c.check(err, func() error { return c.model(key).inspect(when, h) }, "%s.Inspect(%s)", by.name, brief(key))
	}
}

func (c *comparison) renewMany(by *client, asks []modelAsk) {
	batch := make([]dlock.Renewal, len(asks))
	for i, a := range asks {
		batch[i] = c.renewal(a)
	}
	var results []dlock.RenewResult
	var err error
	when := c.call(func() { results, err = by.RenewBatch(c.asked, batch) })
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

// lapse lets a lease expire, unless that takes too long.
func (c *comparison) lapse(key string) {
	if rest := c.model(key).most.Sub(c.slow()); rest < 5*c.h.ttl()+c.h.grace() {
		c.pause(rest)
	}
}

func (c *comparison) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	end := c.trace.begin("time passes")
	c.sleep(d)
	c.slept += d
	end(d, nil)
}

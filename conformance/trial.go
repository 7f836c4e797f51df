package conformance

import (
	"context"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

// A role is what a token is to its key when a call is made in its name.
type role int

const (
	ofNobody   role = iota // the key is free
	ofHolder               // the token holds the key
	ofStranger             // another token holds the key
)

// A kind is one of the calls that are lost, delayed or interrupted.
type kind struct {
	name string
	role role
}

// kinds are those that change something.
var kinds = []kind{
	{"TryAcquire", ofNobody},
	{"TryAcquireSet", ofNobody}, // of one key
	{"Acquire", ofNobody},
	{"Acquire", ofStranger},
	{"Renew", ofHolder},
	{"RenewBatch", ofHolder},
	{"Release", ofHolder},
}

var inspection = kind{"Inspect", ofHolder}

// prolongs reports whether the call prolongs the lease of its token.
func (k kind) prolongs() bool {
	return k.role == ofHolder && k.name != "Release" && k.name != "Inspect"
}

// can reports whether c offers the call.
func (s *scene) can(c *client, k kind) bool {
	for _, o := range optionalMethods {
		if o.name == k.name {
			return s.offers(c, o)
		}
	}
	return true
}

// kindsOf returns the kinds that c offers.
func (s *scene) kindsOf(c *client) []kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !s.can(c, k) })
}

// A trial is a call on a key of its own.
type trial struct {
	s *scene
	kind
	grant          // in whose name the call is made
	by     *client // which made the key what the call finds
	holder grant   // of the key, if the token is a stranger
}

// prepare makes a key what a call is to find. The lease that the call would prolong has this TTL.
func (s *scene) prepare(k kind, by *client, ttl time.Duration) *trial {
	x := &trial{s: s, kind: k, by: by, grant: s.another("caller")}
	if !k.prolongs() {
		ttl = long
	}
	switch k.role {
	case ofHolder:
		x.grant = s.grant(by, x.key, x.token, ttl)
	case ofStranger:
		x.holder = s.grant(by, x.key, s.token("holder"), long)
	}
	return x
}

// another is a grant of a new key to a new token, which is still to be made.
func (s *scene) another(name string) grant {
	g := grant{key: s.key(), token: s.token(name), start: time.Now()}
	s.uses(g.key, g.token)
	return g
}

// make returns a function for the call, and where that puts the answer.
func (x *trial) make(c *client, ttl time.Duration) (call func(context.Context) error, answer *dlock.Attempt) {
	answer = new(dlock.Attempt)
	return func(ctx context.Context) (err error) {
		*answer, err = c.call(ctx, x.name, x.grant, ttl)
		return err
	}, answer
}

// settle has the holder release the key that a stranger wants.
func (x *trial) settle() {
	if x.role == ofStranger {
		x.s.release(x.by, x.holder, true)
	}
}

// lapse waits until a lease of this TTL has expired that the call would have prolonged.
func (x *trial) lapse(ttl time.Duration) {
	if x.prolongs() {
		x.s.lapse(ttl)
	}
}

// hadNoEffect checks that, after a settle, and when a lease that the call would have prolonged has expired.
func (x *trial) hadNoEffect(why string) {
	if x.role != ofHolder || x.prolongs() {
		x.s.freeAfter(x.by, x.key, why)
		return
	}
	x.s.goOn()
	held, err := x.by.Renew(x.s.ctx, x.key, x.token, long)
	x.s.noError(err, "Renew", x.key)
	if err == nil && !held {
		x.s.fail("%s.Renew(%s, %s, %v): held = false, %s", x.by.name, brief(x.key), brief(x.token), long, why)
	}
}

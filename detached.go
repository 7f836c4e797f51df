package dlock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/errs"
	"github.com/dlock-go/dlock/internal/token"
)

// A Detached is a lease on its way from one holder to the next, in this process or another.
// [Lease.Detach] makes it, and [Client.Adopt] turns it into a lease. A Detached is a secret:
// anyone who has it can take the lock. Send the result of MarshalText to the taker;
// everything else that prints a Detached shows only its key and fence.
//
// If a Detached cannot be sent, and it is certain that no taker has it, the giver adopts it
// itself and releases that lease. If a taker may have it, do nothing: the key is free after
// the Deadline unless the taker has adopted it.
//
// A Detached must be adopted at most once. If it is delivered twice, for example by a queue
// that repeats messages, there may be two holders. A Client refuses a second adoption only
// while the lease of the first is held.
type Detached struct {
	secret *token.Detached // a pointer, because fmt does not look behind it; nil in the zero value, which nobody can adopt
}

var errNotDetached = invalid("Detached: empty, not made by Detach")

// Key returns the name of the lock. It is empty for the zero Detached.
func (d Detached) Key() string { return d.look().Key }

// Fence returns the fence of the taker's lease: one more than the giver's, or 0 if the store
// has no fences.
func (d Detached) Fence() int64 { return d.look().Fence }

// Deadline returns the instant, on the giver's wall clock, until which the lock is kept for
// the taker. It is for display: the taker's clock may show another time, and Adopt asks the
// store.
func (d Detached) Deadline() time.Time { return d.look().Deadline }

func (d Detached) look() token.Detached {
	if d.secret == nil {
		return token.Detached{}
	}
	return *d.secret
}

// Detach ends the lease with [ErrReleased] without releasing the lock, so that another can
// adopt it. The contexts of the lease end. The lease is no longer renewed: the taker has until
// the Deadline to adopt it. The taker's fence is one higher.
//
// A lease that has ended cannot be detached. A grant can be passed on seven times, turns
// in a line included (see [WithLocalTurns]); the eighth Detach fails with [ErrInvalid], and
// the lease remains held. So does Detach of a degraded lease (see [Lease.Degraded]): no other
// process could adopt it.
//
// Detach sends nothing to the store, except in the first 100 ms after a wait. Because the
// waiter might have died, the lease is short then: 5 s, or the [WithMinHold] if that is
// longer. Detach renews it first, so that the taker has the full TTL. The renewal takes at
// most a second; if it fails, the taker has only the remaining time.
func (l *Lease) Detach() (Detached, error) {
	l.renewShort()
	d, err := l.detach()
	if err == nil && l.observed() {
		l.reportDone(l.doneInfo(EndDetached, ErrReleased)) // the taker must not wait for it
	}
	return d, err
}

func (l *Lease) detach() (Detached, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.lookLocked(); err != nil {
		return Detached{}, wrapUnlessLost(l.values, "detach", l.key, err)
	}
	if l.standIn {
		return Detached{}, wrap(l.values, "detach", l.key, invalid("Detach: the lease is degraded, and other processes could not adopt it"))
	}
	if l.step >= token.MaxSteps {
		return Detached{}, wrap(l.values, "detach", l.key, invalid("Detach: passed on %d times since the grant, the most that one grant allows", l.step))
	}
	d := token.Detached{
		Key:      l.key,
		Token:    l.token,
		Step:     int(l.step) + 1,
		Deadline: time.UnixMilli(l.wall.UnixMilli()),
		Held:     max(0, time.Since(l.granted)).Truncate(time.Millisecond),
	}
	if l.fence != 0 {
		d.Fence = l.fence + 1
	}
	l.endLocked(ErrReleased)
	l.release.settled = true
	return Detached{&d}, nil
}

// renewShort renews a lease that was granted for less than its TTL, and not renewed since. From
// now on no line gets it.
func (l *Lease) renewShort() {
	l.mu.Lock()
	now, ttl := time.Now(), l.ttl
	held := l.lookLocked() == nil
	if held {
		l.leaveBlockLocked(false)
	}
	short := held && l.deadline.Before(l.extended.Add(ttl-drift(ttl)))
	rest := l.restLocked(now)
	l.mu.Unlock()
	if short {
		ctx, cancel := contexts.Within(l.values, min(rest, attemptTime), l.keeper.renewing)
		defer cancel()
		_, _ = l.sendRenewal(renewal{ctx: ctx, sent: now, ttl: ttl}) // the lease has the error
	}
}

// Adopt turns a Detached into a lease, with the options of c. It asks the store for a full
// TTL. The [WithMaxHold] and [WithMinHold] of c count from the grant, except for the time
// between a Detach and its Adopt. A lease that was held for longer than MaxHold can be adopted, but
// is not renewed.
//
// Others who find the key held still see the giver's owner label, which is part of what is
// stored. A Client that is shutting down adopts nothing: detach leases before
// [Client.Shutdown], so that you can take back one that cannot be sent.
//
// The error matches [ErrLost] if the lease has run out, and [ErrInvalid] if d cannot be
// adopted. After any other error, d can be adopted again.
func (c *Client) Adopt(ctx context.Context, d Detached) (*Lease, error) {
	r := &request{client: c, ctx: ctx, op: OpAdopt, key: d.Key()}
	return r.take(func() (*Lease, error) { return r.adopt(d.secret) })
}

func (r *request) adopt(d *token.Detached) (lease *Lease, err error) {
	if d == nil {
		return nil, errNotDetached
	}
	if err := r.client.begin(r.ctx, r.key); err != nil {
		return nil, err
	}
	o, k := &r.client.options, r.client.keeper
	defer k.leave()
	r.ttl = o.ttlOf(r.key)
	switch {
	case o.fenced && d.Fence == 0:
		return nil, errNoFences
	case !k.adopt(d.Token):
		return nil, invalid("Detached: adopted already")
	}
	defer func() {
		if lease == nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.adopted, d.Token)
		}
	}()
	sent := time.Now()
	r.attempts++
	held, err := k.locker.Renew(r.ctx, d.Key, d.Token, r.ttl)
	returned := time.Now()
	l := newLease(r, d.Token, returned, Attempt{Fence: d.Fence, Since: sent}, r.ttl)
	l.step, l.before, l.granted = uint8(d.Step), d.Held, l.granted.Add(-d.Held)
	l.inherited = min(max(0, time.Until(d.Deadline)), maxTTL)
	switch {
	case err != nil:
		return nil, callError(r.ctx, sent, errs.Hide(err, ErrLost)) // of another lease, if err is the cause of ctx
	case !held:
		return nil, l.lostLocked(LossRemoved)
	case l.restLocked(returned) <= 0:
		return nil, errLate
	case !l.start():
		return nil, ErrClosed
	}
	return l, nil
}

// adopt reports whether a secret may be adopted: no lease that was adopted with it is still
// held.
func (k *keeper) adopt(secret string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.adopted[secret]; ok {
		return false
	}
	k.adopted[secret] = struct{}{}
	return true
}

// MarshalText returns d as printable ASCII text, including the secret.
func (d Detached) MarshalText() ([]byte, error) {
	if d.secret == nil {
		return nil, fmt.Errorf("dlock: marshal: %w", errNotDetached)
	}
	return d.secret.Text(), nil
}

// UnmarshalText sets d to what MarshalText returned; it ignores white space around the text.
// The error matches [ErrInvalid] if text is anything else. It does not show the text, which
// may be most of a secret.
func (d *Detached) UnmarshalText(text []byte) error {
	parsed, reason := token.ParseDetached(string(bytes.TrimSpace(text)), maxKey)
	if parsed == nil {
		return fmt.Errorf("dlock: unmarshal: %w", invalid("Detached of %d bytes: %s", len(text), reason))
	}
	d.secret = parsed
	return nil
}

// String returns key and fence, not the secret.
func (d Detached) String() string {
	if d.secret == nil {
		return "empty Detached"
	}
	return fmt.Sprintf("detached lease %q (fence %d)", d.secret.Key, d.secret.Fence)
}

// Format prints String, whatever the verb.
func (d Detached) Format(s fmt.State, _ rune) { io.WriteString(s, d.String()) }

// LogValue returns String, not the secret.
func (d Detached) LogValue() slog.Value { return slog.StringValue(d.String()) }

package conformance

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
)

// A model is what the contract says of one key, for a store that is asked one thing
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
		return m.told(c, a.Holder, a.Remaining)
	}
	return m.grant(c, token, ttl, a.Fence)
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

// extend makes the rest of the lease the longer of what it is and ttl.
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
	return m.told(c, h.Token, h.Remaining)
}

// told checks what the store has told of the present lease, as far as it has. What it tells
// may be as imprecise as its expiry.
func (m *model) told(c span, holder string, rest time.Duration) error {
	least, most := m.least.Sub(c.fast.end)-m.grace-rounding, m.most.Sub(c.slow.start)
	switch {
	case holder != "" && holder != m.holder:
		return m.disagree(c, "its holder is %s", brief(holder))
	case rest != 0 && (rest < least || rest > most):
		return m.disagree(c, "the rest of the lease is %v; want %v to %v", rest, max(0, least), most)
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
		return fmt.Sprintf("%s holds the key for at least %v more", brief(m.holder), m.least.Sub(c.fast.end))
	}
	return fmt.Sprintf("%s may hold the key still", brief(m.holder))
}

package rediscore

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
)

// maxTokens is how many tokens are remembered.
const maxTokens = 16384

// A record is what a post knows of a token that has waited for a key. Once it was released, by a caller or here,
// the token is used no more, and whatever it is granted is released. But a vote may be cast again.
type record struct {
	key      string
	wait     *wait  // under way, or nil
	inbox    *inbox // of the last wait
	given    bool   // the last wait has ended without a grant
	due      *inbox // that must bring the message of a grant that a check-in has found; or nil
	released bool   // the token is used no more
	releases int    // of callers, in flight
	again    bool   // these may have missed a grant: another follows if the last one has found nothing

	pending int           // calls that have outlived their waits, and releases in the background
	settled chan struct{} // closed when there are none any more; nil if there are none
	begun   int           // how many of these releases have
	held    int           // the last of them that has ended a lease
	err     error         // of the last of them that has failed
}

// rememberLocked notes the wait of a token.
func (p *post) rememberLocked(w *wait) {
	r := p.ofLocked(w.key, w.token)
	if r == nil {
		if p.tokens[w.token] == nil {
			p.order = append(p.order, w.token)
		}
		r = &record{key: w.key}
		p.tokens[w.token] = r
	}
	r.wait, r.inbox = w, w.inbox
	for range min(2, max(0, len(p.order)-maxTokens)) { // two, since more may have waited at once
		oldest := p.order[0]
		p.order = p.order[1:]
		switch r := p.tokens[oldest]; {
		case r == nil:
		case r.wait != nil || r.pending > 0:
			p.order = append(p.order, oldest)
		default:
			delete(p.tokens, oldest)
		}
	}
}

// endLocked notes that a wait is over, and how it has ended.
func (p *post) endLocked(w *wait, granted bool) {
	if r := p.ofLocked(w.key, w.token); r != nil && r.wait == w {
		r.wait, r.given = nil, !granted
	}
}

// ofLocked returns what is known of a token that has waited for key, or nil. The same token may be
// used for other keys, about which the record says nothing.
func (p *post) ofLocked(key, token string) *record {
	if r := p.tokens[token]; r != nil && r.key == key {
		return r
	}
	return nil
}

// releasing notes that a token is about to be released, or passed on, after which it may be used again; released must
// follow. It returns how many releases of the token in the background have begun before.
func (p *post) releasing(key, token string, pass bool) (before int) {
	if !p.used.Load() {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.ofLocked(key, token); r != nil {
		r.releases++
		if r.released = r.released || !pass; r.wait != nil && !pass {
			r.wait.mail.released = true
			r.wait.ring()
		}
		before = r.begun
	}
	return before
}

// released notes that a release was answered, or has failed. If it has found nothing, but a call for the token
// is in flight, released waits for that, and for the release of what it was granted, until ctx ends. That is part of
// the caller's release, unless it had begun before.
func (p *post) released(ctx context.Context, key, token string, before int, held bool, err error) (bool, error) {
	if !p.used.Load() {
		return held, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.ofLocked(key, token)
	if r == nil {
		return held, err
	}
	r.inbox.left = r.inbox.left || err != nil
	r.releases = max(0, r.releases-1) // the record may be younger than the release
	if r.releases == 0 && r.again {
		if r.again = false; !held {
			p.giveBackLocked(r, token)
			err = unmark(err) // that one has an effect
		}
	}
	if held || err != nil || r.pending == 0 {
		return held, err
	}
	settled := r.settled
	p.mu.Unlock()
	select {
	case <-settled:
	case <-ctx.Done():
	}
	p.mu.Lock()
	if r.begun == before {
		return false, nil
	}
	return r.held > before, unmark(r.err) // the first release had an effect
}

// use notes that a token is used, maybe again: a vote is, after it was passed on. That ends with an error if a call is
// in flight that may release it, or was not answered.
func (p *post) use(key, token string) error {
	if !p.used.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.ofLocked(key, token)
	switch {
	case r == nil:
	case r.released && (r.pending > 0 || r.err != nil):
		return mark(errReleased)
	case r.wait == nil:
		r.given, r.released = false, false
	}
	return nil
}

// isReleased reports whether a token that is not in the queue any more was taken out of it by a
// release, and not because it seemed dead.
func (p *post) isReleased(key, token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.ofLocked(key, token)
	return r != nil && r.released
}

// outlived notes that a call of a wait is still in flight when the wait ends. It may queue the token after its
// release, which is repeated then.
func (p *post) outlived(w *wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.ofLocked(w.key, w.token); r != nil {
		p.pendLocked(r, func() {
			attempt, err := w.lateAnswer(<-w.answers)
			if p.mayHaveMissed(r) && p.giveBack(w.ctx, r, w.token) {
				attempt, err = dlock.Attempt{}, nil
			}
			if w.enqueuing != nil {
				w.enqueuing.come(attempt, err)
			}
		})
	}
}

// mayHaveMissed reports whether a token was released, so that the release may have missed what came after it. If
// a release is in flight, its end decides.
func (p *post) mayHaveMissed(r *record) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.again = r.again || r.releases > 0
	return r.released && r.releases == 0
}

// giveBackLocked releases, in the background, what a token was granted when it was not wanted any more.
func (p *post) giveBackLocked(r *record, token string) {
	r.released = true
	p.pendLocked(r, func() { p.giveBack(context.Background(), r, token) })
}

// pendLocked calls f in the background, unless the post is closed. Until f returns, the token is not settled.
func (p *post) pendLocked(r *record, f func()) {
	if p.open.Err() != nil {
		return
	}
	if r.pending++; r.pending == 1 {
		r.settled = make(chan struct{})
	}
	p.running.Go(func() {
		f()
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.pending--; r.pending == 0 {
			close(r.settled)
		}
	})
}

// giveBack reports whether its release was answered.
func (p *post) giveBack(ctx context.Context, r *record, token string) bool {
	p.mu.Lock()
	r.begun++
	n := r.begun
	p.mu.Unlock()
	held, err := p.locker.giveBack(ctx, r.key, token)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		r.err = err
	case held:
		r.held = n
	}
	return err == nil
}

var errReleased = fmt.Errorf("%w: a call for its token may be in flight", dlock.ErrReleased)

// found notes that a check-in has found a grant whose message ought to have come. If it does not
// come, the inbox is deaf, and is opened again.
func (p *post) found(w *wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, b := p.ofLocked(w.key, w.token), w.inbox
	if r == nil || w.mail.granted != (handover{}) {
		return
	}
	r.due = b
	time.AfterFunc(messageLag, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.due == b {
			b.doubtLocked()
		}
	})
}

package rediscore

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock"
)

// maxTokens is how many tokens are remembered.
const maxTokens = 16384

// A record is what a post knows of a token that was taken into a queue. While it is kept, a grant
// is never taken for that of another token.
type record struct {
	key       string
	addressee *addressee // nil if the wait is over
	inbox     *inbox     // of the last wait
	use       use
	shared    bool   // several waits of it have waited at once
	due       *inbox // that must bring the message of a grant that a check-in has found; or nil

	releases int  // that are in flight
	again    bool // one of them may have missed a grant: another follows if it found nothing

	answered  <-chan struct{} // closed when the last call of the wait is; nil if none outlived it
	givenBack <-chan struct{} // closed when the releases in the background are over; nil if there is none
	unsure    bool            // one of these got no answer, and may still reach the server
}

// A use says whether a token is in use, and so what a grant for it means.
type use int

const (
	inUse  use = iota // it waits, or may hold the lock
	given             // it was given up: its wait was cancelled, or its lease was released
	missed            // it was given up, and the last release has found nothing, or has failed
)

func (p *post) rememberLocked(key, token string, a *addressee) {
	if r := p.ofLocked(key, token); r != nil {
		if r.addressee != nil {
			r.shared = true
			p.callLocked(key, token)
		}
		r.addressee, r.inbox, r.use = a, a.inbox, inUse
		return
	}
	if p.tokens[token] == nil {
		p.order = append(p.order, token)
	}
	p.tokens[token] = &record{key: key, addressee: a, inbox: a.inbox}
	for range min(2, max(0, len(p.order)-maxTokens)) { // two, since more may have waited at once
		oldest := p.order[0]
		p.order = p.order[1:]
		if r := p.tokens[oldest]; r.addressee != nil || r.givenBack != nil {
			p.order = append(p.order, oldest)
		} else {
			delete(p.tokens, oldest)
		}
	}
}

// endWaitLocked notes that a wait of a token is over, and whether it was granted the lock.
func (r *record) endWaitLocked(granted bool) {
	r.addressee = nil
	switch {
	case granted:
		r.use = inUse
	case r.use == inUse:
		r.use = given
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

// releasing notes that a token is about to be released; released must follow.
func (p *post) releasing(key, token string) {
	if !p.used.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.ofLocked(key, token); r != nil {
		r.releases++
	}
}

// released notes that a token is used no more, and whether a release has ended its lease. If it
// has not, and there may be one again, the release is repeated.
func (p *post) released(key, token string, held bool, err error) {
	if !p.used.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.ofLocked(key, token)
	if r == nil {
		return
	}
	r.use = given
	if !held {
		r.use = missed
	}
	r.inbox.left = r.inbox.left || err != nil
	r.releases = max(0, r.releases-1) // the record may be younger than the release
	if r.addressee != nil {
		p.callLocked(key, token)
	}
	if r.releases == 0 && r.again {
		r.again = false
		if !held {
			p.startLocked(p.giveBackLocked(context.Background(), r, key, token))
		}
	}
}

// outlived notes that a call of a wait is still in flight when the wait ends; late must follow
// when it is answered, and then answered be closed.
func (p *post) outlived(token string, a *addressee, answered <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.tokens[token]; r != nil && r.addressee == a {
		r.answered = answered
	}
}

// settle waits for the answer to a call that has outlived its wait, as long as ctx lasts. It
// reports whether there may be a grant again since the token was released, which the caller has
// to release then.
func (p *post) settle(ctx context.Context, key, token string) bool {
	if !p.used.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.ofLocked(key, token)
	if r == nil {
		return false
	}
	if answered := r.answered; answered != nil {
		p.mu.Unlock()
		select {
		case <-answered:
		case <-ctx.Done():
		case <-p.open.Done():
		}
		p.mu.Lock()
	}
	again := r.again
	r.again = false
	return again
}

// late notes that a call that outlived its wait was answered. It returns a function that releases
// the token again if a release has missed it.
func (p *post) late(ctx context.Context, key, token string, answered <-chan struct{}) (giveBack func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.ofLocked(key, token)
	if r == nil {
		return func() {}
	}
	if r.answered == answered {
		r.answered = nil
	}
	if r.releases > 0 { // which may miss it
		r.again = true
	} else if r.use == missed {
		return p.giveBackLocked(ctx, r, key, token)
	}
	return func() {}
}

// isReleased reports whether a token that is not in the queue any more was taken out of it by a
// release, and not because it seemed dead.
func (p *post) isReleased(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.tokens[token]
	return r != nil && r.releasedLocked()
}

func (r *record) releasedLocked() bool { return r.use != inUse || r.releases > 0 }

// giveBackLocked returns a function that releases a token in the background. Until it has run, the
// token is not settled.
func (p *post) giveBackLocked(ctx context.Context, r *record, key, token string) func() {
	before, done := r.givenBack, make(chan struct{})
	r.givenBack = done
	return func() {
		defer close(done)
		if before != nil {
			select {
			case <-before:
			case <-p.open.Done():
			}
		}
		err := p.locker.giveBack(ctx, key, token)
		p.mu.Lock()
		defer p.mu.Unlock()
		r.unsure = r.unsure || err != nil && !dlock.NoEffect(err)
		if r.givenBack == done {
			r.givenBack = nil
		}
	}
}

// reuse notes that a token is used again: what is heard of it from now on is no reason to release it.
// Before that, it waits until no release of the token in the background is in flight, which would
// end the new lease, and, for a vote, no call of an earlier wait.
func (p *post) reuse(ctx context.Context, key, token string, vote bool) error {
	if !p.used.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := p.ofLocked(key, token); r != nil; r = p.ofLocked(key, token) {
		busy := r.givenBack
		switch {
		case r.unsure:
			return mark(errUnsettled)
		case busy != nil:
		case vote && r.answered != nil:
			busy = r.answered
		default:
			if r.addressee == nil {
				r.use, r.again = inUse, false
			}
			return nil
		}
		p.mu.Unlock()
		var err error
		select {
		case <-busy:
		case <-ctx.Done():
			err = ctx.Err()
		case <-p.open.Done():
			err = dlock.ErrClosed
		}
		p.mu.Lock()
		if err != nil {
			return mark(err)
		}
	}
	return nil
}

var errUnsettled = errors.New("a release of the token in the background got no answer: use another token")

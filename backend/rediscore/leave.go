package rediscore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

// A Leaver is a [Conn] that can make calls over another connection. After a failover behind a DNS name, a
// Service or a proxy, open connections may lead to a server that is now a replica and refuses all writes.
type Leaver interface {
	// EvalAnew makes calls as EvalAll does or, if wait is not nil, as EvalReplicated, on another connection than
	// the last ones. If there was none, it sets an error for which [dlock.NoEffect] holds. It returns how many
	// connections were closed, since these calls were first made, because their server does not serve.
	EvalAnew(ctx context.Context, calls []Call, results []Result, wait *Replication) (closed int)
}

// Unserving reports whether a result is the answer of a server that serves no locks now, such as a replica.
func Unserving(results ...Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool { return r.Err != nil && rediserr.Unserving(rediserr.Answer(r.Err)) })
}

// Serves reports whether the results are those of a server that serves: it has answered, and none is Unserving.
func Serves(results []Result) bool {
	return !Unserving(results...) && slices.ContainsFunc(results, func(r Result) bool { return r.Err == nil })
}

// Trial returns a call that goes to the same server as call and changes nothing. Only a server that serves answers it
// without an error.
func Trial(call Call) Call {
	return Call{Script: renewScript, Args: []string{"-", "1"}, keys: call.keys}
}

// leave makes those calls again that were refused by a server that does not serve. They had no effect. If
// another connection leads to a server that serves, the inboxes are opened again: theirs may lead to the
// first one.
func (l *Locker) leave(ctx context.Context, calls []Call, results []Result) {
	if _, ok := l.conn.conn.(Leaver); !ok || ctx.Err() != nil || !Unserving(results...) || !l.leaving.begin() {
		return
	}
	var refused []int
	var some []Call
	for i, r := range results {
		if Unserving(r) {
			refused, some = append(refused, i), append(some, calls[i])
		}
	}
	again := make([]Result, len(some))
	closed := l.conn.evalAnew(ctx, some, again, l.replication(some))
	l.count(some, again)
	for n, i := range refused {
		if !dlock.NoEffect(again[n].Err) {
			results[i] = again[n]
		}
	}
	if Serves(again) {
		l.leaving.forget()
		l.post.moved()
	} else {
		l.leaving.end(closed, results[refused[0]].Err)
	}
}

// Of connections that lead to a server that does not serve, maxLeft are closed within leftPeriod, and a few more at
// first if many are idle. Then calls that write get the last answer in place of a new one.
const (
	maxLeft    = 4
	leftPeriod = time.Second // go-redis closes two for each that is counted
)

// Leavings are how many connections were left of late without success.
type leavings struct {
	mu     sync.Mutex
	times  []time.Time
	err    error     // the last answer
	helped time.Time // when leaving was last of use: then there may be more that are to be left
}

// begin reports whether a connection may be left, and counts it.
func (l *leavings) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exhaustedLocked() {
		return false
	}
	l.times = append(l.times, time.Now())
	return true
}

func (l *leavings) exhaustedLocked() bool {
	l.times = slices.DeleteFunc(l.times, func(t time.Time) bool { return time.Since(t) >= leftPeriod })
	return len(l.times) >= maxLeft && time.Since(l.helped) >= leftPeriod
}

// end notes that leaving has not helped, and how many connections were left.
func (l *leavings) end(left int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range min(left, maxLeft) - 1 {
		l.times = append(l.times, time.Now())
	}
	l.err = err
}

// forget notes that leaving has helped.
func (l *leavings) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times, l.err, l.helped = nil, nil, time.Now()
}

// answer returns the last answer if as many connections were left of late as may be, or nil.
func (l *leavings) answer() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || !l.exhaustedLocked() {
		return nil
	}
	return l.err
}

// moved opens those inboxes again that were opened before another connection was found to lead to another server. Other
// connections that were left soon after are no reason to open them again.
func (p *post) moved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.left) >= lasting {
		p.foundAt = now
	}
	p.left = now
	for _, b := range p.inboxes {
		if b.opened.Before(p.foundAt) {
			b.reopen()
		}
	}
}

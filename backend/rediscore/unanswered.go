package rediscore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// An unanswered is the error of a call that was sent before its ctx ended. Its answer will come: late has a function called
// with that.
type unanswered struct {
	error
	late func(func(Result))
}

func (e *unanswered) Unwrap() error { return e.error }

// promise lets the error of a call that is unanswered say so to the caller, who gets the attempt that read makes of the
// answer.
func promise(err error, read func(reply any, err error) (dlock.Attempt, error)) error {
	call, ok := err.(*unanswered)
	if !ok {
		return err
	}
	return &dlock.UnansweredError{Err: call.error, Late: func(f func(dlock.Attempt, error)) {
		call.late(func(r Result) { f(lateAttempt(r, read)) })
	}}
}

// lateAttempt is what an answer says that nobody waits for. No call follows a script that has only removed dead waiters, or found that others wait. A
// lease that is not on enough replicas has to be released like another.
func lateAttempt(r Result, read func(reply any, err error) (dlock.Attempt, error)) (dlock.Attempt, error) {
	if _, few := errors.AsType[*ReplicasError](r.Err); few {
		return dlock.Attempt{Acquired: true}, nil
	}
	if r.Err == nil && (r.Reply == unswept || r.Reply == queued) {
		return dlock.Attempt{}, nil
	}
	return read(r.Reply, r.Err)
}

// lateAnswer is what an answer says that comes when the wait is over: what the wait has left.
func (w *wait) lateAnswer(a answer) (dlock.Attempt, error) {
	return lateAttempt(Result{Reply: a.reply, Err: a.err}, func(reply any, err error) (dlock.Attempt, error) {
		switch n, texts, _, err := parseReply(reply, err, waitReplies); {
		case err != nil:
			return dlock.Attempt{}, err
		case n[0] == answerWaits, n[0] == answerDeaf:
			held := refused(holdOf(texts[0], n[4], texts[1]))
			held.Since = time.Now()
			return held, mark(context.Canceled)
		}
		return dlock.Attempt{Acquired: true}, nil
	})
}

// A lateEnqueue is an enqueue that was in flight when its wait ended.
type lateEnqueue struct {
	mu   sync.Mutex
	f    func(dlock.Attempt, error)
	tell func() // calls f with the answer, when that has come
}

// then has f called with the answer.
func (e *lateEnqueue) then(f func(dlock.Attempt, error)) { e.meet(func() { e.f = f }) }

// come notes the answer.
func (e *lateEnqueue) come(a dlock.Attempt, err error) {
	e.meet(func() { e.tell = func() { e.f(a, err) } })
}

func (e *lateEnqueue) meet(note func()) {
	e.mu.Lock()
	note()
	both := e.f != nil && e.tell != nil
	e.mu.Unlock()
	if both {
		e.tell()
	}
}

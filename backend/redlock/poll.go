package redlock

import (
	"context"
	"sync/atomic"
	"time"
)

// An answer is what a node said to a poll.
type answer[T any] struct {
	request
	value T
	given bool   // it has been given, or has failed
	store string // that has answered; or empty
}

// ok reports whether the node has answered.
func (a *answer[T]) ok() bool { return a.given && a.err == nil }

func count[T any](all []T, is func(*T) bool) (n int) {
	for i := range all {
		if is(&all[i]) {
			n++
		}
	}
	return n
}

// poll makes a request to each node, each in a goroutine of its own, and returns soon after done
// says so, when all have answered, after limit, or when ctx ends. It calls done a last time before
// that. Nodes that were not late the last time have the grace to answer after done. The requests
// that are in flight then go on, unless ctx has ended. When all have ended, poll calls last with all
// answers.
func poll[T any](ctx context.Context, l *Locker, limit, grace time.Duration,
	ask func(ctx context.Context, node int, decided func() bool) (T, request), done func([]answer[T]) bool, last func([]answer[T]),
) []answer[T] {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	type numbered struct {
		node int
		answer[T]
	}
	var over atomic.Bool
	given := make(chan numbered, len(l.nodes))
	for i := range l.nodes {
		l.spawn(func() {
			value, r := ask(requests, i, over.Load)
			given <- numbered{i, answer[T]{request: r, value: value, given: true}}
		})
	}
	answers := make([]answer[T], len(l.nodes))
	missing := len(l.nodes)
	begun, decided := time.Now(), false
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for missing > 0 {
		if !decided && done(answers) {
			decided = true
			timer.Reset(time.Since(begun) + grace)
		}
		if decided && !l.anyFast(func(i int) bool { return !answers[i].given }) {
			break
		}
		select {
		case a := <-given:
			answers[a.node] = a.answer
			missing--
			continue
		case <-timer.C:
			for i := range answers {
				if !answers[i].given {
					l.nodes[i].slow.Store(true)
				}
			}
		case <-ctx.Done():
			cancel()
		}
		break
	}
	over.Store(true)
	done(answers)
	result := append([]answer[T](nil), answers...)
	l.spawn(func() {
		defer cancel()
		for ; missing > 0; missing-- {
			a := <-given
			answers[a.node] = a.answer
		}
		if last != nil {
			last(answers)
		}
	})
	return result
}

// errorsOf returns an error for each answer that does not count.
func errorsOf[T any](answers []answer[T], counts func(*answer[T]) error) []error {
	errs := make([]error, len(answers))
	for i := range answers {
		switch a := &answers[i]; {
		case !a.given:
			errs[i] = errPending
		case a.err != nil:
			errs[i] = a.err
		case counts != nil:
			errs[i] = counts(a)
		}
	}
	return errs
}

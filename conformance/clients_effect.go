package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// noEffect ends the ctx of each call at many moments, from before it is sent until after
// it is answered, and believes what the error says, also later.
func noEffect(s *scene, a, b *client) {
	var ways []*interruptions
	s.eachWay(a, b, func(s *scene, c, other *client) {
		ways = append(ways, &interruptions{scene: s, c: c, other: other, kinds: s.kindsOf(c), rtt: s.roundTrip(c), unknown: make(map[kind]bool)})
	})
	var all sync.WaitGroup
	for _, w := range ways {
		for i := range s.h.moments() {
			all.Go(func() {
				for _, k := range w.kinds {
					w.interrupt(k, w.rtt*time.Duration(4*i)/time.Duration(3*s.h.moments()), false)
				}
			})
		}
	}
	all.Wait()
	for _, w := range ways {
		for _, k := range w.kinds {
			w.untilUnknown(k)
		}
	}
	s.gap()
	s.lapse(s.h.ttl()) // of what was renewed
	for _, w := range ways {
		w.mu.Lock()
		claimed := slices.Clone(w.claimed)
		w.mu.Unlock()
		for _, x := range claimed {
			x.hadNoEffect(x.interrupted())
		}
	}
}

// interrupted is what is said of a call that had an effect all the same.
func (x *trial) interrupted() string {
	return fmt.Sprintf("after an interrupted %s whose error says that it has no effect; a dlock.NoEffectError, or one that means the same, is right only where nothing was sent, where the store has refused the call, where each request of a wait was answered, or as the answer that a dlock.UnansweredError promises", x.name)
}

// tellsHolder reports whether the Attempt beside an error says that the store had answered "held".
func tellsHolder(a dlock.Attempt) bool { return a.Holder != "" || a.Remaining != 0 }

// moments is how many moments of a call are tried.
func (h Harness) moments() int {
	return h.rounds(8)
}

// Interruptions are calls of c whose ctx ends in their course.
type interruptions struct {
	*scene
	c, other *client
	kinds    []kind // that c offers
	rtt      time.Duration

	mu      sync.Mutex
	claimed []*trial      // calls whose errors say that they have no effect
	unknown map[kind]bool // of which one was interrupted with an error that leaves its effect open
}

// interrupt makes a call whose ctx ends after some time. That is in time, though the machine may be idle, if it is prompt.
func (w *interruptions) interrupt(k kind, after time.Duration, prompt bool) (took time.Duration, err error) {
	x := w.prepare(k, w.other, w.h.ttl())
	ctx, cancel := context.WithTimeout(w.ctx, after)
	defer cancel()
	if prompt {
		stop := keepAwake(ctx)
		defer stop()
	}
	start, late := time.Now(), ctx.Err() != nil // then nothing may have been sent
	a, err := w.c.call(ctx, k.name, x.grant, long)
	took = time.Since(start)
	x.settle()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
	case !dlock.NoEffect(err):
		w.unknown[k] = w.unknown[k] || !late
		w.believeLate(err, x)
	case supported(err) && !tellsHolder(a): // else one release is owed, as OneReleaseSettles says
		w.claimed = append(w.claimed, x)
	}
	return took, err
}

// believeLate claims that a call had no effect once a late answer says so.
func (w *interruptions) believeLate(err error, x *trial) {
	unanswered, ok := errors.AsType[*dlock.UnansweredError](err)
	if !ok {
		return
	}
	unanswered.Late(func(a dlock.Attempt, err error) {
		if err == nil && a.Acquired || err != nil && (!dlock.NoEffect(err) || tellsHolder(a)) {
			return
		}
		go func() { // it does not wait for w
			w.mu.Lock()
			defer w.mu.Unlock()
			w.claimed = append(w.claimed, x)
		}()
	})
}

// untilUnknown interrupts calls again, until the effect of one is open: it was on its way then.
// Where a store is near, none may have been. If all errors say that their call has no effect,
// one of them is wrong by then. In a bubble, moments are exact.
func (w *interruptions) untilUnknown(k kind) {
	const rounds = 60
	took, end := w.rtt, time.Now().Add(50*time.Millisecond)
	for n := 1; n < rounds && !w.h.Bubble && !w.unknown[k] && time.Now().Before(end); n++ {
		part := math.Mod(float64(n)*math.Phi, 1)
		if last, err := w.interrupt(k, time.Duration(part*float64(took)), true); err != nil {
			took += took / 8
		} else {
			took = (took + last) / 2
		}
	}
}

// keepAwake keeps the scheduler busy until ctx ends. It looks at its timers then, while an idle
// one may sleep for a millisecond.
func keepAwake(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	go func() {
		for ctx.Err() == nil && !isClosed(done) {
			runtime.Gosched()
		}
	}()
	return func() { close(done) }
}

package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// A scene is the stage of one case: clients of the store, keys that nobody else uses, and a clock. Its methods call the
// store and compare the answer with the contract. The first violation ends the goroutine that has found it, like
// testing.T.FailNow, and the next method that another goroutine calls ends that. So a check reads from top to bottom.
type scene struct {
	t       *testing.T
	h       Harness
	ctx     context.Context // ends with the case
	attempt int             // how many times the case was inconclusive before
	trace   *trace

	mu      mutex
	err     error
	clients int
	used    map[hold]bool        // every key and token that may be left in the store
	until   map[string]time.Time // key → until when its lease is certain
	waiters []*waiter
}

type hold struct{ key, token string }

// A mutex is one that functions are called with.
type mutex struct{ sync.Mutex }

func (m *mutex) locked(f func()) {
	m.Lock()
	defer m.Unlock()
	f()
}

func newScene(t *testing.T, h Harness, attempt int) *scene {
	return &scene{t: t, h: h, attempt: attempt, trace: newTrace(), used: make(map[hold]bool), until: make(map[string]time.Time)}
}

// play is run, and adds the calls that led to a violation.
func (s *scene) play(check func(*scene)) error {
	err := s.run(check)
	var skip skipError
	var random *historyError // a piece that is to blame shows its own calls
	if err == nil || errors.As(err, &skip) || errors.Is(err, errInconclusive) || errors.As(err, &random) && random.violation != nil {
		return err
	}
	var v *violation
	if !errors.As(err, &v) {
		v = &violation{err: err, calls: s.trace.about(err.Error())}
	}
	return fmt.Errorf("%w\nthe latest calls:\n%s", err, v.calls)
}

// run runs check, no longer than the harness's limit, and then cleans up.
func (s *scene) run(check func(*scene)) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.ctx = ctx
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.cleanUp()
		check(s)
	}()
	select {
	case <-done:
		return s.result()
	case <-time.After(s.h.limit()):
		return fmt.Errorf("the case did not end within %v; calls that have not returned:\n%s", s.h.limit(), s.trace.unanswered())
	}
}

// cleanUp ends every wait and gives back whatever may be held.
func (s *scene) cleanUp() {
	s.mu.Lock() // goroutines of a case that has failed may go on for a moment
	waiters, used := slices.Clone(s.waiters), slices.Collect(maps.Keys(s.used))
	s.mu.Unlock()
	for _, w := range waiters {
		w.cancel()
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.h.patience())
	defer cancel()
	if len(used) > 0 {
		l := s.client().inner
		eachOf(len(used), func(i int) {
			_, _ = l.Release(ctx, used[i].key, used[i].token) // best effort: the TTL frees the others
		})
	}
	for _, w := range waiters {
		select {
		case <-w.done:
		case <-ctx.Done():
		}
	}
	if s.h.Bubble {
		time.Sleep(s.h.patience()) // what the store still does in the background
	}
}

// fail notes a violation, unless there was one before, and ends the goroutine.
func (s *scene) fail(format string, args ...any) {
	s.goOn()
	s.stop(s.violation(fmt.Errorf(format, args...)))
}

// stop decides the case, unless it is decided, and ends the goroutine.
func (s *scene) stop(err error) {
	s.decide(func(former error) error { return cmp.Or(former, err) })
	runtime.Goexit()
}

func (s *scene) decide(result func(former error) error) {
	s.mu.locked(func() { s.err = result(s.err) })
}

// goOn ends the goroutine if the case is decided.
func (s *scene) goOn() {
	if s.over() {
		runtime.Goexit()
	}
}

func (s *scene) over() bool { return s.result() != nil }

func (s *scene) result() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// skip ends the case, because it does not apply to the store.
func (s *scene) skip(format string, args ...any) { s.stop(skipError{fmt.Sprintf(format, args...)}) }

func (s *scene) client() *client { return s.clientOf(s.h.New(s.t), "Harness.New") }

func (s *scene) clientOf(l dlock.Locker, source string) *client {
	s.mu.Lock()
	s.clients++
	name := string(rune('A' + (s.clients-1)%26))
	s.mu.Unlock()
	if l == nil {
		s.fail("%s returned nil", source)
	}
	return newClient(l, name, s.trace)
}

func (s *scene) clients2() (a, b *client) { return s.client(), s.client() }

func (s *scene) key() string { return anyKey + rand.Text()[:12] }

// anyKey is the beginning of each of these.
const anyKey = "conformance-"

func (s *scene) token(name string) string { return name + "-" + rand.Text()[:12] }

func (s *scene) uses(key, token string) { s.mu.locked(func() { s.used[hold{key, token}] = true }) }

func (s *scene) keysUsed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make(map[string]bool)
	for u := range s.used {
		keys[u.key] = true
	}
	return slices.Sorted(maps.Keys(keys))
}

// sleep lets at least d pass.
func (s *scene) sleep(d time.Duration) {
	s.goOn()
	time.Sleep(d)
}

func (s *scene) lapse(ttl time.Duration) { s.sleep(ttl + s.h.grace() + time.Millisecond) }

// gap gives calls that were started in goroutines the time to reach the store. It doubles with each attempt.
func (s *scene) gap() { s.sleep(s.h.gap() << s.attempt) }

// await reports whether done is closed within the harness's patience.
func (s *scene) await(done <-chan struct{}) bool { return await(done, s.h.patience()) }

func await(done <-chan struct{}, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return isClosed(done)
	}
}

// certain notes that key is held at least until then. With fresh, what was noted before no longer counts.
func (s *scene) certain(key string, then time.Time, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh || then.After(s.until[key]) {
		s.until[key] = then
	}
}

// mayHaveExpired returns false if the lease on key is sure to last still. If it may have expired in the meantime,
// because this machine was slow, the case is inconclusive.
func (s *scene) mayHaveExpired(key string) bool {
	s.mu.Lock()
	until, ok := s.until[key]
	s.mu.Unlock()
	if ok && !time.Now().Before(until) {
		s.stop(errInconclusive)
	}
	return false
}

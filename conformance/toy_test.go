package conformance

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// A toy is a small, correct lock store, unless it is given a flaw. It is written
// to be broken, and knows nothing of backend/memory.
type toy struct {
	flaw string

	mu     sync.Mutex
	locks  map[string]*toyLock // entries are never removed
	fence  int64
	grants int
	leaks  int
	turns  int
	wipes  int
}

type toyLock struct {
	token  string
	last   string // who held before
	until  time.Time
	ttl    time.Duration
	queue  []*toyWaiter
	marked bool
	fence  int64 // of this key, for flaws
}

type toyWaiter struct {
	ctx   context.Context
	token string
	ttl   time.Duration
	grant chan dlock.Attempt // of capacity 1
	fence int64              // the next one when it came, for flaws
}

func newToy(flaw string) *toy { return &toy{flaw: flaw, locks: make(map[string]*toyLock)} }

// has reports whether the toy has one of the flaws.
func (m *toy) has(flaws ...string) bool { return slices.Contains(flaws, m.flaw) }

// ended is the error of ctx, unless call is flawed.
func (m *toy) ended(ctx context.Context, call string) error {
	if m.has(call + " under an ended ctx") {
		return nil
	}
	return ctx.Err()
}

func (m *toy) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := m.ended(ctx, "TryAcquire"); err != nil {
		return dlock.Attempt{}, err
	}
	if m.has("check, then act") && m.seemsFree(key) {
		time.Sleep(time.Millisecond)
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.grant(m.lock(key), token, ttl), nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.try(key, token, ttl), nil
}

func (m *toy) seemsFree(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drive(key).token == ""
}

// nth reports whether the toy has a flaw that shows every nth time, and it does
// now.
func (m *toy) nth(n int, flaw string) bool {
	if !m.has(flaw) {
		return false
	}
	m.turns++
	return m.turns%n == 0
}

// try grants a free key, or answers who holds it.
func (m *toy) try(key, token string, ttl time.Duration) dlock.Attempt {
	l := m.drive(key)
	switch {
	case l.token == "" && l.last != "" && l.last != token && m.nth(25, "a free key seems held now and then"):
		return dlock.Attempt{Holder: l.last}
	case l.token != "" && l.token != token && m.nth(25, "a held key is granted now and then"):
		return m.grant(l, token, ttl)
	case l.token == "" && len(l.queue) > 0 && m.has("a queue that is not cleaned"):
		return dlock.Attempt{}
	case l.token == "":
		return m.grant(l, token, ttl)
	case m.same(l.token, token) && !m.has("the same token is refused"):
		return m.again(l, token, ttl)
	}
	switch {
	case m.has("a refused attempt prolongs"):
		l.extend(ttl)
	case m.has("a refused attempt shortens"):
		l.until = time.Now().Add(ttl)
	case m.has("a refused attempt replaces the holder"):
		l.token = token
	case m.has("a refused attempt names the wrong holder"):
		return dlock.Attempt{Holder: token}
	case m.has("the rest of a lease is wrong"):
		return dlock.Attempt{Remaining: -1}
	}
	return dlock.Attempt{Holder: l.token, Remaining: time.Until(l.until)}
}

func (m *toy) again(l *toyLock, token string, ttl time.Duration) dlock.Attempt {
	until, fence := l.until, l.fence
	a := m.grant(l, token, ttl)
	switch {
	case m.has("the same token keeps its fence"):
		a.Fence, l.fence = fence, fence
	case m.has("the same token does not extend"):
		l.until = until
	case m.has("the same token shortens"):
	case l.until.Before(until):
		l.until = until
	}
	return a
}

// grant makes token the holder.
func (m *toy) grant(l *toyLock, token string, ttl time.Duration) dlock.Attempt {
	lasts := ttl
	switch {
	case m.has("TTL in seconds"):
		lasts = ttl.Truncate(time.Second)
	case m.has("TTL in seconds, rounded up"):
		lasts = (ttl + time.Second - 1).Truncate(time.Second)
	case m.has("half the TTL"):
		lasts = ttl / 2
	case m.has("twice the TTL"):
		lasts = 2 * ttl
	case m.has("leases never end"):
		lasts = 1000 * time.Hour
	}
	l.token, l.last, l.ttl, l.until = token, token, ttl, time.Now().Add(lasts)
	l.marked = false
	return dlock.Attempt{Acquired: true, Since: time.Now(), Fence: m.number(l)}
}

// number is the fence of the next grant of l.
func (m *toy) number(l *toyLock) int64 {
	m.grants++
	m.fence += 8
	switch {
	case m.has("no fences"):
		return 0
	case m.has("a fence twice") && m.grants%2 == 0:
		m.fence -= 8
	case m.has("fences without room"):
		m.fence -= 7
	case m.has("fences in disorder") && m.grants%3 == 0:
		return m.fence - 16
	case m.has("fences restart on release"):
		l.fence += 8
		return l.fence
	}
	l.fence = m.fence
	return m.fence
}

// Acquire waits in the queue of the key.
func (m *toy) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := m.ended(ctx, "Acquire"); err != nil {
		return dlock.Attempt{}, err
	}
	if m.has("Acquire is unsupported, but acquires") {
		_, err := m.TryAcquire(ctx, key, token, ttl)
		return dlock.Attempt{}, errors.Join(errors.ErrUnsupported, err)
	}
	m.leak()
	if m.has("check, then act") && m.seemsFree(key) {
		return m.TryAcquire(ctx, key, token, ttl)
	}
	m.mu.Lock()
	a := m.try(key, token, ttl)
	if a.Acquired {
		m.mu.Unlock()
		return a, nil
	}
	w := &toyWaiter{ctx, token, ttl, make(chan dlock.Attempt, 1), m.fence + 8}
	l := m.lock(key)
	l.queue = append(l.queue, w)
	m.mu.Unlock()
	return m.wait(key, w)
}

// leak leaves a goroutine behind in the first waits, which is enough to be found.
func (m *toy) leak() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has("a wait leaves a goroutine") && m.leaks < 2 {
		m.leaks++
		go func() { select {} }()
	}
}

func (m *toy) wait(key string, w *toyWaiter) (dlock.Attempt, error) {
	ended := w.ctx.Done()
	if m.has("a wait that ignores its ctx") {
		ended = nil
	}
	for {
		select {
		case a := <-w.grant:
			return m.discover(a), nil
		case <-ended:
			return m.leave(key, w)
		case <-time.After(m.rest(key)):
		}
	}
}

// discover is what a waiter does with its grant.
func (m *toy) discover(a dlock.Attempt) dlock.Attempt {
	if m.has("Since is dated at discovery") {
		time.Sleep(20 * time.Millisecond)
		a.Since = time.Now()
	}
	if m.has("the fence of a handover is lost") {
		a.Fence = 8
	}
	return a
}

// rest is how long the present lease of key lasts: waiters look when it ends.
func (m *toy) rest(key string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has("expiry wakes nobody") {
		return 1000 * time.Hour
	}
	l := m.drive(key)
	if l.token == "" {
		return 1000 * time.Hour
	}
	return min(time.Until(l.until), 700*time.Millisecond)
}

// leave ends a wait whose ctx has ended.
func (m *toy) leave(key string, w *toyWaiter) (dlock.Attempt, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has("release forgets the queue") {
		return dlock.Attempt{}, w.ctx.Err()
	}
	select {
	case a := <-w.grant:
		if m.has("a grant is lost on cancel") {
			m.lock(key).token = "nobody"
			return dlock.Attempt{}, w.ctx.Err()
		}
		return a, nil
	default:
	}
	if m.keepsDead() {
		return dlock.Attempt{}, w.ctx.Err()
	}
	m.unqueue(key, w.token)
	return dlock.Attempt{}, w.ctx.Err()
}

// keepsDead reports whether cancelled waiters stay in the queue.
func (m *toy) keepsDead() bool {
	return m.has("a dead waiter is served", "a dead waiter costs a second", "a queue that is not cleaned")
}

func (m *toy) unqueue(key, token string) {
	l := m.lock(key)
	l.queue = slices.DeleteFunc(l.queue, func(w *toyWaiter) bool { return w.token == token })
}

func (m *toy) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := m.ended(ctx, "Renew"); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.renew(key, token, ttl), nil
}

func (m *toy) renew(key, token string, ttl time.Duration) bool {
	l := m.drive(key)
	switch {
	case l.token == token && m.nth(25, "renewal says not held now and then"):
		return false
	case l.token == "" && l.last == token && m.has("renewal revives"):
		m.grant(l, token, ttl)
		return true
	case l.token == "" && m.has("renewal creates"):
		m.grant(l, token, ttl)
		return false
	case l.token == "":
		return false
	case m.has("renewal does not compare"):
	case !m.same(l.token, token):
		return false
	}
	switch {
	case m.has("renewal shortens"):
		l.until = time.Now().Add(ttl)
	case m.has("renewal does not extend"):
	default:
		l.extend(ttl)
	}
	return true
}

func (l *toyLock) extend(ttl time.Duration) {
	if until := time.Now().Add(ttl); until.After(l.until) {
		l.until = until
	}
}

func (m *toy) Release(ctx context.Context, key, token string) (bool, error) {
	if err := m.ended(ctx, "Release"); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.drive(key)
	if !m.has("a queue that is not cleaned", "release forgets the queue") {
		m.unqueue(key, token)
	}
	switch {
	case l.token == "" || m.same(l.token, token):
	case !m.has("release does not compare"):
		return false, nil
	}
	held := l.token != ""
	if held && m.nth(25, "a release is lost now and then") {
		return true, nil
	}
	if held && m.nth(25, "release says not held now and then") {
		m.free(key, l)
		return false, nil
	}
	if !held && l.last == token && m.has("release of what was is true") {
		return true, nil
	}
	if held && m.has("release only marks") {
		l.marked = !l.marked
		return l.marked, nil
	}
	if held {
		m.free(key, l)
	}
	return held, nil
}

// free ends a lease, and hands the key over.
func (m *toy) free(key string, l *toyLock) {
	l.token, l.marked = "", false
	if m.has("fences restart on release") {
		l.fence = 0
	}
	if m.has("release wakes nobody") {
		return
	}
	m.serve(l)
}

// serve grants a free key to the first that waits.
func (m *toy) serve(l *toyLock) {
	for len(l.queue) > 0 {
		i := 0
		if m.has("last come, first served") {
			i = len(l.queue) - 1
		}
		w := l.queue[i]
		if w.ctx.Err() != nil && !m.has("a dead waiter is served", "a wait that ignores its ctx", "a grant is lost on cancel", "release forgets the queue") {
			if m.has("a queue that is not cleaned") {
				return
			}
			if m.has("a dead waiter costs a second") {
				l.queue = l.queue[1:]
				m.grant(l, w.token, time.Second)
				return
			}
			l.queue = slices.Delete(l.queue, i, i+1)
			continue
		}
		l.queue = slices.Delete(l.queue, i, i+1)
		a := m.grant(l, w.token, w.ttl)
		if m.has("fences are drawn on arrival") {
			a.Fence = w.fence
		}
		w.grant <- a
		if m.nth(25, "two waiters are served now and then") {
			m.serve(l)
		}
		return
	}
}

// drive returns the lock of key, after ending its lease if that has expired.
func (m *toy) drive(key string) *toyLock {
	l := m.lock(key)
	if l.token == "" || time.Now().Before(l.until) {
		return l
	}
	l.token = ""
	if !m.has("expiry wakes nobody") {
		m.serve(l)
	}
	return l
}

func (m *toy) lock(key string) *toyLock {
	key = m.name(key)
	if m.locks[key] == nil {
		m.locks[key] = new(toyLock)
	}
	return m.locks[key]
}

// name is the name under which a key is stored.
func (m *toy) name(key string) string {
	switch m.flaw {
	case "keys are folded":
		return strings.ToLower(key)
	case "keys are trimmed":
		return strings.TrimSpace(key)
	case "keys end at NUL":
		key, _, _ = strings.Cut(key, "\x00")
	case "keys have 255 bytes":
		return key[:min(len(key), 255)]
	case "keys are made valid UTF-8":
		return strings.ToValidUTF8(key, "\ufffd")
	case "keys are hash tags":
		if _, tag, ok := strings.Cut(key, "{"); ok && strings.Contains(tag, "}") && tag[0] != '}' {
			key, _, _ = strings.Cut(tag, "}")
		}
	}
	return key
}

// same compares two tokens.
func (m *toy) same(a, b string) bool {
	switch m.flaw {
	case "tokens compare as prefixes":
		return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
	case "tokens end at NUL":
		a, _, _ = strings.Cut(a, "\x00")
		b, _, _ = strings.Cut(b, "\x00")
	case "tokens are folded":
		return strings.EqualFold(a, b)
	}
	return a == b
}

func (m *toy) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if err := m.ended(ctx, "RenewBatch"); err != nil {
		return nil, err
	}
	if len(batch) == 0 && m.has("an empty batch is an error") {
		return nil, errors.New("nothing to do")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	results := make([]dlock.RenewResult, 0, len(batch))
	for i, r := range batch {
		held := m.renewOne(r)
		results = append(results, dlock.RenewResult{Held: held})
		if !held && m.has("a batch stops at a stranger") {
			return append(results, make([]dlock.RenewResult, len(batch)-i-1)...), nil
		}
	}
	if m.has("a batch is answered backwards") {
		slices.Reverse(results)
	}
	if m.has("a batch merges its keys") {
		results = mergeResults(batch, results)
	}
	return results, nil
}

func (m *toy) renewOne(r dlock.Renewal) bool {
	l := m.drive(r.Key)
	switch {
	case m.has("a batch shortens") && l.token == r.Token:
		l.until = time.Now().Add(r.TTL)
	case m.has("a batch does not compare") && l.token != "":
		l.extend(r.TTL)
	case m.has("a batch revives") && l.token == "" && l.last == r.Token:
		m.grant(l, r.Token, r.TTL)
		return false
	}
	if m.has("a batch shortens", "a batch does not extend") {
		return l.token == r.Token
	}
	return m.renew(r.Key, r.Token, r.TTL)
}

// mergeResults gives all renewals of one key the result of the last.
func mergeResults(batch []dlock.Renewal, results []dlock.RenewResult) []dlock.RenewResult {
	last := make(map[string]dlock.RenewResult)
	for i, r := range batch {
		last[r.Key] = results[i]
	}
	for i, r := range batch {
		results[i] = last[r.Key]
	}
	return results
}

func (m *toy) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	if err := m.ended(ctx, "Inspect"); err != nil {
		return dlock.Hold{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has("inspecting does not look at the time") {
		l := m.lock(key)
		return dlock.Hold{Held: l.token != "", Token: l.token}, nil
	}
	l := m.drive(key)
	switch {
	case m.has("inspecting reveals the last holder"):
		return dlock.Hold{Held: l.last != "", Token: l.last}, nil
	case l.token != "" && m.nth(8, "inspecting sees nobody now and then"):
		return dlock.Hold{}, nil
	case m.has("inspecting prolongs") && l.token != "":
		l.extend(l.ttl)
	case m.has("inspecting cuts") && l.token != "":
		l.until = time.Now().Add(time.Millisecond)
	case m.has("inspecting takes") && l.token == "":
		m.grant(l, "inspector", time.Minute)
		return dlock.Hold{}, nil
	}
	if l.token == "" {
		return dlock.Hold{}, nil
	}
	if m.has("inspecting tells the TTL in seconds") {
		return dlock.Hold{Held: true, Token: l.token, Remaining: time.Until(l.until) / time.Second, Waiting: len(l.queue)}, nil
	}
	return dlock.Hold{Held: true, Token: l.token, Remaining: time.Until(l.until), Waiting: len(l.queue)}, nil
}

// wipe loses all leases, but not the fences, and tells those who wait.
func (m *toy) wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wipes++
	if m.has("fences are lost with the data") || m.has("fences are lost with the data at the third time") && m.wipes == 3 {
		m.fence = 0
	}
	for _, key := range slices.Collect(maps.Keys(m.locks)) {
		l := m.locks[key]
		l.token = ""
		if !m.has("removal wakes nobody") {
			m.serve(l)
		}
	}
}

// toyHarness has one toy for each t.
func toyHarness(flaw string, around func(*toy) dlock.Locker) Harness {
	var toys sync.Map
	of := func(t *testing.T) *toy {
		m, _ := toys.LoadOrStore(t, newToy(flaw))
		return m.(*toy)
	}
	return Harness{
		New:    func(t *testing.T) dlock.Locker { return around(of(t)) },
		Wipe:   func(t *testing.T) { of(t).wipe() },
		Bubble: true,
	}
}

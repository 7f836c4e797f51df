package redlock

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// A Locker keeps leases on a majority of other Lockers, its nodes. It implements
// [dlock.Locker], [dlock.BatchRenewer], [dlock.Inspector], and [dlock.Acquirer] if all nodes are
// [quorum.VoteAcquirer]s. All methods are safe for concurrent use.
//
// A call returns when a majority of the nodes has decided it. If none does, it fails with a
// [MajorityError]. What a call leaves undone is done in the background, until Close.
//
// Nodes keep a vote for whole milliseconds, and for at least 50. So the key of a shorter lease is
// free only after 50 ms.
type Locker struct {
	nodes    []*node
	names    []string // of nodes
	quorum   int
	voters   bool // all nodes are Voters
	queues   bool // all nodes are VoteAcquirers
	longest  time.Duration
	guarded  bool
	limit    time.Duration // of a request
	onChange func(NodeState)
	made     time.Time
	err      error // returned by every call: a bad argument of New
	claims   claims
	trip     atomic.Int64 // about how long a majority takes to answer, in ns
	owed     atomic.Int64 // how many releases are repeated

	open   context.Context
	close  context.CancelFunc
	mu     sync.RWMutex // held by what adds to work, until Close
	closed bool
	work   sync.WaitGroup
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.Acquirer     = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
	_ dlock.TTLLimiter   = (*Locker)(nil)
)

// An Option changes how a [Locker] works.
type Option func(*Locker)

const (
	longestTTL = 30 * time.Second
	minLimit   = 50 * time.Millisecond
	maxLimit   = 5 * time.Second
	maxDefault = 365 * 24 * time.Hour // the longest TTL without the guard, as everywhere
)

// WithLongestTTL sets the longest TTL that the Locker grants. A node that has forgotten its leases
// does not count for that long plus 1 % and 1 s. Longer TTLs fail with [dlock.ErrInvalid]. All
// clients must set the same. The default is 30 s.
func WithLongestTTL(d time.Duration) Option {
	return func(l *Locker) {
		if d < time.Millisecond || d > maxDefault {
			l.refuse("WithLongestTTL(%v): not between 1ms and 365 days", d)
		}
		l.longest = d
	}
}

// WithoutGuard lets nodes count that have just forgotten their leases, and allows any TTL. The
// operator must keep a node that has crashed away until the longest lease has ended. Otherwise, two
// clients can be certain of the same key.
func WithoutGuard() Option { return func(l *Locker) { l.guarded = false } }

// WithNodeLimit sets how long a call waits for the answer of a node. The default is 5 s; but if a
// majority has answered without deciding the call, it is a tenth of the TTL, and at least 50 ms.
func WithNodeLimit(d time.Duration) Option {
	return func(l *Locker) {
		if d < time.Millisecond {
			l.refuse("WithNodeLimit(%v): less than 1ms", d)
		}
		l.limit = d
	}
}

// WithNames names the nodes, in the order of New. All names must differ. The default is the address of
// the node, if its Locker has a method Addr() string that returns one no other node has; otherwise its
// index.
func WithNames(names ...string) Option {
	return func(l *Locker) {
		for i, name := range names {
			if name == "" || slices.Contains(names[:i], name) {
				l.refuse("WithNames: %q for node %d: empty, or a name of two", name, i)
			}
		}
		l.names = slices.Clone(names)
	}
}

// nameAll names the nodes that have no names yet.
func (l *Locker) nameAll(nodes []dlock.Locker) {
	switch len(l.names) {
	case len(nodes):
		return
	case 0:
	default:
		l.refuse("WithNames: %d names for %d nodes", len(l.names), len(nodes))
	}
	l.names = make([]string, len(nodes))
	uses := make(map[string]int)
	for i, n := range nodes {
		if a, ok := n.(interface{ Addr() string }); ok && !isNil(n) {
			l.names[i] = a.Addr()
		}
		uses[l.names[i]]++
	}
	for i, name := range l.names {
		if name == "" || uses[name] > 1 {
			l.names[i] = strconv.Itoa(i)
		}
	}
}

func isNil(n dlock.Locker) bool {
	v := reflect.ValueOf(n)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// New returns a Locker that keeps its leases on a majority of nodes. There must be one, or at least
// three, and they must be different stores: otherwise all methods fail with [dlock.ErrInvalid]. If
// only the nodes' answers show that two are one store, attempts, waits and renewals fail. An even
// number tolerates no more failures than one node less. New keeps no reference to the slice, and
// the Locker never closes a node.
func New(nodes []dlock.Locker, opts ...Option) *Locker {
	l := &Locker{quorum: len(nodes)/2 + 1, longest: longestTTL, limit: maxLimit, guarded: true, voters: true, queues: true, made: time.Now()}
	l.open, l.close = context.WithCancel(context.Background())
	l.claims.nodes = len(nodes)
	l.trip.Store(int64(time.Millisecond))
	switch len(nodes) {
	case 0, 2:
		l.refuse("nodes: %d, neither 1 nor 3 or more", len(nodes))
	}
	for i, opt := range opts {
		if opt == nil {
			l.refuse("Option %d of %d: nil", i+1, len(opts))
			continue
		}
		opt(l)
	}
	l.nameAll(nodes)
	for i, n := range nodes {
		if isNil(n) {
			l.refuse("node %s: nil", l.names[i])
			continue
		}
		if reflect.ValueOf(n).Comparable() {
			if j := slices.IndexFunc(nodes[:i], func(other dlock.Locker) bool {
				return !isNil(other) && reflect.ValueOf(other).Comparable() && other == n
			}); j >= 0 {
				l.refuse("node %s: the same as node %s", l.names[i], l.names[j])
			}
		}
		l.nodes = append(l.nodes, newNode(l, i, n))
		l.voters = l.voters && l.nodes[len(l.nodes)-1].voter != nil
		l.queues = l.queues && l.nodes[len(l.nodes)-1].queue != nil
	}
	l.guarded = l.guarded && l.voters
	return l
}

func (l *Locker) refuse(format string, args ...any) {
	if l.err == nil {
		l.err = invalid(format, args...)
	}
}

// LongestTTL implements [dlock.TTLLimiter].
func (l *Locker) LongestTTL() time.Duration {
	if l.guarded {
		return l.longest
	}
	return maxDefault
}

// Close ends the waits in progress. They and all later calls fail with [dlock.ErrClosed]. Close
// returns when nothing more is sent to the nodes, so the caller can then close them. It releases
// no lease, and always returns nil.
func (l *Locker) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.close()
	l.work.Wait()
	return nil
}

// begin checks the arguments of a call. If it returns no error, Close waits for the call until
// l.work.Done.
func (l *Locker) begin(ctx context.Context) error {
	if l.err != nil {
		return &dlock.NoEffectError{Err: l.err}
	}
	if err := ctx.Err(); err != nil {
		return &dlock.NoEffectError{Err: err}
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return &dlock.NoEffectError{Err: dlock.ErrClosed}
	}
	l.work.Add(1)
	return nil
}

// beginFor is begin for a call with these arguments.
func (l *Locker) beginFor(ctx context.Context, key, token string, ttl time.Duration) error {
	if err := l.check(key, token, ttl); err != nil && l.err == nil && ctx.Err() == nil {
		return &dlock.NoEffectError{Err: err}
	}
	return l.begin(ctx)
}

func (l *Locker) check(key, token string, ttl time.Duration) error {
	switch {
	case key == "":
		return invalid("key: empty")
	case token == "":
		return invalid("token: empty")
	case ttl < time.Millisecond:
		return invalid("TTL %v: less than 1ms", ttl)
	case l.guarded && ttl > l.longest:
		return invalid("TTL %v: longer than %v, the longest (see WithLongestTTL)", ttl, l.longest)
	}
	return nil
}

// spawn runs f in the background. The caller has begun a call, or is itself such an f.
func (l *Locker) spawn(f func()) {
	l.work.Add(1)
	go func() {
		defer l.work.Done()
		f()
	}()
}

// patience returns how long a call waits for a minority that might decide it.
func (l *Locker) patience(ttl time.Duration) time.Duration {
	return min(max(ttl/10, minLimit), l.limit)
}

// requestLimit returns the limit of a request that is sent now. After Close it is short, since many
// may wait for each other.
func (l *Locker) requestLimit() time.Duration {
	if l.open.Err() != nil {
		return min(minLimit, l.limit)
	}
	return l.limit
}

// guard returns the age from which on a node counts.
func (l *Locker) guard() time.Duration {
	if !l.guarded {
		return 0
	}
	return l.longest + l.longest/100 + time.Second
}

// young returns how long it takes until a node with this age counts.
func (l *Locker) young(age time.Duration) time.Duration { return max(0, l.guard()-age) }

// order returns the nodes in the order in which they are the arbiter for key.
func (l *Locker) order(key string) func(yield func(int) bool) {
	var hash uint64 = 14695981039346656037 // FNV-1a, since all processes must agree
	for i := range len(key) {
		hash = (hash ^ uint64(key[i])) * 1099511628211
	}
	first := int(hash % uint64(len(l.nodes)))
	return func(yield func(int) bool) {
		for i := range l.nodes {
			if !yield((first + i) % len(l.nodes)) {
				return
			}
		}
	}
}

// nthLargest returns the n-th largest of values, counted from 1.
func nthLargest[T cmp.Ordered](values []T, n int) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)-n]
}

// floor returns a fence that is a little ahead of all nodes' clocks, as far as is known, so that
// they give equal fences. Nodes whose clocks are far behind it do not reach it.
func (l *Locker) floor() int64 {
	if !l.voters {
		return 0
	}
	ahead := l.nodes[0].ahead.Load()
	for _, n := range l.nodes[1:] {
		ahead = max(ahead, n.ahead.Load())
	}
	margin := 5*time.Millisecond + 4*time.Duration(l.trip.Load())
	return max(0, time.Now().Add(margin).UnixMicro()+ahead)
}

package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// A NodeState is the state of a node, as far as the requests to it have shown. [Locker.Nodes]
// returns those of all nodes, and [OnNodeChange] reports each change.
type NodeState struct {
	Node   string // its name: see WithNames
	Status NodeStatus
	Since  time.Time // of the last change; zero if the node has not been asked yet
	Err    error     // why the node is slow, young or down; nil otherwise
}

// A NodeStatus is the state of a node in one word.
type NodeStatus string

// The statuses of nodes.
const (
	NodeUnknown NodeStatus = "unknown" // it has not been asked yet
	NodeUp      NodeStatus = "up"
	NodeSlow    NodeStatus = "slow"  // for a second, each answer took more than 50 ms, and more than 4 times as long as a majority takes
	NodeYoung   NodeStatus = "young" // it has forgotten its leases, and does not count yet
	NodeDown    NodeStatus = "down"  // a request failed or was refused, or there was no answer for a second
)

// NodeStatuses returns all statuses, from the best to the worst.
func NodeStatuses() []NodeStatus {
	return []NodeStatus{NodeUnknown, NodeUp, NodeSlow, NodeYoung, NodeDown}
}

func (s NodeStatus) rank() int { return slices.Index(NodeStatuses(), s) }

const (
	slowAnswer = 50 * time.Millisecond
	steady     = time.Second // for so long a node is late until it is slow, and not up again until it is better
)

// OnNodeChange sets a function that is called when the status of a node changes, for a log or a
// metric. A node that gets worse is reported at once, and a node that gets better at the first
// answer after a second or more.
//
// The goroutine that noticed the change calls it: a request to the node waits for it, and so does
// [Locker.Close]. So it must not block, and must not call Close, which would never return. Calls may
// overlap: [NodeState].Since tells their order.
func OnNodeChange(f func(NodeState)) Option { return func(l *Locker) { l.onChange = f } }

// Nodes returns the states of the nodes, in the order of New. Nothing is sent: the states are those
// that the calls so far have shown. A service that makes few calls can Inspect any key first.
func (l *Locker) Nodes() []NodeState {
	states := make([]NodeState, len(l.nodes))
	for i, n := range l.nodes {
		states[i] = n.health.now(l.names[n.index])
	}
	return states
}

// A health is what the requests to a node have shown.
type health struct {
	well  atomic.Bool  // the status is up, and an answer in time does not change that
	heard atomic.Int64 // when the last request was sent that had an answer in time, in ns since the Locker was made
	pace  atomic.Int64 // how long the last answer took, in ns; 0 if there was none

	mu     sync.Mutex
	state  NodeState // without the name
	late   time.Time // when the first late request was sent since the last answer in time; or zero
	counts time.Time // when the node counts, by the guard; or zero
}

func (h *health) now(name string) NodeState {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := h.state
	if state.Node = name; state.Status == "" {
		state.Status = NodeUnknown
	}
	if state.Status == NodeYoung {
		if wait := time.Until(h.counts); wait > 0 {
			state.Err = &youngError{wait}
		} else {
			state.Status, state.Since, state.Err = NodeUp, h.counts, nil
		}
	}
	return state
}

// aged learns the age of a node from an answer. The caller calls note, too.
func (n *node) aged(age time.Duration) {
	h, wait := &n.health, n.of.young(age)
	if wait == 0 && h.well.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch now := time.Now(); {
	case wait > 0:
		h.counts = now.Add(wait)
		h.well.Store(false)
	case h.counts.After(now):
		h.counts = now
	}
}

// note learns from a request to a node, which was asked to do so much. If ctx, that of the request,
// has ended, an error only says that there was no answer until then.
func (n *node) note(ctx context.Context, asked time.Time, work int, err error) {
	if isUnsupported(err) {
		err = nil
	}
	h, sent, took := &n.health, int64(asked.Sub(n.of.made)), time.Since(asked)
	if h.pace.Load() > 0 && isArgument(err) {
		return // nothing was sent
	}
	silent := err != nil && ctx.Err() != nil
	if err == nil {
		h.pace.Store(max(1, int64(took)))
	}
	late := n.of.late(took-time.Duration(work)*time.Millisecond, silent)
	switch {
	case err == nil && !late:
		if h.heard.Store(sent); h.well.Load() {
			return
		}
	case (err == nil || silent) && (!late || sent < h.heard.Load()):
		return // it was cut short, or a later one had an answer in time
	}
	if event, changed := h.note(took, late, silent, err); changed && n.of.onChange != nil {
		event.Node = n.of.names[n.index]
		n.of.onChange(event)
	}
}

// isArgument reports whether err is about an argument of a call, and not an answer of the store: that
// would be wrapped beside [dlock.ErrInvalid].
func isArgument(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if err == dlock.ErrInvalid {
			return true
		}
	}
	return false
}

// late reports whether a request took longer than a majority of the nodes may explain. silent says that
// it has no answer yet.
func (l *Locker) late(took time.Duration, silent bool) bool {
	switch {
	case took <= slowAnswer:
		return false
	case silent:
		return took > 4*time.Duration(l.trip.Load())
	}
	paces := make([]int64, len(l.nodes))
	for i, n := range l.nodes {
		if paces[i] = n.health.pace.Load(); paces[i] == 0 {
			paces[i] = int64(maxDefault)
		}
	}
	return took > 4*time.Duration(nthLargest(paces, len(paces)-l.quorum+1))
}

func (h *health) note(took time.Duration, late, silent bool, err error) (next NodeState, changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now() // with the lock, so that Since tells the order
	next = NodeState{Status: NodeUp, Since: now}
	wait := h.counts.Sub(now)
	switch {
	case err != nil && !silent:
		next.Status, next.Err = NodeDown, hideContext(err, took.Round(time.Millisecond))
	case late:
		if h.late.IsZero() {
			h.late = now.Add(-took)
			h.well.Store(false)
		}
		switch steadily := now.Sub(h.late) >= steady; {
		case !steadily && wait > 0: // whether it is slow is seen later
		case !steadily:
			return next, false
		case silent:
			next.Status, next.Err = NodeDown, timeout{text: fmt.Sprintf("no answer within %v", took.Round(time.Millisecond))}
		default:
			next.Status, next.Err = NodeSlow, timeout{text: fmt.Sprintf("answered after %v", took.Round(time.Millisecond)), answered: true}
		}
	default:
		h.late = time.Time{}
	}
	if wait > 0 && next.Status != NodeDown {
		next.Status, next.Err = NodeYoung, &youngError{wait}
	}
	switch old := h.state; {
	case next.Status == old.Status:
		h.state.Err = next.Err
	case next.Status.rank() < old.Status.rank() && now.Sub(old.Since) < steady:
		return next, false
	default:
		h.state, changed = next, true
	}
	h.well.Store(h.state.Status == NodeUp && h.late.IsZero() && !h.counts.After(now))
	return next, changed
}

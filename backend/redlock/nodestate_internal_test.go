package redlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	memorybackend "github.com/dlock-go/dlock/backend/memory"
)

// A node that is up costs a reading of the clock for each answer: no memory, and no mutex.
func TestANodeThatIsUpCostsNothing(t *testing.T) {
	l := New([]dlock.Locker{memorybackend.New()}, WithoutGuard(), OnNodeChange(func(NodeState) {}))
	defer l.Close()
	n, ctx := l.nodes[0], context.Background()
	answer := func() {
		n.aged(time.Hour)
		n.note(ctx, time.Now(), 1, nil)
	}
	answer()
	require.True(t, n.health.well.Load())
	n.health.mu.Lock() // so that an answer that took it would hang
	defer n.health.mu.Unlock()
	require.Zero(t, testing.AllocsPerRun(100, answer))
}

// The states that a node has one after the other have Sinces in that order.
func TestSinceTellsTheOrder(t *testing.T) {
	var h health
	h.mu.Lock()
	noted := make(chan NodeState)
	go func() {
		state, _ := h.note(0, false, false, errors.New("down"))
		noted <- state
	}()
	time.Sleep(2 * time.Millisecond) // so that it waits for the mutex
	up := NodeState{Status: NodeUp, Since: time.Now()}
	h.state = up
	h.mu.Unlock()
	down := <-noted
	require.Equal(t, NodeDown, down.Status)
	require.False(t, down.Since.Before(up.Since), "down %v before it was up", up.Since.Sub(down.Since))
}

// A node that answers late, and is young, is young at once.
func TestAYoungNodeThatIsLate(t *testing.T) {
	h := health{counts: time.Now().Add(time.Minute)}
	state, changed := h.note(time.Second/2, true, false, nil)
	require.True(t, changed)
	require.Equal(t, NodeYoung, state.Status)
}

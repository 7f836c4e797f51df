package redlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const longest = time.Hour // TTL of guarded nodes

// stores are the nodes in memory of a test.
type stores []*memory.Locker

func newStores(n int) stores {
	s := make(stores, n)
	for i := range s {
		s[i] = memory.New()
		s[i].SetAge(2 * longest)
	}
	return s
}

func (s stores) nodes() []dlock.Locker {
	nodes := make([]dlock.Locker, len(s))
	for i := range s {
		nodes[i] = s[i]
	}
	return nodes
}

// forwarded are the nodes without the methods of a Voter.
func (s stores) forwarded() []dlock.Locker {
	nodes := s.nodes()
	for i := range nodes {
		nodes[i] = dlock.Forward{Locker: nodes[i]}
	}
	return nodes
}

// harness keeps n nodes for each test, and makes clients of them.
func harness(n int, client func(stores) *redlock.Locker) conformance.Harness {
	var all sync.Map
	of := func(t testing.TB) stores {
		s, ok := all.Load(t)
		if !ok {
			s, _ = all.LoadOrStore(t, newStores(n))
			t.Cleanup(func() { all.Delete(t) })
		}
		return s.(stores)
	}
	return conformance.Harness{
		New: func(t *testing.T) dlock.Locker {
			l := client(of(t))
			t.Cleanup(func() { l.Close() })
			return l
		},
		Wipe: func(t *testing.T) {
			for _, s := range of(t) {
				s.Wipe()
				s.SetAge(2 * longest) // else it would not vote for a while
			}
		},
		TTL:       10 * time.Millisecond,
		Bubble:    true,
		Unordered: true,
	}
}

// Package sim runs the suite on 3 and on 5 servers, which have no guard.
func TestConformance(t *testing.T) {
	for name, h := range map[string]conformance.Harness{
		"1 node": harness(1, func(s stores) *redlock.Locker { return redlock.New(s.nodes(), redlock.WithoutGuard()) }),
		"plain":  harness(3, func(s stores) *redlock.Locker { return redlock.New(s.forwarded()) }),
		"guarded": harness(3, func(s stores) *redlock.Locker {
			return redlock.New(s.nodes(), redlock.WithLongestTTL(longest))
		}),
	} {
		t.Run(name, func(t *testing.T) { conformance.Run(t, h) })
	}
}

// A MinHold that the nodes would not keep is refused.
func TestMinHold(t *testing.T) {
	for hold, want := range map[time.Duration]string{
		longest:     "",
		longest + 1: "WithMinHold(1h0m0.000000001s): longer than 1h0m0s",
	} {
		l := redlock.New(newStores(3).nodes(), redlock.WithLongestTTL(longest))
		c := dlock.New(l, dlock.WithMinHold(hold))
		_, err := c.TryAcquire(t.Context(), "key")
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, dlock.ErrInvalid)
			require.ErrorContains(t, err, want)
		}
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
}

// A mute node renews without a result.
type mute struct{ *memory.Locker }

func (mute) Confirm(context.Context, []quorum.Confirmation) ([]quorum.Ballot, error) { return nil, nil }

func TestRenewalWithoutResults(t *testing.T) {
	s := newStores(3)
	l := redlock.New([]dlock.Locker{mute{s[0]}, mute{s[1]}, s[2]})
	defer l.Close()
	_, err := l.Renew(t.Context(), "key", "token", time.Second)
	require.ErrorContains(t, err, "0 results for 1 renewals")
}

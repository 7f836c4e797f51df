package redlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// A name leads to one node or another, by a longer way.
type name struct{ leads atomic.Pointer[tapped] }

func newName(to *memory.Locker) *name {
	n := new(name)
	n.lead(to)
	return n
}

func (n *name) lead(to *memory.Locker) {
	far := remote(to, func() time.Duration { return 10 * time.Millisecond })
	n.leads.Store(&far)
}

func (n *name) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return n.leads.Load().TryAcquire(ctx, key, token, ttl)
}

func (n *name) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return n.leads.Load().Renew(ctx, key, token, ttl)
}

func (n *name) Release(ctx context.Context, key, token string) (bool, error) {
	return n.leads.Load().Release(ctx, key, token)
}

func (n *name) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return n.leads.Load().Inspect(ctx, key)
}

func (n *name) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	return n.leads.Load().Vote(ctx, key, token, ttl, floor)
}

func (n *name) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	return n.leads.Load().AcquireVote(ctx, key, token, ttl, floor, place)
}

func (n *name) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	return n.leads.Load().Confirm(ctx, batch)
}

func (n *name) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	return n.leads.Load().Pass(ctx, key, token, to, floor)
}

// A list has one store twice, and the answers by one of the ways are late. No majority has them both,
// and the calls say why.
func TestAStoreIsNotCountedTwice(t *testing.T) {
	tryAcquire, acquire := (*redlock.Locker).TryAcquire, (*redlock.Locker).Acquire
	for _, test := range []struct {
		name    string
		call    func(*redlock.Locker, context.Context, string, string, time.Duration) (dlock.Attempt, error)
		holders []int                             // the stores that another token holds
		other   func(*memory.Locker) dlock.Locker // the node that is there once
	}{
		{"TryAcquire, others have a majority", tryAcquire, []int{1, 2}, nil},
		{"Acquire, others have a majority", acquire, []int{1, 2}, nil},
		{"TryAcquire, held by one store", tryAcquire, []int{0}, fails},
		{"Acquire, held", acquire, []int{0, 1, 2}, nil},
		{"TryAcquire, the other node fails after its vote", tryAcquire, nil, votesThenFails},
		{"Acquire, the other node fails after its vote", acquire, nil, votesThenFails},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				for _, i := range test.holders {
					_, err := s[i].TryAcquire(t.Context(), "key", "holder", 30*time.Second)
					require.NoError(t, err)
				}
				s[0].SetClock(time.Minute) // so its fence is confirmed by others
				nodes := []dlock.Locker{s[0], newName(s[0]), s[1]}
				if test.other != nil {
					nodes[2] = test.other(s[1])
				}
				l := redlock.New(nodes)
				defer l.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				begun := time.Now()
				a, err := test.call(l, ctx, "key", "x", 30*time.Second)
				require.False(t, a.Acquired, "by one store")
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.Less(t, time.Since(begun), time.Second)
			})
		})
	}
}

func fails(m *memory.Locker) dlock.Locker {
	m.Fail(errDial)
	return m
}

func votesThenFails(m *memory.Locker) dlock.Locker { return failing{m} }

// A failing node cannot be reached after its first vote.
type failing struct{ *memory.Locker }

func (n failing) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	defer n.Fail(errDial)
	return n.Locker.Vote(ctx, key, token, ttl, floor)
}

// The name of a node leads to the store of another one for a while. The lease is then kept by one store,
// twice; so it is not renewed, but its votes can be released.
func TestANameLeadsElsewhere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		second := newName(s[2])
		l := redlock.New([]dlock.Locker{s[0], second, s[1]})
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", 30*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		time.Sleep(time.Second)
		second.lead(s[0])
		s[1].Expire("key")
		_, err = l.Renew(t.Context(), "key", "x", 30*time.Second)
		require.ErrorIs(t, err, dlock.ErrInvalid, "Renew, by two answers of one store")
		require.False(t, dlock.NoEffect(err), "NoEffect(%v)", err)
		second.lead(s[2])
		held, err := l.Renew(t.Context(), "key", "x", 30*time.Second)
		require.True(t, held && err == nil, "Renew, after the name was corrected: %v, %v", held, err)
		hold, err := l.Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, "x", hold.Token)
		second.lead(s[0])
		_, err = l.Renew(t.Context(), "key", "x", 30*time.Second)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		held, err = l.Release(t.Context(), "key", "x")
		require.NoError(t, err)
		require.False(t, s[0].Expire("key"), "%v", held)
	})
}

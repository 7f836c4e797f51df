package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
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

func none(err error) error { return &dlock.NoEffectError{Err: err} }

// joins are errors of several requests, or of several stores. None says that the call had no effect.
var joins = map[string]error{
	"reset and a refusal":     fmt.Errorf("%w: %w", errReset, none(errors.New("refused"))),
	"a limit and a refusal":   fmt.Errorf("%w: %w", context.DeadlineExceeded, none(errors.New("refused"))),
	"no connection":           errors.Join(errDial),
	"invalid":                 errors.Join(dlock.ErrInvalid),
	"unsupported and loading": errors.Join(errors.ErrUnsupported, &dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true}),
}

// An error of a node that is joined says nothing of the vote. The Client owes a release of it.
func TestJoinedErrorsOfVotes(t *testing.T) {
	for name, err := range joins {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				l := redlock.New(s.tapped(func(int) tap {
					return func(r request) error {
						if made := r.make(r.ctx); r.method != "Vote" {
							return made
						}
						return err
					}
				}))
				defer l.Close()
				c := dlock.New(l)
				defer c.Close()
				_, err := c.TryAcquire(t.Context(), "key")
				require.Error(t, err)
				require.False(t, dlock.NoEffect(errors.Unwrap(err)), "NoEffect(%v)", err)
				time.Sleep(time.Second)
				requireFree(t, s, "a second after %v", err)
			})
		})
	}
}

// A node may have released the key before it was away. So may one have voted, in a round before that.
func TestNoConnectionAfterAnEffect(t *testing.T) {
	for name, call := range map[string]func(context.Context, *redlock.Locker, stores) error{
		"Release": func(ctx context.Context, l *redlock.Locker, _ stores) error {
			_, err := l.Release(ctx, "key", "x")
			return err
		},
		"Renew": func(ctx context.Context, l *redlock.Locker, _ stores) error {
			_, err := l.Renew(ctx, "key", "x", time.Second)
			return err
		},
		"TryAcquire": func(ctx context.Context, _ *redlock.Locker, s stores) error {
			l := redlock.New(s.nodes())
			defer l.Close()
			s[0].Steal("key", time.Hour)
			s[1].Fail(errDial)
			time.AfterFunc(rand.N(2*time.Second), func() { // in one of the rounds
				s[0].Fail(errDial)
				s[2].Fail(errDial)
			})
			_, err := l.TryAcquire(ctx, "key", "x", 10*time.Second)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				bubble.Test(t, func(t *testing.T) {
					s := newStores(3)
					for i := range s {
						s[i].Delay(time.Millisecond)
					}
					l := redlock.New([]dlock.Locker{&resetting{Locker: s[0]}, &resetting{Locker: s[1]}, &resetting{Locker: s[2]}})
					defer l.Close()
					err := call(t.Context(), l, s)
					require.Error(t, err)
					require.False(t, dlock.NoEffect(err), "NoEffect(%v)", err)
				})
			}
		})
	}
}

// A resetting node loses its first answer to Pass and to Confirm, and is away for these then.
type resetting struct {
	*memory.Locker
	passed, confirmed atomic.Bool
}

var errReset = errors.New("connection reset")

func (n *resetting) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	if n.passed.Swap(true) {
		return false, errDial
	}
	n.Locker.Pass(ctx, key, token, to, floor)
	return false, errReset
}

func (n *resetting) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	if n.confirmed.Swap(true) {
		return []quorum.Ballot{{Err: errDial}}, nil
	}
	n.Locker.Confirm(ctx, batch)
	return nil, errReset
}

// requireFree fails if a node has a vote, or a waiter.
func requireFree(t *testing.T, s stores, format string, args ...any) {
	t.Helper()
	for i := range s {
		hold, err := s[i].Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, dlock.Hold{}, hold, "node %d, %s", i, fmt.Sprintf(format, args...))
	}
}

// An outrun node answers that a wait is over, while a request of the wait is still on its way.
type outrun struct{ *memory.Locker }

func (n outrun) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	hold, err := n.Inspect(ctx, key)
	if err != nil {
		return quorum.Ballot{}, err
	}
	<-ctx.Done()
	time.AfterFunc(100*time.Millisecond, func() {
		patient, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		_, _ = n.Locker.AcquireVote(patient, key, token, ttl, floor, place)
	})
	held := dlock.Attempt{Holder: hold.Token, Remaining: hold.Remaining, Since: time.Now()}
	return quorum.Ballot{Attempt: held}, fmt.Errorf("%w: %w", ctx.Err(), none(errors.New("refused")))
}

// A wait ends while its requests are on their way. A release that is answered before they arrive does
// not end their places in the queues, but is repeated.
func TestJoinedErrorsOfWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New([]dlock.Locker{outrun{s[0]}, outrun{s[1]}, outrun{s[2]}})
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "holder", 30*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Acquire(ctx, "key", "waiter", 30*time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, dlock.NoEffect(err), "NoEffect(%v)", err)
		_, err = l.Release(t.Context(), "key", "waiter")
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		for i := range s {
			hold, err := s[i].Inspect(t.Context(), "key")
			require.NoError(t, err)
			require.Equal(t, 0, hold.Waiting, "waiters of node %d after a release that was answered", i)
		}
	})
}

// A rightless node refuses to vote, or all but Inspect.
type rightless struct {
	*memory.Locker
	mayPass bool
}

var errRights = none(fmt.Errorf("%w: no right to do so", dlock.ErrInvalid))

func (rightless) Vote(context.Context, string, string, time.Duration, int64) (quorum.Ballot, error) {
	return quorum.Ballot{}, errRights
}

func (n rightless) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	if !n.mayPass {
		return false, errRights
	}
	return n.Locker.Pass(ctx, key, token, to, floor)
}

// An attempt fails at once with ErrInvalid after a node has voted. The vote does not stay for the TTL.
func TestVotesOfInvalidCalls(t *testing.T) {
	for name, nodes := range map[string]func(s stores) []dlock.Locker{
		"two nodes may not vote": func(s stores) []dlock.Locker {
			return []dlock.Locker{rightless{s[0], true}, rightless{s[1], true}, s[2]}
		},
		"two nodes may nothing": func(s stores) []dlock.Locker {
			return []dlock.Locker{rightless{s[0], false}, rightless{s[1], false}, s[2]}
		},
		"two nodes are the same": func(s stores) []dlock.Locker {
			return []dlock.Locker{s[0], struct{ *memory.Locker }{s[0]}, s[1]}
		},
	} {
		for op, acquire := range map[string]func(*dlock.Client, context.Context, string) (*dlock.Lease, error){
			"TryAcquire": (*dlock.Client).TryAcquire,
			"Acquire":    (*dlock.Client).Acquire,
		} {
			t.Run(op+", "+name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s := newStores(3)
					l := redlock.New(nodes(s), redlock.WithLongestTTL(longest/2))
					defer l.Close()
					c := dlock.New(l, dlock.WithTTL(longest/2))
					defer c.Close()
					begun := time.Now()
					_, err := acquire(c, t.Context(), "key")
					require.ErrorIs(t, err, dlock.ErrInvalid)
					require.Less(t, time.Since(begun), time.Second)
					time.Sleep(time.Second)
					requireFree(t, s, "a second after %v", err)
				})
			})
		}
	}
}

// Two nodes may not release for a while. The release stays owed meanwhile.
func TestInvalidReleaseIsOwed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New(s.nodes(), redlock.WithLongestTTL(longest/2))
		defer l.Close()
		c := dlock.New(l, dlock.WithTTL(longest/2))
		defer c.Close()
		lease, err := c.TryAcquire(t.Context(), "key")
		require.NoError(t, err)
		s[0].Fail(errRights)
		s[1].Fail(errRights)
		require.ErrorIs(t, lease.Release(), dlock.ErrInvalid)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, c.Stats().ReleasesOwed)
		s[0].Fail(nil)
		s[1].Fail(nil)
		time.Sleep(10 * time.Second)
		requireFree(t, s, "10 s after they may be released")
		require.EqualValues(t, 0, c.Stats().ReleasesOwed)
	})
}

// Nodes that cannot be reached have refused nothing. A Client that may wait for the store does so.
func TestOutageOfAllNodes(t *testing.T) {
	for name, err := range map[string]error{
		"no connections":         errDial,
		"no connections in time": none(&net.OpError{Op: "dial", Err: context.DeadlineExceeded}),
		"not sent in time":       none(context.DeadlineExceeded),
	} {
		for _, away := range []int{2, 3} {
			t.Run(fmt.Sprintf("%s to %d nodes", name, away), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s := newStores(3)
					l := redlock.New(s.nodes())
					defer l.Close()
					c := dlock.New(l, dlock.WithOutage(time.Minute))
					defer c.Close()
					for i := range away {
						s[i].Fail(err)
						time.AfterFunc(30*time.Second, func() { s[i].Fail(nil) })
					}
					begun := time.Now()
					lease, err := c.Acquire(t.Context(), "key")
					require.NoError(t, err, "after %v", time.Since(begun))
					require.Less(t, time.Since(begun), 35*time.Second)
					require.NoError(t, lease.Release())
				})
			})
		}
	}
}

// A MajorityError is an answer if a majority of the nodes gave one. It is temporary, or due to the state of
// the store, if one of them is, if the call had no effect, and if the nodes that may soon serve are a majority.
func TestMajorityOfAnswers(t *testing.T) {
	full := error(&dlock.NoEffectError{Err: errors.New("OOM"), State: true})
	refused, loading := none(errors.New("NOPERM")), error(&dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true})
	late, unsent := context.DeadlineExceeded, none(context.DeadlineExceeded)
	type names = []string
	for _, test := range []struct {
		nodes []error
		is    names
	}{
		{[]error{errDial, errDial, errDial}, names{"no effect"}},
		{[]error{none(errDial), none(errDial), refused}, names{"no effect"}},
		{[]error{errDial, refused, refused}, names{"no effect", "answered", "refused"}},
		{[]error{refused, refused, refused}, names{"no effect", "answered", "refused"}},
		{[]error{loading, loading, loading}, names{"no effect", "temporary"}},
		{[]error{loading, refused, errDial}, names{"no effect", "temporary"}},
		{[]error{loading, refused, refused}, names{"no effect", "answered", "refused"}},
		{[]error{full, full, full}, names{"no effect", "state", "answered", "refused"}},
		{[]error{full, full, errDial}, names{"no effect", "state", "answered", "refused"}},
		{[]error{full, refused, errDial}, names{"no effect", "state", "answered", "refused"}},
		{[]error{full, refused, refused}, names{"no effect", "answered", "refused"}},
		{[]error{full, full, errReset}, names{"answered"}},
		{[]error{loading, loading, errReset}, nil},
		{[]error{errReset, refused, refused}, names{"answered"}},
		{[]error{errReset, errReset, refused}, nil},
		{[]error{errReset, errReset, nil}, nil},
		{[]error{refused, refused, nil}, names{"answered"}},
		{[]error{unsent, none(context.Canceled), refused}, names{"no effect", "timeout"}},
		{[]error{unsent, errDial, refused}, names{"no effect"}},
		{[]error{late, late, refused}, names{"timeout"}},
		{[]error{joins["reset and a refusal"], joins["invalid"], refused}, nil},
		{[]error{none(errors.Join(errReset, refused)), none(dlock.ErrInvalid), errDial}, names{"no effect", "answered", "refused"}},
		{[]error{none(dlock.ErrUnavailable), none(dlock.ErrUnavailable), none(dlock.ErrUnavailable)}, names{"no effect"}},
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newStores(3)
			for i := range s {
				s[i].Fail(test.nodes[i])
			}
			l := redlock.New(s.nodes())
			defer l.Close()
			_, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
			var majority *redlock.MajorityError
			require.ErrorAs(t, err, &majority)
			require.NotContains(t, err.Error(), "old enough")
			var effect *dlock.NoEffectError
			var is names
			for _, property := range []struct {
				name string
				has  bool
			}{
				{"no effect", dlock.NoEffect(err)}, {"temporary", errors.As(err, &effect) && effect.Temporary},
				{"state", errors.As(err, &effect) && effect.State},
				{"timeout", majority.Timeout()}, {"answered", majority.Answered()}, {"refused", dlock.Refused(err)},
			} {
				if property.has {
					is = append(is, property.name)
				}
			}
			require.Equal(t, test.is, is, "%v", err)
		})
	}
}

// Nodes that have forgotten their leases have answered, and so have those that voted for others.
func TestAnswersThatDoNotCount(t *testing.T) {
	for name, do := range map[string]func(*testing.T, stores){
		"young": func(_ *testing.T, s stores) {
			for i := range s {
				s[i].SetAge(0)
			}
		},
		"split": func(_ *testing.T, s stores) {
			s[0].Steal("key", time.Hour)
			s[1].Steal("key", time.Hour)
			s[2].Steal("key", time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				do(t, s)
				l := redlock.New(s.nodes())
				defer l.Close()
				begun := time.Now()
				a, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
				var majority *redlock.MajorityError
				require.ErrorAs(t, err, &majority)
				require.True(t, majority.Answered(), "Answered of %v", err)
				if name == "split" {
					require.InDelta(t, 5*time.Second, time.Since(begun), float64(time.Second/10), "until a split is given up")
					require.NotEmpty(t, a.Holder)
				} else {
					require.ErrorContains(t, err, "a majority is old enough in 31.3s")
				}
			})
		})
	}
}

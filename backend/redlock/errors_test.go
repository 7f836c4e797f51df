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
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
)

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
	cases(t, joins, func(b *bench, err error) {
		b.open(b.all(func(r *request) error {
			if made := r.make(r.ctx); r.method != "Vote" {
				return made
			}
			return err
		}))
		_, err = b.client().TryAcquire(b.Context(), "key")
		require.Error(b, err)
		require.False(b, dlock.NoEffect(errors.Unwrap(err)), "NoEffect(%v)", err)
		time.Sleep(time.Second)
		b.free("a second after %v", err)
	})
}

// A node may have released the key before it was away. So may one have voted, in a round before that.
func TestNoConnectionAfterAnEffect(t *testing.T) {
	for name, call := range map[string]func(*bench) error{
		"Release": func(b *bench) error { _, err := b.Release(b.Context(), "key", "x"); return err },
		"Renew":   func(b *bench) error { _, err := b.Renew(b.Context(), "key", "x", time.Second); return err },
		"TryAcquire": func(b *bench) error {
			b.open(b.nodes())
			b.stores[0].Steal("key", time.Hour)
			b.stores[1].Fail(errDial)
			time.AfterFunc(rand.N(2*time.Second), func() { // in one of the rounds
				b.stores[0].Fail(errDial)
				b.stores[2].Fail(errDial)
			})
			_, err := b.tries("x", long)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				onBench(t, func(b *bench) {
					b.each(delay(time.Millisecond))
					b.open(b.tapped(func(int) tap { // its first answers to Pass and to Confirm are lost, and it is away for these then
						var passed, confirmed atomic.Bool
						return func(r *request) error {
							switch {
							case r.method == "Pass" && passed.Swap(true):
								return errDial
							case r.method == "Confirm" && confirmed.Swap(true):
								r.ballots = []quorum.Ballot{{Err: errDial}}
								return nil
							case r.method == "Pass", r.method == "Confirm":
								return loses(r)
							}
							return r.make(r.ctx)
						}
					}))
					err := call(b)
					require.Error(b, err)
					require.False(b, dlock.NoEffect(err), "NoEffect(%v)", err)
				})
			}
		})
	}
}

func TestOwedReleases(t *testing.T) {
	scenes(t, map[string]func(*bench){
		// A release that is answered before they arrive does not end their places in the queues, but is repeated.
		"a wait ends while its requests are on their way": func(b *bench) {
			outrun := func(r *request) error { // it answers that the wait is over, while a request of it is still on its way
				if r.method != "AcquireVote" {
					return r.make(r.ctx)
				}
				hold, err := r.to.Inspect(r.ctx, r.key)
				if err != nil {
					return err
				}
				<-r.ctx.Done()
				late := *r
				time.AfterFunc(100*time.Millisecond, func() {
					patient, cancel := context.WithTimeout(context.Background(), time.Hour)
					defer cancel()
					_ = late.make(patient)
				})
				r.ballot.Attempt = dlock.Attempt{Holder: hold.Token, Remaining: hold.Remaining, Since: time.Now()}
				return fmt.Errorf("%w: %w", r.ctx.Err(), none(errors.New("refused")))
			}
			b.open(b.all(outrun))
			b.takes("holder", 30*time.Second)
			_, err := b.waitsFor(time.Second, "waiter", 30*time.Second)
			require.False(b, dlock.NoEffect(err), "NoEffect(%v)", err)
			_, err = b.Release(b.Context(), "key", "waiter")
			require.NoError(b, err)
			time.Sleep(5 * time.Second)
			for i := range b.stores {
				require.Equal(b, 0, b.hold(i).Waiting, "waiters of node %d after a release that was answered", i)
			}
		},
		// The release stays owed meanwhile.
		"two nodes may not release for a while": func(b *bench) {
			b.open(b.nodes(), redlock.WithLongestTTL(longest/2))
			c := b.client(dlock.WithTTL(longest / 2))
			lease, err := c.TryAcquire(b.Context(), "key")
			require.NoError(b, err)
			b.stores[0].Fail(errRights)
			b.stores[1].Fail(errRights)
			require.ErrorIs(b, lease.Release(), dlock.ErrInvalid)
			time.Sleep(time.Minute)
			require.EqualValues(b, 1, c.Stats().ReleasesOwed)
			b.each(fail(nil))
			time.Sleep(10 * time.Second)
			b.free("10 s after they may be released")
			require.EqualValues(b, 0, c.Stats().ReleasesOwed)
		},
	})
}

// An attempt fails at once with ErrInvalid after a node has voted. The vote does not stay for the TTL.
func TestVotesOfInvalidCalls(t *testing.T) {
	rightless := func(mayPass bool) func(*bench) []dlock.Locker {
		return func(b *bench) []dlock.Locker {
			return b.tapped(func(node int) tap {
				return func(r *request) error {
					if node < 2 && (r.method == "Vote" || r.method == "Pass" && !mayPass) {
						return errRights
					}
					return r.make(r.ctx)
				}
			})
		}
	}
	for op, acquire := range map[string]func(*dlock.Client, context.Context, string) (*dlock.Lease, error){
		"TryAcquire": (*dlock.Client).TryAcquire,
		"Acquire":    (*dlock.Client).Acquire,
	} {
		cases(t, map[string]func(*bench) []dlock.Locker{
			op + ", two nodes may not vote": rightless(true),
			op + ", two nodes may nothing":  rightless(false),
			op + ", two nodes are the same": func(b *bench) []dlock.Locker {
				return []dlock.Locker{b.stores[0], struct{ *memory.Locker }{b.stores[0]}, b.stores[1]}
			},
		}, func(b *bench, nodes func(*bench) []dlock.Locker) {
			b.open(nodes(b), redlock.WithLongestTTL(longest/2))
			begun := time.Now()
			_, err := acquire(b.client(dlock.WithTTL(longest/2)), b.Context(), "key")
			require.ErrorIs(b, err, dlock.ErrInvalid)
			require.Less(b, time.Since(begun), time.Second)
			time.Sleep(time.Second)
			b.free("a second after %v", err)
		})
	}
}

// Nodes that cannot be reached have refused nothing. A Client that may wait for the store does so.
func TestOutageOfAllNodes(t *testing.T) {
	for _, away := range []int{2, 3} {
		cases(t, map[string]error{
			fmt.Sprintf("no connections to %d nodes", away):         errDial,
			fmt.Sprintf("no connections in time to %d nodes", away): none(&net.OpError{Op: "dial", Err: context.DeadlineExceeded}),
			fmt.Sprintf("not sent in time to %d nodes", away):       none(context.DeadlineExceeded),
		}, func(b *bench, err error) {
			b.open(b.nodes())
			c := b.client(dlock.WithOutage(time.Minute))
			for i := range away {
				b.stores[i].Fail(err)
				time.AfterFunc(30*time.Second, func() { b.stores[i].Fail(nil) })
			}
			begun := time.Now()
			lease, err := c.Acquire(b.Context(), "key")
			require.NoError(b, err, "after %v", time.Since(begun))
			require.Less(b, time.Since(begun), 35*time.Second)
			require.NoError(b, lease.Release())
		})
	}
}

// A reply is that of a server, and says nothing of the outcome.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) Failed() bool    { return true }

// A MajorityError is an answer if a majority of the nodes gave one. It is temporary, or due to the state of
// the store, if one of them is, if the call had no effect, and if the nodes that may soon serve are a majority.
// It has failed if a majority has replied, and too few of these nodes have answered.
func TestMajorityOfAnswers(t *testing.T) {
	full := error(&dlock.NoEffectError{Err: errors.New("OOM"), State: true})
	refused, loading := none(errors.New("NOPERM")), error(&dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true})
	late, unsent, failed := context.DeadlineExceeded, none(context.DeadlineExceeded), reply("ERR upstream failure")
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
		{[]error{failed, failed, errDial}, names{"failed"}},
		{[]error{nil, failed, errDial}, names{"failed"}},
		{[]error{failed, errDial, errDial}, nil},
		{[]error{refused, refused, failed}, names{"answered"}},
		{[]error{none(dlock.ErrUnavailable), none(dlock.ErrUnavailable), none(dlock.ErrUnavailable)}, names{"no effect"}},
	} {
		onBench(t, func(b *bench) {
			for i, err := range test.nodes {
				b.stores[i].Fail(err)
			}
			b.open(b.nodes())
			_, err := b.tries("x", time.Second)
			var majority *redlock.MajorityError
			require.ErrorAs(b, err, &majority)
			require.NotContains(b, err.Error(), "old enough")
			var effect *dlock.NoEffectError
			var is names
			for _, property := range []struct {
				name string
				has  bool
			}{
				{"no effect", dlock.NoEffect(err)}, {"temporary", errors.As(err, &effect) && effect.Temporary},
				{"state", errors.As(err, &effect) && effect.State},
				{"timeout", majority.Timeout()}, {"answered", majority.Answered()}, {"refused", dlock.Refused(err)},
				{"failed", majority.Failed()},
			} {
				if property.has {
					is = append(is, property.name)
				}
			}
			require.Equal(b, test.is, is, "%v", err)
		})
	}
}

// Nodes that have forgotten their leases have answered, and so have those that voted for others.
func TestAnswersThatDoNotCount(t *testing.T) {
	for _, young := range []bool{false, true} {
		onBench(t, func(b *bench) {
			if young {
				b.each(func(n *memory.Locker) { n.SetAge(0) })
			} else {
				b.each(func(n *memory.Locker) { n.Steal("key", time.Hour) })
			}
			b.open(b.nodes())
			begun := time.Now()
			a, err := b.tries("x", long)
			var majority *redlock.MajorityError
			require.ErrorAs(b, err, &majority)
			require.True(b, majority.Answered(), "Answered of %v", err)
			if !young {
				require.InDelta(b, 5*time.Second, time.Since(begun), float64(time.Second/10), "until a split is given up")
				require.NotEmpty(b, a.Holder)
			} else {
				require.ErrorContains(b, err, "a majority is old enough in 31.3s")
			}
		})
	}
}

// A breaker opens if the nodes cannot be reached, but not if a majority refuses the calls.
func TestBreakerAroundNodes(t *testing.T) {
	refused := none(errors.New("NOPERM"))
	type test struct {
		errs [3]error
		open bool
	}
	cases(t, map[string]test{
		"no connections":     {[3]error{errDial, errDial, errDial}, true},
		"one node refuses":   {[3]error{errDial, errDial, refused}, true},
		"two nodes refuse":   {[3]error{errDial, refused, refused}, false},
		"three nodes refuse": {[3]error{refused, refused, refused}, false},
	}, func(b *bench, test test) {
		for i, err := range test.errs {
			b.stores[i].Fail(err)
		}
		b.open(b.nodes())
		broken := breaker.New(b.Locker, breaker.WithFailures(5))
		for range 5 {
			require.False(b, broken.State().Open)
			_, err := broken.TryAcquire(b.Context(), "key", "x", time.Second)
			require.Error(b, err)
		}
		require.Equal(b, test.open, broken.State().Open, "open: %+v", broken.State())
	})
}

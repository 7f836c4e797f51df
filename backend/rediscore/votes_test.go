package rediscore

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/redistest"
)

const second = 1_000_000 // of a server's clock

// voter returns a Locker for a server, without faults.
func voter(t *testing.T, server *redistest.Server, opts ...Option) *Locker {
	t.Helper()
	l := New(plain(t, server.Addr()), opts...)
	t.Cleanup(func() { l.Close() })
	return l
}

func vote(t *testing.T, l *Locker, key, token string, floor int64) quorum.Ballot {
	t.Helper()
	ballot, err := l.Vote(t.Context(), key, token, time.Minute, floor)
	require.NoError(t, err)
	return ballot
}

// confirm confirms one lease.
func confirm(t *testing.T, l *Locker, key, token string, fence int64) quorum.Ballot {
	t.Helper()
	ballots, err := l.Confirm(t.Context(), []quorum.Confirmation{{Renewal: dlock.Renewal{Key: key, Token: token, TTL: time.Hour}, Fence: fence}})
	require.NoError(t, err)
	require.NoError(t, ballots[0].Err)
	return ballots[0]
}

func pass(t *testing.T, l *Locker, key, token, to string, floor int64) bool {
	t.Helper()
	held, err := l.Pass(t.Context(), key, token, to, floor)
	require.NoError(t, err)
	return held
}

// A fence is the floor, but at least the time and at most a second more, or the last fence + 8.
func TestFenceOfVote(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "k")
	l := New(plain(t, b.addr))
	for name, ahead := range map[string]int64{
		"none": -1 << 62, "in the past": -second, "a little ahead": second / 2, "far ahead": 1 << 62,
	} {
		b.integer(t, "DEL", b.lock.texts[0], b.lock.texts[1])
		before := b.now(t)
		ballot := vote(t, l, "k", "A", before+ahead)
		require.True(t, before <= ballot.Clock && ballot.Clock <= b.now(t), name)
		require.True(t, ballot.Acquired && ballot.Fresh, name)
		require.Equal(t, fenceFor(before+ahead, ballot), ballot.Fence, name)
		require.Equal(t, fmtInt(ballot.Fence), b.text(t, "GET", b.lock.texts[1]), name)
		require.Equal(t, ballot.Fence > ballot.Clock, b.integer(t, "PTTL", b.lock.texts[1]) > dayInMS, "%s: the counter leads", name)

		attempt, err := l.TryAcquire(t.Context(), "k", "A", time.Minute)
		require.NoError(t, err)
		require.GreaterOrEqual(t, attempt.Fence, ballot.Fence+8, "%s: without votes", name)
		again := vote(t, l, "k", "A", before-second)
		require.True(t, again.Acquired && !again.Fresh, name)
		require.GreaterOrEqual(t, again.Fence, attempt.Fence+8, name)
	}
	floor := b.now(t) + second/2
	waited, err := l.AcquireVote(t.Context(), "k2", "B", time.Minute, floor, 1)
	require.NoError(t, err)
	require.True(t, waited.Acquired && waited.Fresh)
	require.Equal(t, fenceFor(floor, waited), waited.Fence, "without a wait")
	waited, err = l.AcquireVote(t.Context(), "k2", "B", time.Minute, floor, 1)
	require.NoError(t, err)
	require.True(t, waited.Acquired && !waited.Fresh)

	ahead := b.now(t) + 3600*second
	b.text(t, "SET", b.lock.texts[1], ahead, "PX", 2*dayInMS)
	require.Equal(t, ahead+8, vote(t, l, "k", "A", 0).Fence, "after a fence that is ahead of the clock")
}

// fenceFor returns the fence for a floor if there was none before.
func fenceFor(floor int64, b quorum.Ballot) int64 { return min(max(floor, b.Clock), b.Clock+second) }

// Two servers whose clocks nearly agree give equal fences for a floor that is a little ahead of them.
func TestEqualFences(t *testing.T) {
	t.Parallel()
	one, two := voter(t, redistest.Start(t)), voter(t, redistest.Start(t))
	for i := 0; ; i++ {
		floor, key := time.Now().UnixMicro()+second/2, fmt.Sprint("k", i)
		a, b := vote(t, one, key, "A", floor), vote(t, two, key, "A", floor)
		if max(a.Clock, b.Clock) < floor { // else the machine was slow: once more
			require.Equal(t, []int64{floor, floor}, []int64{a.Fence, b.Fence})
			return
		}
	}
}

// The age of a store begins again whenever it may have forgotten something.
func TestAge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args   []string
		strike func(t *testing.T, server *redistest.Server) *redistest.Server
		same   bool // the Store
	}{
		"emptied": {same: true, strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			_, err := server.Do("FLUSHALL")
			require.NoError(t, err)
			return server
		}},
		"restarted, empty": {strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			server.Restart()
			return server
		}},
		"restarted, with its data": {args: []string{"--appendonly", "yes", "--appendfsync", "always"}, strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			server.Restart()
			require.Contains(t, server.Keys(t), birthSuffix)
			return server
		}},
		"replaced by a replica": {strike: func(t *testing.T, server *redistest.Server) *redistest.Server {
			replica := redistest.StartReplica(t, server)
			require.Contains(t, replica.Keys(t), birthSuffix)
			_, err := replica.Do("REPLICAOF", "NO", "ONE")
			require.NoError(t, err)
			return replica
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			var stores []string
			for i := range 2 {
				l := voter(t, server)
				first := vote(t, l, "k", "A", 0)
				require.Zero(t, first.Age, "when %d strikes are over", i)
				require.NotEmpty(t, first.Store)
				stores = append(stores, first.Store)
				time.Sleep(20 * time.Millisecond)
				confirmed := confirm(t, l, "k", "A", 0)
				other := vote(t, l, "k2", "B", 0)
				passed := vote(t, l, "k", "C", 0)
				require.False(t, passed.Acquired)
				waited, err := l.AcquireVote(t.Context(), "k3", "D", time.Minute, 0, 1)
				require.NoError(t, err)
				for _, ballot := range []quorum.Ballot{confirmed, other, passed, waited} {
					require.EqualValues(t, ballot.Clock-first.Clock, ballot.Age.Microseconds())
					require.Equal(t, first.Store, ballot.Store)
					require.GreaterOrEqual(t, ballot.Age, 20*time.Millisecond)
				}
				if i == 0 {
					server = c.strike(t, server)
				}
			}
			require.Equal(t, c.same, stores[0] == stores[1], "%q", stores)
			require.Equal(t, stores[1], vote(t, voter(t, server, WithPrefix("p:")), "k", "A", 0).Store, "with another prefix")
		})
	}
}

// The server's clock may be set back. The age then begins again, and is not 0 for as long as the step.
func TestAgeAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "k")
	l := New(plain(t, b.addr))
	store := vote(t, l, "k", "A", 0).Store
	b.text(t, "SET", birthSuffix, fmt.Sprint(store, " ", b.now(t)+second*3600))
	first := vote(t, l, "k", "A", 0)
	require.Zero(t, first.Age)
	time.Sleep(20 * time.Millisecond)
	for _, later := range []quorum.Ballot{vote(t, l, "k", "A", 0), confirm(t, l, "k", "A", 0)} {
		require.GreaterOrEqual(t, later.Age, 20*time.Millisecond)
		require.EqualValues(t, later.Clock-first.Clock, later.Age.Microseconds())
	}
}

// Waiters are granted the lock by their places, and by their tokens if these are equal. A vote is
// told a place behind all.
func TestPlaces(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l, _ := s.enter()
	other := voter(t, s.server)
	before := s.now(t)
	ballot := vote(t, other, "k", "X", 0)
	require.Equal(t, dlock.Attempt{Holder: "H", Remaining: ballot.Remaining}, ballot.Attempt)
	require.Positive(t, ballot.Remaining)
	require.Equal(t, ballot.Clock, ballot.Place)
	require.GreaterOrEqual(t, ballot.Clock, before)

	last := before + 3600*second
	all := map[string]*waiting{}
	for token, place := range map[string]int64{"d": last, "b": 7, "c": 7, "a": 8, "moves": 1} {
		all[token] = s.acquireVote(l, token, place).listening()
	}
	require.Equal(t, last+1, vote(t, other, "k", "X", 0).Place)
	all["moves"].cancel()
	all["moves"].ended()
	require.ErrorIs(t, all["moves"].err, context.Canceled)
	require.Equal(t, "H", all["moves"].ballot.Holder, "the holder, beside the error")
	all["moves"] = s.acquireVote(l, "moves", 9).listening()
	s.eventually(func() bool { return s.queue()[0] == "b" }, "it has moved")
	require.Equal(t, []string{"b", "c", "a", "moves", "d"}, s.queue())

	s.expire()
	require.Equal(t, "b", vote(t, other, "k", "X", 0).Holder, "one who votes does not jump the queue")
	for _, c := range []struct{ holder, to, next string }{
		{"b", "d", "d"}, {"d", "", "c"}, {"c", "moves", "moves"}, {"moves", "gone", "a"},
	} {
		all[c.holder].granted()
		require.True(t, all[c.holder].ballot.Fresh)
		floor := s.now(t) + second/2
		require.True(t, pass(t, other, "k", c.holder, c.to, floor))
		fence := all[c.next].granted().Fence
		require.True(t, fence == floor || floor < fence && fence <= s.now(t), "fence %d for the floor %d", fence, floor)
	}
	require.False(t, pass(t, other, "k", "X", "", 0))
	require.Equal(t, "a", s.holder())
	require.True(t, pass(t, other, "k", "a", "X", 0))
	require.Empty(t, s.holder())
}

// Pass of a token that does not hold the lock leaves the queue as it is, but for that token.
func TestPassOfAStranger(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l, _ := s.enter()
	for place, token := range []string{"a", "b", "c"} {
		s.acquireVote(l, token, int64(place+1)).listening()
	}
	require.False(t, pass(t, voter(t, s.server), "k", "a", "c", 0))
	require.Equal(t, []string{"b", "c"}, s.queue())
}

// Confirm extends leases as Renew does, and raises the counter where the token holds the lock.
func TestConfirm(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "k")
	l := New(plain(t, b.addr))
	fence := vote(t, l, "k", "A", 0).Fence
	for _, c := range []struct {
		token string
		fence int64
		held  bool
		want  int64
	}{
		{"A", 0, true, fence}, {"A", fence - 8, true, fence}, {"B", fence + 3600*second, false, fence},
		{"A", fence + 3600*second, true, fence + 3600*second}, {"A", maxExact, true, maxExact},
	} {
		ballot := confirm(t, l, "k", c.token, c.fence)
		require.Equal(t, quorum.Ballot{Attempt: dlock.Attempt{Acquired: c.held}, Age: ballot.Age, Store: ballot.Store, Clock: ballot.Clock}, ballot)
		require.Equal(t, fmtInt(c.want), b.text(t, "GET", b.lock.texts[1]), "%+v", c)
	}
	require.Greater(t, b.integer(t, "PTTL", "k"), int64(50*60*1000))
	b.text(t, "SET", b.lock.texts[1], 1)
	confirm(t, l, "k", "A", b.now(t)-second)
	before := b.now(t)
	attempt, err := l.TryAcquire(t.Context(), "k", "A", time.Minute)
	require.NoError(t, err)
	const behind = 3_000 // the server's time of a call is cut to milliseconds
	require.GreaterOrEqual(t, attempt.Fence, before-behind, "a fence is not below the time")
	b.text(t, "SET", b.lock.texts[1], 1)
	confirm(t, l, "k", "A", before-72*3600*second)
	require.GreaterOrEqual(t, vote(t, l, "k", "A", 0).Fence, before, "after a fence that the clock has passed long ago")

	renewal := dlock.Renewal{Key: "k", Token: "A", TTL: time.Minute}
	noTTL, noKey := renewal, renewal
	noTTL.TTL, noKey.Key = 0, ""
	ballots, err := l.Confirm(t.Context(), []quorum.Confirmation{
		{Renewal: noTTL}, {Renewal: renewal}, {Renewal: noKey}, {Renewal: renewal, Fence: math.MinInt64}, {Renewal: renewal, Fence: maxExact + 1},
	})
	require.NoError(t, err)
	for i, ballot := range ballots {
		if i == 1 || i == 3 {
			require.NoError(t, ballot.Err)
			require.True(t, ballot.Acquired)
			continue
		}
		require.ErrorIs(t, ballot.Err, dlock.ErrInvalid)
		require.True(t, dlock.NoEffect(ballot.Err))
	}
	ballots, err = l.Confirm(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, ballots)
}

// Bad arguments are refused before anything is sent.
func TestBadVotes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		for _, place := range []int64{math.MinInt64, 0, maxExact + 1} {
			_, err := l.AcquireVote(t.Context(), "k", "t", time.Second, 0, place)
			require.ErrorIs(t, err, dlock.ErrInvalid)
			require.Equal(t, noEffect, verdictOf(err))
		}
		for _, bad := range []dlock.Renewal{{Token: "t", TTL: time.Second}, {Key: "k", TTL: time.Second}, {Key: "k", Token: "t"}} {
			_, err := l.AcquireVote(t.Context(), bad.Key, bad.Token, bad.TTL, 0, 1)
			_, err2 := l.Vote(t.Context(), bad.Key, bad.Token, bad.TTL, 0)
			for _, err := range []error{err, err2} {
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.Equal(t, noEffect, verdictOf(err))
			}
		}
		require.Empty(t, f.evals(0))
	})
}

// A script that fails has granted, extended and released nothing, and its error says so.
func TestVotesThatFail(t *testing.T) {
	t.Parallel()
	b := newBench(t, "", "k")
	l := New(plain(t, b.addr))
	vote(t, l, "k", "A", 0)
	fence, queue, birth := b.lock.texts[1], b.lock.texts[2], b.lock.texts[4]
	for name, c := range map[string]struct {
		keys []string // that have the wrong type
		call func() error
	}{
		"Vote": {[]string{fence, birth}, func() error { _, err := l.Vote(t.Context(), "k", "A", time.Hour, 0); return err }},
		"Pass": {[]string{queue}, func() error { _, err := l.Pass(t.Context(), "k", "A", "B", 0); return err }},
		"Confirm": {[]string{fence, birth}, func() error {
			ballots, err := l.Confirm(t.Context(), []quorum.Confirmation{{Renewal: dlock.Renewal{Key: "k", Token: "A", TTL: time.Hour}, Fence: 8}})
			require.NoError(t, err)
			return ballots[0].Err
		}},
	} {
		for _, key := range c.keys {
			b.integer(t, "DEL", key)
			b.integer(t, "HSET", key, "wrong", "type")
			b.integer(t, "PEXPIRE", key, 60_000)
			require.Equal(t, noEffect, verdictOf(c.call()), "%s and %s", name, key)
			require.Equal(t, "A", b.holder(), name)
			require.Less(t, b.integer(t, "PTTL", "k"), int64(61_000), name)
			b.integer(t, "DEL", key)
		}
	}
}

// A grant that a message brings has the age and the store of the last answer, and the time of the
// message.
func TestBallotOfMessage(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		f.eval = always(func() []any {
			return append(waits(0, "H", 60_000), []any{int64(5000), "store", time.Now().UnixMicro(), int64(1)})
		})
		done := make(chan quorum.Ballot, 1)
		go func() {
			ballot, err := l.AcquireVote(t.Context(), "k", "t", time.Minute, 77, 3)
			require.NoError(t, err)
			done <- ballot
		}()
		time.Sleep(time.Second)
		require.Equal(t, []string{"t", "60000", "", "3", "77"}, f.evals(0)[0].args)
		granted := time.Now()
		f.grant(88, "t")
		want := quorum.Ballot{Fresh: true, Age: 5 * time.Millisecond, Store: "store", Clock: granted.UnixMicro() + 1}
		want.Attempt = dlock.Attempt{Acquired: true, Fence: 88, Since: granted.Add(time.Microsecond - time.Millisecond)}
		require.Equal(t, want, <-done)
	})
}

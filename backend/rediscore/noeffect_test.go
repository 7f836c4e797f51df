package rediscore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A verdict is what an error says of the effect of its call.
type verdict string

const (
	unknown   verdict = "unknown outcome"
	noEffect  verdict = "no effect"
	temporary verdict = "no effect, for now"
	state     verdict = "no effect, in this state"
)

func verdictOf(err error) verdict {
	if !dlock.NoEffect(err) {
		return unknown
	}
	switch e, _ := errors.AsType[*dlock.NoEffectError](err); {
	case e != nil && e.Temporary:
		return temporary
	case e != nil && e.State:
		return state
	}
	return noEffect
}

func TestRefusals(t *testing.T) {
	const (
		redis6 = "ERR Error running script (call to f_d0d1): @user_script:62: @user_script: 62: "
		redis7 = " script: d0d1, on @user_script:62."
	)
	for text, want := range map[string]verdict{
		"OOM command not allowed when used memory > 'maxmemory'.":                         state,
		"NOPERM this user has no permissions to run the 'evalsha' command":                noEffect,
		"READONLY You can't write against a read only replica." + redis7:                  temporary,
		"ERR The user executing the script can't run this command or subcommand" + redis7: unknown,
		"MOVED 3999 127.0.0.1:6381":                                                       noEffect,
		"EOF":                                                                             unknown,
		redis6 + "Write commands are not allowed after non deterministic commands.":       unknown,
	} {
		require.Equal(t, want, verdictOf(rediscore.Judge(rediscore.EnqueueScript, errors.New(text))), text)
		got := rediscore.Judge(rediscore.EnqueueScript, errors.New(text)).Error()
		require.True(t, strings.HasPrefix(strings.TrimPrefix(got, "a server before Redis 5: "), text), got)
		require.Equal(t, strings.Contains(text, "deterministic"), strings.HasPrefix(got, "a server before Redis 5: "), got)
		require.Equal(t, strings.HasPrefix(text, "READONLY"), strings.Contains(got, " (the client is connected to a replica"), got)
		require.Equal(t, strings.HasPrefix(text, "MOVED"), strings.Contains(got, " (the server is a node of a Redis Cluster"), got)
		require.Equal(t, want, verdictOf(rediscore.Judge(rediscore.EnqueueScript, fmt.Errorf("dialing: %w", errors.New(text)))), "wrapped: %s", text)
		for _, joined := range []error{
			errors.Join(errors.New("x"), errors.New(text)),
			errors.Join(errors.New(text), errDown),
			fmt.Errorf("dialing: %w", errors.Join(errors.New(text), errDown)),
			fmt.Errorf("%w: %w", errors.New(text), errDown),
		} {
			require.Equal(t, unknown, verdictOf(rediscore.Judge(rediscore.EnqueueScript, joined)), "joined: %v", joined)
		}
	}
	require.Equal(t, noEffect, verdictOf(rediscore.Judge(rediscore.EnqueueScript, &net.OpError{Op: "dial", Err: errDown})))
	require.Equal(t, unknown, verdictOf(rediscore.Judge(rediscore.EnqueueScript, &net.OpError{Op: "read", Err: errDown})))
	require.NoError(t, rediscore.Judge(rediscore.EnqueueScript, nil))
	require.Equal(t, noEffect, verdictOf(rediscore.Judge(rediscore.EnqueueScript, &dlock.NoEffectError{Err: errDown})), "of the Conn")
	for _, text := range []string{"WRONGTYPE Operation" + redis7, redis6 + "WRONGTYPE Operation"} {
		for script := range rediscore.Decisive {
			require.Equal(t, noEffect, verdictOf(rediscore.Judge(script, errors.New(text))), text)
			require.Equal(t, unknown, verdictOf(rediscore.Judge(script, errors.Join(errors.New("x"), errors.New(text)))), text)
			require.Equal(t, unknown, verdictOf(rediscore.Judge(script, fmt.Errorf("dialing: %w", errors.Join(errors.New(text), errDown)))), text)
		}
		require.Equal(t, unknown, verdictOf(rediscore.Judge(rediscore.CheckInScript, errors.New(text))), text)
	}
	require.ErrorIs(t, rediscore.ClientClosed(errDown), dlock.ErrClosed)
	require.ErrorIs(t, rediscore.ClientClosed(errDown), errDown)
}

// An error reply of unknown text is a failure, and says nothing about the effect. Only a Replier knows that it is one.
func TestFailures(t *testing.T) {
	conn := sim.Dial(sim.NewServer(), nil)
	reply := sim.Error("ERR upstream failure")
	for _, c := range []struct {
		conn    rediscore.Conn
		err     error
		failed  bool
		verdict verdict
	}{
		{conn, reply, true, unknown},
		{conn, fmt.Errorf("client: %w", reply), true, unknown},
		{conn, &dlock.NoEffectError{Err: reply}, true, noEffect},
		{conn, errors.New("ERR upstream failure"), false, unknown},
		{conn, errors.Join(reply), false, unknown},
		{conn, sim.Error("ERR Script attempted to access a non local key in a cluster node script: d0, on @user_script:1."), false, temporary},
		{new(plainConn), reply, false, unknown},
	} {
		err := rediscore.JudgeOf(c.conn, rediscore.AcquireScript, c.err)
		var failure interface{ Failed() bool }
		require.Equal(t, c.failed, errors.As(err, &failure) && failure.Failed(), "%v", c.err)
		require.Equal(t, c.verdict, verdictOf(err), "%v", c.err)
		require.Equal(t, c.verdict == noEffect && !c.failed, dlock.Refused(err), "%v", c.err)
	}
}

// A call with bad arguments, whose ctx has ended, or of a Locker that is closed, is not sent. Its error
// says that it had no effect. The client of a Locker that is closed stays open.
func TestNothingSent(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	server := sim.NewServer()
	conn := sim.Dial(server, nil)
	locker := func(opts ...rediscore.Option) *rediscore.Locker { return rediscore.New(conn, opts...) }
	closed := locker()
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	for _, c := range []struct {
		ctx        context.Context
		locker     *rediscore.Locker
		key, token string
		ttl        time.Duration
		want       error
		text       string
		but        string // methods that have no such argument
	}{
		{over, locker(), "k", "t", ttl, context.Canceled, "", ""},
		{t.Context(), closed, "k", "t", ttl, dlock.ErrClosed, "", ""},
		{t.Context(), rediscore.New(nil), "k", "t", ttl, dlock.ErrInvalid, "client: nil", ""},
		{t.Context(), locker([]rediscore.Option{nil}...), "k", "t", ttl, dlock.ErrInvalid, "Option 1 of 1: nil", ""},
		{t.Context(), locker(rediscore.WithPrefix("p:dlock1:")), "k", "t", ttl, dlock.ErrInvalid, `contains "dlock1:"`, ""},
		{t.Context(), locker(rediscore.WithPrefix(strings.Repeat("p", 1025))), "k", "t", ttl, dlock.ErrInvalid, "1025 bytes", ""},
		{t.Context(), locker(), "", "t", ttl, dlock.ErrInvalid, "key: empty", ""},
		{t.Context(), locker(), "dlock1:fence", "t", ttl, dlock.ErrInvalid, `key: contains "dlock1:"`, ""},
		{t.Context(), locker(), "k", "", ttl, dlock.ErrInvalid, "token: empty", "Inspect"},
		{t.Context(), locker(), "k", "t", 0, dlock.ErrInvalid, "TTL 0s", "Inspect Release Pass"},
		{t.Context(), locker(), "k", "t", time.Millisecond - 1, dlock.ErrInvalid, "TTL 999.999µs", "Inspect Release Pass"},
		{t.Context(), locker(), "k", "t", -ttl, dlock.ErrInvalid, "TTL -1m0s", "Inspect Release Pass"},
	} {
		for method, call := range methodsOf(c.ctx, c.locker, c.key, c.token, c.ttl) {
			if strings.Contains(c.but, method) {
				continue
			}
			_, err := call()
			require.ErrorIs(t, err, c.want, method)
			require.ErrorContains(t, err, c.text, method)
			require.Equal(t, noEffect, verdictOf(err), "%s: %v", method, err)
		}
	}
	_, err := closed.RenewBatch(t.Context(), nil)
	require.ErrorIs(t, err, dlock.ErrClosed)
	unqueued := locker(rediscore.WithQueue(false))
	_, err = unqueued.Acquire(t.Context(), "k", "t", ttl)
	_, err2 := unqueued.AcquireVote(t.Context(), "k", "t", ttl, 0, 1)
	for _, err := range []error{err, err2} {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Equal(t, noEffect, verdictOf(err))
	}
	for _, place := range []int64{math.MinInt64, 0, rediscore.MaxExact + 1} {
		_, err := locker().AcquireVote(t.Context(), "k", "t", ttl, 0, place)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.Equal(t, noEffect, verdictOf(err))
	}
	require.Zero(t, server.Cost().Commands)
	require.True(t, must(locker().TryAcquire(t.Context(), "k", "t", ttl))(t).Acquired)
}

// methodsOf returns calls of all methods that may call the server. A call reports whether the token holds the key, or held it.
func methodsOf(ctx context.Context, l *rediscore.Locker, key, token string, ttl time.Duration) map[string]func() (bool, error) {
	renewal := dlock.Renewal{Key: key, Token: token, TTL: ttl}
	attempt := func(a dlock.Attempt, err error) (bool, error) { return a.Acquired, err }
	ballot := func(b quorum.Ballot, err error) (bool, error) { return b.Acquired, cmp.Or(err, b.Err) }
	return map[string]func() (bool, error){
		"TryAcquire": func() (bool, error) { return attempt(l.TryAcquire(ctx, key, token, ttl)) },
		"Acquire":    func() (bool, error) { return attempt(l.Acquire(ctx, key, token, ttl)) },
		"TryAcquireSet": func() (bool, error) {
			attempts, err := l.TryAcquireSet(ctx, []dlock.Acquisition{{Key: key, Token: token, TTL: ttl}})
			return attempt(append(attempts, dlock.Attempt{})[0], err)
		},
		"Renew":   func() (bool, error) { return l.Renew(ctx, key, token, ttl) },
		"Release": func() (bool, error) { return l.Release(ctx, key, token) },
		"Inspect": func() (bool, error) {
			hold, err := l.Inspect(ctx, key)
			return hold.Token == token, err
		},
		"Vote":        func() (bool, error) { return ballot(l.Vote(ctx, key, token, ttl, 0)) },
		"AcquireVote": func() (bool, error) { return ballot(l.AcquireVote(ctx, key, token, ttl, 0, 1)) },
		"Pass":        func() (bool, error) { return l.Pass(ctx, key, token, "to", 0) },
		"Confirm": func() (bool, error) {
			ballots, err := l.Confirm(ctx, []quorum.Confirmation{{Renewal: renewal}})
			return ballot(append(ballots, quorum.Ballot{})[0], err)
		},
		"RenewBatch": func() (bool, error) {
			results, err := l.RenewBatch(ctx, []dlock.Renewal{renewal})
			r := append(results, dlock.RenewResult{})[0]
			return r.Held, cmp.Or(err, r.Err)
		},
	}
}

// The error of a wait that ends without a grant says whether a call of it may still take effect.
func TestEndsOfWaits(t *testing.T) {
	type reply func() (any, error)
	var (
		inside  = errors.New("ERR The user executing the script can't run this command script: d0d1, on @user_script:62.")
		acl     = errors.New("ERR ACL failure in script: User u has no permissions to run the 'hget' command script: 46d8, on @user_script:86.")
		noPerm  = errors.New("NOPERM this user has no permissions to run the 'evalsha' command")
		loading = errors.New("LOADING Redis is loading the dataset in memory")
		closed  = &dlock.NoEffectError{Err: rediscore.ClientClosed(errDown)}
		fail    = func(err error) reply { return func() (any, error) { return nil, err } }
		never   = fail(errSilent)
		waiting = func() (any, error) { return waits(0, "H", 60_000), nil }
		coming  = func() (any, error) { return waits(1, "", -2), nil } // for another
		gone    = func() (any, error) { return []any{int64(rediscore.AnswerUnknown)}, nil }
	)
	for name, c := range map[string]struct {
		replies []reply // the last is repeated
		err     error   // of the wait, which is cancelled unless it ends by itself
		verdict verdict
		told    bool // that it is in the queue
	}{
		"Answered":                {[]reply{waiting}, context.Canceled, noEffect, true},
		"EnqueueOnItsWay":         {[]reply{never}, context.Canceled, unknown, false},
		"AskOnItsWay":             {[]reply{waiting, never}, context.Canceled, noEffect, true},
		"AskLost":                 {[]reply{waiting, fail(errDown), waiting}, context.Canceled, noEffect, true},
		"EnqueueAgainLost":        {[]reply{waiting, gone, fail(errDown)}, errDown, unknown, true},
		"EnqueueAgainRefused":     {[]reply{waiting, gone, fail(loading), waiting}, context.Canceled, noEffect, true},
		"NobodyHolds":             {[]reply{coming}, context.Canceled, noEffect, true},
		"FirstLost":               {[]reply{fail(errDown)}, errDown, unknown, false},
		"FirstRefused":            {[]reply{fail(noPerm)}, noPerm, noEffect, false},
		"FirstRefusedForNow":      {[]reply{fail(loading)}, loading, temporary, false},
		"FirstRefusedInside":      {[]reply{fail(inside)}, inside, unknown, false},
		"LaterRefused":            {[]reply{waiting, fail(noPerm)}, noPerm, noEffect, true},
		"LaterRefusedInside":      {[]reply{waiting, fail(inside)}, inside, noEffect, true},
		"LaterRefusedByACL":       {[]reply{waiting, fail(acl)}, acl, noEffect, true},
		"LaterRefusedForNow":      {[]reply{waiting, fail(loading), waiting}, context.Canceled, noEffect, true},
		"ClientClosed":            {[]reply{fail(closed)}, dlock.ErrClosed, noEffect, false},
		"ClientClosedLater":       {[]reply{waiting, fail(closed)}, dlock.ErrClosed, noEffect, true},
		"ClientClosedInFlight":    {[]reply{fail(rediscore.ClientClosed(errDown))}, dlock.ErrClosed, unknown, false},
		"ClientClosedNobodyHolds": {[]reply{coming, fail(closed)}, dlock.ErrClosed, noEffect, true},
	} {
		inScene(t, func(s *scene, a *actor) {
			left := c.replies
			a.refuses(errDown)
			a.answers(func(call rediscore.Call) (any, error) {
				if call.Script == rediscore.ReleaseScript {
					return int64(0), nil
				}
				next := left[0]
				left = left[min(1, len(left)-1):]
				return next()
			})
			w := a.acquire("A")
			time.Sleep(4 * time.Second)
			require.Equal(s, !errors.Is(c.err, context.Canceled), w.over(), "%s ended: %v", name, w.err)
			w.cancel()
			<-w.done
			require.ErrorIs(s, w.err, c.err, name)
			require.Equal(s, c.err == noPerm || c.err == inside || c.err == acl, errors.Is(w.err, dlock.ErrInvalid), name)
			require.Equal(s, c.verdict, verdictOf(w.err), "%s: %v", name, w.err)
			require.Equal(s, c.told, w.Attempt != dlock.Attempt{}, "%s: %+v", name, w.Attempt)
		})
	}
}

// A wait that is ended by Close has left nothing if its release was answered.
func TestEndOfAWaitByClose(t *testing.T) {
	for _, lost := range []bool{false, true} {
		inScene(t, func(s *scene, a *actor) {
			w := a.acquire("A")
			if lost {
				a.replies(nil, errDown)
			}
			require.NoError(s, a.Close())
			w.failed(dlock.ErrClosed)
			require.Equal(s, noEffect, verdictOf(w.err))
			require.Equal(s, lost, w.Holder != "")
		})
	}
}

// No lock can have the name of a companion, wherever its name is split into prefix and key.
func TestNamesBesideLocks(t *testing.T) {
	for name, ok := range map[[2]string]bool{
		{"p:", "k"}: true, {"p:d", "k"}: true, {"p:d", "lock2"}: true, {"p:", "lock1:fence"}: true, {"prod", "dlock1"}: true,
		{"dlock1:", "k"}: false, {"p:dlock1:", "k"}: false,
		{"", "p:{046}dlock1:fence"}: false, {"p:{046}d", "lock1:fence"}: false, {"p:{046}dlock1", ":fence"}: false,
	} {
		l := rediscore.New(sim.Dial(sim.NewServer(), nil), rediscore.WithPrefix(name[0]))
		_, err := l.TryAcquire(t.Context(), name[1], "t", time.Second)
		require.Equal(t, ok, err == nil, "%q: %v", name, err)
		if !ok {
			require.ErrorIs(t, err, dlock.ErrInvalid)
			require.NotContains(t, err.Error(), "fence", "the caller shows the key, or must not")
		}
	}
}

// A panickingConn is the Conn of a client that panics in all calls.
type panickingConn struct{ with any }

func (c panickingConn) Eval(context.Context, rediscore.Call) (any, error)             { panic(c.with) }
func (c panickingConn) EvalAll(context.Context, []rediscore.Call, []rediscore.Result) { panic(c.with) }
func (c panickingConn) Listen(context.Context, string, bool, func(rediscore.Event)) error {
	panic(c.with)
}
func (c panickingConn) Cluster() bool                              { panic(c.with) }
func (c panickingConn) Master(context.Context, rediscore.Call) any { panic(c.with) }
func (c panickingConn) Locate(context.Context, string) any         { panic(c.with) }
func (c panickingConn) PoolSize() int                              { panic(c.with) }
func (c panickingConn) Drain(context.Context)                      { panic(c.with) }
func (c panickingConn) Addr() string                               { panic(c.with) }
func (c panickingConn) EvalReplicated(context.Context, []rediscore.Call, []rediscore.Result, rediscore.Replication) {
	panic(c.with)
}

// A client that panics fails the call. The outcome is unknown, whatever the client panicked with, and the process goes on.
func TestPanics(t *testing.T) {
	const refusal = "READONLY You can't write against a read only replica. script: d0d1, on @user_script:62."
	for _, with := range []any{"a bug", errors.New(refusal), refusal, &dlock.NoEffectError{Err: dlock.ErrInvalid}, dlock.ErrClosed} {
		for _, opts := range [][]rediscore.Option{nil, {rediscore.WithReplicas(1, time.Second)}} {
			bubble.Test(t, func(t *testing.T) {
				missing := make(chan error, 1)
				l := rediscore.New(panickingConn{with}, append(opts, rediscore.WithInboxError(func(err error) { missing <- err }))...)
				require.Empty(t, l.Addr())
				for name, call := range methodsOf(t.Context(), l, "k", "t", time.Second) {
					_, err := call()
					require.ErrorContains(t, err, "the Redis client panicked at ", name)
					require.ErrorContains(t, err, "noeffect_test.go:", name)
					require.Equal(t, unknown, verdictOf(err), name)
					require.NotErrorIs(t, err, dlock.ErrClosed, name)
				}
				require.ErrorContains(t, <-missing, "panicked")
				require.NoError(t, l.Close())
			})
		}
	}
}

// What is said when something has ended.
var ends = scenes{
	"What Close has waited for may be a grant. If its release then had no answer, the outcome of the wait is unknown": func(s *scene, a *actor) {
		a.travels(sim.Fate{Request: sim.Leg{Delay: time.Second}})
		a.answers(func(call rediscore.Call) (any, error) {
			if call.Script == rediscore.ReleaseScript {
				return nil, errDown
			}
			return []any{int64(0), int64(1)}, nil // granted, with a fence
		})
		w := a.acquire("A")
		require.NoError(s, a.Close())
		w.failed(dlock.ErrClosed)
		require.Equal(s, unknown, verdictOf(w.err))
	},
	"The reason for a missing inbox is reported once, and again only after an inbox was open": func(s *scene, _ *actor) {
		told := make(chan error, 9)
		a := s.enter(rediscore.WithInboxError(func(err error) { told <- err }))
		a.answersWaits(3, "H", -1)
		a.refuses(errDown)
		for range 3 { // each has the inbox opened, which is closed between
			w := a.acquire("A")
			time.Sleep(time.Minute)
			w.cancelled()
			time.Sleep(time.Minute)
		}
		require.Equal(s, errDown, <-told)
		require.Empty(s, told, "of the others")
		a.refuses(nil)
		a.acquire("A")
		a.refuses(errDown)
		a.conn.Cut()
		synctest.Wait()
		require.Empty(s, told, "an inbox that was open, and may be again")
		time.Sleep(time.Minute)
		require.Equal(s, errDown, <-told)
		require.Empty(s, told)
	},
	"A release in two calls had an effect if the first was answered, even if the second is refused": func(s *scene, a *actor) {
		enqueue := a.holdCall(rediscore.EnqueueScript, "A")
		w := a.acquire("A")
		w.cancelled()
		require.Equal(s, unknown, verdictOf(w.err))
		released := a.beginRelease("A")
		enqueue.Execute()
		s.fails(sim.Faults{Calls: "LOADING Redis is loading the dataset in memory"})
		enqueue.Answer()
		err := (<-released).Err
		require.Equal(s, 2, a.calls(rediscore.ReleaseScript, "A"))
		require.ErrorContains(s, err, "LOADING")
		require.Equal(s, unknown, verdictOf(err))
	},
}

func TestEnds(t *testing.T) { ends.play(t) }

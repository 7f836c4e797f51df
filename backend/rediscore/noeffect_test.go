package rediscore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A verdict is what an error says of the effect of its call.
type verdict string

const (
	unknown   verdict = "unknown outcome"
	noEffect  verdict = "no effect"
	temporary verdict = "no effect, for now"
)

func verdictOf(err error) verdict {
	if !dlock.NoEffect(err) {
		return unknown
	}
	if e, ok := errors.AsType[*dlock.NoEffectError](err); ok && e.Temporary {
		return temporary
	}
	return noEffect
}

func TestRefusals(t *testing.T) {
	const (
		redis6 = "ERR Error running script (call to f_d0d1): @user_script:62: @user_script: 62: "
		redis7 = " script: d0d1, on @user_script:62."
	)
	for text, want := range map[string]verdict{
		"NOPERM this user has no permissions to run the 'evalsha' command":                 noEffect,
		"NOAUTH Authentication required.":                                                  noEffect,
		"WRONGPASS invalid username-password pair or user is disabled.":                    noEffect,
		"DENIED Redis is running in protected mode":                                        noEffect,
		"OOM command not allowed when used memory > 'maxmemory'.":                          noEffect,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL.":              noEffect,
		"MOVED 3999 127.0.0.1:6381":                                                        noEffect,
		"ERR unknown command `EVALSHA`, with args beginning with: ":                        noEffect,
		"ERR max number of clients reached":                                                noEffect,
		"unknown command `EVALSHA`, with args beginning with: ":                            noEffect, // rueidis leaves ERR out
		"max number of clients reached":                                                    noEffect,
		"AUTH <password> called without any password configured for the default user.":     noEffect,
		"an unknown command":                                                               unknown,
		"LOADING Redis is loading the dataset in memory":                                   temporary,
		"TRYAGAIN Multiple keys request during rehashing of slot":                          temporary,
		"CLUSTERDOWN Hash slot not served":                                                 temporary,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": temporary,
		"READONLY You can't write against a read only replica.":                            temporary,
		"READONLY You can't write against a read only replica." + redis7:                   temporary,
		redis6 + "-READONLY You can't write against a read only replica.":                  temporary,
		"OOM command not allowed when used memory > 'maxmemory'." + redis7:                 noEffect,
		redis6 + "-OOM command not allowed when used memory > 'maxmemory'.":                noEffect,
		redis6[len("ERR "):] + "-OOM command not allowed.":                                 noEffect, // rueidis leaves ERR out
		"MISCONF Redis is configured to save RDB snapshots" + redis7:                       noEffect,
		"NOREPLICAS Not enough good replicas to write." + redis7:                           noEffect,
		"ERR The user executing the script can't run this command or subcommand" + redis7:  unknown,
		"NOPERM User dlock has no permissions to run the 'zadd' command" + redis7:          unknown,
		"WRONGTYPE Operation against a key holding the wrong kind of value" + redis7:       unknown,
		redis6 + "WRONGTYPE Operation against a key holding the wrong kind of value":       unknown,
		redis6 + "The user executing the script can't run this command or subcommand":      unknown,
		"read tcp 127.0.0.1:1->127.0.0.1:2: i/o timeout":                                   unknown,
		"EOF":                     unknown,
		"ERR something else":      unknown,
		"BUSYKEY something else":  unknown,
		"a hook: NOPERM of what?": unknown,
	} {
		require.Equal(t, want, verdictOf(judge(enqueueScript, errors.New(text))), text)
		require.Equal(t, text, judge(enqueueScript, errors.New(text)).Error())
		require.Equal(t, want, verdictOf(judge(enqueueScript, fmt.Errorf("dialing: %w", errors.New(text)))), "wrapped: %s", text)
		for _, joined := range []error{
			errors.Join(errors.New("x"), errors.New(text)),
			errors.Join(errors.New(text), errDown),
			fmt.Errorf("dialing: %w", errors.Join(errors.New(text), errDown)),
			fmt.Errorf("%w: %w", errors.New(text), errDown),
		} {
			require.Equal(t, unknown, verdictOf(judge(enqueueScript, joined)), "joined: %v", joined)
		}
	}
	require.Equal(t, noEffect, verdictOf(judge(enqueueScript, &net.OpError{Op: "dial", Err: errDown})))
	require.Equal(t, unknown, verdictOf(judge(enqueueScript, &net.OpError{Op: "read", Err: errDown})))
	require.NoError(t, judge(enqueueScript, nil))
	require.Equal(t, noEffect, verdictOf(judge(enqueueScript, &dlock.NoEffectError{Err: errDown})), "of the Conn")
	for _, text := range []string{"WRONGTYPE Operation" + redis7, redis6 + "WRONGTYPE Operation"} {
		for script := range decisive {
			require.Equal(t, noEffect, verdictOf(judge(script, errors.New(text))), text)
			require.Equal(t, unknown, verdictOf(judge(script, errors.Join(errors.New("x"), errors.New(text)))), text)
			require.Equal(t, unknown, verdictOf(judge(script, fmt.Errorf("dialing: %w", errors.Join(errors.New(text), errDown)))), text)
		}
		require.Equal(t, unknown, verdictOf(judge(checkInScript, errors.New(text))), text)
	}
	require.ErrorIs(t, ClientClosed(errDown), dlock.ErrClosed)
	require.ErrorIs(t, ClientClosed(errDown), errDown)
}

// The error of a call that the Locker does not send says that it had no effect.
func TestNothingSent(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	closed := New(new(fakeConn))
	require.NoError(t, closed.Close())
	for _, c := range []struct {
		ctx    context.Context
		locker *Locker
		key    string
		want   error
	}{
		{over, New(new(fakeConn)), "k", context.Canceled},
		{t.Context(), closed, "k", dlock.ErrClosed},
		{t.Context(), New(nil), "k", dlock.ErrInvalid},
		{t.Context(), New(new(fakeConn)), "", dlock.ErrInvalid},
		{t.Context(), New(new(fakeConn), WithPrefix("p:dlock1:")), "k", dlock.ErrInvalid},
	} {
		for method, call := range map[string]func() error{
			"TryAcquire":  func() error { _, err := c.locker.TryAcquire(c.ctx, c.key, "t", time.Second); return err },
			"Acquire":     func() error { _, err := c.locker.Acquire(c.ctx, c.key, "t", time.Second); return err },
			"Renew":       func() error { _, err := c.locker.Renew(c.ctx, c.key, "t", time.Second); return err },
			"Release":     func() error { _, err := c.locker.Release(c.ctx, c.key, "t"); return err },
			"Inspect":     func() error { _, err := c.locker.Inspect(c.ctx, c.key); return err },
			"Vote":        func() error { _, err := c.locker.Vote(c.ctx, c.key, "t", time.Second, 0); return err },
			"AcquireVote": func() error { _, err := c.locker.AcquireVote(c.ctx, c.key, "t", time.Second, 0, 1); return err },
			"Pass":        func() error { _, err := c.locker.Pass(c.ctx, c.key, "t", "", 0); return err },
			"Confirm": func() error {
				ballots, err := c.locker.Confirm(c.ctx, []quorum.Confirmation{{Renewal: dlock.Renewal{Key: c.key, Token: "t", TTL: time.Second}}})
				if err == nil {
					err = ballots[0].Err
				}
				return err
			},
			"RenewBatch": func() error {
				results, err := c.locker.RenewBatch(c.ctx, []dlock.Renewal{{Key: c.key, Token: "t", TTL: time.Second}})
				if err == nil {
					err = results[0].Err
				}
				return err
			},
		} {
			err := call()
			require.ErrorIs(t, err, c.want, method)
			require.Equal(t, noEffect, verdictOf(err), "%s: %v", method, err)
		}
	}
	_, err := New(new(fakeConn), WithQueue(false)).Acquire(t.Context(), "k", "t", time.Second)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Equal(t, noEffect, verdictOf(err))
}

// The error of a wait that ends without a grant says whether a call of it may still take effect.
func TestEndsOfWaits(t *testing.T) {
	const holder = "H"
	var (
		inside  = errors.New("ERR The user executing the script can't run this command script: d0d1, on @user_script:62.")
		noPerm  = errors.New("NOPERM this user has no permissions to run the 'evalsha' command")
		loading = errors.New("LOADING Redis is loading the dataset in memory")
		closed  = &dlock.NoEffectError{Err: ClientClosed(errDown)}
		never   = func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
		fail    = func(err error) reply { return func(context.Context) (any, error) { return nil, err } }
		waiting = func(context.Context) (any, error) { return waits(0, holder, 60_000), nil }
		coming  = func(context.Context) (any, error) { return waits(1, "", -2), nil } // for another
		gone    = func(context.Context) (any, error) { return []any{int64(answerUnknown)}, nil }
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
		"EnqueueAgainLost":        {[]reply{waiting, gone, fail(errDown), waiting}, context.Canceled, unknown, true},
		"EnqueueAgainRefused":     {[]reply{waiting, gone, fail(loading), waiting}, context.Canceled, noEffect, true},
		"NobodyHolds":             {[]reply{coming}, context.Canceled, noEffect, true},
		"FirstLost":               {[]reply{fail(errDown)}, errDown, unknown, false},
		"FirstRefused":            {[]reply{fail(noPerm)}, dlock.ErrInvalid, noEffect, false},
		"FirstRefusedForNow":      {[]reply{fail(loading)}, loading, temporary, false},
		"FirstRefusedInside":      {[]reply{fail(inside)}, dlock.ErrInvalid, unknown, false},
		"LaterRefused":            {[]reply{waiting, fail(noPerm)}, dlock.ErrInvalid, noEffect, true},
		"LaterRefusedInside":      {[]reply{waiting, fail(inside)}, dlock.ErrInvalid, noEffect, true},
		"LaterRefusedForNow":      {[]reply{waiting, fail(loading), waiting}, context.Canceled, noEffect, true},
		"ClientClosed":            {[]reply{fail(closed)}, dlock.ErrClosed, noEffect, false},
		"ClientClosedLater":       {[]reply{waiting, fail(closed)}, dlock.ErrClosed, noEffect, true},
		"ClientClosedInFlight":    {[]reply{fail(ClientClosed(errDown))}, dlock.ErrClosed, unknown, false},
		"ClientClosedNobodyHolds": {[]reply{coming, fail(closed)}, dlock.ErrClosed, noEffect, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
				left := c.replies
				f.listen = refuse
				f.eval = func(ctx context.Context, call Call) (any, error) {
					if call.Script == releaseScript {
						return int64(0), nil
					}
					next := left[0]
					if len(left) > 1 {
						left = left[1:]
					}
					return next(ctx)
				}
				w := begin(t, l, "k", "t")
				time.Sleep(4 * time.Second)
				require.Equal(t, !errors.Is(c.err, context.Canceled), w.isDone(), "ended: %v", w.err)
				w.cancel()
				<-w.done
				require.ErrorIs(t, w.err, c.err)
				require.Equal(t, c.verdict, verdictOf(w.err), "%v", w.err)
				require.Equal(t, c.told, w.attempt != dlock.Attempt{}, "%+v", w.attempt)
			})
		})
	}
}

type reply = func(context.Context) (any, error)

// A wait that is ended by Close has left nothing if its release was answered.
func TestEndOfAWaitByClose(t *testing.T) {
	for _, c := range []struct {
		release error
		verdict verdict
		told    bool
	}{
		{nil, noEffect, false},
		{errDown, noEffect, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := new(fakeConn)
			f.eval = func(_ context.Context, call Call) (any, error) {
				if call.Script == releaseScript {
					return int64(0), c.release
				}
				return waits(0, "H", 60_000), nil
			}
			l := New(f)
			w := begin(t, l, "k", "t")
			require.NoError(t, l.Close())
			require.True(t, w.isDone())
			require.ErrorIs(t, w.err, dlock.ErrClosed)
			require.Equal(t, c.verdict, verdictOf(w.err))
			require.Equal(t, c.told, w.attempt.Holder != "")
		})
	}
}

// When the library's client is closed, the inbox is not opened again, and its waiters check in at
// once, which ends their waits.
func TestInboxOfAClosedClient(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		lost := make(chan struct{})
		f.listen = func(_ context.Context, on func(Event)) error {
			on(Event{Kind: Subscribed})
			<-lost
			return ClientClosed(errDown)
		}
		w := begin(t, l, "k", "t")
		f.set(func() {
			f.eval = func(context.Context, Call) (any, error) {
				return nil, &dlock.NoEffectError{Err: ClientClosed(errDown)}
			}
		})
		close(lost)
		require.True(t, w.isDone(), "without any time that passes")
		require.ErrorIs(t, w.err, dlock.ErrClosed)
		time.Sleep(time.Minute)
		require.Len(t, f.listened(), 1)
	})
}

// The reason for a missing inbox is reported once, and again only after an inbox was open.
func TestWithInboxError(t *testing.T) {
	told := make(chan error, 10)
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		f.listen = refuse
		for range 3 { // each has the inbox opened, which is closed between
			w := begin(t, l, "k", "t")
			time.Sleep(time.Minute)
			w.cancel()
			<-w.done
			time.Sleep(time.Minute)
		}
		require.Len(t, told, 1)
		require.Equal(t, errDown, <-told)
		lost := make(chan struct{})
		f.set(func() {
			f.listen = func(_ context.Context, on func(Event)) error {
				on(Event{Kind: Subscribed})
				<-lost
				f.set(func() { f.listen = refuse })
				return errLost
			}
		})
		w := begin(t, l, "k", "t")
		require.Empty(t, told, "an inbox that is open")
		close(lost)
		synctest.Wait()
		require.Empty(t, told, "an inbox that was open, and may be again")
		time.Sleep(time.Minute)
		require.Len(t, told, 1)
		require.Equal(t, errDown, <-told)
		w.cancel()
		<-w.done
	}, WithInboxError(func(err error) { told <- err }))
}

// No lock can have the name of a companion, wherever its name is split into prefix and key.
func TestNamesBesideLocks(t *testing.T) {
	for _, c := range []struct {
		prefix, key string
		ok          bool
	}{
		{"p:", "k", true},
		{"p:d", "k", true},
		{"p:d", "lock2", true},
		{"p:", "lock1:fence", true},
		{"prod", "dlock1", true},
		{"dlock1:", "k", false},
		{"p:dlock1:", "k", false},
		{"", "p:{046}dlock1:fence", false},
		{"p:{046}d", "lock1:fence", false},
		{"p:{046}dlock1", ":fence", false},
	} {
		f := new(fakeConn)
		f.eval = always(func() []any { return []any{"H", int64(1)} })
		_, err := New(f, WithPrefix(c.prefix)).TryAcquire(t.Context(), c.key, "t", time.Second)
		require.Equal(t, c.ok, err == nil, "%q: %v", c, err)
		if !c.ok {
			require.ErrorIs(t, err, dlock.ErrInvalid)
			require.NotContains(t, err.Error(), "fence", "the caller shows the key, or must not")
		}
	}
}

// A release in two calls had an effect if the first was answered, even if the second is refused.
func TestSecondReleaseRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		enqueued, releases := make(chan struct{}), 0
		f.eval = func(_ context.Context, call Call) (any, error) {
			if call.Script != releaseScript {
				<-enqueued
				return waits(0, "H", 60_000), nil
			}
			if releases++; releases > 1 {
				return nil, errors.New("LOADING Redis is loading the dataset in memory")
			}
			return int64(0), nil
		}
		w := begin(t, l, "k", "t")
		w.cancel()
		<-w.done
		require.Equal(t, unknown, verdictOf(w.err))
		released := make(chan error, 1)
		go func() {
			_, err := l.Release(t.Context(), "k", "t")
			released <- err
		}()
		synctest.Wait()
		close(enqueued)
		err := <-released
		require.Equal(t, 2, releases)
		require.ErrorContains(t, err, "LOADING")
		require.Equal(t, unknown, verdictOf(err))
	})
}

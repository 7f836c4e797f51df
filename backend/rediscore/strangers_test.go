package rediscore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

const lasts = time.Minute

// strange runs a test in virtual time, with a Locker and the server that others use, too.
func strange(t *testing.T, test func(t *testing.T, s *sim.Server, l *rediscore.Locker)) {
	bubble.Test(t, func(t *testing.T) {
		s := sim.NewServer()
		conn := sim.Dial(s, nil)
		defer conn.Close()
		l := rediscore.New(conn)
		defer l.Close()
		test(t, s, l)
	})
}

func do(t *testing.T, s *sim.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	require.NoError(t, err, "%q", args)
	return reply
}

func take(t *testing.T, l *rediscore.Locker, key, token string) {
	t.Helper()
	a, err := l.TryAcquire(t.Context(), key, token, lasts)
	require.NoError(t, err)
	require.True(t, a.Acquired, "held by %q", a.Holder)
}

// A plain lock is stored as by redsync, redislock and StackExchange.Redis (LockTake, LockExtend,
// LockRelease).
type plain struct {
	t *testing.T
	*sim.Server
}

// take is SET NX PX.
func (p plain) take(value string) bool {
	free := do(p.t, p.Server, "EXISTS", "k") == int64(0)
	if free {
		do(p.t, p.Server, "SET", "k", value, "PX", milliseconds(lasts))
	}
	return free
}

func (p plain) extend(value string, ttl time.Duration) bool {
	return p.eval(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`, value, milliseconds(ttl))
}

func (p plain) release(value string) bool {
	return p.eval(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`, value)
}

func (p plain) eval(script string, args ...string) bool {
	p.t.Helper()
	reply, err := p.Eval(script, script, []string{"k"}, args)
	require.NoError(p.t, err)
	return reply == int64(1)
}

func milliseconds(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// Plain locks and dlock's exclude each other. One that has passed to the other kind can be neither renewed
// nor released by its former holder.
func TestPlainLocks(t *testing.T) {
	for name, pass := range map[string]func(t *testing.T, s *sim.Server, release func() bool){
		"released": func(t *testing.T, _ *sim.Server, release func() bool) { require.True(t, release()) },
		"expired":  func(*testing.T, *sim.Server, func() bool) { time.Sleep(2*lasts + time.Millisecond) },
		"removed":  func(t *testing.T, s *sim.Server, _ func() bool) { do(t, s, "DEL", "k") },
	} {
		t.Run(name, func(t *testing.T) {
			strange(t, func(t *testing.T, s *sim.Server, l *rediscore.Locker) {
				theirs := plain{t, s}
				renew := func() bool { return is(t)(l.Renew(t.Context(), "k", "ours", 2*lasts)) }
				release := func() bool { return is(t)(l.Release(t.Context(), "k", "ours")) }
				requireTheirs := func() {
					a, err := l.TryAcquire(t.Context(), "k", "ours", lasts)
					require.NoError(t, err)
					require.Equal(t, "theirs", a.Holder)
					require.False(t, renew())
					require.False(t, release())
				}
				requireOurs := func() {
					require.False(t, theirs.take("theirs"))
					require.False(t, theirs.extend("theirs", 3*lasts))
					require.False(t, theirs.release("theirs"))
					require.True(t, renew())
					require.Equal(t, (2 * lasts).Milliseconds(), do(t, s, "PTTL", "k"))
				}
				require.True(t, theirs.take("theirs"))
				requireTheirs()
				require.True(t, theirs.extend("theirs", 2*lasts))
				pass(t, s, func() bool { return theirs.release("theirs") })
				take(t, l, "k", "ours")
				requireOurs()
				pass(t, s, release)
				require.True(t, theirs.take("theirs"))
				requireTheirs()
				require.True(t, theirs.release("theirs"))
			})
		})
	}
}

func is(t *testing.T) func(held bool, err error) bool {
	return func(held bool, err error) bool {
		t.Helper()
		require.NoError(t, err)
		return held
	}
}

// A Client waits for a plain lock, and reveals nothing of its value. The lock stays as it is.
func TestClientWaitsForPlainLock(t *testing.T) {
	strange(t, func(t *testing.T, s *sim.Server, l *rediscore.Locker) {
		theirs, ours := plain{t, s}, dlock.New(l)
		require.True(t, theirs.take("s3cret"))
		_, err := ours.TryAcquire(t.Context(), "k")
		var held *dlock.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, lasts, held.Remaining)
		require.NotContains(t, err.Error(), "s3cret")
		require.False(t, is(t)(l.Release(t.Context(), "k", "s3cre")))
		require.False(t, is(t)(l.Renew(t.Context(), "k", "s3cre", time.Hour)))
		require.Equal(t, []string{"k"}, s.Keys(), "something was left behind")
		require.Equal(t, lasts.Milliseconds(), do(t, s, "PTTL", "k"))
		start := time.Now()
		lease, err := ours.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.InDelta(t, lasts, time.Since(start), float64(time.Second))
		require.False(t, theirs.release("s3cret"))
		require.NoError(t, lease.Release())
	})
}

// A key without a TTL is held for ever, and its holder's lease is not shortened.
func TestKeyWithoutTTL(t *testing.T) {
	strange(t, func(t *testing.T, s *sim.Server, l *rediscore.Locker) {
		do(t, s, "SET", "k", "mine")
		a, err := l.TryAcquire(t.Context(), "k", "t", lasts)
		require.NoError(t, err)
		require.False(t, a.Acquired)
		require.Negative(t, a.Remaining, "it never ends")
		hold, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Negative(t, hold.Remaining)
		require.True(t, is(t)(l.Renew(t.Context(), "k", "mine", lasts)))
		take(t, l, "k", "mine")
		require.EqualValues(t, -1, do(t, s, "PTTL", "k"), "a lease was shortened")
	})
}

// A key of another type is left alone. An attempt owes nothing, a release that failed is owed, and Close does
// not wait for it: the store has answered.
func TestKeyOfAnotherType(t *testing.T) {
	strange(t, func(t *testing.T, s *sim.Server, l *rediscore.Locker) {
		do(t, s, "HSET", "k", "theirs", "1")
		c := dlock.New(l)
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorContains(t, err, `dlock: acquire "k"`)
		require.ErrorContains(t, err, "WRONGTYPE")
		require.NotErrorIs(t, err, dlock.ErrHeld)
		require.Zero(t, c.Stats().ReleasesOwed)
		require.Equal(t, []string{"k"}, s.Keys(), "something was left behind")
		require.Equal(t, []any{"1"}, do(t, s, "HMGET", "k", "theirs"))

		lease, err := c.TryAcquire(t.Context(), "held")
		require.NoError(t, err)
		do(t, s, "DEL", "held")
		do(t, s, "HSET", "held", "theirs", "1")
		require.ErrorContains(t, lease.Release(), "WRONGTYPE")
		require.Equal(t, 1, c.Stats().ReleasesOwed)
		start := time.Now()
		require.ErrorContains(t, c.Close(), "WRONGTYPE")
		require.Less(t, time.Since(start), time.Second)
	})
}

// A replica may be behind, so it cannot say what is not held.
func TestReplicaDoesNotJudge(t *testing.T) {
	strange(t, func(t *testing.T, s *sim.Server, l *rediscore.Locker) {
		take(t, l, "held", "t")
		s.SetFaults(sim.Faults{Writes: "READONLY You can't write against a read only replica."})
		for _, c := range []struct{ key, token string }{{"held", "stranger"}, {"free", "stranger"}, {"held", "t"}} {
			_, err := l.Release(t.Context(), c.key, c.token)
			require.ErrorContains(t, err, "READONLY", "release of %s by %s", c.key, c.token)
			_, err = l.Renew(t.Context(), c.key, c.token, 2*lasts)
			require.ErrorContains(t, err, "READONLY", "renewal of %s by %s", c.key, c.token)
		}
	})
}

// Nothing is sent of what cannot be meant.
func TestBadArguments(t *testing.T) {
	strange(t, func(t *testing.T, s *sim.Server, l *rediscore.Locker) {
		conn := sim.Dial(s, nil)
		for _, bad := range []struct {
			locker     *rediscore.Locker
			key, token string
			ttl        time.Duration
			want       string
		}{
			{rediscore.New(nil), "k", "t", lasts, "client: nil"},
			{rediscore.New(conn, nil), "k", "t", lasts, "Option 1 of 1: nil"},
			{rediscore.New(conn, rediscore.WithPrefix(strings.Repeat("p", 1025))), "k", "t", lasts, "1025 bytes"},
			{l, "", "t", lasts, "key: empty"},
			{l, "dlock1:fence", "t", lasts, `key: contains "dlock1:"`},
			{l, "k", "", lasts, "token: empty"},
			{l, "k", "t", 0, "TTL 0s"},
			{l, "k", "t", time.Millisecond - 1, "TTL 999.999µs"},
			{l, "k", "t", -lasts, "TTL -1m0s"},
		} {
			for name, call := range map[string]func(ctx context.Context) error{
				"TryAcquire": func(ctx context.Context) error {
					_, err := bad.locker.TryAcquire(ctx, bad.key, bad.token, bad.ttl)
					return err
				},
				"Acquire": func(ctx context.Context) error {
					_, err := bad.locker.Acquire(ctx, bad.key, bad.token, bad.ttl)
					return err
				},
				"Renew": func(ctx context.Context) error {
					_, err := bad.locker.Renew(ctx, bad.key, bad.token, bad.ttl)
					return err
				},
				"RenewBatch": func(ctx context.Context) error {
					results, err := bad.locker.RenewBatch(ctx, []dlock.Renewal{{Key: bad.key, Token: bad.token, TTL: bad.ttl}})
					if err == nil {
						err = results[0].Err
					}
					return err
				},
			} {
				err := call(t.Context())
				require.ErrorIs(t, err, dlock.ErrInvalid, name)
				require.ErrorContains(t, err, bad.want, name)
			}
		}
		require.Zero(t, s.Cost().Commands)
	})
}

// A closed Locker sends nothing, and leaves the client open.
func TestClosed(t *testing.T) {
	strange(t, func(t *testing.T, s *sim.Server, _ *rediscore.Locker) {
		conn := sim.Dial(s, nil)
		l := rediscore.New(conn)
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		_, err := l.TryAcquire(t.Context(), "k", "t", lasts)
		require.ErrorIs(t, err, dlock.ErrClosed)
		_, err = l.Release(t.Context(), "k", "t")
		require.ErrorIs(t, err, dlock.ErrClosed)
		_, err = l.RenewBatch(t.Context(), nil)
		require.ErrorIs(t, err, dlock.ErrClosed)
		require.Zero(t, s.Cost().Commands)
		take(t, rediscore.New(conn), "k", "t")
	})
}

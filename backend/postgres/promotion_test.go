//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/sqltest"
)

// A pair is a primary and its standby. The link is between the two, the way leads clients to the primary.
type pair struct {
	t                *testing.T
	primary, standby *sqltest.Server
	link, way        *faultproxy.Proxy
}

func newPair(t *testing.T, synchronous bool) *pair {
	primary := sqltest.Start(t)
	require.NoError(t, open(t, primary.Addr).CreateTable(t.Context()))
	link := proxy(t, primary.Addr)
	p := &pair{t: t, primary: primary, standby: primary.Standby(link.Addr()), link: link, way: proxy(t, primary.Addr)}
	admin, state := pool(t, primary.Addr), "async"
	if synchronous {
		state = "sync"
		for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
			_, err := admin.Exec(t.Context(), sql)
			require.NoError(t, err)
		}
	}
	require.Eventually(t, func() bool {
		return scalar[int](t, admin, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1", state) == 1
	}, time.Minute, 20*time.Millisecond)
	return p
}

// promote ends the primary, as a crash does, and promotes the standby in its place.
func (p *pair) promote() {
	p.way.Refuse()
	p.primary.Stop(syscall.SIGQUIT)
	require.True(p.t, scalar[bool](p.t, pool(p.t, p.standby.Addr), "SELECT pg_promote()"))
	p.way.Move(p.standby.Addr)
	require.NoError(p.t, p.way.Heal())
}

// Under load, a promotion of a standby that is behind loses leases only if it is asynchronous. Fences rise in any case.
func TestPromotionUnderLoad(t *testing.T) {
	for _, synchronous := range []bool{false, true} {
		t.Run(fmt.Sprint("synchronous ", synchronous), func(t *testing.T) {
			p, r := newPair(t, synchronous), newRound(t)
			admin := pool(t, p.primary.Addr)
			var ends []func()
			for i := range 3 {
				ends = append(ends, r.start(fmt.Sprint("client", i), p.way.Addr(), r.limit, 8))
			}
			sleep(r.limit, time.Second)
			r.say("standby cut off")
			p.link.Refuse()
			for range 3 { // sessions that wait for the standby end, and others come
				sleep(r.limit, 100*time.Millisecond)
				scalar[int](t, admin, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			}
			p.promote()
			r.say("promoted")
			sleep(r.limit, time.Second)
			r.settle(ends)
			r.report(!synchronous)
			r.nothingLeft(p.standby.Addr)
		})
	}
}

// A promotion loses what an asynchronous standby has not received. A synchronous one has all grants that were answered.
func TestWhatAPromotionLoses(t *testing.T) {
	for _, synchronous := range []bool{false, true} {
		t.Run(fmt.Sprint("synchronous ", synchronous), func(t *testing.T) {
			p := newPair(t, synchronous)
			l, other := open(t, p.way.Addr()), open(t, p.way.Addr())
			takes(t, l, "before", "x")
			if !synchronous {
				require.Eventually(t, func() bool {
					return scalar[int](t, pool(t, p.standby.Addr), "SELECT count(*) FROM dlock") == 1
				}, time.Minute, 10*time.Millisecond)
			}
			_, err := open(t, p.standby.Addr).Inspect(t.Context(), "before")
			require.ErrorContains(t, err, "25006", "it is behind")
			p.link.Refuse()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			a, err := l.TryAcquire(ctx, "after", "x", time.Minute)
			require.Equal(t, synchronous, err != nil, "%v", err)
			require.False(t, dlock.NoEffect(err))
			p.promote()
			var b dlock.Attempt
			require.Eventually(t, func() bool {
				b, err = other.TryAcquire(t.Context(), "after", "y", time.Minute)
				return err == nil
			}, time.Minute, 10*time.Millisecond)
			require.True(t, b.Acquired)
			require.Greater(t, b.Fence, a.Fence)
			h, err := other.Inspect(t.Context(), "before")
			require.NoError(t, err)
			require.Equal(t, "x", h.Token)
		})
	}
}

// A crash loses what was not on the disk. With synchronous_commit=on, that is nothing that was answered.
func TestWhatACrashLoses(t *testing.T) {
	server := sqltest.Start(t)
	require.NoError(t, open(t, server.Addr).CreateTable(t.Context()))
	admin := pool(t, server.Addr)
	const writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
	for _, commit := range []string{"on", "off"} {
		for _, sql := range []string{"ALTER SYSTEM SET synchronous_commit = " + commit, "SELECT pg_reload_conf()"} {
			_, err := admin.Exec(t.Context(), sql)
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { return scalar[string](t, admin, "SHOW synchronous_commit") == commit }, time.Minute, time.Millisecond)
		pid, now := scalar[int](t, admin, writer), 0
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		a, err := open(t, server.Addr).TryAcquire(t.Context(), commit, "x", time.Minute)
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) // the server crashes, and recovers
		require.Eventually(t, func() bool {
			err := admin.QueryRow(t.Context(), writer).Scan(&now)
			return err == nil && now != pid
		}, time.Minute, 10*time.Millisecond)
		b, err := open(t, server.Addr).TryAcquire(t.Context(), commit, "y", time.Minute)
		require.NoError(t, err)
		require.Equal(t, commit == "off", b.Acquired)
		require.True(t, b.Holder == "x" || b.Fence > a.Fence)
	}
}

// A release that is cut short while it waits for the standby tells the next waiter nothing that a promotion would take back.
func TestHandoverWithoutTheStandby(t *testing.T) {
	p := newPair(t, true)
	l, next := open(t, p.way.Addr()), open(t, p.way.Addr())
	takes(t, l, "key", "holder")
	granted := make(chan dlock.Attempt, 1)
	go func() {
		a, _ := next.Acquire(t.Context(), "key", "waiter", time.Minute)
		granted <- a
	}()
	admin := pool(t, p.primary.Addr)
	require.Eventually(t, func() bool { return scalar[int](t, admin, "SELECT count(*) FROM dlock_queue WHERE inbox <> 0") == 1 }, time.Minute, 10*time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	p.link.Refuse()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := l.Release(ctx, "key", "holder")
	require.Error(t, err)
	select {
	case a := <-granted:
		h, err := open(t, p.standby.Addr).Inspect(t.Context(), "key")
		t.Fatalf("granted %+v, and the standby has %+v, %v", a, h, err)
	case <-time.After(time.Second):
	}
	p.promote()
	require.Eventually(t, func() bool {
		held, err := l.Release(t.Context(), "key", "holder")
		return held && err == nil
	}, time.Minute, 10*time.Millisecond)
	require.True(t, (<-granted).Acquired)
}

//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/postgres"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/sqltest"
)

// These tests are like those of package stress, which are for Redis.

const calmLimit = 30 * time.Second // until all are served when the faults have ended

var stressKeys = []string{"key0", "key1", "key2"}

// A round is one run of workers while faults strike the server.
type round struct {
	*history.Recorder
	t         *testing.T
	stop      context.Context // when it ends, workers finish their last action
	endWork   context.CancelFunc
	limit     context.Context // when it ends, they give it up
	giveUp    context.CancelFunc
	work, bad sync.WaitGroup // workers; faults in progress

	mu    sync.Mutex
	waits map[string]string // in progress
	said  []string
}

func newRound(t *testing.T) *round {
	r := &round{Recorder: history.NewRecorder(time.Now()), t: t, waits: make(map[string]string)}
	r.limit, r.giveUp = context.WithCancel(context.Background())
	r.stop, r.endWork = context.WithCancel(r.limit)
	t.Cleanup(r.giveUp)
	return r
}

// say records a fault, or what it has led to.
func (r *round) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf("%v ", r.Now())+fmt.Sprintf(format, args...))
}

// start starts workers that share a Client, and returns what closes it when they have ended.
func (r *round) start(who, addr string, limit context.Context, workers int) (end func()) {
	config, err := pgxpool.ParseConfig(dsn(addr) + "&connect_timeout=1&pool_max_conns=4")
	require.NoError(r.t, err)
	p, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(r.t, err)
	l := postgres.New(p)
	c := dlock.New(l, dlock.WithFence(true))
	var work sync.WaitGroup
	for i := range workers {
		w := &worker{round: r, who: fmt.Sprint(who, "/", i), limit: limit,
			client: c.With(dlock.WithTTL([]time.Duration{300, 800, 2000}[i%3] * time.Millisecond))}
		work.Go(func() {
			for r.stop.Err() == nil && limit.Err() == nil {
				w.act()
			}
		})
	}
	return func() { work.Wait(); c.Close(); l.Close(); p.Close() }
}

type worker struct {
	*round
	who    string
	limit  context.Context
	client *dlock.Client
	asked  time.Duration
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// act is one action with one of the keys.
func (w *worker) act() {
	key := stressKeys[rand.IntN(len(stressKeys))]
	ctx, cancel := context.WithCancel(w.limit)
	defer cancel()
	unrenewed := w.client.With(dlock.WithRenewal(false), dlock.WithTTL(200*time.Millisecond))
	switch n := rand.IntN(100); {
	case n < 10:
		w.asked = w.Now()
		l, err := w.client.TryAcquire(ctx, key)
		w.failed(key, err)
		w.hold(l, rand.N(10*time.Millisecond))
	case n < 30:
		time.AfterFunc(rand.N(200*time.Millisecond), cancel)
		w.hold(w.acquire(ctx, w.client, key), rand.N(10*time.Millisecond))
	case n < 32: // like a process that has crashed
		if l := w.acquire(ctx, unrenewed, key); l != nil {
			w.Hold(w.who, l, w.asked).End = w.At(l.Deadline())
		}
	case n < 35: // like one that was stopped
		w.hold(w.acquire(ctx, unrenewed, key), 250*time.Millisecond)
	case n < 37:
		w.hold(w.acquire(ctx, w.client, key), 700*time.Millisecond)
	case n < 45:
		asked := w.Now()
		w.failed("set", w.client.DoAll(ctx, stressKeys, func(_ context.Context, all *dlock.Leases) error {
			for _, l := range all.All() {
				defer w.End(w.Hold(w.who, l, asked), l)
			}
			return nil
		}))
	default:
		w.hold(w.acquire(ctx, w.client, key), rand.N(10*time.Millisecond))
	}
}

// acquire tries until it has a lease. It returns nil if ctx has ended.
func (w *worker) acquire(ctx context.Context, c *dlock.Client, key string) *dlock.Lease {
	waits := func(text string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waits[w.who] = text
	}
	defer waits("")
	for ; ctx.Err() == nil; sleep(ctx, rand.N(20*time.Millisecond)) {
		w.asked = w.Now()
		waits(fmt.Sprintf("%v %s", w.asked, key))
		l, err := c.Acquire(ctx, key)
		if err == nil {
			return l
		}
		w.failed(key, err)
	}
	return nil
}

// failed reports those errors that no fault explains.
func (w *worker) failed(key string, err error) {
	for _, never := range []error{dlock.ErrInvalid, dlock.ErrReleased, errors.ErrUnsupported} {
		if errors.Is(err, never) {
			w.t.Errorf("%s: %s: %v", w.who, key, err)
		}
	}
}

func (w *worker) hold(l *dlock.Lease, d time.Duration) {
	if l == nil {
		return
	}
	h := w.Hold(w.who, l, w.asked)
	sleep(w.limit, d)
	w.End(h, l)
	deadline := l.Deadline()
	if err := l.Release(); errors.Is(err, dlock.ErrLost) && time.Now().Before(deadline) {
		h.Lost = w.Now()
		w.say("%s: %s is lost early: %v", w.who, l.Key(), err)
	}
}

// settle ends the workers, who must all be served, and closes all.
func (r *round) settle(ends []func()) {
	r.say("calm")
	late := time.AfterFunc(calmLimit, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.t.Errorf("not served within %v: %v\n%s", calmLimit, r.waits, strings.Join(r.said, "\n"))
		r.giveUp()
	})
	defer late.Stop()
	r.endWork()
	for _, end := range ends {
		r.work.Go(end)
	}
	r.work.Wait()
}

// nothingLeft checks that the server stores nothing but free keys, and that no session listens.
func (r *round) nothingLeft(addr string) {
	l, p := open(r.t, addr), pool(r.t, addr)
	for _, key := range stressKeys { // waiters that were killed are found
		a, err := l.Acquire(r.t.Context(), key, "last", time.Hour)
		require.NoError(r.t, err)
		require.True(r.t, a.Acquired)
		gives(r.t, l, key, "last")
	}
	require.NoError(r.t, l.Close())
	for what, sql := range map[string]string{
		"holders": "SELECT count(*) FROM dlock WHERE token IS NOT NULL AND expires > clock_timestamp()",
		"waiters": "SELECT count(*) FROM dlock_queue",
		"inboxes": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
	} {
		require.Eventually(r.t, func() bool { return scalar[int](r.t, p, sql) == 0 }, calmLimit, 20*time.Millisecond, what)
	}
	_, err := p.Exec(r.t.Context(), "UPDATE dlock_inbox SET seen = seen - interval '1 minute'; SELECT dlock_listen(1, true)")
	require.NoError(r.t, err)
	require.Equal(r.t, 1, scalar[int](r.t, p, "SELECT count(*) FROM dlock_inbox"))
}

// report fails the test if two held a key at once, if a lease was lost, unless lossy is set, or if a fence fell.
func (r *round) report(lossy bool) {
	h := r.History()
	lost := append(h.Losses(), h.Overlaps()...)
	r.t.Logf("%d holds, %d violations %v", len(h.Holds), len(lost), lost)
	if lossy {
		lost = nil
	}
	require.Empty(r.t, append(lost, h.Disorders(1)...), strings.Join(r.said, "\n"))
}

func proxy(t *testing.T, addr string) *faultproxy.Proxy {
	p, err := faultproxy.New(addr)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// A chaos is a round on one server.
type chaos struct {
	*round
	server *sqltest.Server
	p      *faultproxy.Proxy // of the fault
}

var stressFaults = map[string]func(c *chaos){
	"sessions ended": func(c *chaos) {
		c.sql("pg_terminate_backend", "pg_stat_activity WHERE backend_type = 'client backend' AND random() < 0.5")
	},
	"listeners ended":  func(c *chaos) { c.sql("pg_terminate_backend", "pg_locks WHERE locktype = 'advisory'") },
	"statements ended": func(c *chaos) { c.sql("pg_cancel_backend", "pg_stat_activity WHERE state = 'active'") },
	"restarted":        func(c *chaos) { c.server.Stop(syscall.SIGINT); c.server.Start() },
	"crashed":          func(c *chaos) { c.server.Stop(syscall.SIGQUIT); c.server.Start() },
	"suspended": func(c *chaos) {
		c.server.Suspend()
		time.Sleep(rand.N(400*time.Millisecond) << rand.IntN(4))
		c.server.Resume()
	},
	"connections cut": func(c *chaos) { c.p.Cut() },
	"blocked":         func(c *chaos) { c.p.Block(faultproxy.Both); c.heal() },
	"replies blocked": func(c *chaos) { c.p.Block(faultproxy.ToClient); c.heal() },
	"refused":         func(c *chaos) { c.p.Refuse(); c.heal() },
	"slow":            func(c *chaos) { c.p.Slow(faultproxy.Both, faultproxy.Pace{Jitter: 300 * time.Millisecond}); c.heal() },
	"reply lost":      func(c *chaos) { c.meet(c.p.DropReply(aboutKey, faultproxy.Cut)) },
	"reply stalled":   func(c *chaos) { c.meet(c.p.DropReply(aboutKey, faultproxy.Stall)) },
	"reply cut":       func(c *chaos) { c.meet(c.p.CutReply(faultproxy.Any)) },
	"request lost":    func(c *chaos) { c.meet(c.p.DropRequest(aboutKey, faultproxy.Cut)) },
	"request late":    func(c *chaos) { c.late(c.p.Hold(aboutKey, faultproxy.Cut)) },
	"client killed":   (*chaos).kill,
}

var aboutKey = faultproxy.Contains("key")

func (c *chaos) sql(what, of string) {
	ctx, cancel := context.WithTimeout(c.limit, time.Second)
	defer cancel()
	if conn, err := pgx.Connect(ctx, dsn(c.server.Addr)); err == nil {
		_, _ = conn.Exec(ctx, "SELECT "+what+"(pid) FROM "+of+" AND pid <> pg_backend_pid()")
		conn.Close(ctx)
	}
}

// heal ends what is wrong with the network after a while.
func (c *chaos) heal() {
	p := c.p
	c.bad.Go(func() { sleep(c.limit, rand.N(1500*time.Millisecond)); _ = p.Heal() })
}

// meet waits for a moment until a fault meets a request.
func (c *chaos) meet(f *faultproxy.Fault) bool {
	select {
	case <-f.Struck():
		return true
	case <-time.After(300 * time.Millisecond):
		return !c.p.Lift(f)
	}
}

func (c *chaos) late(f *faultproxy.Fault) {
	if c.meet(f) {
		time.Sleep(rand.N(500 * time.Millisecond))
		_ = f.Deliver(c.limit)
	}
}

// kill cuts a Client off for good while it holds and waits: to the server, a process has died.
func (c *chaos) kill() {
	p := proxy(c.t, c.server.Addr)
	limit, cancel := context.WithCancel(c.limit)
	end := c.start("killed", p.Addr(), limit, 5)
	time.Sleep(rand.N(500 * time.Millisecond))
	p.Refuse()
	cancel()
	c.work.Go(end)
}

// TestStress strikes with each fault once, and until stress of DLOCK_LONG has passed. Then all are served, and nothing
// is left.
func TestStress(t *testing.T) {
	server := sqltest.Start(t)
	require.NoError(t, open(t, server.Addr).CreateTable(t.Context()))
	c := &chaos{round: newRound(t), server: server}
	proxies := []*faultproxy.Proxy{proxy(t, server.Addr), proxy(t, server.Addr)}
	var ends []func()
	for i, addr := range []string{server.Addr, proxies[0].Addr(), server.Addr, proxies[1].Addr()} {
		ends = append(ends, c.start(fmt.Sprint("client", i), addr, c.limit, 7))
	}
	d, _ := time.ParseDuration(long.Of("stress"))
	for again := true; again; again = c.Now() < d && !t.Failed() {
		for name, strike := range stressFaults { // in any order
			c.say("%s", name)
			c.p = proxies[rand.IntN(2)]
			strike(c)
			sleep(c.limit, rand.N(100*time.Millisecond)<<rand.IntN(3))
		}
	}
	c.bad.Wait()
	c.settle(ends)
	c.report(false)
	c.nothingLeft(server.Addr)
}

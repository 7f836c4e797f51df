package rueidis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A hungClient answers calls when it is told, and ignores their context.
type hungClient struct {
	rueidis.Client
	mode    rueidis.ClientMode
	answers chan error // nil for an answer of the server
	began   func()
}

func (c *hungClient) Mode() rueidis.ClientMode { return c.mode }

func (c *hungClient) Do(context.Context, rueidis.Completed) rueidis.RedisResult {
	if c.began != nil {
		c.began()
	}
	return rueidis.NewErrorResult(<-c.answers)
}

func (c *hungClient) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	return []rueidis.RedisResult{c.Do(ctx, cmds[0]), rueidis.NewErrorResult(nil)}
}

func (c *hungClient) B() rueidis.Builder { return rueidis.Builder{} }

func (c *hungClient) Receive(ctx context.Context, _ rueidis.Completed, _ func(rueidis.PubSubMessage)) error {
	<-ctx.Done()
	return ctx.Err()
}

var ping rueidis.Completed

// Calls behind one that has hung for 100 ms return with their contexts. At most 1,024 are left behind.
func TestGuardLeavesCallsThatHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client := &hungClient{answers: make(chan error)}
		g := newGuard(client)
		time.Sleep(time.Hour)
		go g.Do(t.Context(), ping)
		time.Sleep(hungAfter)

		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		var all sync.WaitGroup
		for i := range 1024 {
			all.Go(func() {
				var err error
				if i%2 == 0 {
					err = g.Do(ctx, ping).NonRedisError()
				} else {
					err = g.DoMulti(ctx, ping, ping)[1].NonRedisError()
				}
				assert.Equal(t, context.DeadlineExceeded, err)
				assert.False(t, dlock.NoEffect(err), "a call that is left behind had no effect")
				assert.Equal(t, 300*time.Millisecond+lastWord, time.Since(start))
			})
		}
		synctest.Wait()
		err := g.Do(ctx, ping).NonRedisError()
		assert.ErrorIs(t, err, context.DeadlineExceeded, "a call for which there is no goroutine")
		assert.True(t, dlock.NoEffect(err), "it was never made: %v", err)
		assert.Equal(t, 300*time.Millisecond, time.Since(start))
		all.Wait()
		assert.Len(t, g.apart, 1024)

		start = time.Now()
		for _, err := range []error{g.Do(t.Context(), ping).NonRedisError(), g.DoMulti(t.Context(), ping, ping)[1].NonRedisError()} {
			assert.ErrorIs(t, err, dlock.ErrUnavailable)
			assert.True(t, dlock.NoEffect(err), "%v", err)
			assert.False(t, dlock.Refused(err), "%v", err)
		}
		assert.Zero(t, time.Since(start), "a call has waited though all goroutines are left behind")

		for range 1 + 1024 {
			client.answers <- nil
		}
		synctest.Wait()
		assert.Empty(t, g.apart)
		assert.Zero(t, g.left.Load())
		assert.True(t, g.begin(), "nothing hangs any more")
	})
}

// A pause of the process makes calls look as if they hung. However many they are, none is refused.
func TestGuardServesAllAfterAPause(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client := &hungClient{answers: make(chan error)}
		g := newGuard(client)
		go g.Do(t.Context(), ping)
		time.Sleep(hungAfter)
		var all sync.WaitGroup
		for range 3_000 {
			all.Go(func() { assert.NoError(t, g.Do(t.Context(), ping).NonRedisError()) })
		}
		synctest.Wait()
		for range 1 + 3_000 {
			client.answers <- nil
		}
		all.Wait()
		synctest.Wait()
		assert.Zero(t, len(g.apart)+int(g.left.Load()))
	})
}

// While no call has hung or failed, a call runs in the goroutine of its caller.
func TestGuardOfAClientThatAnswers(t *testing.T) {
	for _, mode := range []rueidis.ClientMode{rueidis.ClientModeStandalone, rueidis.ClientModeCluster} {
		t.Run(string(mode), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				client := &hungClient{mode: mode, answers: make(chan error, 1)}
				g := newGuard(client)
				apart := 0
				client.began = func() { apart = len(g.apart) }
				requireApart := func(want int, answer error) {
					t.Helper()
					client.answers <- answer
					g.DoMulti(t.Context(), ping, ping)
					require.Equal(t, want, apart, "goroutines")
				}
				requireApart(0, nil)
				time.Sleep(time.Hour)
				requireApart(0, nil)
				g.begin() // another call
				time.Sleep(hungAfter - 1)
				requireApart(0, nil)
				time.Sleep(hungAfter)
				requireApart(1, nil)
				requireApart(0, nil)
				requireApart(0, errors.New("no answer"))
				requireApart(1, nil)
				if mode == rueidis.ClientModeCluster { // the answer may be that of another server
					requireApart(1, nil)
					time.Sleep(failureLasts)
					requireApart(1, nil)
				}
				requireApart(0, nil)
			})
		})
	}
}

// A subscription is a call until the server confirms it: others may wait for its connection.
func TestGuardCountsSubscriptions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newConn(&hungClient{})
		ended := make(chan error)
		go func() { ended <- c.Listen(t.Context(), "inbox", false, func(rediscore.Event) {}) }()
		time.Sleep(hungAfter)
		require.False(t, c.client.begin(), "a subscription hangs")
		c.client.inFlight.Add(-1)
		require.ErrorIs(t, <-ended, errSlow)
		require.Zero(t, c.client.inFlight.Load())
		require.False(t, c.client.begin(), "a subscription has failed")
	})
}

// rueidis panics if a server refuses the PING behind an UNSUBSCRIBE, as one does that cannot save. None is sent there.
func TestNoUnsubscribeWhereAPingIsRefused(t *testing.T) {
	for text, calls := range map[string]int{
		"": 2, "NOPERM User u has no permissions to run the 'ping' command": 2,
		"MISCONF Errors writing to the RDB file": 1, "MASTERDOWN Link with MASTER is down": 1,
	} {
		wire, made := &hungClient{answers: make(chan error, 2)}, 0
		wire.began = func() { made++ }
		var refusal error
		if text != "" {
			refusal = errors.New(text)
		}
		wire.answers <- refusal
		wire.answers <- nil
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		s := &subscription{ctx: ended, guard: newGuard(wire), unsubscribe: func() rueidis.Completed { return ping }}
		require.Equal(t, context.Canceled, s.ending(context.Canceled, wire))
		s.leaving.Wait()
		require.Equal(t, calls, made, "calls: %q", text)
	}
}

// A call that ends with its context all the same is not left behind: its own error says more.
func TestGuardAwaitsTheLastWord(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		client := &hungClient{answers: make(chan error)}
		g := newGuard(client)
		g.note(errors.New("no answer"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		dial := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
		time.AfterFunc(time.Second+lastWord/2, func() { client.answers <- dial })
		require.Equal(t, dial, g.Do(ctx, ping).NonRedisError())
	})
}

// Close waits for calls that were left behind, for at most 5 s.
func TestCloseAwaitsCallsLeftBehind(t *testing.T) {
	for _, hangs := range []time.Duration{0, time.Second, time.Hour} {
		t.Run(hangs.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				client := &hungClient{answers: make(chan error)}
				c := newConn(client)
				c.client.note(errors.New("no answer"))
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				c.client.Do(ctx, ping)
				go func() { time.Sleep(hangs); client.answers <- nil }()
				synctest.Wait()
				start := time.Now()
				require.NoError(t, rediscore.New(c).Close())
				require.InDelta(t, min(hangs, 5*time.Second), time.Since(start), float64(drainPause))
				time.Sleep(hangs)
			})
		})
	}
}

// A guard costs nothing: a client that answers at once would show it.
func TestGuardAllocates(t *testing.T) {
	client := &hungClient{answers: make(chan error)}
	close(client.answers)
	g := newGuard(client)
	require.Zero(t, testing.AllocsPerRun(100, func() { g.Do(t.Context(), ping) }))
	cmds := rueidis.Commands{ping, ping}
	alone := testing.AllocsPerRun(100, func() { client.DoMulti(t.Context(), cmds...) })
	require.Equal(t, alone, testing.AllocsPerRun(100, func() { g.DoMulti(t.Context(), cmds...) }))
}

// A lockCall fails if the store does not answer.
type lockCall func(context.Context, *rediscore.Locker) error

// method is a call of a method, with a token of its own.
func method(name string) lockCall {
	return func(ctx context.Context, l *rediscore.Locker) error {
		_, err := adaptertest.Methods(ctx, l, name)[name]()
		return err
	}
}

// While one call waits for its connection to a server that hangs, all others end with their contexts.
func TestContextWhileAnotherConnects(t *testing.T) {
	for name, opts := range map[string][]Option{"Alone": nil, "WithReplicas": {WithReplicas(1, 10*time.Millisecond)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, w, l := patientLocker(t, opts...)
			server.Suspend()
			w.cut()
			require.Error(t, <-begin(t, l, time.Minute, method("Inspect"))) // it finds that out
			connects := begin(t, l, time.Minute, method("Inspect"))
			<-w.dials
			requireContextsEnd(t, l, connects)
			server.Resume()
			require.NoError(t, <-connects)
		})
	}
}

// While a subscription waits for its connection to a server that hangs, all calls end with their
// contexts.
func TestContextWhileAListenConnects(t *testing.T) {
	t.Parallel()
	server, w, l := patientLocker(t)
	_, err := l.TryAcquire(t.Context(), "other", "holds", time.Minute)
	require.NoError(t, err)
	waits := begin(t, l, time.Minute, func(ctx context.Context, l *rediscore.Locker) error {
		_, err := l.Acquire(ctx, "other", "waits", time.Minute)
		return err
	})
	require.Eventually(t, func() bool {
		hold, err := l.Inspect(t.Context(), "other")
		channels, _ := server.Do("PUBSUB", "CHANNELS")
		return err == nil && hold.Waiting == 1 && len(channels.([]any)) == 1
	}, 30*time.Second, time.Millisecond, "nobody waits and listens")
	server.Suspend()
	w.cut()
	<-w.dials
	requireContextsEnd(t, l, waits)
	server.Resume()
	_, err = l.Release(t.Context(), "other", "holds")
	require.NoError(t, err)
	require.NoError(t, <-waits)
}

// requireContextsEnd makes all calls, which must end before endless does.
func requireContextsEnd(t *testing.T, l *rediscore.Locker, endless <-chan error) {
	t.Helper()
	all := adaptertest.Methods(t.Context(), l, "")
	ended, n := make(chan string, 2*len(all)), 0
	for name := range all {
		for _, cancelled := range []bool{false, true} {
			n++
			limit := 200 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			if cancelled {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
				time.AfterFunc(limit, cancel)
			}
			go func() {
				defer cancel()
				start := time.Now()
				err := method(name)(ctx, l)
				took := time.Since(start).Round(time.Millisecond)
				assert.Error(t, err, name)
				ended <- fmt.Sprintf("%s, cancelled: %t: after %v: %v", name, cancelled, took, err)
			}()
		}
	}
	late := time.After(20 * time.Second)
	for range n {
		select {
		case how := <-ended:
			t.Log(how)
		case err := <-endless:
			require.Fail(t, "the call in front has ended", "%v", err)
		case <-late:
			require.Fail(t, "a call has not ended with its context")
		}
	}
}

// wires are the connections of a client.
type wires struct {
	dials chan struct{} // after the first

	mu   sync.Mutex
	open []net.Conn
}

func (w *wires) dial(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open = append(w.open, conn); len(w.open) > 1 {
		select {
		case w.dials <- struct{}{}:
		default:
		}
	}
	return conn, nil
}

func (w *wires) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.open {
		conn.Close()
	}
}

// patientLocker returns a Locker of a client that has one connection, and no time limits of its own.
func patientLocker(t *testing.T, opts ...Option) (*redistest.Server, *wires, *rediscore.Locker) {
	server, w := redistest.Start(t), &wires{dials: make(chan struct{}, 1)}
	option := rueidis.ClientOption{InitAddress: []string{server.Addr()}, DialCtxFn: w.dial, PipelineMultiplex: -1}
	option.ConnWriteTimeout, option.Dialer.Timeout = time.Minute, time.Minute
	client := newClient(t, option)
	l := New(client, opts...)
	t.Cleanup(func() { server.Resume(); l.Close() })
	return server, w, l
}

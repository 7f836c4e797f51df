package backend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A scripted Conn answers as a test says, in virtual time.
type scripted struct {
	eval    func(kind, token string) (any, error)                            // a call of a script
	listen  func(ctx context.Context, n int, on func(rediscore.Event)) error // the nth subscription
	listens atomic.Int64
}

// headers are the beginnings of the comments of scripts.
var headers = map[string]string{
	"enqueue": "-- Grants the lock to a token as acquire.lua does",
	"ask":     "-- Tells a waiter",
	"release": "-- Ends the lease of a token, or its wait",
}

func (s *scripted) Eval(_ context.Context, call rediscore.Call) (any, error) {
	for kind, header := range headers {
		if strings.Contains(call.Script.Source, header) {
			return s.eval(kind, call.Args[0])
		}
	}
	return nil, errors.New("another script")
}

func (s *scripted) Listen(ctx context.Context, _ string, _ bool, on func(rediscore.Event)) error {
	return s.listen(ctx, int(s.listens.Add(1)), on)
}

func (s *scripted) EvalAll(context.Context, []rediscore.Call, []rediscore.Result) {}
func (s *scripted) Cluster() bool                                                 { return false }

// waits is the answer that tells the first waiter the server's time.
func waits(at time.Duration) any {
	return []any{int64(1), int64(100), int64(0), at.Microseconds(), "holder", int64(time.Hour.Milliseconds())}
}

var errEnded = errors.New("subscription ended")

// A change of servers: while an ask is on its way, the inbox is lost and opened anew, on
// a server whose clock is ahead. Then the answer comes, of the server of before, and then
// a message. The Conn has a second waiter, which goes on waiting.
type change struct {
	scripted
	start         time.Time
	granted       time.Time
	lost, arrived chan struct{}
	told          chan struct{} // closed when granted is set
	asks          int
}

const (
	before = 1000 * time.Second // what the first server's clock shows at the start
	ahead  = 1100 * time.Second // and the second's
)

func newChange() *change {
	c := &change{start: time.Now(), lost: make(chan struct{}), arrived: make(chan struct{}), told: make(chan struct{})}
	c.scripted.eval, c.scripted.listen = c.eval, c.listen
	return c
}

func (c *change) eval(kind, token string) (any, error) {
	if kind != "ask" || token != "token" {
		return waits(before + time.Since(c.start)), nil
	}
	c.asks++
	if c.asks == 1 { // since the inbox is open
		at := before + time.Since(c.start)
		close(c.lost)
		<-c.arrived
		return waits(at), nil
	}
	<-c.told
	time.Sleep(time.Second)
	granted := ahead + c.granted.Sub(c.start)
	return []any{int64(2), int64(7), granted.Microseconds(), (ahead + time.Since(c.start)).Microseconds()}, nil
}

func (c *change) listen(ctx context.Context, n int, on func(rediscore.Event)) error {
	on(rediscore.Event{Kind: rediscore.Subscribed})
	if n == 1 {
		<-c.lost
		return errEnded
	}
	if n == 2 {
		synctest.Wait()
		close(c.arrived)
		time.Sleep(time.Microsecond)
		c.granted = time.Now()
		close(c.told)
		message := fmt.Sprintf("7 %d token", (ahead + c.granted.Sub(c.start)).Microseconds())
		on(rediscore.Event{Kind: rediscore.Message, Payload: message})
	}
	<-ctx.Done()
	return ctx.Err()
}

// An answer that was on its way when the inbox was opened anew may be of the server of
// before. It must not date a message of another server. A message that was only a hint
// has come all the same: the inbox is not deaf, and is not opened anew.
func TestWaitAcrossAChangeOfServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChange()
		l := rediscore.New(c)
		defer l.Close()
		go l.Acquire(t.Context(), "k", "other", ttl)
		synctest.Wait()
		attempt, err := l.Acquire(t.Context(), "k", "token", ttl)
		require.NoError(t, err)
		require.WithinRange(t, attempt.Since, c.granted.Add(-2*time.Second), c.granted, "the date of the grant")
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, c.listens.Load(), "subscriptions")
	})
}

// A grant was found by an ask, and its message comes while the lease is being released.
// It must not be released by the inbox too: the release that is on its way would find
// nothing, and the lease would count as lost. If it has found nothing, the message may be
// of a grant that came after it.
func TestMessageDuringTheRelease(t *testing.T) {
	for held, want := range map[bool]int{true: 1, false: 2} {
		t.Run(fmt.Sprint(held), func(t *testing.T) { messageDuringTheRelease(t, held, want) })
	}
}

func messageDuringTheRelease(t *testing.T, held bool, want int) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asks, releases := 0, 0
		found := held
		message := make(chan struct{})
		conn := &scripted{
			eval: func(kind, _ string) (any, error) {
				mu.Lock()
				defer mu.Unlock()
				switch kind {
				case "ask":
					if asks++; asks > 1 {
						return []any{int64(2), int64(7), int64(1), int64(2)}, nil
					}
				case "release":
					if releases++; releases == 1 {
						mu.Unlock()
						close(message)
						time.Sleep(time.Second)
						mu.Lock()
					}
					was := held
					held = false
					return map[bool]int64{true: 1}[was], nil
				}
				return waits(time.Second), nil
			},
			listen: func(ctx context.Context, _ int, on func(rediscore.Event)) error {
				on(rediscore.Event{Kind: rediscore.Subscribed})
				<-message
				on(rediscore.Event{Kind: rediscore.Message, Payload: "7 1 token"})
				<-ctx.Done()
				return ctx.Err()
			},
		}
		l := rediscore.New(conn)
		defer l.Close()
		_, err := l.Acquire(t.Context(), "k", "token", ttl)
		require.NoError(t, err)
		was, err := l.Release(t.Context(), "k", "token")
		require.NoError(t, err)
		require.Equal(t, found, was, "the answer of the release")
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, want, releases)
	})
}

// Subscriptions that end as soon as they have begun are not made again in haste, and
// do not make all who wait ask in haste.
func TestInboxThatDoesNotLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &scripted{
			eval: func(string, string) (any, error) { return waits(time.Second), nil },
			listen: func(_ context.Context, _ int, on func(rediscore.Event)) error {
				on(rediscore.Event{Kind: rediscore.Subscribed})
				return errEnded
			},
		}
		l := rediscore.New(conn)
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := l.Acquire(ctx, "k", "token", ttl)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, conn.listens.Load(), int64(30), "subscriptions in a minute")
	})
}

// When Close returns nothing is under way any more, so that the client can be closed:
// what was taken into the queue, or granted, has been given back.
func TestCloseGivesBackFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queued, late, closed atomic.Bool
		conn := &scripted{
			eval: func(kind, _ string) (any, error) {
				time.Sleep(map[string]time.Duration{"enqueue": 2 * time.Second, "release": time.Second / 2}[kind])
				if closed.Load() {
					late.Store(true)
				}
				queued.Store(kind != "release")
				return waits(time.Second), nil
			},
			listen: func(ctx context.Context, _ int, on func(rediscore.Event)) error {
				on(rediscore.Event{Kind: rediscore.Subscribed})
				<-ctx.Done()
				return ctx.Err()
			},
		}
		l := rediscore.New(conn)
		result := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), "k", "token", ttl)
			result <- err
		}()
		time.Sleep(time.Second / 2) // the enqueue is on its way
		require.NoError(t, l.Close())
		closed.Store(true)
		require.False(t, queued.Load(), "the token stands in the queue when Close has returned")
		require.ErrorIs(t, <-result, dlock.ErrClosed)
		time.Sleep(time.Hour)
		require.False(t, late.Load(), "something was sent after Close")
	})
}

// A clock that has been set back must not make the dead live on.
func TestDeadWaiterAndClockSetBack(t *testing.T) {
	server := redistest.Start(t)
	for name, inbox := range map[string]string{"without an inbox": "", "whose inbox somebody listens to": "pchannel"} {
		t.Run(name, func(t *testing.T) {
			do(t, server, "FLUSHALL")
			l := dialGoRedis(t, server.Addr())
			acquire(t, l, "k", "first")
			ctx, cancel := context.WithCancel(t.Context())
			waited := make(chan error, 1)
			go func() {
				_, err := l.Acquire(ctx, "k", "dead", ttl)
				waited <- err
			}()
			var queue, waiters string
			await(t, "the waiter to stand in the queue", func() error {
				for _, key := range server.Keys(t) {
					if strings.HasSuffix(key, "dlock1:queue:k") {
						queue = key
					} else if strings.HasSuffix(key, "dlock1:waiters:k") {
						waiters = key
					}
				}
				if queue == "" || waiters == "" {
					return errors.New("no queue")
				}
				return nil
			})
			cancel()
			require.ErrorIs(t, <-waited, context.Canceled)
			seen := time.Now().Add(time.Hour).UnixMicro()
			subscriber := goredislib.NewClient(&goredislib.Options{Addr: server.Addr()}).Subscribe(t.Context(), "channel")
			defer subscriber.Close()
			_, err := subscriber.Receive(t.Context())
			require.NoError(t, err)
			do(t, server, "HSET", waiters, ":dead", fmt.Sprintf("%d %d %s", seen, ttl.Milliseconds(), inbox))
			require.True(t, release(t, l, "k", "first"))
			acquire(t, l, "k", "next")
		})
	}
}

package adaptertest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func fenceSurvivesRestart(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	l := a.dial(t, server.Addr()).New()
	before, err := l.TryAcquire(t.Context(), "k", "a", ttl)
	require.NoError(t, err)
	server.Restart()
	var after dlock.Attempt
	require.Eventually(t, func() bool { // the client finds out that its connections are gone
		after, err = l.TryAcquire(t.Context(), "k", "b", ttl)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	require.True(t, after.Acquired)
	require.Greater(t, after.Fence, before.Fence)
}

// roundTrips counts what the server reads from its sockets.
func roundTrips(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	client := dlock.New(a.dial(t, server.Addr()).New())
	cycle := func() {
		lease, err := client.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, lease.Release())
	}
	cycle()
	before, commands := reads(t, server), server.CommandCount(t)["evalsha"]
	const cycles = 100
	for range cycles {
		cycle()
	}
	require.EqualValues(t, 2*cycles, server.CommandCount(t)["evalsha"]-commands)
	got := reads(t, server) - before
	require.InDelta(t, 2*cycles, got, 10, "reads of the server, apart from those that count them")
}

func renewalRoundTrips(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	l := a.dial(t, server.Addr()).New()
	batch := make([]dlock.Renewal, 1000)
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("k", i), Token: "t", TTL: ttl}
		_, err := l.TryAcquire(t.Context(), batch[i].Key, "t", ttl)
		require.NoError(t, err)
	}
	batch[500].Token = "stranger"
	for _, flushed := range []bool{true, false} {
		if flushed {
			do(t, server, "SCRIPT", "FLUSH")
		}
		before := reads(t, server)
		results, err := l.RenewBatch(t.Context(), batch)
		require.NoError(t, err)
		require.Len(t, results, len(batch))
		for i, r := range results {
			require.NoError(t, r.Err)
			require.Equal(t, i != 500, r.Held, "lease %d", i)
		}
		t.Logf("1000 renewals: %d reads by the server (scripts flushed: %v)", reads(t, server)-before, flushed)
		if !flushed {
			require.LessOrEqual(t, reads(t, server)-before, int64(60))
		}
	}
}

// reads returns how many times the server has read from a socket so far.
func reads(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	for line := range strings.Lines(do(t, server, "INFO", "stats").(string)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "total_reads_processed:"); ok {
			reads, err := strconv.ParseInt(n, 10, 64)
			require.NoError(t, err)
			return reads
		}
	}
	t.Skip("this server does not count its reads")
	return 0
}

func scriptFlush(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	l := a.dial(t, server.Addr()).New()
	for _, step := range []func() (bool, error){
		func() (bool, error) {
			a, err := l.TryAcquire(t.Context(), "k", "t", ttl)
			return a.Acquired, err
		},
		func() (bool, error) { return l.Renew(t.Context(), "k", "t", ttl) },
		func() (bool, error) {
			results, err := l.RenewBatch(t.Context(), []dlock.Renewal{{Key: "k", Token: "t", TTL: ttl}})
			return err == nil && results[0].Held, err
		},
		func() (bool, error) {
			h, err := l.Inspect(t.Context(), "k")
			return h.Held, err
		},
		func() (bool, error) { return l.Release(t.Context(), "k", "t") },
	} {
		do(t, server, "SCRIPT", "FLUSH")
		ok, err := step()
		require.NoError(t, err)
		require.True(t, ok)
	}
}

// nothingIsSentTwice cuts the connection when a call has reached the server, and
// counts how often the server runs it.
func nothingIsSentTwice(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	cut := &cutter{t: t, to: server.Addr()}
	l := a.dial(t, cut.listen()).New()
	warm := func() error {
		_, err := l.TryAcquire(t.Context(), "warm", "t", ttl)
		return err
	}
	require.NoError(t, warm())
	for name, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := l.TryAcquire(t.Context(), "k", "t", ttl); return err },
		"Renew":      func() error { _, err := l.Renew(t.Context(), "k", "t", ttl); return err },
		"Release":    func() error { _, err := l.Release(t.Context(), "k", "t"); return err },
		"RenewBatch": func() error {
			r, err := l.RenewBatch(t.Context(), []dlock.Renewal{{Key: "k", Token: "t", TTL: ttl}})
			if err == nil {
				err = r[0].Err
			}
			return err
		},
	} {
		require.Eventually(t, func() bool { return warm() == nil }, 20*time.Second, time.Millisecond)
		before := server.CommandCount(t)["evalsha"]
		cut.replies(true)
		err := call()
		require.Error(t, err, name)
		time.Sleep(100 * time.Millisecond) // for a second try
		cut.replies(false)
		require.EqualValues(t, 1, server.CommandCount(t)["evalsha"]-before, name)
	}
}

// A cutter is a proxy that can close a connection instead of passing on a reply.
type cutter struct {
	t  testing.TB
	to string

	mu  sync.Mutex
	cut bool
}

func (c *cutter) replies(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
}

func (c *cutter) cuts() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cutter) listen() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(c.t, err)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(func() {
		cancel()
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { c.serve(ctx, client) })
		}
	})
	return l.Addr().String()
}

func (c *cutter) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { client.Close(); server.Close() })()
	script := make(chan bool, 1) // a script is on its way
	go func() {
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if n > 0 {
				if bytes.Contains(bytes.ToUpper(buf[:n]), []byte("EVALSHA")) {
					select {
					case script <- true:
					default:
					}
				}
				server.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		select {
		case <-script:
			if c.cuts() {
				return
			}
		default:
		}
		if n > 0 {
			client.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func listen(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	for _, sharded := range []bool{false, true} {
		publish, numsub := "PUBLISH", "NUMSUB"
		if sharded {
			publish, numsub = "SPUBLISH", "SHARDNUMSUB"
			if _, err := server.Do("SPUBLISH", "x", "x"); err != nil {
				t.Logf("no shard channels: %v", err)
				continue
			}
		}
		inbox := start(t, a.dial(t, server.Addr()).Conn, sharded)
		require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, inbox.next())
		for _, payload := range []string{"one", "", "two\r\n\x00é", strings.Repeat("x", 100_000)} {
			require.EqualValues(t, 1, do(t, server, publish, "ch {1}\n", payload))
			require.Equal(t, rediscore.Event{Kind: rediscore.Message, Payload: payload}, inbox.next())
		}
		inbox.cancel()
		require.ErrorIs(t, <-inbox.ended, context.Canceled)
		require.Eventually(t, func() bool {
			reply := do(t, server, "PUBSUB", numsub, "ch {1}\n").([]any)
			return reply[1] == int64(0)
		}, 20*time.Second, time.Millisecond, "a subscription was left behind")
	}
}

func listenEndsWithTheConnection(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	inbox := start(t, a.dial(t, server.Addr()).Conn, false)
	require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, inbox.next())
	require.EqualValues(t, 1, do(t, server, "CLIENT", "KILL", "TYPE", "pubsub"))
	select {
	case err := <-inbox.ended:
		require.Error(t, err)
		require.NotErrorIs(t, err, context.Canceled)
	case <-time.After(10 * time.Second):
		t.Fatal("Listen did not notice that its connection was gone")
	}
	time.Sleep(100 * time.Millisecond)
	reply := do(t, server, "PUBSUB", "NUMSUB", "ch {1}\n").([]any)
	require.EqualValues(t, 0, reply[1], "it has subscribed again")
}

// An inbox is a Listen in the background.
type inbox struct {
	t      testing.TB
	cancel context.CancelFunc
	events chan rediscore.Event
	ended  chan error
}

func start(t testing.TB, conn rediscore.Conn, sharded bool) *inbox {
	return startOn(t, conn, shardChannel, sharded)
}

func startOn(t testing.TB, conn rediscore.Conn, channel string, sharded bool) *inbox {
	ctx, cancel := context.WithCancel(context.Background())
	i := &inbox{t, cancel, make(chan rediscore.Event, 10), make(chan error, 1)}
	t.Cleanup(cancel)
	go func() {
		i.ended <- conn.Listen(ctx, channel, sharded, func(e rediscore.Event) { i.events <- e })
	}()
	return i
}

func (i *inbox) next() rediscore.Event {
	i.t.Helper()
	select {
	case e := <-i.events:
		return e
	case err := <-i.ended:
		i.t.Fatalf("Listen ended: %v", err)
	case <-time.After(10 * time.Second):
		i.t.Fatal("no event")
	}
	return rediscore.Event{}
}

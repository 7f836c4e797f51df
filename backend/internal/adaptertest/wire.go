package adaptertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// roundTrips counts what a cycle costs the server, each with a new key: reads of its sockets, scripts, all commands with
// those of scripts, and the keys that stay.
func roundTrips(t *testing.T, a Adapter) {
	server, l := a.start(t)
	client := dlock.New(l)
	cycle := func(key int) {
		lease, err := client.TryAcquire(t.Context(), fmt.Sprint("order:", key))
		require.NoError(t, err)
		require.NoError(t, lease.Release())
	}
	cycle(-1)
	before, commands := reads(t, server), server.CommandCount(t)
	const cycles = 1000
	for i := range cycles {
		cycle(i)
	}
	ran := server.CommandCount(t)
	require.InDelta(t, 2*cycles, reads(t, server)-before, 10, "reads of the server, apart from those that count them")
	require.EqualValues(t, 2*cycles, ran["evalsha"]-commands["evalsha"])
	var sum int64
	for name, n := range ran {
		sum += n - commands[name]
	}
	require.LessOrEqual(t, sum, int64(10*cycles+10), "%v", ran)
	require.LessOrEqual(t, len(server.Keys(t)), 2, "keys that %d different locks left", cycles)
}

func renewalRoundTrips(t *testing.T, a Adapter) {
	server, l := a.start(t)
	batch := make([]dlock.Renewal, 1000)
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("k", i), Token: "t", TTL: ttl}
		take(t, l, batch[i].Key, "t")
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
		took := reads(t, server) - before
		t.Logf("%d renewals: %d reads by the server (scripts flushed: %v)", len(batch), took, flushed)
		if !flushed { // a read takes what has come, about 20 times in all, more often on a busy machine
			require.Less(t, took, len(batch)/5)
		}
	}
}

// reads returns how many times the server has read from a socket so far.
func reads(t *testing.T, server *redistest.Server) int {
	t.Helper()
	n, counts := server.Info(t, "stats")["total_reads_processed"]
	if !counts {
		t.Skip("this server does not count its reads")
	}
	reads, err := strconv.Atoi(n)
	require.NoError(t, err)
	return reads
}

func scriptFlush(t *testing.T, a Adapter) {
	server, l := a.start(t)
	requireCalls(t, l, func() { do(t, server, "SCRIPT", "FLUSH") })
}

// forbiddenAlgorithms makes all calls in a process that ends when it uses SHA-1. Without a server, it shows that such a
// process begins.
func forbiddenAlgorithms(t *testing.T, _ Adapter) {
	c := exec.Command(os.Args[0], "-test.short", "-test.run", "^"+path.Dir(t.Name())+"$/^ScriptFlush$")
	c.Env = append(os.Environ(), "GODEBUG=fips140=only")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// requireCalls makes all calls.
func requireCalls(t *testing.T, l *rediscore.Locker, before func()) {
	for _, name := range inOrder {
		before()
		ok, err := Methods(t.Context(), l, "t")[name]()
		require.NoError(t, err, name)
		require.True(t, ok, name)
	}
}

// Proxy returns a proxy before a server. It is closed when t ends.
func Proxy(t testing.TB, addr string) *faultproxy.Proxy {
	t.Helper()
	proxy, err := faultproxy.New(addr)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	return proxy
}

// NothingIsSentTwice is one of the tests of Run, for a client of another kind. It cuts the connection when a call has reached the server, and
// counts how often the server runs it.
func NothingIsSentTwice(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	proxy := Proxy(t, server.Addr())
	l := rediscore.New(a.dial(t, proxy.Addr()))
	for _, name := range inOrder {
		if name == "Inspect" { // it may be sent twice
			continue
		}
		require.Eventually(t, func() bool { // the client finds out that its connection is gone
			_, err := l.TryAcquire(t.Context(), "warm", "t", ttl)
			return err == nil
		}, 20*time.Second, time.Millisecond)
		before := server.CommandCount(t)["evalsha"]
		proxy.DropReply(faultproxy.Command("EVALSHA"), faultproxy.Cut)
		_, err := Methods(t.Context(), l, "t")[name]()
		require.Error(t, err, name)
		time.Sleep(100 * time.Millisecond) // for a second try
		require.EqualValues(t, 1, server.CommandCount(t)["evalsha"]-before, name)
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
		inbox := Subscribe(t, a.dial(t, server.Addr()), inboxChannel, sharded)
		for _, payload := range []string{"one", "", "two\r\n\x00é", strings.Repeat("x", 100_000)} {
			require.EqualValues(t, 1, do(t, server, publish, inboxChannel, payload))
			inbox.RequireMessage(payload)
		}
		inbox.Close()
		require.Eventually(t, func() bool {
			return do(t, server, "PUBSUB", numsub, inboxChannel).([]any)[1] == int64(0)
		}, 20*time.Second, time.Millisecond, "a subscription was left behind")
	}
}

func listenEndsWithTheConnection(t *testing.T, a Adapter) {
	server := redistest.Start(t)
	inbox := Subscribe(t, a.dial(t, server.Addr()), inboxChannel, false)
	require.EqualValues(t, 1, do(t, server, "CLIENT", "KILL", "TYPE", "pubsub"))
	inbox.requireLost()
	time.Sleep(100 * time.Millisecond)
	reply := do(t, server, "PUBSUB", "NUMSUB", inboxChannel).([]any)
	require.EqualValues(t, 0, reply[1], "it has subscribed again")
}

const inboxChannel = "ch {1}\n"

// An Inbox is a Listen in the background.
type Inbox struct {
	t      testing.TB
	cancel context.CancelFunc
	events chan rediscore.Event
	Ended  chan error // has its error
}

// Listen starts an Inbox.
func Listen(t testing.TB, conn rediscore.Conn, channel string, sharded bool) *Inbox {
	ctx, cancel := context.WithCancel(context.Background())
	i := &Inbox{t, cancel, make(chan rediscore.Event, 10), make(chan error, 1)}
	t.Cleanup(cancel)
	go func() { i.Ended <- conn.Listen(ctx, channel, sharded, func(e rediscore.Event) { i.events <- e }) }()
	return i
}

// Subscribe starts an Inbox, and waits for its subscription.
func Subscribe(t testing.TB, conn rediscore.Conn, channel string, sharded bool) *Inbox {
	t.Helper()
	i := Listen(t, conn, channel, sharded)
	i.RequireSubscribed()
	return i
}

func (i *Inbox) RequireSubscribed() {
	i.t.Helper()
	i.require(rediscore.Event{Kind: rediscore.Subscribed})
}

func (i *Inbox) RequireMessage(payload string) {
	i.t.Helper()
	i.require(rediscore.Event{Kind: rediscore.Message, Payload: payload})
}

// require waits for the next event.
func (i *Inbox) require(want rediscore.Event) {
	i.t.Helper()
	select {
	case e := <-i.events:
		require.Equal(i.t, want, e)
	case err := <-i.Ended:
		i.t.Fatalf("Listen ended: %v", err)
	case <-time.After(10 * time.Second):
		i.t.Fatal("no event")
	}
}

func (i *Inbox) Close() {
	i.t.Helper()
	i.cancel()
	require.ErrorIs(i.t, <-i.Ended, context.Canceled)
}

// requireLost waits until Listen ends by itself.
func (i *Inbox) requireLost() {
	i.t.Helper()
	select {
	case err := <-i.Ended:
		require.Error(i.t, err)
		require.NotErrorIs(i.t, err, context.Canceled)
		i.t.Logf("Listen returned %q", err)
	case <-time.After(10 * time.Second):
		i.t.Fatal("Listen did not notice that its subscription was gone")
	}
}

// scan finds what is locked, among keys of all kinds, without KEYS.
func scan(t *testing.T, a Adapter) {
	server, plain := a.start(t)
	l := rediscore.New(a.dial(t, server.Addr()), rediscore.WithPrefix("p*:"))
	var want []string
	for i := range 2500 {
		want = append(want, fmt.Sprint("job:", i))
		take(t, l, want[i], "t")
	}
	take(t, l, "other", "t")
	take(t, plain, "job:unprefixed", "t")
	take(t, plain, "pp:job:0", "t")
	do(t, server, "SET", "p*:job:foreign", "theirs")
	do(t, server, "SADD", "p*:job:set", "x")
	require.Equal(t, []string{"job:foreign"}, find(t, l, "job:f"))
	assert.Equal(t, []string(nil), find(t, l, "job:*"))
	want = append(want, "job:foreign")
	slices.Sort(want)
	assert.Equal(t, want, find(t, l, "job:"))
	assert.Zero(t, server.CommandCount(t)["keys"])
	for e, err := range l.Scan(t.Context(), "job:") {
		require.NoError(t, err)
		if e.Key != "job:foreign" {
			assert.Equal(t, "t", e.Token)
			assert.True(t, e.Held && e.Remaining > 0 && e.Remaining <= ttl, "%+v", e)
		}
		break // and nothing follows
	}
	require.NoError(t, l.Close())
	for _, err := range l.Scan(t.Context(), "") {
		require.Error(t, err)
	}
}

func find(t *testing.T, l *rediscore.Locker, beginning string) (keys []string) {
	t.Helper()
	for e, err := range l.Scan(t.Context(), beginning) {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

const waitLimit = 200 * time.Millisecond // for replicas that do not answer

// replicated tests WithReplicas with a master, and replicas of which one does not answer in the end.
func replicated(t *testing.T, a Adapter) {
	master := redistest.Start(t)
	replicas := []*redistest.Server{redistest.StartReplica(t, master), redistest.StartReplica(t, master)}
	conn := a.Dial.must(t, Settings{Addrs: []string{master.Addr()}, Timeout: patient})
	all := rediscore.New(conn, rediscore.WithReplicas(2, patient))
	strict := rediscore.New(conn, rediscore.WithReplicas(2, waitLimit))
	some := rediscore.New(conn, rediscore.WithReplicas(1, dlock.NoLimit))

	take(t, all, "k", "t")
	requireOnAll(t, replicas, "k", "t", ttl)
	held, err := all.Renew(t.Context(), "k", "t", 2*ttl)
	require.NoError(t, err)
	require.True(t, held)
	requireOnAll(t, replicas, "k", "t", 2*ttl)
	batch := []dlock.Renewal{{Key: "k", Token: "t", TTL: 3 * ttl}, {Key: "k", Token: "other", TTL: ttl}}
	results, err := all.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, []dlock.RenewResult{{Held: true}, {}}, results)
	requireOnAll(t, replicas, "k", "t", 3*ttl)

	replicas[0].Suspend()
	var few *rediscore.ReplicasError
	_, err = strict.TryAcquire(t.Context(), "new", "t", ttl)
	require.ErrorAs(t, err, &few)
	require.Less(t, few.Got, 2)
	require.Equal(t, &rediscore.ReplicasError{Got: few.Got, Want: 2, Timeout: waitLimit}, few)
	_, err = strict.Renew(t.Context(), "k", "t", 4*ttl)
	require.ErrorAs(t, err, &few)
	results, err = strict.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	require.ErrorAs(t, results[0].Err, &few)
	require.Equal(t, dlock.RenewResult{}, results[1], "another holds it, whatever the replicas have")
	take(t, some, "one is enough", "t")
}

// requireOnAll requires that all replicas have a lease that lasts for about as long as expected.
func requireOnAll(t *testing.T, replicas []*redistest.Server, key, token string, rest time.Duration) {
	t.Helper()
	for _, r := range replicas {
		require.Equal(t, token, do(t, r, "GET", key))
		ms, _ := do(t, r, "PTTL", key).(int64)
		require.InDelta(t, rest.Milliseconds(), ms, float64(ttl.Milliseconds()/2))
	}
}

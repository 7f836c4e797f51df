package backend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// grant makes a user with the rights, for the prefix of the same name, that some commands of docs/security.md give, but for
// one of them if without is not "".
func grant(t *testing.T, server *redistest.Server, user string, from, to int, without string) {
	t.Helper()
	for _, command := range adaptertest.Rights(t, "../docs/security.md", server)[from:to] {
		for i, word := range command {
			command[i] = strings.NewReplacer("PASSWORD", clients.Password, "app:", user).Replace(word)
		}
		command[2] = user
		do(t, server, slices.DeleteFunc(command, func(word string) bool { return word == without })...)
	}
}

// On a single server, the first three commands of the page give all rights. These are the next.
const (
	single         = 3
	clusterRights  = 3
	sentinelRights = 4
	replicaRights  = 5
	cachingRights  = 6
	votingRights   = 7
	allRights      = 8
)

// overTLS connects to a server over TLS, as the user with the test's name.
func overTLS(t *testing.T, lib clients.Library, server *redistest.TLSServer) *rediscore.Locker {
	l, _ := lib.Dial(t, clients.Settings{Addrs: []string{server.TLSAddr}, TLS: server.TLS, User: t.Name()}, rediscore.WithPrefix(t.Name()))
	return l
}

// TestRights checks that a user with the documented rights can do everything, on a server that
// requires TLS and a user, and that each of the rights is needed.
func TestRights(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	t.Run("EVAL", func(t *testing.T) { withoutRight(t, server, "+eval") }) // while no script is known
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			grant(t, server.Server, t.Name(), 0, single, "")
			require.Empty(t, useEverything(t, server.Server, overTLS(t, a, server)))
			requireNothingForEver(t, server.Server, t.Name())
			requireNothingRefused(t, server.Server)
		})
	}
	t.Run("Plain", func(t *testing.T) {
		grant(t, server.Server, t.Name(), 0, 1, "")
		requireCycle(t, overTLS(t, clients.GoRedis, server), "k")
	})
	t.Run("Caching", func(t *testing.T) {
		grant(t, server.Server, t.Name(), 0, single, "")
		caches := clients.Settings{Addrs: []string{server.TLSAddr}, TLS: server.TLS, User: t.Name(), Caches: true}
		_, _, err := clients.Rueidis.Open(caches)
		require.ErrorContains(t, err, "NOPERM")
		grant(t, server.Server, t.Name(), cachingRights, votingRights, "")
		l, _ := clients.Rueidis.Dial(t, caches, rediscore.WithPrefix(t.Name()))
		require.Empty(t, useEverything(t, server.Server, l))
	})
	for _, a := range clients.All {
		t.Run("Votes/"+a.Name, func(t *testing.T) {
			grant(t, server.Server, t.Name(), 0, single, "")
			l := overTLS(t, a, server)
			_, err := l.Vote(t.Context(), "k", "t", time.Minute, 0)
			_, err2 := l.AcquireVote(t.Context(), "k", "t", time.Minute, 0, 1)
			ballots, err3 := l.Confirm(t.Context(), []quorum.Confirmation{{Renewal: dlock.Renewal{Key: "k", Token: "t", TTL: time.Minute}}})
			require.NoError(t, err3)
			for _, err := range []error{err, err2, ballots[0].Err} {
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, "INFO")
			}
			grant(t, server.Server, t.Name(), votingRights, allRights, "")
			requireVotes(t, l, "k")
		})
	}
	for _, command := range adaptertest.Rights(t, "../docs/security.md", server.Server)[:single] {
		for _, word := range command {
			if word[0] == '+' && word != "+eval" {
				t.Run(word, func(t *testing.T) { t.Parallel(); withoutRight(t, server, word) })
			}
		}
	}
}

// requireNothingRefused fails if the server has refused commands of the test's user, other than
// CLIENT, by which client libraries present themselves.
func requireNothingRefused(t *testing.T, server *redistest.Server) {
	t.Helper()
	for _, entry := range do(t, server, "ACL", "LOG", "128").([]any) {
		entry := fmt.Sprint(entry)
		if strings.Contains(entry, t.Name()) && !strings.Contains(entry, "Caching") && !strings.Contains(entry, "EVAL") {
			require.Regexp(t, `object client(\|setinfo)? `, entry)
		}
	}
}

// helpful are the rights that can be missed: without them waiters get no messages, are not
// counted, or leave a record behind.
var helpful = map[string]bool{"+hgetall": true, "+hlen": true, "+ping": true, "+pubsub|numsub": true, "+subscribe": true, "+zcard": true}

func withoutRight(t *testing.T, server *redistest.TLSServer, right string) {
	grant(t, server.Server, t.Name(), 0, single, right)
	errs := useEverything(t, server.Server, overTLS(t, clients.GoRedis, server))
	if helpful[right] {
		require.Empty(t, errs)
	} else {
		require.NotEmpty(t, errs, "nothing needs the right")
		require.Regexp(t, "NOPERM|can't run this command|ACL failure|"+right[1:], errs[0].Error())
	}
	t.Log(errors.Join(errs...))
	requireNothingForEver(t, server.Server, t.Name())
}

// useEverything uses a lock in every way, and returns the errors in order.
func useEverything(t *testing.T, server *redistest.Server, l *rediscore.Locker) (errs []error) {
	t.Helper()
	const (
		key  = "k"
		rest = 10 * time.Second
	)
	ctx := t.Context()
	note := func(what string, want bool) func(got bool, err error) {
		return func(got bool, err error) {
			if err == nil && got != want {
				err = errors.New("the wrong answer")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
			}
		}
	}
	try := func(what string, ttl time.Duration) {
		a, err := l.TryAcquire(ctx, key, "a", ttl)
		note(what, true)(a.Acquired, err)
	}
	wait := func(ctx context.Context, token string) (waited chan error) {
		waited = startWait(ctx, l, key, token)
		for len(waited) == 0 && !isQueued(t, server, t.Name(), token) {
			time.Sleep(pause)
		}
		return waited
	}
	try("acquire", rest)
	try("acquire again", 2*rest)
	note("renew", true)(l.Renew(ctx, key, "a", 3*rest))
	note("renew another's", false)(l.Renew(ctx, key, "stranger", 3*rest))
	hold, err := l.Inspect(ctx, key)
	note("inspect", true)(hold.Token == "a" && hold.Remaining > 2*rest, err)
	note("release", true)(l.Release(ctx, key, "a"))
	note("renew nothing", false)(l.Renew(ctx, key, "stranger", 3*rest))

	try("acquire, for long", 10*rest)
	waited := wait(ctx, "b")
	before := len(errs)
	note("hand over", true)(l.Release(ctx, key, "a"))
	if len(errs) > before { // the waiter would wait for the end of the lease
		do(t, server, "DEL", t.Name()+key)
	}
	note("wait", true)(true, <-waited)

	cancelled, cancel := context.WithCancel(ctx)
	defer cancel()
	waited = wait(cancelled, "c")
	cancel()
	if err = <-waited; errors.Is(err, context.Canceled) {
		err = nil
	}
	note("wait and give up", true)(true, err)
	note("leave the queue", false)(l.Release(ctx, key, "c"))
	note("release after a wait", true)(l.Release(ctx, key, "b"))
	return errs
}

// isQueued reports whether a token is in the queue under a prefix.
func isQueued(t *testing.T, server *redistest.Server, prefix, token string) bool {
	t.Helper()
	return slices.ContainsFunc(server.Keys(t), func(key string) bool {
		return strings.HasPrefix(key, prefix) && strings.Contains(key, "dlock1:queue:") && do(t, server, "ZSCORE", key, token) != nil
	})
}

// requireNothingForEver fails if a key under the prefix has no TTL.
func requireNothingForEver(t *testing.T, server *redistest.Server, prefix string) {
	t.Helper()
	for _, key := range server.Keys(t) {
		if strings.HasPrefix(key, prefix) {
			require.NotEqual(t, int64(-1), do(t, server, "PTTL", key), "%q never expires", key)
		}
	}
}

// TestInboxErrorOfAUser waits as a user without rights to channels. The wait is served, and
// WithInboxError gets the reason why there is no inbox.
func TestInboxErrorOfAUser(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, a := range clients.All {
		name := a.Name
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			do(t, server, "ACL", "SETUSER", name, "on", ">"+clients.Password, "~*", "+@all")
			if _, err := server.Do("ACL", "SETUSER", name, "resetchannels"); err != nil {
				t.Skipf("no rights to channels: %v", err)
			}
			told := make(chan error, 10)
			l := dialAs(t, a, server.Addr(), name, rediscore.WithPrefix(name), rediscore.WithInboxError(func(err error) { told <- err }))
			defer l.Close()
			acquire(t, l, "k", "H")
			ended := startWait(t.Context(), l, "k", "w")
			soon(t, func() bool { return len(told) > 0 })
			require.ErrorContains(t, <-told, "NOPERM")
			release(t, l, "k", "H")
			require.NoError(t, <-ended)
			require.Empty(t, told)
			for decorator, around := range map[string]dlock.Locker{"": l, "Forward": dlock.Forward{Locker: l}, "breaker": breaker.New(l), "redlock": redlock.New([]dlock.Locker{l}, redlock.WithoutGuard())} {
				requireNoInboxIsLogged(t, dlock.New(around), name+decorator)
			}
		})
	}
}

// requireNoInboxIsLogged fails unless a wait of a Client has the log say that it has no inbox, and is counted.
func requireNoInboxIsLogged(t *testing.T, c *dlock.Client, key string) {
	t.Helper()
	var log bytes.Buffer
	observer := dlock.WithObserver(dlock.NewLogObserver(slog.New(slog.NewTextHandler(&log, nil))))
	held, err := c.Acquire(t.Context(), key)
	require.NoError(t, err)
	time.AfterFunc(time.Second, func() { held.Release() })
	lease, err := c.With(observer).Acquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lease.Release())
	require.EqualValues(t, 1, c.Stats().WaitsWithoutInbox, key)
	require.NoError(t, c.Close()) // after which the log is complete
	require.Contains(t, log.String(), "no inbox")
	require.Contains(t, log.String(), "NOPERM")
}

// TestRightsWithSentinel uses a master that Sentinels watch, with the documented rights.
func TestRightsWithSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	sentinel := redistest.StartSentinel(t, master, masterName, 1)
	for _, a := range clients.Topologies {
		t.Run(a.Name, func(t *testing.T) {
			s := clients.Settings{Addrs: []string{sentinel.Addr()}, Master: masterName, User: t.Name()}
			grant(t, master, t.Name(), 0, single, "")
			if a.Name == "rueidis" {
				_, _, err := a.Open(s)
				require.ErrorContains(t, err, "NOPERM")
				do(t, master, "ACL", "LOG", "RESET")
				grant(t, master, t.Name(), sentinelRights, sentinelRights+1, "")
			}
			l, _ := a.Dial(t, s, rediscore.WithPrefix(t.Name()))
			require.Empty(t, useEverything(t, master, l))
			requireNothingRefused(t, master)
		})
	}
}

// TestRightsWithReplicas uses a master and its replica, with the documented rights.
func TestRightsWithReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.StartReplica(t, master)
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			grant(t, master, t.Name(), 0, single, "")
			l := dialAs(t, a, master.Addr(), t.Name(), rediscore.WithPrefix(t.Name()), rediscore.WithReplicas(1, ttl))
			t.Cleanup(func() { l.Close() })
			_, err := l.TryAcquire(t.Context(), "without", "t", ttl)
			require.ErrorContains(t, err, "NOPERM")
			do(t, master, "ACL", "LOG", "RESET")
			grant(t, master, t.Name(), replicaRights, replicaRights+1, "")
			soon(t, func() bool { // on a busy machine a replica may be late
				a, err := l.TryAcquire(t.Context(), "with", "t", ttl)
				return err == nil && a.Acquired
			})
			requireNothingRefused(t, master)
		})
	}
}

// TestRightsInACluster uses a cluster with the documented rights, and with each of the rights
// for clusters missing.
func TestRightsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 0)
	sinceRedis7(t, cluster.Nodes[0]) // no shard channels
	const always, oneOfTwo = 1, 2
	broken := 0 // for lack of one of the two
	for _, c := range []struct {
		without          string
		goredis, rueidis int // whether the library needs the right
	}{
		{"", 0, 0},
		{"+spublish", always, always},
		{"+ssubscribe", always, always},
		{"+pubsub|shardnumsub", 0, 0}, // the waiter is then taken for alive
		{"+cluster|slots", always, oneOfTwo},
		{"+cluster|shards", 0, oneOfTwo}, // which of the two depends on the version of the server
		{"+command", 0, 0},
		{"+asking", always, always},
	} {
		for i, a := range clients.Topologies {
			needed := []int{c.goredis, c.rueidis}[i]
			t.Run(a.Name+c.without, func(t *testing.T) {
				user := t.Name()
				for _, n := range cluster.Nodes {
					grant(t, n, user, 0, clusterRights+1, c.without)
				}
				limit := 20 * time.Second
				if needed == always {
					limit = time.Second
				}
				errs := useInCluster(t, cluster, user, limit, a)
				switch {
				case needed == oneOfTwo && len(errs) > 0:
					broken++
				case needed == always:
					require.NotEmpty(t, errs)
				default:
					require.Empty(t, errs)
				}
				t.Log(errors.Join(errs...))
			})
		}
	}
	require.Equal(t, 1, broken, "rueidis needs one of two rights")
}

// useInCluster hands a lock over by a message, and then uses the lock while its slot is being
// moved.
func useInCluster(t *testing.T, cluster *redistest.Cluster, user string, limit time.Duration, lib clients.Library) (errs []error) {
	t.Helper()
	told := make(chan error, 100)
	l, closeClient, err := lib.Open(clients.Settings{Addrs: cluster.Addrs(), Cluster: true, User: user},
		rediscore.WithPrefix(user), rediscore.WithInboxError(func(err error) { told <- err }))
	if err != nil {
		return []error{err}
	}
	t.Cleanup(closeClient)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := l.TryAcquire(ctx, "k", "a", ttl); err != nil {
		return []error{err}
	}
	waited := startWait(ctx, l, "k", "b")
	server := cluster.MasterOf(t, user+"k")
	for len(waited) == 0 && len(told) == 0 && listening(t, server, user) == 0 {
		time.Sleep(pause)
	}
	if len(told) > 0 {
		errs = append(errs, <-told)
	}
	if _, err := l.Release(ctx, "k", "a"); err != nil {
		errs = append(errs, err)
	}
	if err := <-waited; err != nil {
		errs = append(errs, err)
	}
	m := startMigration(t, cluster, user+"k")
	m.MoveKeys(t)
	for range 2 { // the new master does not know the script
		if _, err := l.Renew(ctx, "k", "b", 2*ttl); err != nil {
			errs = append(errs, fmt.Errorf("while the slot moves: %w", err))
		}
	}
	m.Finish(t)
	if _, err := l.Release(ctx, "k", "b"); err != nil {
		errs = append(errs, err)
	}
	return errs
}

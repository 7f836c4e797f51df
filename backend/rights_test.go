package backend_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// documentedRule returns the ACL SETUSER command of rediscore's documentation, with the user's
// name in place of "dlock" and as the prefix.
func documentedRule(t *testing.T, user string) []string {
	t.Helper()
	doc, err := os.ReadFile("rediscore/doc.go")
	require.NoError(t, err)
	line := regexp.MustCompile(`ACL SETUSER .*`).FindString(string(doc))
	require.NotEmpty(t, line)
	line = strings.NewReplacer(" dlock ", " "+user+" ", ">PASSWORD", ">"+password, "lock:*", user+"*").Replace(line)
	return strings.Fields(line)
}

// inCluster matches the rights that are needed only in a cluster.
var inCluster = regexp.MustCompile(`^(ASKING|CLUSTER\|.*|COMMAND|SPUBLISH|SSUBSCRIBE)$`)

// documentedRights returns the commands of documentedRule that a single server needs.
func documentedRights(t *testing.T) (rights []string) {
	t.Helper()
	for _, word := range documentedRule(t, "user") {
		if right, ok := strings.CutPrefix(word, "+"); ok && !inCluster.MatchString(strings.ToUpper(right)) {
			rights = append(rights, strings.ToUpper(right))
		}
	}
	return rights
}

// addUser adds a user with the right to some commands, and to the keys and channels that begin
// with the user's name.
func addUser(t *testing.T, server *redistest.Server, user string, rights []string) {
	t.Helper()
	args := []string{"ACL", "SETUSER", user, "on", ">" + password, "resetkeys", "~" + user + "*", "-@all"}
	for _, r := range rights {
		args = append(args, "+"+strings.ToLower(r))
	}
	if _, err := server.Do(append(args, "resetchannels", "&"+user+"*")...); err != nil { // before Redis 6.2
		do(t, server, args...)
	}
}

// TestRights checks that a user with the documented rights can do everything, and that each
// of them is needed.
func TestRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rights := documentedRights(t)
	require.Greater(t, len(rights), 20)
	t.Run("EVAL", func(t *testing.T) { withoutRight(t, server, rights, "EVAL") }) // while no script is known
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			addUser(t, server, a.name, rights)
			require.Empty(t, useEverything(t, server, a.name, a.connect))
			requireNothingForEver(t, server, a.name)
		})
	}
	for _, right := range rights {
		if right != "EVAL" {
			t.Run(right, func(t *testing.T) {
				t.Parallel()
				withoutRight(t, server, rights, right)
			})
		}
	}
}

// helpful are the rights that can be missed: without them waiters get no messages, or are not
// counted.
var helpful = map[string]bool{"PING": true, "PUBSUB": true, "SUBSCRIBE": true, "ZCARD": true}

func withoutRight(t *testing.T, server *redistest.Server, rights []string, right string) {
	var others []string
	for _, r := range rights {
		if r != right {
			others = append(others, r)
		}
	}
	user := "no-" + right + ":"
	addUser(t, server, user, others)
	errs := useEverything(t, server, user, connectGoRedis)
	if helpful[right] {
		require.Empty(t, errs)
	} else {
		require.NotEmpty(t, errs, "nothing needs the right")
		require.Regexp(t, "NOPERM|can't run this command|"+strings.ToLower(right), errs[0].Error())
	}
	t.Log(errors.Join(errs...))
	requireNothingForEver(t, server, user)
}

// useEverything uses a lock in every way, and returns the errors in order.
func useEverything(t *testing.T, server *redistest.Server, user string, connect connect) (errs []error) {
	t.Helper()
	const (
		key  = "k"
		rest = 10 * time.Second
	)
	ctx := t.Context()
	l, _ := connect(t, server.Addr(), user, rediscore.WithPrefix(user))
	note := func(what string, ok bool, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		} else if !ok {
			errs = append(errs, fmt.Errorf("%s: the wrong answer", what))
		}
	}
	try := func(what, token string, ttl time.Duration) {
		a, err := l.TryAcquire(ctx, key, token, ttl)
		note(what, a.Acquired, err)
	}
	renew := func(what, token string, want bool) {
		held, err := l.Renew(ctx, key, token, 3*rest)
		note(what, held == want, err)
	}
	release := func(what, token string, want bool) {
		held, err := l.Release(ctx, key, token)
		note(what, held == want, err)
	}
	try("acquire", "a", rest)
	try("acquire again", "a", 2*rest)
	renew("renew", "a", true)
	renew("renew another's", "stranger", false)
	hold, err := l.Inspect(ctx, key)
	note("inspect", hold.Token == "a" && hold.Remaining > 2*rest, err)
	release("release", "a", true)
	renew("renew nothing", "stranger", false)

	try("acquire, for long", "a", 10*rest)
	waited := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, key, "b", 10*rest)
		waited <- err
	}()
	for len(waited) == 0 && !isQueued(t, server, user, "b") {
		time.Sleep(pause)
	}
	release("hand over", "a", true)
	note("wait", true, <-waited)

	cancelled, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, err := l.Acquire(cancelled, key, "c", rest)
		waited <- err
	}()
	for len(waited) == 0 && !isQueued(t, server, user, "c") {
		time.Sleep(pause)
	}
	cancel()
	if err = <-waited; errors.Is(err, context.Canceled) {
		err = nil
	}
	note("wait and give up", true, err)
	release("leave the queue", "c", false)
	release("release after a wait", "b", true)
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
	for _, a := range adapters {
		name := a.name
		t.Run(name, func(t *testing.T) {
			do(t, server, "ACL", "SETUSER", name, "on", ">"+password, "~*", "+@all")
			if _, err := server.Do("ACL", "SETUSER", name, "resetchannels"); err != nil {
				t.Skipf("no rights to channels: %v", err)
			}
			told := make(chan error, 10)
			l, _ := a.connect(t, server.Addr(), name, rediscore.WithPrefix(name), rediscore.WithInboxError(func(err error) { told <- err }))
			defer l.Close()
			acquire(t, l, "k", "H")
			ended := make(chan error, 1)
			go func() {
				_, err := l.Acquire(t.Context(), "k", "w", ttl)
				ended <- err
			}()
			require.Eventually(t, func() bool { return len(told) > 0 }, ttl, pause)
			require.ErrorContains(t, <-told, "NOPERM")
			release(t, l, "k", "H")
			require.NoError(t, <-ended)
			require.Empty(t, told)
		})
	}
}

// TestRightsInACluster uses a cluster with the documented rights, and with each of the rights
// for clusters missing.
func TestRightsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 0)
	if _, err := cluster.Nodes[0].Do("SPUBLISH", "x", "x"); strings.Contains(fmt.Sprint(err), "unknown command") {
		t.Skipf("no shard channels: %v", err)
	}
	for _, c := range []struct {
		without string
		broken  map[string]bool // libraries that need the right
	}{
		{"", nil},
		{"+spublish", map[string]bool{"goredis": true, "rueidis": true}},
		{"+ssubscribe", map[string]bool{"goredis": true, "rueidis": true}},
		{"+cluster|slots", map[string]bool{"goredis": true, "rueidis": true}},
		{"+cluster|shards", nil},
		{"+command", nil},
		{"+asking", map[string]bool{"goredis": true, "rueidis": true}},
	} {
		for name, connect := range clusterAdapters {
			t.Run(name+c.without, func(t *testing.T) {
				user := name + strings.NewReplacer("+", "-", "|", "-").Replace(c.without) + ":"
				for _, n := range cluster.Nodes {
					do(t, n, slices.DeleteFunc(documentedRule(t, user), func(word string) bool { return word == c.without })...)
				}
				errs := useInCluster(t, cluster, user, connect)
				if c.broken[name] {
					require.NotEmpty(t, errs)
					t.Log(errs[0])
				} else {
					require.Empty(t, errs)
				}
			})
		}
	}
}

// useInCluster hands a lock over by a message, and then uses the lock while its slot is being
// moved.
func useInCluster(t *testing.T, cluster *redistest.Cluster, user string, connect connectCluster) (errs []error) {
	t.Helper()
	told := make(chan error, 100)
	l, _, err := connect(t, cluster.Addrs(), user,
		rediscore.WithPrefix(user), rediscore.WithInboxError(func(err error) { told <- err }))
	if err != nil {
		return []error{err}
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := l.TryAcquire(ctx, "k", "a", ttl); err != nil {
		return []error{err}
	}
	waited := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "k", "b", ttl)
		waited <- err
	}()
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
	m.moveKeys()
	for range 2 { // the new master does not know the script
		if _, err := l.Renew(ctx, "k", "b", 2*ttl); err != nil {
			errs = append(errs, fmt.Errorf("while the slot moves: %w", err))
		}
	}
	m.finish()
	if _, err := l.Release(ctx, "k", "b"); err != nil {
		errs = append(errs, err)
	}
	return errs
}

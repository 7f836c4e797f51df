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

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/redistest"
)

const password = "pass"

// A dialUser makes a Locker for a user of the server, whose name is the prefix too.
type dialUser func(t testing.TB, addr, user string) *rediscore.Locker

var userAdapters = map[string]dialUser{
	"goredis": func(t testing.TB, addr, user string) *rediscore.Locker {
		client := goredislib.NewClient(&goredislib.Options{Addr: addr, Username: user, Password: password, ContextTimeoutEnabled: true})
		t.Cleanup(func() { client.Close() })
		return goredis.New(client, rediscore.WithPrefix(user))
	},
	"rueidis": func(t testing.TB, addr, user string) *rediscore.Locker {
		client, err := rueidislib.NewClient(rueidislib.ClientOption{
			InitAddress: []string{addr}, Username: user, Password: password, DisableCache: true,
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		return rueidis.New(client, rediscore.WithPrefix(user))
	},
	"redigo": func(t testing.TB, addr, user string) *rediscore.Locker {
		pool := &redigolib.Pool{MaxIdle: 10, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			return redigolib.DialContext(ctx, "tcp", addr, redigolib.DialUsername(user), redigolib.DialPassword(password))
		}}
		t.Cleanup(func() { pool.Close() })
		return redigo.New(pool, rediscore.WithPrefix(user))
	},
}

// documentedRule is the line of the documentation of rediscore that makes a user, for one
// whose name is the prefix too.
func documentedRule(t *testing.T, user string) []string {
	t.Helper()
	doc, err := os.ReadFile("rediscore/doc.go")
	require.NoError(t, err)
	line := regexp.MustCompile(`ACL SETUSER .*`).FindString(string(doc))
	require.NotEmpty(t, line)
	line = strings.NewReplacer(" dlock ", " "+user+" ", ">PASSWORD", ">"+password, "lock:*", user+"*").Replace(line)
	return strings.Fields(line)
}

// inCluster are the rights that are of use only in a cluster.
var inCluster = regexp.MustCompile(`^(ASKING|CLUSTER\|.*|COMMAND|SPUBLISH|SSUBSCRIBE)$`)

// documentedRights are the commands that the documentation of rediscore lists for a server
// alone.
func documentedRights(t *testing.T) (rights []string) {
	t.Helper()
	for _, word := range documentedRule(t, "user") {
		if right, ok := strings.CutPrefix(word, "+"); ok && !inCluster.MatchString(strings.ToUpper(right)) {
			rights = append(rights, strings.ToUpper(right))
		}
	}
	return rights
}

// addUser adds a user who may use some commands, and keys and channels with its own
// name as a prefix.
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

// TestRights takes each of the documented rights away from a user who has no others.
func TestRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rights := documentedRights(t)
	require.Greater(t, len(rights), 20)
	t.Run("EVAL", func(t *testing.T) { withoutRight(t, server, rights, "EVAL") }) // while no script is known
	for name, dial := range userAdapters {
		t.Run(name, func(t *testing.T) {
			addUser(t, server, name, rights)
			require.Empty(t, useEverything(t, server, name, dial))
			requireNothingForEver(t, server, name)
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

// helpful are the rights without which waiters have to ask, or are not counted.
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
	errs := useEverything(t, server, user, userAdapters["goredis"])
	if helpful[right] {
		require.Empty(t, errs)
	} else {
		require.NotEmpty(t, errs, "nothing needs the right")
		require.Regexp(t, "NOPERM|can't run this command|"+strings.ToLower(right), errs[0].Error())
	}
	t.Log(errors.Join(errs...))
	requireNothingForEver(t, server, user)
}

// useEverything uses a lock in all ways that there are, and returns what went wrong, in
// order.
func useEverything(t *testing.T, server *redistest.Server, user string, dial dialUser) (errs []error) {
	t.Helper()
	const (
		key  = "k"
		rest = time.Second
	)
	ctx, l := t.Context(), dial(t, server.Addr(), user)
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
	for len(waited) == 0 && !somebodyWaits(t, server, user) {
		time.Sleep(pause)
	}
	release("hand over", "a", true)
	note("wait", true, <-waited)

	cancelled, cancel := context.WithTimeout(ctx, rest/10)
	defer cancel()
	_, err = l.Acquire(cancelled, key, "c", rest)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	note("wait and give up", cancelled.Err() != nil, err)
	release("leave the queue", "c", false)
	release("release after a wait", "b", true)
	return errs
}

// somebodyWaits reports whether somebody stands in a queue under a prefix.
func somebodyWaits(t *testing.T, server *redistest.Server, prefix string) bool {
	return slices.ContainsFunc(server.Keys(t), func(key string) bool {
		return strings.HasPrefix(key, prefix) && strings.Contains(key, "dlock1:waiters:")
	})
}

// requireNothingForEver fails if something is stored that does not expire.
func requireNothingForEver(t *testing.T, server *redistest.Server, prefix string) {
	t.Helper()
	for _, key := range server.Keys(t) {
		if strings.HasPrefix(key, prefix) {
			require.NotEqual(t, int64(-1), do(t, server, "PTTL", key), "%q never expires", key)
		}
	}
}

// TestInboxErrorOfAUser has a user who may not use channels wait: it is served, and the
// reason why it has to ask is told.
func TestInboxErrorOfAUser(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, dial := range plainClients {
		t.Run(name, func(t *testing.T) {
			do(t, server, "ACL", "SETUSER", name, "on", ">"+password, "~*", "+@all")
			if _, err := server.Do("ACL", "SETUSER", name, "resetchannels"); err != nil {
				t.Skipf("no rights to channels: %v", err)
			}
			told := make(chan error, 10)
			l, _ := dial(t, server.Addr(), name, rediscore.WithPrefix(name), rediscore.WithInboxError(func(err error) { told <- err }))
			defer l.Close()
			acquire(t, l, "k", "H")
			time.AfterFunc(time.Second, func() { release(t, l, "k", "H") })
			attempt, err := l.Acquire(t.Context(), "k", "w", ttl)
			require.NoError(t, err)
			require.True(t, attempt.Acquired)
			require.Len(t, told, 1)
			require.ErrorContains(t, <-told, "NOPERM")
		})
	}
}

// TestRightsInACluster has users with the documented line, and with one right less of those
// that are for clusters.
func TestRightsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 0)
	if _, err := cluster.Nodes[0].Do("SPUBLISH", "x", "x"); strings.Contains(fmt.Sprint(err), "unknown command") {
		t.Skipf("no shard channels: %v", err)
	}
	for _, c := range []struct {
		without string
		broken  map[string]bool // libraries that cannot do without
	}{
		{"", nil},
		{"+spublish", map[string]bool{"goredis": true, "rueidis": true}},
		{"+ssubscribe", map[string]bool{"goredis": true, "rueidis": true}},
		{"+cluster|slots", map[string]bool{"goredis": true, "rueidis": true}},
		{"+cluster|shards", nil},
		{"+command", nil},
		{"+asking", map[string]bool{"goredis": true, "rueidis": true}},
	} {
		for name, dial := range clusterUsers {
			t.Run(name+c.without, func(t *testing.T) {
				user := name + strings.NewReplacer("+", "-", "|", "-").Replace(c.without) + ":"
				for _, n := range cluster.Nodes {
					do(t, n, slices.DeleteFunc(documentedRule(t, user), func(word string) bool { return word == c.without })...)
				}
				errs := useInCluster(t, cluster, user, dial)
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

var clusterUsers = map[string]func(t *testing.T, addrs []string, user string, opts ...rediscore.Option) (*rediscore.Locker, error){
	"goredis": func(t *testing.T, addrs []string, user string, opts ...rediscore.Option) (*rediscore.Locker, error) {
		client := goredislib.NewClusterClient(&goredislib.ClusterOptions{
			Addrs: addrs, Username: user, Password: password, ContextTimeoutEnabled: true,
		})
		t.Cleanup(func() { client.Close() })
		return goredis.New(client, append(opts, goredis.WithPrefix(user))...), nil
	},
	"rueidis": func(t *testing.T, addrs []string, user string, opts ...rediscore.Option) (*rediscore.Locker, error) {
		client, err := rueidislib.NewClient(rueidislib.ClientOption{
			InitAddress: addrs, Username: user, Password: password, DisableCache: true,
		})
		if err != nil {
			return nil, err
		}
		t.Cleanup(client.Close)
		return rueidis.New(client, append(opts, rueidis.WithPrefix(user))...), nil
	},
}

// useInCluster hands a lock over by a message, while its slot is on one server, and uses
// one whose slot is being moved.
func useInCluster(t *testing.T, cluster *redistest.Cluster, user string,
	dial func(t *testing.T, addrs []string, user string, opts ...rediscore.Option) (*rediscore.Locker, error)) (errs []error) {
	t.Helper()
	told := make(chan error, 100)
	l, err := dial(t, cluster.Addrs(), user, rediscore.WithInboxError(func(err error) { told <- err }))
	if err != nil {
		return []error{err}
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
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

package backend_test

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { adaptertest.Main(m) }

const (
	ttl     = 10 * time.Minute // of leases that no test outlives
	patient = time.Minute      // for what must happen soon
	pause   = time.Millisecond // between two checks of a condition

	// atOnce is how long Close may take on a busy machine, if nothing is owed. It is less than
	// the 5 s that it waits for a store that does not answer.
	atOnce = 4 * time.Second
)

// each runs a test with each of some libraries, side by side.
func each(t *testing.T, libraries []clients.Library, f func(t *testing.T, a clients.Library)) {
	for _, a := range libraries {
		t.Run(a.Name, func(t *testing.T) { t.Parallel(); f(t, a) })
	}
}

func skipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out with -short")
	}
}

// soon fails unless something is so within patient.
func soon(t testing.TB, is func() bool, what ...any) {
	t.Helper()
	require.Eventually(t, is, patient, pause, what...)
}

// startWait has a token wait for key in the background.
func startWait(ctx context.Context, l *rediscore.Locker, key, token string) (ended chan error) {
	ended = make(chan error, 1)
	go func() { _, err := l.Acquire(ctx, key, token, ttl); ended <- err }()
	return ended
}

// dial returns a Locker on one server, with a client of its own.
func dial(t testing.TB, lib clients.Library, addr string, opts ...rediscore.Option) *rediscore.Locker {
	t.Helper()
	l, _ := lib.Dial(t, clients.At(addr), opts...)
	return l
}

// dialAs is dial as a user.
func dialAs(t testing.TB, lib clients.Library, addr, user string, opts ...rediscore.Option) *rediscore.Locker {
	t.Helper()
	l, _ := lib.Dial(t, clients.Settings{Addrs: []string{addr}, User: user}, opts...)
	return l
}

// dialCluster is dial for a cluster.
func dialCluster(t testing.TB, lib clients.Library, c *redistest.Cluster, opts ...rediscore.Option) *rediscore.Locker {
	t.Helper()
	l, _ := lib.Dial(t, clients.Settings{Addrs: c.Addrs(), Cluster: true}, opts...)
	return l
}

// acquire takes key for token, and returns the fence.
func acquire(t testing.TB, l dlock.Locker, key, token string) int64 {
	t.Helper()
	attempt, err := l.TryAcquire(t.Context(), key, token, ttl)
	require.NoError(t, err, "TryAcquire(%q, %q)", key, token)
	require.True(t, attempt.Acquired, "TryAcquire(%q, %q): held by %q", key, token, attempt.Holder)
	return attempt.Fence
}

// requireHeldBy fails unless key is held, and by token.
func requireHeldBy(t testing.TB, l dlock.Locker, key, token string) {
	t.Helper()
	attempt, err := l.TryAcquire(t.Context(), key, "contender", ttl)
	require.NoError(t, err, "TryAcquire(%q)", key)
	require.False(t, attempt.Acquired, "TryAcquire(%q): granted, want held by %q", key, token)
	require.Equal(t, token, attempt.Holder, "TryAcquire(%q): holder", key)
}

func renew(t testing.TB, l dlock.Locker, key, token string) bool {
	t.Helper()
	held, err := l.Renew(t.Context(), key, token, 2*ttl)
	require.NoError(t, err, "Renew(%q, %q)", key, token)
	return held
}

func release(t testing.TB, l dlock.Locker, key, token string) bool {
	t.Helper()
	held, err := l.Release(t.Context(), key, token)
	require.NoError(t, err, "Release(%q, %q)", key, token)
	return held
}

func do(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	require.NoError(t, err, "%q", args)
	return reply
}

// sinceRedis7 skips what older servers do not do: they take no notice of min-replicas-to-write
// within scripts, answer ASK where newer ones say TRYAGAIN, do not count refused commands, and
// cannot load slowly.
func sinceRedis7(t testing.TB, s *redistest.Server) {
	t.Helper()
	if isOld(s) {
		t.Skip("before Redis 7.0")
	}
}

func isOld(s *redistest.Server) bool {
	_, err := s.Do("SPUBLISH", "x", "x")
	return err != nil && strings.Contains(err.Error(), "unknown command")
}

const root = "github.com/dlock-go/dlock"

// TestOneClientLibraryEach checks that an application with one adapter builds only that
// adapter's client library, and that one without needs no other module.
func TestOneClientLibraryEach(t *testing.T) {
	t.Parallel()
	libraries := map[string]string{
		"backend/goredis":    "github.com/redis/go-redis/v9",
		"backend/rueidis":    "github.com/redis/rueidis",
		"backend/redigo":     "github.com/gomodule/redigo",
		"backend/rediscore":  "",
		"backend/memory":     "",
		"backend/redlock":    "",
		"election":           "",
		"fence":              "",
		"once":               "",
		"semaphore":          "",
		"examples/inventory": "", // the first command of the README
	}
	args := []string{"list", "-deps", "-f", `{{.ImportPath}};{{with .Module}}{{.Path}}{{end}};{{join .Imports " "}};{{join .Deps " "}}`}
	for pkg := range libraries {
		args = append(args, root+"/"+pkg)
	}
	out, err := exec.Command("go", args...).Output()
	require.NoError(t, err)
	module, imports, deps := make(map[string]string), make(map[string]string), make(map[string]string)
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), ";")
		module[fields[0]], imports[fields[0]], deps[fields[0]] = fields[1], fields[2], fields[3]
	}
	for pkg, of := range module {
		for _, imported := range strings.Fields(imports[pkg]) { // GODEBUG=fips140=only does not allow these
			forbidden := slices.Contains([]string{"crypto/des", "crypto/dsa", "crypto/md5", "crypto/rc4", "crypto/sha1"}, imported)
			require.False(t, of == root && forbidden, "%s imports %s", pkg, imported)
		}
	}
	modules := func(packages string) (all []string) { // without the standard library
		for _, pkg := range strings.Fields(packages) {
			if m := module[pkg]; m != "" {
				all = append(all, m)
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	for pkg, library := range libraries {
		want := []string{root}
		if library != "" {
			want = append(want, library)
		}
		require.ElementsMatch(t, want, modules(imports[root+"/"+pkg]), "modules that %s imports", pkg)
		clients := slices.DeleteFunc(modules(deps[root+"/"+pkg]), func(m string) bool { // without what these need themselves
			return library != "" && m != root && !strings.Contains(m, "redi") && !strings.Contains(m, "rueidis")
		})
		require.ElementsMatch(t, want, clients, "client libraries that %s needs", pkg)
	}
}

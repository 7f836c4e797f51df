//go:build linux

package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
)

// client returns a Client on the shell's server. Its leases live as long as the test.
func (s *shell) client(owner string) *dlock.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.server.Addr(), ContextTimeoutEnabled: true, PoolSize: 64})
	s.Cleanup(func() { rdb.Close() })
	l := goredis.New(rdb)
	s.Cleanup(func() { l.Close() })
	return dlock.New(l, dlock.WithOwner(owner), dlock.WithTTL(time.Minute))
}

func (s *shell) take(c *dlock.Client, keys ...string) (leases []*dlock.Lease) {
	for _, key := range keys {
		l, err := c.TryAcquire(s.Context(), key)
		require.NoError(s, err)
		leases = append(leases, l)
	}
	return leases
}

// TestList also looks for tokens in all that is written.
func TestList(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	c := s.client("web-1/billing[7]")
	leases := s.take(c, "order:1", "order:2", "other", "strange\x1b[2J", "job@2026-11-23T03:00:00.000Z", "job",
		"shop:done@2026-11-22T03:00:00.000Z", "shop:done@2026-11-23T03:00:00.000Z")
	const bad = "bad\x1b\x7f\u009b\u202e\U000e0041"
	leases = append(leases, s.take(s.client("web\x1b\u009b"), bad)...)
	s.server.Do("SET", "order:foreign", "secret-of-another")
	s.server.Do("SADD", "order:set", "member")
	waiting, cancel := context.WithCancel(t.Context())
	var waiter sync.WaitGroup
	waiter.Go(func() { _, _ = c.Acquire(waiting, "order:2") })
	defer waiter.Wait()
	defer cancel()
	require.Eventually(t, func() bool {
		status, err := c.Inspect(t.Context(), "order:2")
		return err == nil && status.Waiting == 1
	}, 20*time.Second, time.Millisecond)
	for _, test := range []struct {
		args string
		code int
		want []string // in this order
		not  string
	}{
		{"list order:", 0, []string{"KEY", "OWNER", "order:1", "web-1/billing[7]", "s ago", "s 0\n", "order:2", "1\n"}, "foreign"},
		{"list --foreign order:", 0, []string{"order:1", "order:2", "order:foreign", "(not of dlock)", "never ends"}, "other"},
		{"list --all", 0, []string{"job", "order:1", "other", `"strange\x1b[2J"`}, "\x1b"},
		{"list --json order:", 0, []string{`{"key":"order:1","held":true,"owner":"web-1/billing[7]","started":"20`, `"waiting":0}`, `"waiting":1}`}, "KEY"},
		{"list --json bad", 0, []string{`{"key":"bad\u001b\u007f\u009b\u202e\udb40\udc41","held":true,"owner":"web\u001b\u009b"`}, "\u009b"},
		{"list bad", 0, []string{`"bad\x1b\x7f\u009b\u202e\U000e0041" "web\x1b\u009b"`}, "\u009b"},
		{"break --owner x " + bad, 75, []string{`dlock: "bad\x1b\x7f\u009b\u202e\U000e0041" is held by "web\x1b\u009b"`}, "\u009b"},
		{"run -v --owner x -w 3s " + bad + " true", 75, []string{`"bad\x1b\x7f\u009b\u202e\U000e0041"`}, "\u009b"},
		{"run -v new" + bad + " true", 0, []string{`dlock: "newbad\x1b\x7f\u009b\u202e\U000e0041" is held, with fence `}, "\u009b"},
		{"show --prefix " + bad + " free", 0, []string{`there is no key "bad\x1b\x7f\u009b\u202e\U000e0041free"`}, "\u009b"},
		{"list --prefix order:", 0, []string{"KEY", "1 ", "2 "}, "order:"},
		{"list no", 0, []string{"KEY"}, "order"},
		{"list", 64, []string{"--all"}, "KEY"},
		{"show order:2", 0, []string{"KEY", "order:2", "web-1/billing[7]", "1\n", "waiter 1 of 1 web-1/billing[7] ", "s ago\n"}, "order:1"},
		{"show --json order:2", 0, []string{`"waiting":1,"waiters":[{"owner":"web-1/billing[7]","since":"20`}, "prefix"},
		{"show 2", 0, []string{`There is no key "2". These locks are under other prefixes: add --prefix "order:".`, "order:2", "waiter 1 of 1 web"}, "free"},
		{"show --json --prefix x 2", 0, []string{`{"key":"2","held":true,`, `"waiting":1,"prefix":"order:","waiters":[`}, "false"},
		{"show done", 0, []string{`There is no key "done"`, `--prefix "shop:"`, "shop:done@2026-11-23T03:00:00.000Z", "shop:done@2026-11-22T"}, "free"},
		{"show job", 0, []string{"job ", "job@2026-11-23T03:00:00.000Z"}, "order"},
		{"show free", 0, []string{`free is free, 0 wait: there is no key "free", and no lock under another prefix.`}, "KEY"},
		{"show --json free", 0, []string{`{"key":"free","held":false,"waiting":0}`}, "KEY"},
		{"show order:foreign", 0, []string{"order:foreign", "(not of dlock)"}, "order:1"},
		{"--redis redis://127.0.0.1:1 list x", 69, []string{"dlock: "}, "KEY"},
		{"--redis redis://127.0.0.1:1 show x", 69, []string{"dlock: "}, "KEY"},
		{"--redis redis://127.0.0.1:1 break x", 69, []string{"dlock: "}, "KEY"},
		{"break free", 75, []string{"dlock: free is free"}, "broken"},
		{"break --owner somebody order:1", 75, []string{"dlock: order:1 is held by web-1/billing[7]"}, "broken"},
		{"break order:foreign --yes", 64, []string{"dlock: order:foreign is not of dlock"}, "broken"},
		{"break order:foreign", 64, []string{"dlock: order:foreign is not of dlock"}, "Type"},
		{"break order:1", 75, []string{"Type yes", "nothing was changed"}, "broken"},
		{"break --owner web-1/billing[7] order:1", 0, []string{"order:1", "The lock is broken.", "s at most."}, "other"},
		{"break --yes other", 0, []string{"The lock is broken."}, "Type"},
		{"break other", 75, []string{"other is free"}, ""},
		{"watch --every 1ms x", 64, []string{"--every 1ms"}, ""},
	} {
		code, out := s.run(strings.Fields(test.args)...)
		assert.Equal(t, test.code, code, "%s: %s", test.args, out)
		rest := regexp.MustCompile(` +`).ReplaceAllString(out, " ") // without the columns
		for _, w := range test.want {
			_, after, ok := strings.Cut(rest, w)
			assert.True(t, ok, "%s: no %q in\n%s", test.args, w, rest)
			rest = after
		}
		if test.not != "" {
			assert.NotContains(t, out, test.not, test.args)
		}
		for _, l := range leases {
			assert.NotContains(t, out, l.Token(), test.args)
		}
		assert.NotContains(t, out, "dlock1", test.args)
		assert.NotContains(t, out, "secret-of-another", test.args)
	}
	in := s.command("list")
	in.Env = append(in.Env, prefixVariable+"=order:")
	out, err := in.Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), "\n2  ")
	assert.ErrorIs(t, leases[0].Release(), dlock.ErrLost)
	assert.Zero(t, s.server.CommandCount(t)["keys"])
}

// Whoever answers yes has seen the holder that is broken. Output that is lost is an error.
func TestBreakOfAnother(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	seen := s.take(s.client("web-1"), "k")[0]
	c := s.command("break", "k")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	for text := ""; !strings.HasSuffix(text, "break the lock: "); {
		buf := make([]byte, 1024)
		n, err := out.Read(buf)
		require.NoError(t, err)
		text += string(buf[:n])
	}
	require.NoError(t, seen.Release())
	next := s.take(s.client("web-2"), "k")[0]
	_, err = in.Write([]byte("yes\n"))
	require.NoError(t, err)
	_ = c.Wait()
	assert.Equal(t, exitHeld, c.ProcessState.ExitCode())
	require.NoError(t, next.Renew(t.Context()))
	for _, args := range []string{"list --all", "list --all --json", "show k", "show free", "watch k", "doctor", "completion bash", "--help", "run --help"} {
		c := s.command(strings.Fields(args)...)
		c.Stdout, err = os.OpenFile("/dev/full", os.O_WRONLY, 0)
		require.NoError(t, err)
		var said strings.Builder
		c.Stderr = &said
		_ = c.Run()
		assert.Equal(t, exitOwnFault, c.ProcessState.ExitCode(), args)
		assert.Equal(t, "dlock: write /dev/stdout: no space left on device\n", said.String(), args)
	}
	command(t, s.server, "ACL", "SETUSER", "default", "-scan")
	code, text := s.run("show", "k")
	assert.Equal(t, exitOwnFault, code)
	assert.Contains(t, text, "web-2", "although its marks cannot be found")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	c := s.client("web-1")
	l := s.take(c, "w:1")[0]
	watch := s.command("watch", "--every", "100ms", "w:")
	out, err := watch.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watch.Start())
	defer func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
	}()
	next := func(want string) {
		buf := make([]byte, 1024)
		n, err := out.Read(buf)
		require.NoError(t, err)
		require.Contains(t, string(buf[:n]), want)
	}
	next("w:1  held by  web-1  0 wait")
	require.NoError(t, l.Release())
	next("w:1  no longer held by  web-1")
	s.take(s.client("web-2"), "w:1")
	next("w:1  held by  web-2")
}

//go:build unix && !aix && !solaris

package filelock_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/examples/filelock"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Harness{PerCase: func(t *testing.T) conformance.Harness {
		dir := folder(t)
		return conformance.Harness{
			New:   func(*testing.T) dlock.Locker { return filelock.New(dir) },
			Count: func(t *testing.T) int { return len(files(t, dir)) },
			Wipe: func(t *testing.T) {
				defer lock(t, dir).Close()
				for _, file := range files(t, dir) {
					require.NoError(t, os.Remove(file))
				}
			},
		}
	}})
}

// folder returns an empty directory, which is in memory if it can be: disks take their time.
func folder(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "filelock")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func files(t *testing.T, dir string) []string {
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	return found
}

// lock locks a directory until the file that it returns is closed.
func lock(t *testing.T, dir string) *os.File {
	f, err := os.Open(dir)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	return f
}

// Another process is killed at any moment, also in the middle of a call: it keeps its lease, and nobody out.
func TestKilled(t *testing.T) {
	if dir := flag.Arg(0); dir != "" { // in that process
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			_, err := filelock.New(dir).TryAcquire(t.Context(), "key", "killed", time.Hour)
			require.NoError(t, err)
		}
	}
	dir := folder(t)
	l := filelock.New(dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 20 {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilled$", dir)
		require.NoError(t, cmd.Start())
		for n := rand.IntN(100); n >= 0; {
			held, err := l.Renew(ctx, "key", "killed", time.Millisecond)
			require.NoError(t, err)
			if held {
				n--
			}
		}
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		a, err := l.TryAcquire(ctx, "key", "next", time.Hour)
		require.NoError(t, err)
		require.Equal(t, "killed", a.Holder)
		held, err := l.Release(ctx, "key", "killed")
		require.True(t, held && err == nil, "%v, %v", held, err)
	}
}

// A file is replaced, not written: whoever reads it reads a whole lease.
func TestReplaced(t *testing.T) {
	dir := folder(t)
	l := filelock.New(dir)
	takes(t, l, "key")
	old, err := os.Open(files(t, dir)[0])
	require.NoError(t, err)
	defer old.Close()
	gives(t, l, "key")
	text, err := io.ReadAll(old)
	require.NoError(t, err)
	require.Contains(t, string(text), base64.StdEncoding.EncodeToString([]byte("token")))
}

// Fences rise although the clock is set back by an hour, and other keys are used.
func TestClockIsSetBack(t *testing.T) {
	dir := folder(t)
	l := filelock.New(dir)
	fence := takes(t, l, "key").Fence
	file := files(t, dir)[0]
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	ahead := fence + time.Hour.Microseconds()
	require.NoError(t, os.WriteFile(file, bytes.ReplaceAll(text, fmt.Append(nil, fence), fmt.Append(nil, ahead)), 0o600))
	gives(t, l, "key")
	for i := range 50 {
		takes(t, l, fmt.Sprint(i))
	}
	require.Equal(t, ahead+8, takes(t, l, "key").Fence)
}

func takes(t *testing.T, l *filelock.Locker, key string) dlock.Attempt {
	a, err := l.TryAcquire(t.Context(), key, "token", time.Hour)
	require.NoError(t, err)
	require.True(t, a.Acquired)
	return a
}

func gives(t *testing.T, l *filelock.Locker, key string) {
	held, err := l.Release(t.Context(), key, "token")
	require.True(t, held && err == nil, "%v, %v", held, err)
}

// While another call is under way, a call waits, and ends with its ctx.
func TestStopped(t *testing.T) {
	dir := folder(t)
	other := lock(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := filelock.New(dir).TryAcquire(ctx, "key", "token", time.Hour)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, dlock.NoEffect(err))
	time.AfterFunc(20*time.Millisecond, func() { other.Close() })
	takes(t, filelock.New(dir), "key")
}

func TestBadInput(t *testing.T) {
	dir := folder(t)
	for want, c := range map[string]struct {
		dir, key, token string
		ttl             time.Duration
	}{
		"directory: empty":          {"", "key", "token", time.Hour},
		"key: empty":                {dir, "", "token", time.Hour},
		"token: empty":              {dir, "key", "", time.Hour},
		"TTL 0s: less than 1ms":     {dir, "key", "token", 0},
		"TTL -1s: less than 1ms":    {dir, "key", "token", -time.Second},
		"no such file or directory": {filepath.Join(dir, "absent"), "key", "token", time.Hour},
	} {
		_, err := filelock.New(c.dir).TryAcquire(t.Context(), c.key, c.token, c.ttl)
		require.ErrorContains(t, err, want)
		require.True(t, dlock.NoEffect(err))
	}
	require.Empty(t, files(t, dir))
	takes(t, filelock.New(dir), "../key/\x00")
	require.Len(t, files(t, dir), 1)
}

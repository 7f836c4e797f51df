//go:build unix && !aix && !solaris

// Package filelock keeps dlock's leases in the files of a directory, for the processes of one machine. It is the example of
// docs/writing-a-backend.md: take it as the template of a backend for your own store.
//
//	locks := dlock.New(filelock.New("/var/lib/app/locks")) // a directory that only the user of app may read
//
// Each call locks the directory with flock(2). The kernel unlocks it when the process ends, however it ends. While a process is
// stopped in the middle of a call, the calls of others wait, until their ctx ends. A file is replaced by a rename, so a crash
// leaves the old one or the new one.
//
// Nothing is promised on a network file system, or for processes with different clocks. A clock that is set forward ends
// leases early. One that is set back prolongs them, and fences may fall. Whoever removes a file ends its lease.
package filelock

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
)

// A Locker keeps leases in a directory. It is a [dlock.Locker], and has nothing to close.
type Locker struct{ dir string }

var _ dlock.Locker = (*Locker)(nil)

// New returns a Locker on a directory, which must exist.
func New(dir string) *Locker { return &Locker{dir} }

// A lease is what the file of a key has, in JSON. A key that is free has the zero lease, but for the fence.
type lease struct {
	Token          []byte // of the holder: any bytes
	Since, Expires int64  // in ns since 1970
	Fence          int64  // of the latest grant
}

// TryAcquire implements [dlock.Locker].
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	var a dlock.Attempt
	_, err := l.call(ctx, key, token, ttl, func(held *lease, now int64) bool {
		if held.Token == nil {
			held.Token, held.Since = []byte(token), now
		}
		if string(held.Token) != token {
			a = dlock.Attempt{Holder: string(held.Token), Remaining: time.Duration(held.Expires - now), HeldSince: time.Unix(0, held.Since)}
			return false
		}
		held.Expires = max(held.Expires, now+ttl.Nanoseconds())
		held.Fence = max(held.Fence+8, now/1000)
		a = dlock.Attempt{Acquired: true, Fence: held.Fence}
		return true
	})
	if err != nil {
		return dlock.Attempt{}, err
	}
	return a, nil
}

// Renew implements [dlock.Locker].
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.call(ctx, key, token, ttl, func(held *lease, now int64) bool {
		if string(held.Token) != token {
			return false
		}
		held.Expires = max(held.Expires, now+ttl.Nanoseconds())
		return true
	})
}

// Release implements [dlock.Locker].
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	return l.call(ctx, key, token, time.Millisecond, func(held *lease, _ int64) bool {
		if string(held.Token) != token {
			return false
		}
		*held = lease{Fence: held.Fence}
		return true
	})
}

// call has step look at the lease of key and change it, while no other call is under way in any process. The change is written
// if step returns true, which call returns then.
func (l *Locker) call(ctx context.Context, key, token string, ttl time.Duration, step func(held *lease, now int64) bool) (bool, error) {
	switch {
	case l.dir == "":
		return false, invalid("directory: empty")
	case key == "":
		return false, invalid("key: empty")
	case token == "":
		return false, invalid("token: empty")
	case ttl < time.Millisecond:
		return false, invalid("TTL %v: less than 1ms", ttl)
	}
	dir, err := lock(ctx, l.dir)
	if err != nil {
		return false, &dlock.NoEffectError{Err: err}
	}
	defer dir.Close() // which unlocks it

	// A key may be no name of a file.
	file := filepath.Join(l.dir, fmt.Sprintf("%x", sha256.Sum256([]byte(key))))
	held, err := read(file)
	if err != nil {
		return false, &dlock.NoEffectError{Err: err}
	}
	now := time.Now().UnixNano()
	if held.Expires <= now {
		held = lease{Fence: held.Fence}
	}
	if !step(&held, now) {
		return false, nil
	}
	if err := sweep(dir, now); err != nil {
		return false, &dlock.NoEffectError{Err: err}
	}
	err = replace(file, held)
	return err == nil, err
}

// lock opens a directory, and waits until no other call has locked it.
func lock(ctx context.Context, name string) (*os.File, error) {
	dir, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	for err = ctx.Err(); err == nil; err = ctx.Err() {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // without LOCK_NB, ctx would not end it
		if err == nil {
			return dir, nil
		}
		if err != syscall.EWOULDBLOCK {
			err = os.NewSyscallError("flock", err)
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
	dir.Close()
	return nil, err
}

// sweep sometimes looks at a few files, drawn by lot, and removes those of free keys whose fence the clock has passed: so the
// files of keys that nobody uses any more do not pile up.
func sweep(dir *os.File, now int64) error {
	if rand.IntN(8) > 0 {
		return nil
	}
	names, err := dir.Readdirnames(-1)
	for _, i := range rand.Perm(len(names))[:min(16, len(names))] {
		file := filepath.Join(dir.Name(), names[i])
		if held, e := read(file); e == nil && max(held.Expires, 1000*held.Fence+8000) < now {
			err = errors.Join(err, os.Remove(file))
		}
	}
	return err
}

func read(file string) (held lease, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return lease{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &held)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return held, err
}

func replace(file string, held lease) error {
	text, err := json.Marshal(held)
	if err != nil {
		return err
	}
	draft := filepath.Join(filepath.Dir(file), "draft") // which a crash may leave behind
	f, err := os.Create(draft)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(draft, file)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("filelock: %w: %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}

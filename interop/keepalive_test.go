package interop

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/redistest"
)

// The same helper with each library: it waits for the lock, works while it holds it, ends
// the context of the work when the lock is lost, reports that, and releases.

const leased = 5 * time.Second

var errLost = errors.New("the lock was lost")

func keepDlock(ctx context.Context, locks *dlock.Client, key string, do work) error {
	return locks.Do(ctx, key, func(ctx context.Context, _ *dlock.Lease) error {
		return do(ctx)
	})
}

func keepRueidislock(ctx context.Context, locks rueidislock.Locker, key string, do work) error {
	ctx, release, err := locks.WithContext(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	err = do(ctx)
	if ctx.Err() != nil {
		err = errors.Join(err, errLost)
	}
	return err
}

func keepRedsync(ctx context.Context, locks *redsync.Redsync, key string, do work) error {
	m := locks.NewMutex(key, redsync.WithExpiry(leased))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() {
		ticker := time.NewTicker(leased / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			var taken *redsync.ErrTaken
			_, err := m.ExtendContext(ctx)
			if errors.As(err, &taken) || err != nil && time.Now().After(m.Until()) {
				stop(errLost)
				return
			}
		}
	})
	err := do(ctx)
	stop(nil)
	keeper.Wait()
	if lost := context.Cause(ctx); lost == errLost {
		err = errors.Join(err, lost)
	}
	_, unlockErr := m.UnlockContext(context.WithoutCancel(ctx))
	return errors.Join(err, unlockErr)
}

func keepRedislock(ctx context.Context, locks *redislock.Client, key string, do work) error {
	retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	until := time.Now().Add(leased)
	lock, err := locks.Obtain(ctx, key, leased, retry)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() {
		ticker := time.NewTicker(leased / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			sent := time.Now()
			err := lock.Refresh(ctx, leased, nil)
			if err == nil {
				until = sent.Add(leased)
			} else if errors.Is(err, redislock.ErrNotObtained) || time.Now().After(until) {
				stop(errLost)
				return
			}
		}
	})
	err = do(ctx)
	stop(nil)
	keeper.Wait()
	if lost := context.Cause(ctx); lost == errLost {
		err = errors.Join(err, lost)
	}
	return errors.Join(err, lock.Release(context.WithoutCancel(ctx)))
}

// TestKeepaliveLines counts the lines of the helpers.
func TestKeepaliveLines(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "keepalive_test.go", nil, 0)
	require.NoError(t, err)
	lines := make(map[string]int)
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			lines[f.Name.Name] = fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1
		}
	}
	for name, n := range map[string]int{"keepDlock": 5, "keepRueidislock": 12, "keepRedsync": 33, "keepRedislock": 36} {
		t.Logf("%s: %d lines", name, lines[name])
		require.Equal(t, n, lines[name], name)
	}
}

// helpers makes the helper with each library, for the server at addr.
func helpers(t *testing.T, addr string) map[string]func(context.Context, work) error {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	store := goredis.New(client)
	ours := dlock.New(store, dlock.WithTTL(leased))
	rs, rl := newRedsync(client), newRedislock(client)
	ru := newRueidislock(t, addr, func(o *rueidislock.LockerOption) { o.KeyValidity = leased })
	t.Cleanup(func() {
		ru.Close()
		ours.Close()
		store.Close()
		client.Close()
	})
	return map[string]func(context.Context, work) error{
		"dlock": func(ctx context.Context, do work) error { return keepDlock(ctx, ours, "a", do) },
		"rueidislock": func(ctx context.Context, do work) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			patience := time.AfterFunc(30*time.Second, cancel) // it has been seen to wait for minutes for a free key
			return keepRueidislock(ctx, ru, "b", func(ctx context.Context) error {
				patience.Stop()
				return do(ctx)
			})
		},
		"redsync":   func(ctx context.Context, do work) error { return keepRedsync(ctx, rs, "c", do) },
		"redislock": func(ctx context.Context, do work) error { return keepRedislock(ctx, rl, "d", do) },
	}
}

// TestKeepaliveStops measures how long work goes on after its server has failed: killed, or
// silent with its connections open. The server fails about a second after the grant, so the lease
// lasts for four more.
func TestKeepaliveStops(t *testing.T) {
	t.Parallel()
	type fault = func(*redistest.Server)
	for failure, f := range map[string]struct{ begin, end fault }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"silent": {(*redistest.Server).Suspend, (*redistest.Server).Resume},
	} {
		t.Run(failure, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			all := helpers(t, server.Addr())
			var began, ended, workers sync.WaitGroup
			began.Add(len(all))
			ended.Add(len(all))
			failed := make(chan struct{})
			for name, under := range all {
				begin, end := sync.OnceFunc(began.Done), sync.OnceFunc(ended.Done)
				workers.Go(func() {
					defer end()
					defer begin()
					var granted time.Time
					var went, remaining, late time.Duration
					err := under(t.Context(), func(ctx context.Context) error {
						granted = time.Now()
						begin()
						<-failed
						start := time.Now()
						remaining = leased - start.Sub(granted) // unless it was renewed
						<-ctx.Done()
						went = time.Since(start)
						if l, ok := dlock.LeaseFromContext(ctx, "a"); ok {
							late = time.Since(l.Deadline())
						}
						end()
						ended.Wait()
						return nil
					})
					t.Logf("%s: the work went on for %.1f s; error: %v", name, went.Seconds(), err)
					assert.Error(t, err, name)
					if name == "dlock" {
						assert.NotZero(t, granted)
						assert.Less(t, late, 3*time.Second, "after the deadline of the lease") // on a busy machine
					} else if failure == "silent" && !granted.IsZero() { // rueidislock may not have got a free key
						assert.Greater(t, went, remaining+time.Second, name)
					}
				})
			}
			began.Wait()
			time.Sleep(time.Second)
			f.begin(server)
			close(failed)
			ended.Wait()
			f.end(server)
			workers.Wait()
		})
	}
}

// TestKeepaliveHandover measures the time from the end of the work of one process to the
// beginning of that of another that waits: the median of 15.
func TestKeepaliveHandover(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first, second := helpers(t, server.Addr()), helpers(t, server.Addr())
	var all sync.WaitGroup
	for name := range first {
		all.Go(func() {
			var gaps []time.Duration
			for range 15 {
				gap, err := handover(ctx, first[name], second[name])
				if err != nil {
					if name == "dlock" {
						t.Errorf("%s: %v", name, err)
					}
					t.Logf("%s: %v", name, err) // a wait that was not told of a release, as it happens on a busy machine
					return
				}
				gaps = append(gaps, gap)
			}
			slices.Sort(gaps)
			t.Logf("%s: %.1f ms", name, gaps[len(gaps)/2].Seconds()*1e3)
		})
	}
	all.Wait()
}

// handover returns the time from the end of the work of first to the beginning of that of
// second, which begins to wait meanwhile.
func handover(ctx context.Context, first, second func(context.Context, work) error) (gap time.Duration, err error) {
	began, ended := make(chan struct{}), make(chan time.Time, 1)
	failed := make(chan error, 1)
	go func() {
		failed <- first(ctx, func(context.Context) error {
			close(began)
			time.Sleep(time.Duration(300+rand.IntN(200)) * time.Millisecond)
			ended <- time.Now()
			return nil
		})
	}()
	select {
	case <-began:
	case err := <-failed:
		return 0, err
	}
	err = second(ctx, func(context.Context) error {
		gap = time.Since(<-ended)
		return nil
	})
	return gap, errors.Join(err, <-failed)
}

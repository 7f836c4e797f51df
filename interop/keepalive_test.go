package interop

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/assert"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/redistest"
)

const leased = 5 * time.Second

var errLost = errors.New("the lock was lost")

// A helper waits for a lock, works while it holds it, ends the context of the work when the lock is lost, reports that, and
// releases.
type helper func(ctx context.Context, do work) error

// renewing is the helper with a library that does not renew: a loop renews three times per TTL, and gives up when a renewal
// fails after the end of the lease.
func renewing(lib library, key string) helper {
	return func(ctx context.Context, do work) error {
		until := time.Now().Add(leased)
		l, err := lib.wait(ctx, key)
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
				held, err := l.extend(ctx)
				if held {
					until = sent.Add(leased)
				} else if err == nil || time.Now().After(until) {
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
		_, failed := l.release(context.WithoutCancel(ctx))
		return errors.Join(err, failed)
	}
}

// helpers makes the helper with each library, for a server.
func helpers(t *testing.T, server *redistest.Server) map[string]helper {
	client := dial(t, server)
	store := goredis.New(client)
	ours := dlock.New(store, dlock.WithTTL(leased))
	ru := newRueidislock(t, server.Addr(), func(o *rueidislock.LockerOption) { o.KeyValidity = leased })
	t.Cleanup(func() {
		ours.Close()
		store.Close()
	})
	return map[string]helper{
		"dlock": func(ctx context.Context, do work) error {
			return ours.Do(ctx, "a", func(ctx context.Context, _ *dlock.Lease) error { return do(ctx) })
		},
		"rueidislock": func(ctx context.Context, do work) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			patience := time.AfterFunc(30*time.Second, cancel) // it has been seen to wait for minutes for a free key
			ctx, release, err := ru.WithContext(ctx, "b")
			if err != nil {
				return err
			}
			defer release()
			patience.Stop()
			err = do(ctx)
			if ctx.Err() != nil {
				err = errors.Join(err, errLost)
			}
			return err
		},
		"redsync":   renewing(redsyncs(client, redsync.WithExpiry(leased)), "c"),
		"redislock": renewing(redislocks(client, leased), "d"),
	}
}

// TestKeepaliveStops measures how long work goes on after its server has failed: killed, or silent with its connections
// open. The server fails about a second after the grant, so the lease lasts for four more.
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
			all := helpers(t, server)
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

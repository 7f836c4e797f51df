package museum

import (
	"context"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// What clients do wrong is shown by decorators: they make the mistake for every
// program that uses them.

// When the store says that a lease is lost, the client waits until the time that it
// had counted on is over before it says so: it might be a hiccup. Meanwhile another
// holds the key. Right: a loss is announced when it is known, and at the deadline
// at the latest.
type announcesLate struct {
	dlock.Forward
	believed sync.Map // token → until when it counts on its lease
}

func (l *announcesLate) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.TryAcquire(ctx, key, token, ttl)
	if a.Acquired {
		l.believed.Store(token, time.Now().Add(ttl))
	}
	return a, err
}

func (l *announcesLate) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	held, err := l.Forward.Renew(ctx, key, token, ttl)
	until, ok := l.believed.Load(token)
	if err == nil && !held && ok {
		return time.Now().Before(until.(time.Time)), nil
	}
	return held, err
}

func (l *announcesLate) Release(ctx context.Context, key, token string) (bool, error) {
	l.believed.Delete(token)
	return l.Forward.Release(ctx, key, token)
}

// A release is sent with the context under which the lock was acquired. If that has
// ended, which is often why the work is over, nothing is sent, and the key is held
// until its TTL has passed. Right: a release has a time limit of its own.
type releasesOnItsContext struct {
	dlock.Forward
	contexts sync.Map // token → the ctx of its acquisition
}

func (l *releasesOnItsContext) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.contexts.Store(token, ctx)
	return l.Forward.TryAcquire(ctx, key, token, ttl)
}

func (l *releasesOnItsContext) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.contexts.Store(token, ctx)
	return l.Forward.Acquire(ctx, key, token, ttl)
}

func (l *releasesOnItsContext) Release(ctx context.Context, key, token string) (bool, error) {
	if acquired, ok := l.contexts.LoadAndDelete(token); ok {
		ctx = acquired.(context.Context)
	}
	return l.Forward.Release(ctx, key, token)
}

// A lock that renews itself as long as its process runs is held for ever by a
// worker that hangs, or that has forgotten it. Right: the Locker keeps a lease for
// its TTL; the Client renews, no longer than WithMaxHold.
type watchdog struct {
	dlock.Forward
	timers sync.Map // token → *time.Timer
}

func (l *watchdog) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.TryAcquire(ctx, key, token, ttl)
	if a.Acquired {
		l.watch(key, token, ttl)
	}
	return a, err
}

func (l *watchdog) watch(key, token string, ttl time.Duration) {
	l.timers.Store(token, time.AfterFunc(ttl/3, func() {
		held, err := l.Renew(context.Background(), key, token, ttl)
		if held || err != nil {
			l.watch(key, token, ttl)
		}
	}))
}

func (l *watchdog) Release(ctx context.Context, key, token string) (bool, error) {
	if timer, ok := l.timers.LoadAndDelete(token); ok {
		timer.(*time.Timer).Stop()
	}
	return l.Forward.Release(ctx, key, token)
}

// After an attempt without an answer, the next one uses the same token, since the
// first may have worked. The release that is owed for the first attempt then ends
// the lease of the second. Right: a token whose outcome is unknown is never used
// again.
type reusesTokens struct {
	dlock.Forward
	mu      sync.Mutex
	unknown map[string]string // key → token of an attempt without an answer
	alias   map[string]string // token of the caller → token in the store
}

func (l *reusesTokens) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.mu.Lock()
	if old := l.unknown[key]; old != "" {
		l.alias[token] = old
	}
	l.mu.Unlock()
	a, err := l.Forward.TryAcquire(ctx, key, l.stored(token), ttl)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.unknown[key] = token
	}
	return a, err
}

func (l *reusesTokens) stored(token string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.alias[token]; old != "" {
		return old
	}
	return token
}

func (l *reusesTokens) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.Forward.Renew(ctx, key, l.stored(token), ttl)
}

func (l *reusesTokens) Release(ctx context.Context, key, token string) (bool, error) {
	return l.Forward.Release(ctx, key, l.stored(token))
}

// A decorator that embeds the interface Locker has its three methods and no others:
// waiters poll, renewals go one by one, and nobody notices. Right: embed
// dlock.Forward.
type hidesTheQueue struct {
	dlock.Locker
	attempts func()
}

func (l *hidesTheQueue) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	l.attempts()
	return l.Locker.TryAcquire(ctx, key, token, ttl)
}

// A lease is tied to the ctx of the call that has acquired it: that of a request, of which
// the work goes on afterwards, or one with a time limit for the wait. When it ends, the
// lease is gone. Right: the ctx of a call ends with the call.
type endsWithItsContext struct{ dlock.Forward }

func (l *endsWithItsContext) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := l.Forward.Acquire(ctx, key, token, ttl)
	if a.Acquired {
		context.AfterFunc(ctx, func() {
			_, _ = l.Forward.Release(context.WithoutCancel(ctx), key, token)
		})
	}
	return a, err
}

// For each wait a goroutine passes the end of one ctx on to another. When the wait is
// over, it stays until the ctx ends: for ever, in a program that has none to end. Right:
// context.AfterFunc, stopped when the wait is over.
type watchesItsContext struct{ dlock.Forward }

func (l *watchesItsContext) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-ctx.Done()
		cancel()
	}()
	return l.Forward.Acquire(inner, key, token, ttl)
}

// What a method returns when its ctx has ended is the cause of that. Who asks whether the
// error is context.Canceled, as everybody does, takes the end of the program for a fault
// of the store. Right: the error of the ctx.
type causeNotError struct{ dlock.Forward }

func (l *causeNotError) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if ctx.Err() != nil {
		return dlock.Attempt{}, context.Cause(ctx)
	}
	return l.Forward.TryAcquire(ctx, key, token, ttl)
}

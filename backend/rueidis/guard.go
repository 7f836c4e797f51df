package rueidis

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

const (
	hungAfter    = 100 * time.Millisecond
	maxApart     = 1024
	failureLasts = 10 * time.Second // in a cluster

	// A call whose context has ended has so long to return by itself: the error of rueidis may say
	// that nothing was sent.
	lastWord = 10 * time.Millisecond

	drainPause = 10 * time.Millisecond // between two looks at what is left
)

// A guard is a client whose calls end with their context while the server hangs. The package documentation says when calls
// of rueidis alone do not, and which calls run in a goroutine of their own. When the context of such a call ends, it
// returns, and the goroutine is left behind until rueidis is done with the call. Other calls run in the goroutine of their
// caller. Nobody else is making a connection then, except in a cluster whose other masters answer, or if the connection
// broke less than 100 ms ago while no call was in flight.
type guard struct {
	rueidis.Client
	start time.Time

	inFlight atomic.Int64
	answered atomic.Int64  // when the last answer came, in nanoseconds since start
	failed   atomic.Int64  // when a call failed, if none has been answered since; else 0
	apart    chan struct{} // has an element for each goroutine
	left     atomic.Int64  // how many goroutines have been left behind
}

func newGuard(client rueidis.Client) *guard {
	return &guard{Client: client, start: time.Now(), apart: make(chan struct{}, maxApart)}
}

// Mode is Mode of the client, or empty if the client panics.
func (g *guard) Mode() (mode rueidis.ClientMode) {
	_ = rediserr.Try(func() { mode = g.Client.Mode() })
	return mode
}

// Nodes is Nodes of the client, or empty if the client panics.
func (g *guard) Nodes() (nodes map[string]rueidis.Client) {
	_ = rediserr.Try(func() { nodes = g.Client.Nodes() })
	return nodes
}

// Do is Do of the client.
func (g *guard) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return g.do(ctx, g.Client, cmd)
}

// do is Do of the client, or of one connection.
func (g *guard) do(ctx context.Context, client rueidis.CommandClient, cmd rueidis.Completed) rueidis.RedisResult {
	if g.begin() {
		return g.finish(ctx, client, cmd)
	}
	return runApart(ctx, g, func() rueidis.RedisResult { return g.finish(ctx, client, cmd) }, rueidis.NewErrorResult)
}

// finish makes a call that has begun.
func (g *guard) finish(ctx context.Context, client rueidis.CommandClient, cmd rueidis.Completed) (r rueidis.RedisResult) {
	if err := rediserr.Try(func() { r = client.Do(ctx, cmd) }); err != nil {
		r = rueidis.NewErrorResult(err)
	}
	g.end(r.NonRedisError())
	return r
}

// DoMulti is DoMulti of the client.
func (g *guard) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	return g.doMulti(ctx, g.Client, cmds)
}

// doMulti is DoMulti of the client, of the client of one node, or of one connection.
func (g *guard) doMulti(ctx context.Context, client rueidis.CommandClient, cmds rueidis.Commands) []rueidis.RedisResult {
	if g.begin() {
		return g.finishMulti(ctx, client, cmds)
	}
	return runApart(ctx, g, func() []rueidis.RedisResult { return g.finishMulti(ctx, client, cmds) },
		func(err error) []rueidis.RedisResult { return repeated(err, len(cmds)) })
}

// finishMulti makes calls that have begun.
func (g *guard) finishMulti(ctx context.Context, client rueidis.CommandClient, cmds rueidis.Commands) (results []rueidis.RedisResult) {
	if err := rediserr.Try(func() { results = client.DoMulti(ctx, cmds...) }); err != nil {
		results = repeated(err, len(cmds))
	}
	g.end(firstError(results))
	return results
}

// repeated returns n results with the same error.
func repeated(err error, n int) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, n)
	for i := range results {
		results[i] = rueidis.NewErrorResult(err)
	}
	return results
}

func firstError(results []rueidis.RedisResult) error {
	for _, r := range results {
		if err := r.NonRedisError(); err != nil {
			return err
		}
	}
	return nil
}

// begin notes that a call begins, which must end, and reports whether it can run where it is made.
func (g *guard) begin() bool {
	others := g.inFlight.Add(1) > 1
	return g.failed.Load() == 0 && (!others || g.now()-g.answered.Load() < int64(hungAfter))
}

// end notes that a call was answered, or has failed.
func (g *guard) end(err error) {
	g.note(err)
	g.inFlight.Add(-1)
}

// note notes an answer or, if err is not nil, that there was none. In a cluster, an answer may be that of
// another server than the one that hangs, so a failure counts for a while.
func (g *guard) note(err error) {
	now := g.now()
	if err != nil {
		g.failed.Store(now)
		return
	}
	g.answered.Store(now)
	if failed := g.failed.Load(); failed != 0 && (g.Mode() != rueidis.ClientModeCluster || now-failed >= int64(failureLasts)) {
		g.failed.CompareAndSwap(failed, 0)
	}
}

func (g *guard) now() int64 { return 1 + int64(time.Since(g.start)) }

// runApart makes a call in a goroutine of its own, and leaves that behind when ctx ends. The outcome of
// the call is unknown then.
func runApart[T any](ctx context.Context, g *guard, call func() T, failure func(error) T) T {
	if ctx.Done() == nil {
		return call()
	}
	if err := g.enter(ctx); err != nil {
		g.inFlight.Add(-1)
		return failure(err)
	}
	result := make(chan T, 1)
	var ended atomic.Bool // the call has, or the wait for it
	go func() {
		r := call()
		if !ended.CompareAndSwap(false, true) {
			g.left.Add(-1)
		}
		<-g.apart
		result <- r
	}()
	select {
	case r := <-result:
		return r
	case <-ctx.Done():
	}
	timer := time.NewTimer(lastWord)
	defer timer.Stop()
	select {
	case r := <-result:
		return r
	case <-timer.C:
	}
	g.left.Add(1)
	if !ended.CompareAndSwap(false, true) {
		g.left.Add(-1)
		return <-result
	}
	return failure(ctx.Err())
}

// enter waits until there may be one more goroutine. A pause of this process can make thousands of calls
// look as if they hung, so only those that have been left behind refuse others.
func (g *guard) enter(ctx context.Context) error {
	select {
	case g.apart <- struct{}{}:
		return nil
	default:
	}
	if g.left.Load() >= maxApart {
		return errTooMany
	}
	select {
	case g.apart <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &dlock.NoEffectError{Err: ctx.Err()}
	}
}

var errTooMany = &dlock.NoEffectError{Err: fmt.Errorf("%w: %d calls have no answer yet", dlock.ErrUnavailable, maxApart)}

// drain returns when no goroutine is left, nor one of those counted by others, or ctx ends.
func (g *guard) drain(ctx context.Context, others *atomic.Int64) {
	for len(g.apart)+int(others.Load()) > 0 && ctx.Err() == nil {
		select {
		case <-time.After(drainPause):
		case <-ctx.Done():
		}
	}
}

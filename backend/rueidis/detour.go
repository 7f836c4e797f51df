package rueidis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

const (
	trialPause = time.Second // between two trials of the shared connections, while there is a line
	trialLimit = time.Second
	trialCalls = 8 // rueidis draws the connection of each, by default from four
)

// A detour is taken while the shared connections of rueidis lead to a server that does not serve. They can be neither
// chosen nor closed. So all calls, and the inbox, go over a line then. Once a second, a call that changes nothing tries
// the shared ones.
type detour struct {
	busy  atomic.Int64         // goroutines
	line  atomic.Pointer[line] // nil: there is no detour
	idled atomic.Bool          // the last line that did not serve had been idle in the pool

	mu      sync.Mutex
	opening chan struct{} // closed when there is a line, or none can be had; nil if it is not being opened
	tried   time.Time
	closed  bool
}

// A line is a connection of the blocking pool.
type line struct {
	rueidis.DedicatedClient
	detour  *detour
	release func() // to the pool
	users   int    // and one more while it is the line of the detour
	lost    bool   // it does not serve, or is broken
}

// DoMulti is DoMulti of the connection, for a user that leaves it then. If it does not serve, it is the line no more.
func (l *line) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	results := l.DedicatedClient.DoMulti(ctx, cmds...)
	refused := slices.ContainsFunc(results, unserving)
	if refused {
		l.detour.idled.Store(l.isOld(ctx))
	}
	l.detour.leave(l, refused || firstError(results) != nil)
	return results
}

// isOld reports whether the server says that it accepted the connection at least a second ago.
func (l *line) isOld(ctx context.Context) bool {
	info, err := l.Do(ctx, l.B().Arbitrary("CLIENT", "INFO").Build()).ToString()
	return err == nil && strings.Contains(info, " age=") && !strings.Contains(info, " age=0 ")
}

func unserving(r rueidis.RedisResult) bool {
	return rediscore.Unserving(rediscore.Result{Err: r.Error()})
}

// use returns the line, which the caller must leave, or nil if there is no detour.
func (d *detour) use() *line {
	if d.line.Load() == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.line.Load()
	if l != nil {
		l.users++
	}
	return l
}

// leave notes that a user has left a line, and whether that was lost. The last one gives it back, or closes it.
func (d *detour) leave(l *line, lost bool) {
	d.mu.Lock()
	l.lost = l.lost || lost
	l.users--
	if lost && d.line.CompareAndSwap(l, nil) {
		l.users--
	}
	last := l.users == 0
	d.mu.Unlock()
	switch {
	case last && l.lost:
		l.Close()
	case last:
		l.release()
	}
}

// end ends the detour. Those who use the line may go on.
func (d *detour) end() {
	if l := d.use(); l != nil {
		d.mu.Lock()
		if d.line.CompareAndSwap(l, nil) {
			l.users--
		}
		d.mu.Unlock()
		d.leave(l, false)
	}
}

// open returns when there is a line, or none can be had, or ctx ends. Several calls open one together, since the
// pool has no limit of time.
func (d *detour) open(ctx context.Context, client rueidis.Client) error {
	d.mu.Lock()
	opened := d.opening
	if opened == nil && d.line.Load() == nil && !d.closed {
		opened = make(chan struct{})
		d.opening = opened
		d.spawn(func() { d.dedicate(client) })
	}
	d.mu.Unlock()
	if opened != nil {
		select {
		case <-opened:
		case <-ctx.Done():
		}
	}
	if d.line.Load() == nil {
		return errNoLine
	}
	return nil
}

var errNoLine = &dlock.NoEffectError{Err: errors.New("no other connection")}

func (d *detour) dedicate(client rueidis.Client) {
	var l *line
	defer func() {
		recover() // a decorator of the client may have no Dedicate
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.closed && l != nil {
			d.line.Store(l)
			d.tried = time.Now()
		} else if l != nil {
			l.release()
		}
		close(d.opening)
		d.opening = nil
	}()
	dedicated, release := client.Dedicate()
	l = &line{DedicatedClient: dedicated, detour: d, release: release, users: 1}
}

func (d *detour) spawn(f func()) {
	d.busy.Add(1)
	go func() {
		defer d.busy.Add(-1)
		f()
	}()
}

// due reports whether it is time for a trial.
func (d *detour) due() bool {
	if d.line.Load() == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.tried) < trialPause {
		return false
	}
	d.tried = time.Now()
	return true
}

// close ends the detour for good.
func (d *detour) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end()
}

// A way is a client whose calls go over the line if there is one.
type way struct {
	rueidis.Client
	detour *detour
}

// Do is Do of the line or of the client.
func (w *way) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if l := w.detour.use(); l != nil {
		return l.DoMulti(ctx, cmd)[0]
	}
	return w.Client.Do(ctx, cmd)
}

// DoMulti is DoMulti of the line or of the client.
func (w *way) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if l := w.detour.use(); l != nil {
		return l.DoMulti(ctx, cmds...)
	}
	return w.Client.DoMulti(ctx, cmds...)
}

// tryShared has the shared connections tried with the keys of a call, if it is time.
func (c conn) tryShared(call rediscore.Call) {
	if c.detour.due() {
		c.detour.spawn(func() { c.try(rediscore.Trial(call)) })
	}
}

// try ends the detour if the shared connections lead to a server that serves, or the client is closed. Those that were
// lost are made again.
func (c conn) try(trial rediscore.Call) {
	ctx, cancel := context.WithTimeout(context.Background(), trialLimit)
	defer cancel()
	served := 0
	for range trialCalls {
		r := c.client.Do(ctx, c.command("EVAL", trial.Script.Source, trial))
		switch {
		case saysClosed(r.NonRedisError()):
			c.detour.end()
			return
		case r.Error() == nil:
			served++
		case r.NonRedisError() == nil:
			return
		}
	}
	if served >= trialCalls/2 {
		c.detour.end()
	}
}

// lines is how many lines are tried by one call, beside those that had been idle in the pool: these may all lead to the
// same server as the shared ones.
const lines = 4

// EvalAnew implements [rediscore.Leaver]. It opens a line, unless another call has done so since. A cluster says by itself
// where a call is to go.
func (c conn) EvalAnew(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait *rediscore.Replication) (closed int) {
	for fresh := 0; fresh < lines && ctx.Err() == nil; closed++ {
		err := error(errNoLine)
		if !c.Cluster() {
			err = c.detour.open(ctx, c.client.Client)
		}
		switch {
		case err != nil:
			rediscore.Fail(results, err)
		case wait != nil:
			c.EvalReplicated(ctx, calls, results, *wait)
		default:
			c.EvalAll(ctx, calls, results)
		}
		if !rediscore.Unserving(results...) {
			break
		}
		if !c.detour.idled.Load() {
			fresh++
		}
	}
	return closed
}

package dlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// yes is a Locker that grants everything.
type yes struct{}

func (yes) TryAcquire(context.Context, string, string, time.Duration) (Attempt, error) {
	return Attempt{Acquired: true, Fence: 8}, nil
}
func (yes) Renew(context.Context, string, string, time.Duration) (bool, error) { return true, nil }
func (yes) Release(context.Context, string, string) (bool, error)              { return true, nil }

// The monotonic clock stops while a machine is suspended; the wall clock does
// not. Virtual time has only one, so the test moves the lease's deadline on the
// wall clock instead of the clock.
func TestSuspendedMachine(t *testing.T) {
	suspend := func(l *Lease, d time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wall = l.wall.Add(-d)
		l.keeper.mu.Lock()
		defer l.keeper.mu.Unlock()
		l.event.wall = l.wall
	}
	synctest.Test(t, func(t *testing.T) {
		c := New(yes{})
		l, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		work := l.Context(t.Context())
		suspend(l, 20*time.Second)
		require.NoError(t, l.Err())
		time.Sleep(time.Second + 10*time.Millisecond) // since then the clocks have been compared
		_, err = c.With(WithTTL(time.Second), WithRenewal(false)).Acquire(t.Context(), "ends just before they are again")
		require.NoError(t, err)
		suspend(l, 10*time.Second)
		start := time.Now()
		<-work.Done()
		require.LessOrEqual(t, time.Since(start), time.Second)
		require.ErrorIs(t, context.Cause(work), ErrLost)

		l, err = c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		suspend(l, time.Minute)
		require.ErrorIs(t, l.Release(), ErrLost, "found by the look before the release")
	})
}

func TestLeaseContextKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(yes{}).Acquire(t.Context(), "k")
		require.NoError(t, err)
		for range 1000 {
			parent, cancel := context.WithCancel(t.Context())
			ctx := l.Context(parent)
			cancel()
			<-ctx.Done()
		}
		synctest.Wait()
		require.Empty(t, l.lives, "after the parents have ended")

		parent := &countingContext{Context: t.Context(), done: make(chan struct{})}
		for i := range 1000 {
			l.Context(parent)
			l.Context(context.WithValue(t.Context(), keyOfTest{}, i))
		}
		require.Len(t, l.lives, 2, "one for all parents that end together")
		require.Equal(t, 1, parent.registered)
		require.NoError(t, l.Release())
		synctest.Wait()
		require.Empty(t, l.lives, "after the lease has ended")
		require.Zero(t, parent.registered, "the parent still knows of contexts of the lease")
	})
}

type keyOfTest struct{}

// A context of a lease is one of package context to those that derive others from it, and
// has the values of its own parent.
func TestLeaseContextIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(yes{}).Acquire(t.Context(), "k")
		require.NoError(t, err)
		cause := errors.New("the parent's cause")
		root, cancel := context.WithCancelCause(t.Context())
		one := l.Context(context.WithValue(root, keyOfTest{}, 1))
		two := l.Context(context.WithValue(root, keyOfTest{}, 2))
		require.Equal(t, 1, one.Value(keyOfTest{}))
		require.Equal(t, 2, two.Value(keyOfTest{}))
		before := runtime.NumGoroutine()
		child, stop := context.WithCancel(two)
		defer stop()
		require.Equal(t, before, runtime.NumGoroutine(), "a goroutine watches the context")
		cancel(cause)
		<-child.Done()
		require.Equal(t, cause, context.Cause(child))
		require.Equal(t, cause, context.Cause(one))
		require.NoError(t, l.Err())

		below := l.Context(t.Context())
		require.NoError(t, l.Release())
		<-below.Done()
		require.Equal(t, ErrReleased, context.Cause(below))
		require.Equal(t, ErrReleased, context.Cause(l.Context(t.Context())))
	})
}

// countingContext counts what has registered with it to hear of its end.
type countingContext struct {
	context.Context
	done       chan struct{}
	registered int
}

func (c *countingContext) Done() <-chan struct{} { return c.done }

func (c *countingContext) AfterFunc(func()) func() bool {
	c.registered++
	return func() bool { c.registered--; return true }
}

func TestAgendaIsEmptyWithoutLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(yes{})
		for range 100 {
			l, err := c.Acquire(t.Context(), "k")
			require.NoError(t, err)
			require.NoError(t, l.Release())
		}
		time.Sleep(2 * lookAround)
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Empty(t, c.keeper.agenda)
		require.True(t, c.keeper.wake.IsZero(), "the timer still runs")
	})
}

func TestTokens(t *testing.T) {
	seen := make(map[string]bool)
	started := time.UnixMilli(1_753_000_123_456)
	for range 10_000 {
		token := newToken("a.b", started.Add(999*time.Microsecond))
		require.False(t, seen[token])
		seen[token] = true
		owner, at := parseToken(token)
		require.Equal(t, "a.b", owner)
		require.Equal(t, started, at)
	}
	owner, at := parseToken(newToken("", time.UnixMilli(1<<45-1)))
	require.Empty(t, owner)
	require.Equal(t, time.UnixMilli(1<<45-1), at)
}

// A token of the version before, and what is not quite one.
func TestParseToken(t *testing.T) {
	random := strings.Repeat("A7", randomChars/2)
	for _, c := range []struct {
		token, owner string
		started      bool
	}{
		{"dlock1." + random + "ABCDEFGHI.web-7", "web-7", true},
		{"dlock1." + random + ".web-7", "", false},
		{"dlock1." + random + "ABCDEFGH.web-7", "", false},
		{"dlock1." + random + "ABCDEFGHI-web-7", "", false},
		{"dlock1." + random + "ABCDEFG1I.web-7", "", false},
		{"dlock1." + random + "ABCDEFGHI", "", false},
		{"dlock3." + random + "ABCDEFGHI.web-7", "", false},
		{"dlock1.", "", false},
		{"", "", false},
	} {
		owner, started := parseToken(c.token)
		require.Equal(t, c.owner, owner, c.token)
		require.Equal(t, c.started, !started.IsZero(), c.token)
	}
}

func TestHostOwner(t *testing.T) {
	for _, c := range []struct {
		host, program string
		pid           int
		want          string
	}{
		{"web-7", "billing", 4711, "web-7/billing[4711]"},
		{"web\n7\x00", "b\xffl é", 1, "web?7?/b?l é[1]"},
		{strings.Repeat("é", 200), strings.Repeat("p", 300), math.MaxInt, strings.Repeat("é", 58) + "/" + strings.Repeat("p", 116) + "[9223372036854775807]"},
	} {
		got := hostOwner(c.host, c.program, c.pid)
		require.Equal(t, c.want, got)
		require.LessOrEqual(t, len(got), maxOwner)
	}
	own := HostOwner()
	require.Contains(t, own, fmt.Sprintf("[%d]", os.Getpid()))
	require.Equal(t, own, HostOwner())
}

func TestCoreImportsTheStandardLibraryOnly(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "github.com/dlock-go/dlock", strings.TrimSpace(string(out)))
}

func TestDetachedOfTooManySteps(t *testing.T) {
	for _, step := range []int{maxSteps + 1, 255} {
		text, err := Detached{&detached{key: "k", token: "t", step: step}}.MarshalText()
		require.NoError(t, err)
		require.ErrorIs(t, new(Detached).UnmarshalText(text), ErrInvalid)
	}
}

// A lease that the agenda has just let go when Shutdown gives up.
func TestLeaseIsAbandonedWhileItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(yes{})
		l, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		work := l.Context(t.Context())
		k := c.keeper
		k.mu.Lock() // tick: takeDue, then due up to its look
		k.removeLocked(&l.event)
		k.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, c.Shutdown(ctx))
		l.keeper.schedule(l, l.deadline, 0) // the rest of due
		time.Sleep(2 * time.Second)
		require.Error(t, work.Err(), "the work must end when Shutdown does")
		require.Equal(t, ErrClosed, context.Cause(work))
	})
}

// A value is asked for once at the root, however many leases there are on the way.
func TestValueOfNestedLeaseContexts(t *testing.T) {
	c := New(yes{})
	defer c.Close()
	asked := 0
	var ctx context.Context = askedContext{t.Context(), &asked}
	for range 16 {
		l, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		defer l.Release()
		ctx = l.Context(ctx)
	}
	asked = 0
	ctx.Value(keyOfTest{})
	require.Equal(t, 1, asked)
}

type askedContext struct {
	context.Context
	asked *int
}

func (c askedContext) Value(key any) any {
	*c.asked++
	return c.Context.Value(key)
}

// Calls for single leases that hang leave room for batches.
func TestBatchesPassSinglesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(batching{})
		alone, err := c.Acquire(t.Context(), "alone")
		require.NoError(t, err)
		other, err := c.Acquire(t.Context(), "other")
		require.NoError(t, err)
		k := c.keeper
		k.queueRenewal(alone, time.Now(), queues-1)
		k.queueRenewal(other, time.Now().Add(time.Second), whole)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.renewals.workers.calls = maxSingle
		require.NotNil(t, k.nextRenewal())
		require.True(t, alone.queued)
		require.False(t, other.queued)
		require.Nil(t, k.nextRenewal())
	})
}

type batching struct{ yes }

func (batching) RenewBatch(_ context.Context, batch []Renewal) ([]RenewResult, error) {
	return make([]RenewResult, len(batch)), nil
}

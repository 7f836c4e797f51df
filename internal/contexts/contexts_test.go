package contexts

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

var errEnd = errors.New("the end")

func text(owner any) string { return fmt.Sprintf("WithOwner(%v)", owner) }

func TestLives(t *testing.T) {
	type key struct{}
	bubble.Test(t, func(t *testing.T) {
		var lives, others Lives
		lives.EndAlso(&others)
		parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 1))
		first := lives.Context(parent, "a", text)
		second := lives.Context(context.WithValue(parent, key{}, 2), "a", text)
		inner, stop := context.WithCancel(others.Context(second, "b", text))
		defer stop()
		bound := lives.Bind(parent)
		require.Equal(t, 1, first.Value(key{}))
		require.Equal(t, 2, second.Value(key{}))
		require.Equal(t, 2, inner.Value(key{}))
		require.Equal(t, fmt.Sprint(parent)+".WithOwner(a)", fmt.Sprint(first))

		owner, outer := Owner(inner)
		require.Equal(t, "b", owner)
		owner, outer = Owner(outer)
		require.Equal(t, "a", owner)
		owner, _ = Owner(outer)
		require.Nil(t, owner)
		owner, _ = Owner(bound)
		require.Nil(t, owner)

		done := lives.Done()
		require.NoError(t, lives.Err())
		require.NoError(t, inner.Err())
		lives.End(errEnd)
		lives.End(errors.New("again"))
		<-done
		<-lives.Done()
		<-others.Done()
		for _, ctx := range []context.Context{first, second, inner, bound, lives.Context(parent, "a", text), lives.Bind(t.Context())} {
			require.Equal(t, context.Canceled, ctx.Err())
			require.Equal(t, errEnd, context.Cause(ctx))
		}
		require.Equal(t, errEnd, lives.Err())
		require.Equal(t, errEnd, others.Err())
		require.NoError(t, parent.Err())

		var late, alive Lives
		lives.EndAlso(&late)
		require.Equal(t, errEnd, late.Err())
		ctx := alive.Context(parent, "a", text)
		cancel(errEnd)
		require.Equal(t, errEnd, context.Cause(ctx), "of the parent")
		require.NoError(t, alive.Err())
	})
}

// Nested contexts of one parent each ask their parent once for a value.
func TestValuesOfNested(t *testing.T) {
	parent := &countingContext{Context: t.Context()}
	ctx := context.Context(parent)
	for range 30 {
		ctx = new(Lives).Context(ctx, "a", text)
	}
	parent.asked = 0
	require.Nil(t, ctx.Value("missing"))
	require.Equal(t, 1, parent.asked)
}

// Contexts leave nothing behind.
func TestLivesKeepNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var lives Lives
		for range 1000 {
			parent, cancel := context.WithCancel(t.Context())
			ctx := lives.Context(parent, "a", text)
			cancel()
			<-ctx.Done()
		}
		synctest.Wait()
		require.Empty(t, lives.all, "after the parents have ended")

		parent := &countingContext{Context: t.Context(), done: make(chan struct{})}
		type key struct{}
		for i := range 1000 {
			lives.Context(parent, "a", text)
			lives.Context(context.WithValue(t.Context(), key{}, i), "a", text)
		}
		require.Len(t, lives.all, 2, "one for all parents that end together")
		require.Equal(t, 1, parent.registered)
		lives.End(errEnd)
		synctest.Wait()
		require.Empty(t, lives.all, "after the owner has ended")
		require.Zero(t, parent.registered, "the parent still knows contexts of the owner")
	})
}

// A context of an owner that ends by End has left its parent when End returns.
func TestEndLeaves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var lives Lives
		parent := &countingContext{Context: t.Context(), done: make(chan struct{})}
		ctx := lives.Context(parent, "a", text)
		require.Equal(t, 1, parent.registered)
		require.Equal(t, errEnd, End(ctx, func() error {
			lives.End(errEnd)
			require.Equal(t, 1, parent.registered, "not before the owner has ended")
			return errEnd
		}))
		require.Zero(t, parent.registered)
		require.Equal(t, errEnd, context.Cause(ctx))
		require.Equal(t, errEnd, End(ctx, lives.Err), "again")
	})
}

// countingContext counts what has registered for its end.
type countingContext struct {
	context.Context
	done       chan struct{}
	registered int
	asked      int
}

func (c *countingContext) Done() <-chan struct{} { return c.done }

func (c *countingContext) AfterFunc(func()) func() bool {
	c.registered++
	return func() bool { c.registered--; return true }
}

func (c *countingContext) Value(key any) any {
	c.asked++
	return c.Context.Value(key)
}

func TestLazy(t *testing.T) {
	type key struct{}
	bubble.Test(t, func(t *testing.T) {
		values := context.WithValue(context.Background(), key{}, "value")
		start := time.Now()
		for name, look := range map[string]func(*Lazy){
			"asked for Done": func(l *Lazy) { l.Done() },
			"asked for Err":  func(l *Lazy) { l.Err() },
			"asked for a child": func(l *Lazy) {
				_, cancel := context.WithCancel(l)
				defer cancel()
			},
			"not asked": func(*Lazy) {},
		} {
			l := NewLazy(values, time.Second)
			look(l)
			require.NoError(t, l.Err(), name)
			deadline, ok := l.Deadline()
			require.True(t, ok)
			require.Equal(t, time.Now().Add(time.Second), deadline)
			require.Equal(t, "value", l.Value(key{}))
			time.Sleep(time.Second)
			<-l.Done()
			require.Equal(t, context.DeadlineExceeded, l.Err(), name)
			l.Cancel()
			require.Equal(t, context.DeadlineExceeded, l.Err(), name)
		}
		require.Equal(t, 4*time.Second, time.Since(start))

		l := NewLazy(values, 0)
		select {
		case <-l.Done():
		default:
			require.Fail(t, "the time is over")
		}
		require.Equal(t, context.DeadlineExceeded, l.Err())
		l = NewLazy(values, time.Second)
		l.Cancel()
		<-l.Done()
		require.Equal(t, context.Canceled, l.Err())
		l = NewLazy(values, time.Second)
		done := l.Done()
		l.Cancel()
		<-done
		require.Equal(t, context.Canceled, context.Cause(l))
	})
}

// A timer costs its channel, itself and its function.
func TestLazyAllocations(t *testing.T) {
	var l *Lazy
	for want, use := range map[float64]func(){1: func() { l.Err() }, 4: func() { l.Done() }} {
		require.Equal(t, want, testing.AllocsPerRun(100, func() {
			l = NewLazy(t.Context(), time.Minute)
			use()
			l.Cancel()
		}))
	}
}

func TestWithin(t *testing.T) {
	type key struct{}
	bubble.Test(t, func(t *testing.T) {
		values := context.WithValue(t.Context(), key{}, "value")
		end, stop := context.WithCancel(t.Context())
		ctx, cancel := Within(values, time.Second, end)
		defer cancel()
		require.Equal(t, "value", ctx.Value(key{}))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, ctx.Err())
		ctx, cancel = Within(values, time.Second, end)
		defer cancel()
		stop()
		<-ctx.Done()
		require.Equal(t, context.Canceled, ctx.Err())
	})
}

// A lent context has values of another, but neither its cancellation nor its owner.
func TestLend(t *testing.T) {
	type key int
	for _, values := range []context.Context{nil, t.Context()} {
		ctx, differs := Lend(t.Context(), values)
		require.Equal(t, t.Context(), ctx)
		require.False(t, differs)
	}
	mine, cancel := context.WithCancel(context.WithValue(context.WithValue(t.Context(), key(1), "mine"), key(2), "mine"))
	defer cancel()
	others, stop := context.WithCancel(new(Lives).Context(context.WithValue(t.Context(), key(1), "other's"), "b", text))
	stop()
	ctx, differs := Lend(new(Lives).Context(mine, "a", text), others)
	require.True(t, differs)
	require.Equal(t, "other's", ctx.Value(key(1)))
	require.Equal(t, "mine", ctx.Value(key(2)))
	owner, _ := Owner(ctx)
	require.Equal(t, "a", owner)
	require.NoError(t, ctx.Err())
	child, stopChild := context.WithCancel(ctx)
	defer stopChild()
	cancel()
	<-child.Done()

	type unlike struct {
		context.Context
		_ []int
	}
	_, differs = Lend(unlike{Context: mine}, unlike{Context: mine})
	require.True(t, differs, "contexts that cannot be compared")
}

func TestMutex(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var m Mutex
		ended, stop := context.WithCancel(t.Context())
		stop()
		require.True(t, m.Lock(ended), "there is no wait")
		require.False(t, m.Lock(ended))
		locked := 0
		for range 3 {
			go func() {
				require.True(t, m.Lock(t.Context()))
				locked++
			}()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.False(t, m.Lock(ctx))
		for want := 1; want <= 3; want++ {
			m.Unlock()
			synctest.Wait()
			require.Equal(t, want, locked)
		}
		m.Unlock()
		require.True(t, m.Lock(t.Context()))
	})
}

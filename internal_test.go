package dlock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A fake is a Locker that grants everything, but releases as the test says.
type fake struct {
	release func() (bool, error) // nil: it succeeds
}

func (fake) TryAcquire(context.Context, string, string, time.Duration) (Attempt, error) {
	return Attempt{Acquired: true, Fence: 8}, nil
}

func (fake) Renew(context.Context, string, string, time.Duration) (bool, error) { return true, nil }

func (f fake) Release(context.Context, string, string) (bool, error) {
	if f.release == nil {
		return true, nil
	}
	return f.release()
}

func take(t *testing.T, c *Client, key string) *Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key)
	require.NoError(t, err)
	return l
}

// Lines returns how many lines a Client has. See WithLocalTurns.
func (c *Client) Lines() int {
	t := &c.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// RefuseCalls does the first step of Close only: calls are refused, and waits go on.
func (c *Client) RefuseCalls() { c.keeper.closed.Store(true) }

func drawDetached(t *rapid.T) detached {
	return detached{
		key:   string(rapid.SliceOfN(rapid.Byte(), 1, maxKey).Draw(t, "key")),
		token: "t" + anyBytes.Draw(t, "token"),
		fence: rapid.Int64Range(0, math.MaxInt64).Draw(t, "fence"),
		step:  rapid.IntRange(1, maxSteps).Draw(t, "step"),

		deadline: time.UnixMilli(rapid.Int64().Draw(t, "deadline")),
		held:     time.Duration(rapid.Int64Range(0, maxHeld.Milliseconds()).Draw(t, "held")) * time.Millisecond,
	}
}

var anyBytes = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) })

// Text unmarshals to what was marshalled; key and token may have any bytes.
func TestDetachedArrivesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := drawDetached(t)
		text, err := Detached{&sent}.MarshalText()
		require.NoError(t, err)
		var got Detached
		require.NoError(t, got.UnmarshalText(text))
		require.Equal(t, sent, *got.secret)
	})
}

// Text with one character changed, or cut off, is refused.
func TestDetachedChangedOnItsWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := drawDetached(t)
		text := sent.text()
		i := rapid.IntRange(0, len(text)-1).Draw(t, "position")
		require.ErrorIs(t, new(Detached).UnmarshalText(text[:i]), ErrInvalid)
		text[i] ^= byte(rapid.IntRange(1, 127).Draw(t, "change"))
		require.ErrorIs(t, new(Detached).UnmarshalText(text), ErrInvalid)
	})
}

// Of all texts with the right check sum, only those that MarshalText returns are accepted.
func TestDetachedHasOneText(t *testing.T) {
	number := rapid.SampledFrom([]string{"\x00", "\x01", "\x02", "\x80\x00", "\x81\x00", "\x80\x01", "\x81\x80\x00", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"})
	rapid.Check(t, func(t *rapid.T) {
		b := []byte{rapid.Byte().Draw(t, "step") % (maxSteps + 2)}
		b = append(b, number.Draw(t, "fence")...)
		b = append(b, number.Draw(t, "deadline")...)
		b = append(b, number.Draw(t, "held")...)
		b = append(b, number.Draw(t, "size")...)
		b = append(b, anyBytes.Draw(t, "rest")...)
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
		text := detachedText.AppendEncode([]byte(detachedPrefix), b)
		var h Detached
		if h.UnmarshalText(text) == nil {
			require.Equal(t, string(text), string(h.secret.text()))
		}
	})
}

// White space around the text is ignored, and refused within it, where package base64 skips
// line breaks.
func TestDetachedWithLineBreaks(t *testing.T) {
	sent := Detached{&detached{key: "k", token: "t", step: 1}}
	text, err := sent.MarshalText()
	require.NoError(t, err)
	for _, around := range []string{"\n", "\r\n", " ", "\t\n "} {
		var got Detached
		require.NoError(t, got.UnmarshalText([]byte(around+string(text)+around)))
		require.Equal(t, sent.String(), got.String())
	}
	for _, within := range []string{"\n", "\r", " "} {
		broken := string(text[:12]) + within + string(text[12:])
		require.ErrorIs(t, new(Detached).UnmarshalText([]byte(broken)), ErrInvalid)
	}
	for _, empty := range []string{"", "\n"} {
		require.ErrorIs(t, new(Detached).UnmarshalText([]byte(empty)), ErrInvalid)
	}
}

func TestDetachedOfTooManySteps(t *testing.T) {
	for _, step := range []int{maxSteps + 1, 255} {
		text, err := Detached{&detached{key: "k", token: "t", step: step}}.MarshalText()
		require.NoError(t, err)
		require.ErrorIs(t, new(Detached).UnmarshalText(text), ErrInvalid)
	}
}

// suspend moves the lease's deadline on the wall clock by d. The monotonic clock stops while
// a machine is suspended, and the wall clock does not; virtual time has only one clock.
func suspend(l *Lease, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wall = l.wall.Add(-d)
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.alarm.wall = l.wall
}

func TestSuspendedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(fake{})
		l := take(t, c, "k")
		work := l.Context(t.Context())
		suspend(l, 20*time.Second)
		require.NoError(t, l.Err())
		time.Sleep(time.Second + 10*time.Millisecond) // the clocks have been compared since
		take(t, c.With(WithTTL(time.Second), WithRenewal(false)), "ends just before they are again")
		suspend(l, 10*time.Second)
		start := time.Now()
		<-work.Done()
		require.LessOrEqual(t, time.Since(start), time.Second)
		require.ErrorIs(t, context.Cause(work), ErrLost)

		l = take(t, c, "k")
		suspend(l, time.Minute)
		require.ErrorIs(t, l.Release(), ErrLost, "found by the look before the release")
	})
}

// Done is called for the first time after the deadline, before the schedule has noticed.
func TestDoneAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := take(t, New(fake{}), "k")
		suspend(l, time.Minute)
		require.NotPanics(t, func() { <-l.Done() })
		require.ErrorIs(t, l.Err(), ErrLost)
	})
}

// Release begins in time, and is stopped until the deadline has passed.
func TestReleaseAtTheDeadlineIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		releases := 0
		s := fake{release: func() (bool, error) { releases++; return true, nil }}
		l := take(t, New(s, WithRenewal(false)), "k")
		l.mu.Lock()
		l.lookLocked()
		l.endLocked(ErrReleased)
		l.mu.Unlock()
		time.Sleep(time.Until(l.deadline))
		require.NoError(t, l.Release())
		synctest.Wait()
		require.NotZero(t, releases, "neither sent nor owed")
	})
}

// The contexts of a lease leave nothing behind.
func TestLeaseContextKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := take(t, New(fake{}), "k")
		for range 1000 {
			parent, cancel := context.WithCancel(t.Context())
			ctx := l.Context(parent)
			cancel()
			<-ctx.Done()
		}
		synctest.Wait()
		require.Empty(t, l.lives, "after the parents have ended")

		parent := &countingContext{Context: t.Context(), done: make(chan struct{})}
		type key struct{}
		for i := range 1000 {
			l.Context(parent)
			l.Context(context.WithValue(t.Context(), key{}, i))
		}
		require.Len(t, l.lives, 2, "one for all parents that end together")
		require.Equal(t, 1, parent.registered)
		require.NoError(t, l.Release())
		synctest.Wait()
		require.Empty(t, l.lives, "after the lease has ended")
		require.Zero(t, parent.registered, "the parent still knows contexts of the lease")
	})
}

// countingContext counts what has registered for its end.
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

// A lease is not passed on once its first renewal is due, even if the timer is late, nor if
// none is planned, nor by either clock with too little of its first TTL.
func TestYoungLease(t *testing.T) {
	now := time.Now()
	young := func(renewAt time.Time, rest, wallRest time.Duration) bool {
		l := &Lease{options: &options{terms: terms{ttl: DefaultTTL, autoRenew: true}}, renewAt: renewAt}
		l.deadline, l.wall = now.Add(rest), now.Add(wallRest).Round(0)
		return l.youngLocked(now)
	}
	require.True(t, young(now.Add(1), waitTTL/2, waitTTL/2))
	require.False(t, young(now, waitTTL/2, waitTTL/2))
	require.False(t, young(time.Time{}, waitTTL/2, waitTTL/2))
	require.False(t, young(now.Add(1), waitTTL/2-1, waitTTL/2))
	require.False(t, young(now.Add(1), waitTTL/2, waitTTL/2-1))
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

// Only tokens of this version have an owner and a time.
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

// A token contains its owner's label, which may have any bytes, and when it was made.
func TestOwnerArrivesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		owner := anyBytes.Draw(t, "owner")
		started := time.UnixMilli(rapid.Int64Range(0, 1<<45-1).Draw(t, "started"))
		got, at := parseToken(newToken(owner, started))
		require.Equal(t, owner, got)
		require.Equal(t, started, at)
	})
}

func TestScheduleIsEmptyWithoutLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(fake{})
		for range 100 {
			require.NoError(t, take(t, c, "k").Release())
		}
		time.Sleep(2 * lookAround)
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Empty(t, c.keeper.schedule)
		require.True(t, c.keeper.timerAt.IsZero(), "the timer still runs")
	})
}

// takeFromSchedule does the first half of a tick for a lease.
func takeFromSchedule(l *Lease) {
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.keeper.removeLocked(&l.alarm)
}

// Close stops the timer while a tick is about to put a lease back into the schedule.
func TestFinishStopsTimerForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := fake{release: func() (bool, error) { return false, errors.New("down") }}
		c := New(down, WithTTL(10*time.Minute), WithRenewal(false))
		l := take(t, c, "k")
		takeFromSchedule(l)
		c.keeper.owe(&owedRelease{key: "x", token: "t", ttl: time.Hour, values: context.Background(), inFlight: one})
		synctest.Wait()
		require.Error(t, c.Close(), "a release that is never answered")
		l.due()
		time.Sleep(time.Hour)
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Error(t, l.err, "the deadline was never noticed")
	})
}

// Shutdown gives up while a tick is about to put a lease back into the schedule.
func TestLeaseIsAbandonedWhileItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(fake{})
		l := take(t, c, "k")
		work := l.Context(t.Context())
		takeFromSchedule(l)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, c.Shutdown(ctx))
		l.keeper.scheduleLease(l, l.deadline, 0) // the second half of due
		time.Sleep(2 * time.Second)
		require.Error(t, work.Err(), "the work must end when Shutdown does")
		require.Equal(t, ErrClosed, context.Cause(work))
	})
}

// A Locker that ends its goroutine (with require in a fake, for example) costs no worker.
func TestGoexitInLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(goexit{})
		for i := range 40 {
			take(t, c, fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Zero(t, c.keeper.renewals.workers.calls, "calls that have ended")
	})
}

type goexit struct{ fake }

func (goexit) Renew(context.Context, string, string, time.Duration) (bool, error) {
	runtime.Goexit()
	return true, nil
}

// Calls for single leases that hang leave room for batches.
func TestBatchesPassSinglesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(batching{})
		alone, other := take(t, c, "alone"), take(t, c, "other")
		k := c.keeper
		k.queueRenewal(alone, time.Now(), queueCount-1)
		k.queueRenewal(other, time.Now().Add(time.Second), queueWhole)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.renewals.workers.calls = maxSingle
		require.NotNil(t, k.nextRenewalLocked())
		require.True(t, alone.queued)
		require.False(t, other.queued)
		require.Nil(t, k.nextRenewalLocked())
	})
}

type batching struct{ fake }

func (batching) RenewBatch(_ context.Context, batch []Renewal) ([]RenewResult, error) {
	return make([]RenewResult, len(batch)), nil
}

func TestLazyTimeout(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		values := context.WithValue(context.Background(), key{}, "value")
		start := time.Now()
		for name, look := range map[string]func(*lazyTimeout){
			"asked for Done": func(l *lazyTimeout) { l.Done() },
			"asked for Err":  func(l *lazyTimeout) { l.Err() },
			"asked for a child": func(l *lazyTimeout) {
				_, cancel := context.WithCancel(l)
				defer cancel()
			},
			"not asked": func(*lazyTimeout) {},
		} {
			l := newLazyTimeout(values, time.Second)
			look(l)
			require.NoError(t, l.Err(), name)
			deadline, ok := l.Deadline()
			require.True(t, ok)
			require.Equal(t, time.Now().Add(time.Second), deadline)
			require.Equal(t, "value", l.Value(key{}))
			time.Sleep(time.Second)
			<-l.Done()
			require.Equal(t, context.DeadlineExceeded, l.Err(), name)
			l.cancel()
			require.Equal(t, context.DeadlineExceeded, l.Err(), name)
		}
		require.Equal(t, 4*time.Second, time.Since(start))

		l := newLazyTimeout(values, time.Second)
		l.cancel()
		<-l.Done()
		require.Equal(t, context.Canceled, l.Err())
		l = newLazyTimeout(values, time.Second)
		done := l.Done()
		l.cancel()
		<-done
		require.Equal(t, context.Canceled, context.Cause(l))
	})
}

package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCertainHolds(t *testing.T) {
	hold := func(key string, from, to time.Duration, fence int64) *Hold {
		return &Hold{Key: key, Token: fmt.Sprint("token", fence), Start: from, End: to, Fence: fence}
	}
	for _, c := range []struct {
		name  string
		holds []*Hold
		want  string
	}{
		{"good", []*Hold{hold("k", 0, 5, 8), hold("k", 5, 9, 16)}, ""},
		{"without fences", []*Hold{hold("k", 0, 5, 0), hold("k", 5, 9, 0)}, ""},
		{"out of order", []*Hold{hold("k", 5, 9, 16), hold("k", 0, 5, 8)}, ""},
		{"two keys", []*Hold{hold("k", 0, 5, 8), hold("l", 0, 5, 8)}, ""},
		{"overlap", []*Hold{hold("k", 0, 6_000_000, 8), hold("l", 5, 6, 8), hold("k", 5_000_000, 9_000_000, 16)}, "overlap by 1.000ms"},
		{"fence falls", []*Hold{hold("k", 0, 5, 16), hold("k", 5, 9, 8)}, "higher by at least 8"},
		{"fence repeats", []*Hold{hold("k", 0, 5, 8), hold("k", 5, 9, 8)}, "higher by at least 8"},
		{"fence vanishes", []*Hold{hold("k", 0, 5, 8), hold("k", 5, 9, 0)}, "higher by at least 8"},
		{"overlap with one that is not the last", []*Hold{hold("k", 0, 9, 8), hold("k", 0, 0, 16), hold("k", 8, 9, 24)}, "overlap"},
	} {
		v, err := testModel.Check(&History{Holds: c.holds})
		assert.NoError(t, err, c.name)
		if c.want == "" {
			assert.Nil(t, v, c.name)
		} else if assert.NotNil(t, v, c.name) {
			assert.Contains(t, v.String(), c.want, c.name)
			assert.Len(t, v.Holds, 2, c.name)
		}
	}
}

// What was certain before a loss of data is over, even if the answer came later.
func TestWipeEndsCertainty(t *testing.T) {
	wipes := []*Operation{{Method: Wipe, Called: 10, Returned: 20}}
	for _, c := range []struct{ asked, start, end, want time.Duration }{
		{0, 1, 5, 5}, {2, 3, 15, 10}, {4, 12, 30, 10}, {15, 25, 30, 10}, {21, 22, 30, 30},
	} {
		h := &Hold{Asked: c.asked, Start: c.start, End: c.end}
		h.cutAtWipes(wipes)
		assert.Equal(t, c.want, h.End, "%v", c)
	}
}

// A loss of data explains that a lease is lost, if it may have come after the grant, and before anybody saw it.
func TestLosses(t *testing.T) {
	wipes := []*Operation{{Method: Wipe, Called: 10, Returned: 20}}
	for _, c := range []struct {
		asked, lost time.Duration
		explained   bool
	}{{1, 0, true}, {1, 9, false}, {1, 10, true}, {20, 30, true}, {21, 30, false}} {
		h := &History{Operations: wipes, Holds: []*Hold{{Key: "k", Asked: c.asked, Lost: c.lost}}}
		v, err := testModel.Check(h)
		assert.NoError(t, err)
		assert.Equal(t, c.explained, v == nil, "%v", c)
	}
}

// Fences rise even if no hold was certain, as when all data is lost, but only from a grant to those
// that were asked for later.
func TestFencesOfUncertainHolds(t *testing.T) {
	first := &Hold{Key: "k", Start: 5, Fence: 16}
	for asked, want := range map[time.Duration]int{5: 0, 6: 1} {
		h := &History{Holds: []*Hold{{Key: "k", Asked: asked, Start: 9, Fence: 8}, first, {Key: "l", Asked: 6, Start: 9, Fence: 8}}}
		assert.Empty(t, h.Overlaps())
		assert.Len(t, h.Disorders(1), want, "asked for at %v", asked)
	}
}

// A scriptedLocker gives one answer to each method, and has no Inspect.
type scriptedLocker struct {
	dlock.Locker // nil
	since        time.Time
}

var errScripted = errors.New("no reply")

func (l scriptedLocker) TryAcquire(context.Context, string, string, time.Duration) (dlock.Attempt, error) {
	return dlock.Attempt{Holder: "other"}, nil
}

func (l scriptedLocker) Acquire(context.Context, string, string, time.Duration) (dlock.Attempt, error) {
	return dlock.Attempt{Acquired: true, Fence: 8, Since: l.since}, nil
}

func (l scriptedLocker) Renew(context.Context, string, string, time.Duration) (bool, error) {
	return true, errScripted
}

func (l scriptedLocker) Release(context.Context, string, string) (bool, error) { return false, nil }

func (l scriptedLocker) RenewBatch(context.Context, []dlock.Renewal) ([]dlock.RenewResult, error) {
	return []dlock.RenewResult{{Held: true}, {Err: errScripted}}, nil
}

func TestRecorder(t *testing.T) {
	ctx := context.Background()
	r := NewRecorder(time.Now())
	l := r.Locker("client 3", scriptedLocker{since: time.Now().Add(time.Hour)}) // later than the return
	_, _ = l.TryAcquire(ctx, "k", "a", time.Second)
	_, _ = l.Acquire(ctx, "k", "a", time.Second)
	_, _ = l.Renew(ctx, "k", "a", time.Second)
	_, _ = l.RenewBatch(ctx, []dlock.Renewal{{Key: "k", Token: "a", TTL: time.Second}, {Key: "l", Token: "b", TTL: time.Minute}})
	_, _ = l.RenewBatch(ctx, []dlock.Renewal{{Key: "k", Token: "too few"}})
	_, _ = l.Release(ctx, "k", "a")
	_, err := l.Inspect(ctx, "k")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	r.Wipe(func() {})
	r.Outage("client 4", func() {})
	open := r.begin(Operation{Key: "k"})
	h := r.History()
	r.end(open, nil, func() { open.Outcome = Granted })
	var got []Outcome
	place := 0
	for _, o := range h.Operations {
		got = append(got, o.Outcome)
		assert.Greater(t, o.Begin, place, o)
		assert.Greater(t, o.End, o.Begin, o)
		place = o.Begin
	}
	assert.Equal(t, []Outcome{Refused, Granted, Unknown, Held, Unknown, Unknown, NotHeld, Happened, Happened, Unknown}, got)
	assert.Equal(t, "other", h.Operations[0].Holder)
	granted := h.Operations[1]
	assert.Equal(t, granted.Returned, granted.Since, "Since is later than the return")
	assert.Equal(t, "client 3", granted.Client)
	assert.Equal(t, []string{"k", "l"}, h.keys())
}

// A listing has all calls and certain holds of each key, and marks those of the violation.
func TestListing(t *testing.T) {
	bad := []*Hold{
		{Client: "a", Key: "k", Token: "first", End: 5 * time.Millisecond, Fence: 8},
		{Client: "b", Key: "k", Token: "second", Start: 4 * time.Millisecond, End: 9 * time.Millisecond, Fence: 16},
	}
	elsewhere := &Hold{Client: "c", Key: "l", Token: "third", Start: 1, End: 2}
	h := &History{Holds: append(bad, elsewhere), Operations: ordered([]*Operation{
		gets(0, 1, "first", 8), wiped(20, 21), {Method: Outage, Begin: 300, End: 301}, {Key: "l", Begin: 400, End: Never}})}
	v, err := testModel.Check(h)
	require.NoError(t, err)
	whole, other, _ := strings.Cut(h.Listing(v), "all that happened to \"l\":\n")
	assert.True(t, strings.HasPrefix(whole, "all that happened to \"k\":\n"), whole)
	for _, hold := range bad {
		assert.Contains(t, whole, "\n> "+hold.String())
	}
	for _, o := range h.Operations[:3] {
		assert.Contains(t, whole, "\n  "+o.line())
	}
	assert.Equal(t, 1, strings.Count(other, h.Operations[2].line()), "an outage is one of each key")
	assert.Contains(t, other, "  "+elsewhere.String())
	assert.Contains(t, other, "has not returned")
	assert.NotContains(t, other, ">")
	assert.NotContains(t, h.Listing(nil), ">")
}

func TestStall(t *testing.T) {
	const stall = 20 * time.Millisecond
	l := NewRecorder(time.Now()).Locker("client", scriptedLocker{})
	l.Stall(stall)
	start := time.Now()
	_, _ = l.TryAcquire(context.Background(), "k", "a", time.Second)
	assert.GreaterOrEqual(t, time.Since(start), stall)
	assert.Zero(t, l.stall.Load(), "the next answer is late too")
}

package history

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	assert.Equal(t, []string{"", "client 3", "client 4"}, h.clients())
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

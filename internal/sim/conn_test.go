package sim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// slow is a network in which each leg takes a millisecond.
func slow(sim.Trip) sim.Fate {
	return sim.Fate{Request: sim.Leg{Delay: ms}, Reply: sim.Leg{Delay: ms}}
}

// waits lets a client wait for k, and returns when it was granted.
func waits(t *testing.T, l *rediscore.Locker) (served <-chan time.Time) {
	granted := make(chan time.Time, 1)
	go func() {
		a, err := l.Acquire(context.Background(), "k", "B", time.Minute)
		assert.NoError(t, err)
		assert.True(t, a.Acquired)
		granted <- time.Now()
	}()
	return granted
}

// handsOver releases k, and returns how long it takes until the next is served.
func handsOver(t *testing.T, holder *rediscore.Locker, served <-chan time.Time) time.Duration {
	t.Helper()
	begun := time.Now()
	held, err := holder.Release(context.Background(), "k", "A")
	require.NoError(t, err)
	assert.True(t, held)
	return (<-served).Sub(begun)
}

// try makes an attempt that may take a second.
func try(l *rediscore.Locker, token string) (dlock.Attempt, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return l.TryAcquire(ctx, "k", token, time.Minute)
}

// answer is that to an attempt.
func answer(t *testing.T, l *rediscore.Locker, token string) dlock.Attempt {
	t.Helper()
	a, err := try(l, token)
	require.NoError(t, err)
	return a
}

func TestFates(t *testing.T) {
	for name, c := range map[string]struct {
		fate     sim.Fate
		answered time.Duration // 0: not within a second
		reached  time.Duration // when the lock was taken; 0: never
	}{
		"slow":         {sim.Fate{Request: sim.Leg{Delay: 30 * time.Millisecond}, Reply: sim.Leg{Delay: 20 * time.Millisecond}}, 50 * time.Millisecond, 30 * time.Millisecond},
		"request lost": {sim.Fate{Request: sim.Leg{Lost: true}}, 0, 0},
		"reply lost":   {sim.Fate{Request: sim.Leg{Delay: time.Millisecond}, Reply: sim.Leg{Lost: true}}, 0, time.Millisecond},
		"request late": {sim.Fate{Request: sim.Leg{Delay: 2 * time.Second}}, 0, 2 * time.Second},
		"held back":    {sim.Fate{Request: sim.Leg{Until: make(chan struct{})}}, 0, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				if c.fate.Request.Until != nil {
					until := make(chan struct{})
					c.fate.Request.Until = until
					time.AfterFunc(3*time.Second, func() { close(until) })
				}
				server := sim.NewServer()
				l, _ := dialWith(t, server, func(sim.Trip) sim.Fate { return c.fate })
				begun := time.Now()
				a, err := try(l, "A")
				if c.answered > 0 {
					require.NoError(t, err)
					assert.True(t, a.Acquired)
					assert.Equal(t, c.answered, time.Since(begun))
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					assert.False(t, dlock.NoEffect(err), "the request was sent")
				}
				if c.reached > 0 {
					time.Sleep(time.Until(begun.Add(c.reached - time.Microsecond)))
					if c.reached > time.Since(begun) {
						assert.Empty(t, get(t, server, "k"))
					}
					time.Sleep(ms)
					assert.Equal(t, "A", get(t, server, "k"))
				} else {
					time.Sleep(time.Hour)
					assert.Empty(t, get(t, server, "k"))
				}
			})
		})
	}
}

// A release hands the lock over in one round trip: its request, and the message.
func TestHandoverTakesOneRoundTrip(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := sim.NewServer()
		holder, _ := dialWith(t, server, slow)
		waiter, _ := dialWith(t, server, slow)
		answer(t, holder, "A")
		served := waits(t, waiter)
		time.Sleep(10 * time.Second)
		assert.Equal(t, 2*ms, handsOver(t, holder, served))
	})
}

// A message that is lost, or a subscription that is cut, is made good by the next check-in.
func TestLostMessages(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, waiter *sim.Conn){
		"message": func(t *testing.T, waiter *sim.Conn) {
			waiter.Hold(t, func(t sim.Trip) bool { return t.Message != "" })
		},
		"cut": func(_ *testing.T, waiter *sim.Conn) { waiter.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				server := sim.NewServer()
				holder, _ := dialWith(t, server, slow)
				waiter, conn := dialWith(t, server, slow)
				answer(t, holder, "A")
				served := waits(t, waiter)
				time.Sleep(time.Second)
				lose(t, conn)
				assert.Less(t, handsOver(t, holder, served), 3*time.Second)
			})
		})
	}
}

// What a server refuses has no effect, and the Locker knows that. A restart loses all data, and
// the next call makes the script known again.
func TestServerFaults(t *testing.T) {
	for name, f := range map[string]sim.Faults{
		"loading":   {Calls: "LOADING Redis is loading the dataset in memory"},
		"read only": {Writes: "READONLY You can't write against a read only replica."},
		"full":      {Full: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				server := sim.NewServer()
				l, _ := dialWith(t, server, slow)
				server.SetFaults(f)
				_, err := try(l, "A")
				require.Error(t, err)
				assert.True(t, dlock.NoEffect(err), "%v", err)
				server.SetFaults(sim.Faults{})
				a := answer(t, l, "A")
				assert.True(t, a.Acquired)
				server.SetFaults(sim.Faults{Full: true})
				held, err := l.Release(context.Background(), "k", "A")
				require.NoError(t, err, "a full server releases")
				assert.True(t, held)
			})
		})
	}
	bubble.Test(t, func(t *testing.T) {
		server := sim.NewServer()
		l, _ := dialWith(t, server, slow)
		before := answer(t, l, "A")
		server.Restart()
		assert.Empty(t, server.Keys())
		server.SetClock(-time.Hour)
		back := answer(t, l, "A")
		assert.Less(t, back.Fence, before.Fence, "nothing is left of the counter, and the clock is behind")
	})
}

// A closed Conn leaves nothing behind, whatever was held back.
func TestCloseEndsAll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := sim.NewServer()
		l, conn := dialWith(t, server, func(sim.Trip) sim.Fate { return sim.Fate{Request: sim.Leg{Until: make(chan struct{})}} })
		failed := make(chan error, 2)
		go func() { _, err := l.TryAcquire(context.Background(), "k", "A", time.Minute); failed <- err }()
		go func() { _, err := l.Acquire(context.Background(), "k2", "A", time.Minute); failed <- err }()
		synctest.Wait()
		conn.Close()
		for range 2 {
			assert.ErrorIs(t, <-failed, dlock.ErrClosed)
		}
		_, err := try(l, "A")
		assert.ErrorIs(t, err, dlock.ErrClosed)
		assert.Empty(t, server.Keys())
	})
}

// A test that holds a call back says when it arrives, how often, and what the caller gets.
func TestHeldCalls(t *testing.T) {
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		direct func(*sim.Held)
		want   dlock.Attempt
		err    error
		taken  bool
	}{
		"answered":           {(*sim.Held).Answer, dlock.Attempt{Acquired: true}, nil, true},
		"lost":               {func(h *sim.Held) { h.Return(nil, lost) }, dlock.Attempt{}, lost, false},
		"lost, and executed": {func(h *sim.Held) { h.Execute(); h.Return(nil, lost) }, dlock.Attempt{}, lost, true},
		"forged":             {func(h *sim.Held) { h.Return([]any{"B", int64(7)}, nil) }, dlock.Attempt{Holder: "B", Remaining: 7 * time.Millisecond}, nil, false},
		"too late":           {func(h *sim.Held) { time.Sleep(time.Minute); h.Execute() }, dlock.Attempt{}, context.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				server := sim.NewServer()
				l, conn := dialWith(t, server, slow)
				h := conn.Hold(t, func(t sim.Trip) bool { return t.Calls[0].Args[0] == "A" })
				answer(t, l, "B")
				_, err := l.Release(t.Context(), "k", "B")
				require.NoError(t, err)
				var a dlock.Attempt
				done := make(chan struct{})
				go func() { a, err = try(l, "A"); close(done) }()
				h.Await()
				assert.Empty(t, get(t, server, "k"))
				c.direct(h)
				<-done
				a.Fence = 0
				assert.Equal(t, c.want, a)
				assert.ErrorIs(t, err, c.err)
				assert.Equal(t, c.taken, get(t, server, "k") == "A")
				h.Execute()
				assert.Equal(t, "A", get(t, server, "k"), "a late request")
			})
		})
	}
}

// A message and a subscription can be held back too, and a message can come twice. The shard channel of a name is not the
// channel of that name.
func TestHeldMessages(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := sim.NewServer()
		_, conn := dial(t, server)
		plain, err := server.Subscribe("c", false)
		require.NoError(t, err)
		subscription := conn.Hold(t, func(t sim.Trip) bool { return t.Calls == nil })
		var heard []string
		go conn.Listen(t.Context(), "c", true, func(e rediscore.Event) { heard = append(heard, e.Payload) })
		publish := func(text string) int64 { return doing(t, server)("SPUBLISH", "c", text).(int64) }
		subscription.Await()
		require.Zero(t, publish("early"))
		subscription.Answer()
		first := conn.Hold(t, func(t sim.Trip) bool { return t.Message == "first" })
		require.EqualValues(t, 1, publish("first"))
		publish("second")
		first.Deliver()
		first.Deliver()
		assert.Equal(t, []string{"", "second", "first", "first"}, heard)
		assert.Empty(t, plain.Take())
	})
}

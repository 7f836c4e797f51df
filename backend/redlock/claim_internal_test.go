package redlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	memorybackend "github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

// What is known of a token is forgotten when its calls are over. What is worth remembering is so for a while.
func TestClaimsAreForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(context.Context, *Locker, []*memorybackend.Locker)
		worth bool
	}{
		"a lease": {func(ctx context.Context, l *Locker, _ []*memorybackend.Locker) {
			_, _ = l.TryAcquire(ctx, "key", "x", time.Second)
			_, _ = l.Renew(ctx, "key", "x", time.Second)
			_, _ = l.Release(ctx, "key", "x")
		}, false},
		"a refused attempt": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			s[0].Steal("key", time.Minute)
			hold, _ := s[0].Inspect(ctx, "key")
			_, _ = s[1].TryAcquire(ctx, "key", hold.Token, time.Minute)
			_, _ = l.TryAcquire(ctx, "key", "x", time.Second)
		}, false},
		"a lease that is made whole": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			_, _ = l.TryAcquire(ctx, "key", "x", time.Minute)
			s[0].Expire("key")
			for range 3 {
				_, _ = l.Renew(ctx, "key", "x", time.Minute)
				time.Sleep(16 * time.Second)
			}
			_, _ = l.Renew(ctx, "key", "x", time.Minute)
		}, false},
		"a release without an answer": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			s[0].FailReplies(errors.New("lost"))
			_, _ = l.Release(ctx, "key", "x")
			s[0].FailReplies(nil)
		}, true},
		"a vote of an attempt that was given up": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			s[1].Delay(time.Second)
			s[2].Delay(time.Second)
			_, _ = l.TryAcquire(ctx, "key", "x", time.Second)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var nodes []dlock.Locker
				var s []*memorybackend.Locker
				for range 3 {
					s = append(s, memorybackend.New())
					nodes = append(nodes, s[len(s)-1])
				}
				l := New(nodes, WithoutGuard())
				defer l.Close()
				c.do(t.Context(), l, s)
				time.Sleep(memory / 2)
				synctest.Wait()
				if !c.worth {
					require.Empty(t, l.claims.all)
					return
				}
				crowd := func(key string) { // they are swept when there are many
					for i := range 300 {
						l.claims.get(fmt.Sprint(key, i), "y")
					}
				}
				crowd("first")
				require.Contains(t, l.claims.all, id{"key", "x"})
				time.Sleep(memory)
				crowd("second")
				synctest.Wait()
				require.NotContains(t, l.claims.all, id{"key", "x"})
			})
		})
	}
}

// So many releases are repeated at the same time, and no more.
func TestOwedReleasesAreLimited(t *testing.T) {
	l := New([]dlock.Locker{memorybackend.New()})
	defer l.Close()
	c := l.claims.get("key", "x")
	defer l.claims.put(c)
	l.owed.Store(maxOwed)
	l.owe(c, 0, 0)
	require.EqualValues(t, maxOwed, l.owed.Load())
	require.Equal(t, 1, c.users)
}

// A node owes nothing once it has answered a release, or each request for a vote with a refusal. A request that was made
// twice has no answer for both.
func TestWhatANodeOwes(t *testing.T) {
	l := New([]dlock.Locker{memorybackend.New()})
	defer l.Close()
	c := l.claims.get("key", "x")
	defer l.claims.put(c)
	c.asked = true
	answer := func(e reply) bool {
		l.claims.asks(c, 0)
		l.voted(c, 0, &e)
		return !l.claims.owesNothing(c, 0, true)
	}
	granted := reply{}
	granted.ballot.Acquired = true
	require.False(t, answer(reply{}), "refused")
	require.True(t, answer(granted), "granted")
	require.True(t, answer(reply{}), "refused, but granted before")
	l.released(c, 0, request{err: errPending})
	require.False(t, l.claims.owesNothing(c, 0, true), "a release without an answer")
	l.released(c, 0, request{})
	require.True(t, l.claims.owesNothing(c, 0, true), "released")
	repeated := request{unknown: true}
	repeated.fail(&dlock.UnansweredError{Err: context.Canceled, Late: func(f func(dlock.Attempt, error)) { f(dlock.Attempt{}, nil) }}, time.Second)
	require.True(t, answer(reply{request: repeated}), "repeated")
}

// spyListener notes what a wait reports.
type spyListener struct{ heard []string }

func (s *spyListener) Answered()                     { s.heard = append(s.heard, "answered") }
func (s *spyListener) Failed(_ time.Time, err error) { s.heard = append(s.heard, err.Error()) }
func (s *spyListener) NoInbox(err error)             { s.heard = append(s.heard, err.Error()) }
func (s *spyListener) take() (h []string)            { h, s.heard = s.heard, nil; return h }

// A wait has an answer when a majority has one, and has failed when no majority can have one.
func TestWhatAWaitHears(t *testing.T) {
	l := New([]dlock.Locker{memorybackend.New(), memorybackend.New(), memorybackend.New()})
	spy := new(spyListener)
	h := &heard{Listener: spy, of: l, nodes: make([]word, 3)}
	seats := []seatHeard{{h, 0}, {h, 1}, {h, 2}}
	seats[0].Answered()
	seats[1].Failed(time.Now(), errors.New("away"))
	require.Empty(t, spy.take(), "one of three")
	seats[2].Failed(time.Now(), errors.New("away, too"))
	require.Equal(t, []string{"1 of 3 nodes counted, 2 are needed: node 1: away; node 2: away, too"}, spy.take())
	seats[1].Answered()
	require.Equal(t, []string{"answered"}, spy.take())
	seats[2].NoInbox(errors.New("no right"))
	require.Equal(t, []string{"no right"}, spy.take())
}

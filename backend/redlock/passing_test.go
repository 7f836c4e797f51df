package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	memorybackend "github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/bubble"
)

// slowPass is a node that answers a release late.
type slowPass struct{ quorum.VoteAcquirer }

func (s slowPass) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	held, err := s.VoteAcquirer.Pass(ctx, key, token, to, floor)
	time.Sleep(time.Millisecond)
	return held, err
}

// A vote does not count from the moment it is given back, not only when that is answered.
func TestAVoteThatIsGivenBackDoesNotCount(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var nodes []dlock.Locker
		for range 3 {
			nodes = append(nodes, slowPass{memorybackend.New()})
		}
		l := New(nodes, WithoutGuard())
		v := l.newVoting(t.Context(), "key", "token", time.Second)
		v.vote(0, l.floor())
		v.note(<-v.answers)
		v.vote(1, l.floor())
		v.note(<-v.answers)
		if n := v.counted(); n != 2 {
			t.Fatalf("%d votes count, want 2", n)
		}
		v.pass(1, "", l.floor())
		if n := v.counted(); n != 1 {
			t.Errorf("%d votes count while one is given back, want 1", n)
		}
		v.note(<-v.answers)
		if n := v.counted(); n != 1 {
			t.Errorf("%d votes count after one was given back, want 1", n)
		}
		v.end(isKept)
		_ = l.Close()
	})
}

// Nodes whose confirmations came too late have answered all the same: the attempt goes on.
func TestLapsedVotesAreNoFailure(t *testing.T) {
	l := New([]dlock.Locker{memorybackend.New(), memorybackend.New(), memorybackend.New()}, WithoutGuard())
	v := l.newVoting(t.Context(), "key", "token", time.Second)
	for i := range v.seats {
		v.seats[i] = seat{granted: true, since: time.Now().Add(-time.Minute)}
		v.flying++
		v.note(reply{node: i, kind: confirmed, ballot: quorum.Ballot{Attempt: dlock.Attempt{Acquired: true}}})
	}
	if err := v.lack(); err != nil {
		t.Error(err)
	}
	v.end(isKept)
	_ = l.Close()
}

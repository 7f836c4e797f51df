package redlock

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	memorybackend "github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

func TestWaitOfErrors(t *testing.T) {
	const soon, late, later = time.Second, time.Minute, time.Hour
	down := errors.New("down")
	l := New([]dlock.Locker{memorybackend.New(), memorybackend.New(), memorybackend.New()})
	defer l.Close()
	for _, c := range []struct {
		nodes [3]error
		want  time.Duration
	}{
		{[3]error{nil, &youngError{late}, errSplit}, 0},
		{[3]error{errSplit, &youngError{late}, errSplit}, 0},
		{[3]error{nil, &youngError{late}, errRepeated}, 0},
		{[3]error{nil, &youngError{late}, errPending}, late},
		{[3]error{nil, &youngError{late}, down}, late},
		{[3]error{nil, &youngError{late}, &youngError{soon}}, soon},
		{[3]error{&youngError{later}, &youngError{late}, &youngError{soon}}, late},
		{[3]error{down, &youngError{late}, down}, 0},
	} {
		var e *MajorityError
		require.ErrorAs(t, l.failure(c.nodes[:], false), &e)
		require.Equal(t, c.want, e.Wait, "%v", e)
	}
}

// A vote that was given back, and was given to the token again by somebody else, is not this call's.
func TestAVoteThatCameBackIsNotFresh(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memorybackend.New()
		l := New([]dlock.Locker{store, memorybackend.New(), memorybackend.New()}, WithoutGuard())
		v := l.newVoting(t.Context(), "key", "token", time.Second)
		v.vote(0, 0)
		v.note(<-v.answers)
		require.True(t, v.mayReturn(&v.seats[0]), "a fresh vote")
		v.pass(0, "", 0)
		v.note(<-v.answers)
		_, err := store.Vote(t.Context(), "key", "token", time.Second, 0)
		require.NoError(t, err)
		v.vote(0, 0)
		v.note(<-v.answers)
		require.False(t, v.mayReturn(&v.seats[0]), "another's vote")
		v.end(isKept)
		require.NoError(t, l.Close())
	})
}

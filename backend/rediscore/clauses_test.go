package rediscore_test

import (
	"testing"

	"github.com/dlock-go/dlock/backend/internal/votetest"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// The scripts keep each clause of a Voter.
func TestVotes(t *testing.T) {
	votetest.Run(t, bubble.Test, func(t *testing.T) votetest.Store {
		s := sim.NewServer()
		return votetest.Store{
			New:  func() votetest.Client { return lockerOn(t, sim.Dial(s, nil)) },
			Wipe: s.FlushAll,
		}
	})
}

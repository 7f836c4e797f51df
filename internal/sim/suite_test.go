package sim_test

import (
	"sync"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

// The scripts and package rediscore pass the whole suite, in virtual time.
func TestConformance(t *testing.T) {
	var servers sync.Map // by the test
	of := func(t *testing.T) *sim.Server {
		s, _ := servers.LoadOrStore(t, sim.NewServer())
		return s.(*sim.Server)
	}
	conformance.Run(t, conformance.Harness{
		New: func(t *testing.T) dlock.Locker {
			conn := sim.Dial(of(t), nil)
			l := rediscore.New(conn)
			t.Cleanup(func() {
				l.Close()
				conn.Close()
			})
			return l
		},
		Wipe:        func(t *testing.T) { of(t).FlushAll() },
		Bubble:      true,
		SkipForward: israce.Enabled,
	})
}

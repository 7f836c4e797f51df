package sim_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

// The scripts and package rediscore pass the whole suite on each topology, in virtual time.
func TestConformance(t *testing.T) {
	const lag = 300 * time.Microsecond // of replicas
	for name, c := range map[string]struct {
		masters, replicas int // how many replicas each master has, and grants wait for
		lag               time.Duration
	}{
		"Server":     {1, 0, 0},
		"Replicated": {1, 2, lag},
		"Cluster":    {3, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if israce.Enabled && name != "Server" {
				t.Skip("the goroutines of the library are the same on each topology")
			}
			var beds sync.Map // the masters, by the test
			of := func(t *testing.T) []*sim.Server {
				bed, ok := beds.Load(t)
				if !ok {
					bed, _ = beds.LoadOrStore(t, mastersOf(c.masters, c.replicas, c.lag))
				}
				return bed.([]*sim.Server)
			}
			conformance.Run(t, conformance.Harness{
				New: func(t *testing.T) dlock.Locker {
					l, _ := dial(t, of(t)[0], rediscore.WithReplicas(c.replicas, time.Second))
					return l
				},
				Wipe: func(t *testing.T) {
					for _, s := range of(t) {
						s.FlushAll()
					}
				},
				Count: func(t *testing.T) (n int) {
					for _, s := range of(t) {
						for _, key := range s.Keys() {
							if !strings.HasSuffix(key, "dlock1:fence") { // one for each slot at most
								n++
							}
						}
					}
					return n
				},
				Bubble:      true,
				SkipForward: israce.Enabled || name != "Server",
			})
		})
	}
}

// mastersOf returns masters with so many replicas each, in a cluster if there are several.
func mastersOf(masters, replicas int, lag time.Duration) (all []*sim.Server) {
	if masters > 1 {
		all = sim.NewCluster(masters, replicas).Masters()
	} else {
		all = []*sim.Server{sim.NewServer()}
		for range replicas {
			all[0].NewReplica()
		}
	}
	for _, m := range all {
		for _, r := range m.Replicas() {
			r.SetLink(sim.Link{Delay: lag})
		}
	}
	return all
}

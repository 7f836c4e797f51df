package once

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/proctest"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	period    = time.Second
	periodTTL = 300 * time.Millisecond
)

// TestReplica is the process of a replica. It runs the job in each period until it is killed.
func TestReplica(t *testing.T) {
	locker := goredis.New(redis.NewClient(&redis.Options{Addr: proctest.Args(t)[0], ContextTimeoutEnabled: true}))
	j := New(dlock.New(locker, dlock.WithTTL(periodTTL)), "job", period)
	for {
		due := time.Now().Truncate(period).Add(period)
		time.Sleep(time.Until(due))
		go func() {
			ran, err := j.Do(t.Context(), j.Due(time.Now()), func(context.Context, *dlock.Lease) error {
				proctest.Say("begins", due.UnixMilli())
				time.Sleep(100 * time.Millisecond)
				proctest.Say("ends", due.UnixMilli())
				return nil
			})
			if errors.Is(err, dlock.ErrLost) || ran && err != nil {
				proctest.Say("interrupted", due.UnixMilli())
			}
		}()
	}
}

// Five processes run a job in each period. In each second period, the process that runs it is killed.
// In others it is stopped for longer than the TTL, or the period begins while the server is
// suspended or being restarted. once of DLOCK_LONG is the number of periods.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	server, p := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"), proctest.New(t)
	for range 5 {
		p.Start("TestReplica", server.Addr())
	}
	said := func(word string, due time.Time) []proctest.Line {
		return slices.DeleteFunc(p.Said(word, 0), func(l proctest.Line) bool { return l.Values[0] != due.UnixMilli() })
	}
	strike := func(due time.Time, signal syscall.Signal) (pid int, at time.Time) { // the process that runs the job
		for time.Now().Before(due.Add(period / 2)) {
			if begun := said("begins", due); len(begun) > 0 && len(said("ends", due)) == 0 {
				p.Signal(begun[0].PID, signal)
				return begun[0].PID, time.Now()
			}
			time.Sleep(2 * time.Millisecond)
		}
		return 0, at
	}
	periods, _ := strconv.Atoi(long.Of("once"))
	periods = max(5, periods)
	first := time.Now().Truncate(period).Add(2 * period)
	deaths := make(map[int]time.Time)
	stops := 0
	for n := range periods {
		due := first.Add(time.Duration(n) * period)
		time.Sleep(time.Until(due.Add(-period / 10)))
		switch n % 4 {
		case 1:
			begin, end := server.Stop, server.Restart
			if n%8 == 5 {
				begin, end = server.Suspend, server.Resume
			}
			begin()
			time.Sleep(time.Until(due.Add(period / 5)))
			end()
		case 3:
			if pid, _ := strike(due, syscall.SIGSTOP); pid != 0 {
				stops++
				time.Sleep(periodTTL + 100*time.Millisecond)
				p.Signal(pid, syscall.SIGCONT)
			}
		default:
			if pid, at := strike(due, syscall.SIGKILL); pid != 0 {
				deaths[n] = at
				p.Start("TestReplica", server.Addr())
			}
		}
	}
	time.Sleep(2 * period)
	var waits []time.Duration // from a death to the next run
	twice := 0
	for n := range periods {
		due := first.Add(time.Duration(n) * period)
		begun, allowed := said("begins", due), 1
		if at, ok := deaths[n]; ok && len(begun) > 1 {
			waits = append(waits, begun[1].At.Sub(at))
			allowed++
		}
		if len(begun) > allowed {
			twice++
		}
		assert.NotEmpty(t, said("ends", due), "missed %v", due)
		assert.LessOrEqual(t, len(begun), allowed+len(said("interrupted", due)), "runs for %v", due)
	}
	require.NotEmpty(t, waits)
	slices.Sort(waits)
	t.Logf("%d periods, %d kills, %d stops, %d twice after a loss; from a death to the next run (TTL %v): median %v, largest %v",
		periods, len(deaths), stops, twice, periodTTL, waits[len(waits)/2], waits[len(waits)-1])
}

package once

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
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

// A history is what the journal says of a period.
type history struct {
	begun       []proctest.Line
	ended, lost int
}

func historyOf(p *proctest.Group, due time.Time) history {
	said := func(word string) []proctest.Line {
		return slices.DeleteFunc(p.Said(word, 0), func(l proctest.Line) bool { return l.Values[0] != due.UnixMilli() })
	}
	return history{said("begins"), len(said("ends")), len(said("interrupted"))}
}

// Five processes run a job in each period. In each second period, the process that runs it is killed.
// In others it is stopped for longer than the TTL, or the period begins while the server is
// suspended or being restarted. DLOCK_ONCE_PERIODS is the number of periods.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	p := proctest.New(t)
	for range 5 {
		p.Start("TestReplica", server.Addr())
	}
	due := time.Now().Truncate(period).Add(2 * period)
	until := func(d time.Duration, enough func(history) bool) (h history) {
		for h = historyOf(p, due); !enough(h) && time.Now().Before(due.Add(d)); h = historyOf(p, due) {
			time.Sleep(2 * time.Millisecond)
		}
		return h
	}
	begun := func(h history) bool { return len(h.begun) > 0 }
	var count struct{ kills, stops, outages, missed, twiceAfterLoss, twice int }
	deaths := make(map[time.Time]int)
	var periods []time.Time
	var waits []time.Duration // from a death to the next begin
	env, _ := strconv.Atoi(os.Getenv("DLOCK_ONCE_PERIODS"))
	for n := range max(5, env) {
		switch {
		case n%4 == 1:
			count.outages++
			begin, end := server.Stop, server.Restart
			if n%8 == 5 {
				begin, end = server.Suspend, server.Resume
			}
			time.Sleep(time.Until(due.Add(-100 * time.Millisecond)))
			begin()
			time.Sleep(time.Until(due.Add(200 * time.Millisecond)))
			end()
		case n%4 == 3:
			if h := until(period/2, begun); begun(h) && h.ended == 0 {
				count.stops++
				p.Signal(h.begun[0].PID, syscall.SIGSTOP)
				time.Sleep(periodTTL + 100*time.Millisecond)
				p.Signal(h.begun[0].PID, syscall.SIGCONT)
			}
		default:
			if h := until(period/2, begun); begun(h) && h.ended == 0 {
				p.Signal(h.begun[0].PID, syscall.SIGKILL)
				dead := time.Now()
				count.kills++
				deaths[due]++
				if h = until(period, func(h history) bool { return len(h.begun) > 1 }); len(h.begun) > 1 {
					waits = append(waits, h.begun[1].At.Sub(dead))
				}
				p.Start("TestReplica", server.Addr())
			}
		}
		due = due.Add(period)
		time.Sleep(time.Until(due.Add(-period / 10)))
		periods = append(periods, due.Add(-period))
	}
	time.Sleep(period / 2)
	for _, due := range periods {
		switch h := historyOf(p, due); {
		case h.ended == 0:
			count.missed++
			t.Logf("missed %v: %+v", due, h)
		case len(h.begun) == 1+deaths[due]:
		case len(h.begun) <= 1+deaths[due]+h.lost:
			count.twiceAfterLoss++
		default:
			count.twice++
			t.Logf("twice %v: %+v", due, h)
		}
	}
	require.NotEmpty(t, waits)
	slices.Sort(waits)
	t.Logf("%d periods: %+v; from a death to the next run (TTL %v): median %v, largest %v", len(periods), count, periodTTL,
		waits[len(waits)/2], waits[len(waits)-1])
	require.Zero(t, count.missed+count.twice)
}

package dlockgocron_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/proctest"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/once"
)

// jobs returns the jobs of all processes. The index of a job is its name. The short form has five.
func jobs() []job {
	if ticks(0) > 0 {
		return append(onceJobs, control)
	}
	return []job{control, onceJobs[0], onceJobs[3], onceJobs[7], onceJobs[10]}
}

// TestProcess is one of the processes. It starts all jobs. It says when a run begins and ends, for which
// due, and when once returns.
func TestProcess(t *testing.T) {
	args := proctest.Args(t)
	client := dlock.New(goredis.New(redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true})))
	defer client.Close()
	n, err := strconv.Atoi(args[1])
	require.NoError(t, err)
	var all []*work
	begin := time.Now().Add(4 * period).Truncate(period)
	for i, j := range jobs() {
		say := func(word string, due time.Time, value int64) { proctest.Say(word, int64(i), due.UnixMilli(), value) }
		w := &work{name: strconv.Itoa(i), start: func() start {
			var due time.Time
			return start{
				once.Schedule(func(now time.Time) time.Time { // a tenth early is not late
					due = now.Add(period / 10).Truncate(period)
					return due
				}),
				func(context.Context, *dlock.Lease) error {
					say("run", due, 1)
					time.Sleep(j.takes)
					say("run", due, -1)
					return nil
				},
				func(err error) {
					if err == nil {
						say("done", due, 1)
					} else if say("done", due, 0); !errors.Is(err, dlock.ErrHeld) && !errors.Is(err, dlock.ErrUnavailable) {
						t.Error(err)
					}
				},
			}
		}}
		all = append(all, w)
		stop := j.way(t, client, begin.Add(j.spread*time.Duration(n)/(processes-1)), w)
		defer stop()
	}
	time.Sleep(time.Until(begin) + time.Duration(ticks(6))*period - period/10)
	for _, w := range all {
		w.over.Store(true)
	}
	time.Sleep(6 * period) // for the runs that wait, and take longer than a period
	proctest.Say("over")
}

// Five processes with real schedulers start jobs, on a real server. No due is run twice, and a due for
// which once has returned without an error is run. Two runs are never under way at once. With
// DLOCK_TICKS=40, which is for a machine that has nothing else to do, each due is run.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	g, addr := proctest.New(t), redistest.Start(t).Addr()
	var pids []int
	for n := range processes {
		pids = append(pids, g.Start("TestProcess", addr, strconv.Itoa(n)))
	}
	for _, pid := range pids {
		g.Wait(pid)
	}
	g.Await(processes, "over", 0)
	for i, j := range jobs() {
		t.Run(j.String(), func(t *testing.T) {
			runs, running, dues := 0, int64(0), map[int64]int64{}
			for _, l := range g.Said("run", 0) {
				if l.Values[0] == int64(i) {
					running += l.Values[2]
					require.LessOrEqual(t, running, int64(1), "runs at once")
					if l.Values[2] > 0 {
						runs++
						dues[l.Values[1]]++
					}
				}
			}
			if j.name == control.name {
				t.Logf("%d runs in %d periods", runs, ticks(6))
				require.Greater(t, runs, ticks(6))
				return
			}
			starts, missed := 0, 0
			for _, l := range g.Said("done", 0) {
				if l.Values[0] == int64(i) {
					starts++
					dues[l.Values[1]] += 0
					require.LessOrEqual(t, l.Values[2], dues[l.Values[1]], "done without a run")
				}
			}
			for due, runs := range dues {
				require.LessOrEqual(t, runs, int64(1), "runs for %d", due)
				if runs == 0 {
					missed++
				}
			}
			t.Logf("%d starts for %d dues: %d runs", starts, len(dues), runs)
			require.Positive(t, runs)
			if j.takes < period && ticks(0) > 0 {
				require.Zero(t, missed)
			}
		})
	}
}

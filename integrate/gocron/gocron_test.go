package dlockgocron_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/election"
	dlockgocron "github.com/dlock-go/dlock/integrate/gocron"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/once"
)

const (
	processes = 5
	period    = 500 * time.Millisecond

	// How long a job takes.
	short, long, longer = 2 * time.Millisecond, period * 9 / 10, period * 3 / 2
)

// A way is how a real scheduler starts the work in each period from begin on. It returns a function
// that stops the scheduler. (Only then no job may run: gocron looks at the time again and again
// until they have ended, and virtual time stands still meanwhile.)
type way func(t *testing.T, c *dlock.Client, begin time.Time, w *work) (stop func())

// work is what a process does.
type work struct {
	do   func(context.Context, *dlock.Lease) error
	over atomic.Bool // nothing is to begin any more
}

func (w *work) plain(ctx context.Context) error { return w.do(ctx, nil) }

func (w *work) once(c *dlock.Client) *once.Job {
	return once.New(c, "job", period, once.Phase(period/2))
}

func withGocron(t *testing.T, begin time.Time, w *work, run func(context.Context) error, options ...gocron.SchedulerOption) func() {
	s, err := gocron.NewScheduler(options...)
	require.NoError(t, err)
	task := gocron.NewTask(func(ctx context.Context) error {
		if w.over.Load() {
			return nil
		}
		return run(ctx)
	})
	_, err = s.NewJob(gocron.DurationJob(period), task, gocron.WithName("job"), gocron.WithStartAt(gocron.WithStartDateTime(begin)))
	require.NoError(t, err)
	s.Start()
	return func() { require.NoError(t, s.Shutdown()) }
}

func byLocker(minHold time.Duration) way {
	return func(t *testing.T, c *dlock.Client, begin time.Time, w *work) func() {
		return withGocron(t, begin, w, w.plain, gocron.WithDistributedLocker(dlockgocron.NewLocker(c, minHold)))
	}
}

func byTask(t *testing.T, c *dlock.Client, begin time.Time, w *work) func() {
	return withGocron(t, begin, w, w.once(c).Task(w.do))
}

func byElection(t *testing.T, c *dlock.Client, begin time.Time, w *work) func() {
	e := election.New(c, "scheduler")
	ctx, end := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		_ = e.Run(ctx, func(ctx context.Context, _ *dlock.Lease) error {
			<-ctx.Done()
			return nil
		})
	})
	stop := withGocron(t, begin, w, w.plain, gocron.WithDistributedElector(e))
	return func() {
		stop()
		end()
		run.Wait()
	}
}

// robfig/cron has no schedules below a second.
type schedule struct{ begin time.Time }

func (s schedule) Next(t time.Time) time.Time {
	if t.Before(s.begin) {
		return s.begin
	}
	return s.begin.Add((t.Sub(s.begin)/period + 1) * period)
}

func byRobfig(t *testing.T, c *dlock.Client, begin time.Time, w *work) func() {
	scheduler := cron.New()
	scheduler.Schedule(schedule{begin}, cron.FuncJob(func() {
		if w.over.Load() {
			return
		}
		w.once(c).Func(t.Context(), w.do, func(error) {})()
	}))
	scheduler.Start()
	return func() { <-scheduler.Stop().Done() }
}

// A job is what all processes start.
type job struct {
	name   string
	way    way
	takes  time.Duration
	spread time.Duration // from the first start of a run to the last
	runs   [2]int        // at least, and at most
}

const (
	ticks = 40
	apart = period * 4 / 5
)

var (
	exactly = [2]int{ticks, ticks}
	some    = [2]int{ticks/2 + 1, ticks - 1}
	more    = [2]int{2*ticks + 1, processes * ticks}
)

// Five processes with real schedulers start a job, in virtual time. The first is a lock that is released at once: it
// shows that the starts do collide.
func TestJobRunsOnOneProcess(t *testing.T) {
	jobs := []job{
		{"control", byLocker(time.Millisecond), short, apart, more},
		{"Locker", byLocker(period / 2), short, period / 5, exactly},
		{"Locker", byLocker(period / 2), long, period / 5, exactly},
		{"Locker, starts beyond minHold", byLocker(period / 5), short, apart, more},
		{"Elector", byElection, short, 0, exactly},
	}
	for name, by := range map[string]way{"Task": byTask, "Func": byRobfig} {
		for _, spread := range []time.Duration{0, apart} {
			jobs = append(jobs, job{name, by, short, spread, exactly}, job{name, by, long, spread, exactly}, job{name, by, longer, spread, some})
		}
	}
	for _, j := range jobs {
		t.Run(fmt.Sprintf("%s, job of %v, starts %v apart", j.name, j.takes, j.spread), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				store := memory.New()
				var runs, running atomic.Int64
				begin := time.Now().Add(2 * period).Truncate(period).Add(period / 10)
				do := func(context.Context, *dlock.Lease) error {
					if n := running.Add(1); n > 1 {
						t.Errorf("%d runs at once", n)
					}
					runs.Add(1)
					time.Sleep(j.takes)
					running.Add(-1)
					return nil
				}
				w := &work{do: do}
				var stops []func()
				for i := range processes {
					client := dlock.New(store, dlock.WithTTL(period*3/5)) // shorter than the long jobs
					defer client.Close()
					stops = append(stops, j.way(t, client, begin.Add(j.spread*time.Duration(i)/(processes-1)), w))
				}
				time.Sleep(time.Until(begin) + time.Duration(ticks-1)*period + j.spread + time.Millisecond)
				w.over.Store(true)
				time.Sleep(5*period - j.spread - period/10)
				for _, stop := range stops {
					stop()
				}
				require.GreaterOrEqual(t, int(runs.Load()), j.runs[0])
				require.LessOrEqual(t, int(runs.Load()), j.runs[1])
				t.Log(runs.Load(), "runs of", ticks)
			})
		})
	}
}

func TestMinHoldMustBePositive(t *testing.T) {
	for _, d := range []time.Duration{0, -time.Second} {
		_, err := dlockgocron.NewLocker(dlock.New(memory.New()), d).Lock(t.Context(), "job")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, d.String())
	}
}

// What a page shows of a task also reports its errors, of which gocron says nothing by itself.
func TestSnippetsReportErrors(t *testing.T) {
	for file, tasks := range map[string]int{"gocron.go": 1, "example_test.go": 1, "../../once/doc.go": 1} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		snippets := strings.Split(string(text), "gocron.NewTask(job.Task(")[1:]
		require.Len(t, snippets, tasks, file)
		for _, s := range snippets {
			require.Contains(t, s[:min(len(s), 400)], "gocron.AfterJobRunsWithError(", file)
		}
	}
}

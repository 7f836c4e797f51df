package dlockgocron_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/election"
	dlockgocron "github.com/dlock-go/dlock/integrate/gocron"
	"github.com/dlock-go/dlock/once"
)

const (
	processes = 5
	period    = 500 * time.Millisecond

	// How long a job takes.
	short, long, longer = 2 * time.Millisecond, period * 9 / 10, period * 3 / 2
)

// ticks returns how often each process starts the job: DLOCK_TICKS, or n.
func ticks(n int) int {
	if env, err := strconv.Atoi(os.Getenv("DLOCK_TICKS")); err == nil {
		return env
	}
	return n
}

// A way is how a real scheduler starts the work in each period from begin on. It returns a function
// that stops the scheduler. (Only then no job may run: gocron looks at the time again and again
// until they have ended, and virtual time stands still meanwhile.)
type way func(t *testing.T, c *dlock.Client, begin time.Time, w *work) (stop func())

// work is what a process does.
type work struct {
	name  string
	start func() start
	over  atomic.Bool // nothing is to begin any more
}

// A start is one start of the work by a scheduler.
type start struct {
	when once.Option
	do   func(context.Context, *dlock.Lease) error
	end  func(error) // gets what once has returned
}

func (w *work) plain(ctx context.Context) error { return w.start().do(ctx, nil) }

func withGocron(t *testing.T, begin time.Time, w *work, run func(context.Context) error, options ...gocron.SchedulerOption) func() {
	s, err := gocron.NewScheduler(options...)
	require.NoError(t, err)
	task := gocron.NewTask(func(ctx context.Context) error {
		if w.over.Load() {
			return nil
		}
		return run(ctx)
	})
	_, err = s.NewJob(gocron.DurationJob(period), task, gocron.WithName(w.name), gocron.WithStartAt(gocron.WithStartDateTime(begin)))
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
	return withGocron(t, begin, w, func(ctx context.Context) error {
		s := w.start()
		err := once.New(c, w.name, period, s.when).Task(s.do)(ctx)
		s.end(err)
		return err
	})
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
		s, err := w.start(), error(nil)
		once.New(c, w.name, period, s.when).Func(t.Context(), s.do, func(e error) { err = e })()
		s.end(err)
	}))
	scheduler.Start()
	return func() { <-scheduler.Stop().Done() }
}

// A job is what all processes start.
type job struct {
	name   string
	way    way
	takes  time.Duration
	spread time.Duration                         // from the first start of a run to the last
	runs   func(ticks int) (atLeast, atMost int) // in virtual time
}

func (j job) String() string {
	return fmt.Sprintf("%s, job of %v, starts %v apart", j.name, j.takes, j.spread)
}

func exactly(ticks int) (atLeast, atMost int) { return ticks, ticks }
func some(ticks int) (atLeast, atMost int)    { return ticks/2 + 1, ticks - 1 }
func more(ticks int) (atLeast, atMost int)    { return 2*ticks + 1, processes * ticks }

const apart = period * 4 / 5

// The control is a lock that is released at once: it shows that the starts do collide.
var control = job{"control", byLocker(time.Millisecond), short, apart, more}

var onceJobs = []job{
	{"Task", byTask, short, 0, exactly},
	{"Task", byTask, short, apart, exactly},
	{"Task", byTask, long, 0, exactly},
	{"Task", byTask, long, apart, exactly},
	{"Task", byTask, longer, 0, some},
	{"Task", byTask, longer, apart, some},
	{"Func", byRobfig, short, 0, exactly},
	{"Func", byRobfig, short, apart, exactly},
	{"Func", byRobfig, long, 0, exactly},
	{"Func", byRobfig, long, apart, exactly},
	{"Func", byRobfig, longer, 0, some},
	{"Func", byRobfig, longer, apart, some},
}

// Five processes with real schedulers start a job, in virtual time.
func TestJobRunsOnOneProcess(t *testing.T) {
	ticks := ticks(40)
	for _, j := range append([]job{
		control,
		{"Locker", byLocker(period / 2), short, period / 5, exactly},
		{"Locker", byLocker(period / 2), long, period / 5, exactly},
		{"Locker, starts beyond minHold", byLocker(period / 5), short, apart, more},
		{"Elector", byElection, short, 0, exactly},
	}, onceJobs...) {
		t.Run(j.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				w := &work{name: "job", start: func() start { return start{once.Phase(period / 2), do, func(error) {}} }}
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
				atLeast, atMost := j.runs(ticks)
				require.GreaterOrEqual(t, int(runs.Load()), atLeast)
				require.LessOrEqual(t, int(runs.Load()), atMost)
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

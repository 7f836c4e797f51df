package dlockgocron_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
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
)

// ticks is how often each process starts the job. DLOCK_TICKS sets another number.
var ticks = func() int64 {
	n, _ := strconv.ParseInt(os.Getenv("DLOCK_TICKS"), 10, 64)
	return cmp.Or(n, 40)
}()

// A way is how a real scheduler starts the work in each period from begin on. It returns a function
// that stops the scheduler. (Only then no job may run: gocron looks at the time again and again
// until they have ended, and virtual time stands still meanwhile.)
type way func(t *testing.T, c *dlock.Client, begin time.Time, work *work) (stop func())

// work is what the processes do.
type work struct {
	do   func()
	over atomic.Bool // nothing is to begin any more
}

// unlessOver returns a task for gocron.
func (w *work) unlessOver(task func(context.Context) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		if w.over.Load() {
			return nil
		}
		return task(ctx)
	})
}

func (w *work) plain(context.Context) error {
	w.do()
	return nil
}

func withGocron(t *testing.T, begin time.Time, task gocron.Task, options ...gocron.SchedulerOption) (stop func()) {
	s, err := gocron.NewScheduler(options...)
	require.NoError(t, err)
	_, err = s.NewJob(gocron.DurationJob(period), task, gocron.WithName("job"), gocron.WithStartAt(gocron.WithStartDateTime(begin)))
	require.NoError(t, err)
	s.Start()
	return func() { require.NoError(t, s.Shutdown()) }
}

// plain is a Locker as those of other libraries: a lock that is released when the job ends.
type plain struct{ client *dlock.Client }

func (l plain) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.client.TryAcquire(ctx, key)
	return unlocker{lease}, err
}

type unlocker struct{ *dlock.Lease }

func (l unlocker) Unlock(context.Context) error { return l.Release() }

func byPlainLock(t *testing.T, c *dlock.Client, begin time.Time, w *work) func() {
	return withGocron(t, begin, w.unlessOver(w.plain), gocron.WithDistributedLocker(plain{c}))
}

func byLocker(t *testing.T, c *dlock.Client, begin time.Time, w *work) func() {
	return withGocron(t, begin, w.unlessOver(w.plain), gocron.WithDistributedLocker(dlockgocron.NewLocker(c, period/2)))
}

func job(c *dlock.Client, w *work) (*once.Job, func(context.Context, *dlock.Lease) error) {
	return once.New(c, "job", period, once.Phase(period/2)), func(context.Context, *dlock.Lease) error {
		w.do()
		return nil
	}
}

func byTask(t *testing.T, c *dlock.Client, begin time.Time, w *work) func() {
	j, fn := job(c, w)
	return withGocron(t, begin, w.unlessOver(j.Task(fn)))
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
	stop := withGocron(t, begin, w.unlessOver(w.plain), gocron.WithDistributedElector(e))
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
	j, fn := job(c, w)
	s := cron.New()
	run := j.Func(t.Context(), fn, nil)
	s.Schedule(schedule{begin}, cron.FuncJob(func() {
		if !w.over.Load() {
			run()
		}
	}))
	s.Start()
	return func() { <-s.Stop().Done() }
}

// Five processes with real schedulers start a job, in virtual time. The control shows that the starts
// do collide.
func TestJobRunsOnOneProcess(t *testing.T) {
	const short, long, longer = 2 * time.Millisecond, period * 9 / 10, period * 3 / 2
	exactly := func(runs int64) bool { return runs == ticks }
	for _, c := range []struct {
		name   string
		way    way
		takes  time.Duration
		spread time.Duration // from the first start of a run to the last
		want   func(runs int64) bool
	}{
		{"a lock that is released at once", byPlainLock, short, period / 5, func(runs int64) bool { return runs > 2*ticks }},
		{"Locker", byLocker, short, period / 5, exactly},
		{"Elector", byElection, short, 0, exactly},
		{"Task", byTask, short, 0, exactly},
		{"Task", byTask, short, period * 4 / 5, exactly},
		{"Task", byTask, long, 0, exactly},
		{"Task", byTask, long, period * 4 / 5, exactly},
		{"Task", byTask, longer, 0, func(runs int64) bool { return runs > ticks/2 && runs < ticks }},
		{"robfig", byRobfig, short, 0, exactly},
		{"robfig", byRobfig, short, period * 4 / 5, exactly},
		{"robfig", byRobfig, long, 0, exactly},
		{"robfig", byRobfig, long, period * 4 / 5, exactly},
		{"robfig", byRobfig, longer, 0, func(runs int64) bool { return runs > ticks/2 && runs < ticks }},
	} {
		t.Run(fmt.Sprintf("%s, job of %v, starts %v apart", c.name, c.takes, c.spread), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New()
				var runs, running atomic.Int64
				begin := time.Now().Add(2 * period).Truncate(period).Add(period / 10)
				w := &work{do: func() {
					if n := running.Add(1); n > 1 {
						t.Errorf("%d runs at once", n)
					}
					runs.Add(1)
					time.Sleep(c.takes)
					running.Add(-1)
				}}
				var stops []func()
				for i := range processes {
					client := dlock.New(store)
					defer client.Close()
					stops = append(stops, c.way(t, client, begin.Add(c.spread*time.Duration(i)/(processes-1)), w))
				}
				time.Sleep(time.Until(begin) + time.Duration(ticks-1)*period + c.spread + time.Millisecond)
				w.over.Store(true)
				time.Sleep(5*period - c.spread - period/10)
				for _, stop := range stops {
					stop()
				}
				require.True(t, c.want(runs.Load()), "%d runs of %d", runs.Load(), ticks)
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

// Package asynq_test shows two ways to enqueue each period of a schedule once, although every
// replica of a service has the schedule. Copy lead or enqueue.
//
//	                              lead                              enqueue
//	the schedule                  asynq's Scheduler, on the leader  any scheduler, on each replica
//	no leader when a task is due  the period is missed              there is no leader
//	clocks differ                 a change of the leader near a     half a period does no harm
//	                              due may enqueue the period twice
//
// Both are about enqueuing. Asynq runs a task at least once.
package asynq_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/once"
)

// lead returns the function for [election.Election.Run]. A Scheduler cannot be started again, so each term has its own.
// Shutdown waits for a task that is being enqueued. Only then does lead return, and another replica leads.
func lead(newScheduler func() (*asynq.Scheduler, error)) func(context.Context, *dlock.Lease) error {
	return func(ctx context.Context, _ *dlock.Lease) error {
		scheduler, err := newScheduler()
		if err != nil {
			return err
		}
		if err := scheduler.Start(); err != nil { // not Run, which would wait for a signal
			return err
		}
		defer scheduler.Shutdown()
		<-ctx.Done()
		return nil
	}
}

// enqueue enqueues the task of one period, on each replica. due is that of [once.Job.Due]. Asynq refuses
// an ID that it knows. Without Retention it forgets the ID as soon as the task has succeeded.
func enqueue(ctx context.Context, client *asynq.Client, task *asynq.Task, due time.Time) error {
	id := task.Type() + "@" + due.UTC().Format(time.RFC3339)
	_, err := client.EnqueueContext(ctx, task, asynq.TaskID(id), asynq.Retention(24*time.Hour))
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil // another replica was first
	}
	return err
}

const (
	replicas = 3
	every    = time.Second // "@every 1s" starts at each full second
)

// A tally has the periods that were enqueued, or run, by the second.
type tally chan int64

// requireOnceEach fails unless each period from begin on has been counted once.
func (c tally) requireOnceEach(t *testing.T, begin time.Time, periods int) {
	counts := make(map[int64]int)
	for range len(c) {
		counts[<-c]++
	}
	for n := range periods {
		due := begin.Add(time.Duration(n) * every).Unix()
		require.Equal(t, 1, counts[due], "at %v: %v", due, counts)
	}
}

func connect(t *testing.T, addr string) (*redis.Client, *dlock.Client) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	client := dlock.New(goredis.New(rdb))
	t.Cleanup(func() { require.NoError(t, errors.Join(client.Close(), rdb.Close())) })
	return rdb, client
}

// The lead changes in each period.
func TestLead(t *testing.T) {
	const periods = 4
	opt := asynq.RedisClientOpt{Addr: redistest.Start(t).Addr()}
	enqueued := make(tally, 100)
	newScheduler := func() (*asynq.Scheduler, error) {
		s := asynq.NewScheduler(opt, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel, PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
			assert.NoError(t, err)
			enqueued <- time.Now().Round(every).Unix()
		}})
		_, err := s.Register("@every 1s", asynq.NewTask("report", nil))
		return s, err
	}
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	var all []*election.Election
	for range replicas {
		_, client := connect(t, opt.Addr)
		e := election.New(client, "scheduler")
		all = append(all, e)
		run.Go(func() { assert.NoError(t, e.Run(ctx, lead(newScheduler))) })
	}
	leader := func() int {
		return slices.IndexFunc(all, func(e *election.Election) bool { return e.IsLeader(ctx) == nil })
	}
	changes := func(before int) func() bool { // to another leader
		return func() bool { return !slices.Contains([]int{-1, before}, leader()) }
	}
	require.Eventually(t, changes(-1), time.Minute, time.Millisecond)
	begin := time.Now().Truncate(every).Add(every)
	for n := range periods {
		time.Sleep(time.Until(begin.Add(time.Duration(n)*every + every/2)))
		before := leader()
		all[before].Resign()
		require.Eventually(t, changes(before), time.Minute, time.Millisecond)
	}
	stop()
	run.Wait()
	enqueued.requireOnceEach(t, begin, periods)
}

// The replicas start within 0.4 s. The task of a period is done before the last one enqueues it.
func TestEnqueue(t *testing.T) {
	const periods = 3
	addr := redistest.Start(t).Addr()
	rdb, _ := connect(t, addr)
	done := make(tally, 100)
	worker := asynq.NewServerFromRedisClient(rdb, asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond})
	require.NoError(t, worker.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		due, err := time.Parse("report@"+time.RFC3339, id)
		done <- due.Unix()
		return err
	})))
	defer worker.Shutdown()
	for n := range replicas {
		rdb, client := connect(t, addr)
		tasks, job := asynq.NewClientFromRedisClient(rdb), once.New(client, "report", every)
		scheduler := cron.New(cron.WithLocation(time.UTC))
		_, err := scheduler.AddFunc("@every 1s", func() {
			time.Sleep(time.Duration(n) * every / 5)
			assert.NoError(t, enqueue(t.Context(), tasks, asynq.NewTask("report", nil), job.Due(time.Now())))
		})
		require.NoError(t, err)
		scheduler.Start()
		defer func() { <-scheduler.Stop().Done() }()
	}
	begin := time.Now().Truncate(every).Add(every)
	time.Sleep(time.Until(begin.Add(periods * every)))
	done.requireOnceEach(t, begin, periods)
}

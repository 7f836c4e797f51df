package dlockgocron_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/robfig/cron/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/once"
)

// Three replicas of a service start a report at each full second. One of them runs it. For a report
// at three in the night, the two lines are
//
//	job := once.New(client, "report", 24*time.Hour, once.Phase(3*time.Hour))
//	gocron.CronJob("0 3 * * *", false),
//
// The location is UTC, as that of the Phase. The default of gocron is local time.
func Example_task() {
	store := memory.New() // stands for a server that all replicas reach
	reported := make(chan bool, 3)
	for range 3 {
		client := dlock.New(store)
		defer client.Close()
		scheduler, err := gocron.NewScheduler(gocron.WithLocation(time.UTC))
		if err != nil {
			log.Fatal(err)
		}
		defer scheduler.Shutdown() // before the Client is closed
		job := once.New(client, "report", time.Second)
		_, err = scheduler.NewJob(
			gocron.CronJob("* * * * * *", true),
			gocron.NewTask(job.Task(func(ctx context.Context, lease *dlock.Lease) error {
				fmt.Println("reporting")
				reported <- true
				return nil
			})),
			gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, name string, err error) {
				slog.Error("a job has failed", "name", name, "err", err)
			})),
		)
		if err != nil {
			log.Fatal(err)
		}
		scheduler.Start()
	}
	<-reported
	// Output: reporting
}

// The same with robfig/cron. For a report at three in the night, the two lines are
//
//	job := once.New(client, "report", 24*time.Hour, once.Phase(3*time.Hour))
//	_, err := scheduler.AddFunc("0 3 * * *", job.Func(…
//
// and cron.New needs no WithSeconds.
func Example_robfig() {
	store := memory.New() // stands for a server that all replicas reach
	reported := make(chan bool, 3)
	for range 3 {
		client := dlock.New(store)
		defer client.Close()
		scheduler := cron.New(cron.WithSeconds(), cron.WithLocation(time.UTC))
		defer func() { <-scheduler.Stop().Done() }() // before the Client is closed
		job := once.New(client, "report", time.Second)
		_, err := scheduler.AddFunc("* * * * * *", job.Func(context.Background(), func(ctx context.Context, lease *dlock.Lease) error {
			fmt.Println("reporting")
			reported <- true
			return nil
		}, func(err error) {
			slog.Error("the report has failed", "err", err)
		}))
		if err != nil {
			log.Fatal(err)
		}
		scheduler.Start()
	}
	<-reported
	// Output: reporting
}

// One of three replicas is elected, and its scheduler runs all jobs. The other schedulers run none.
func Example_elector() {
	store := memory.New() // stands for a server that all replicas reach
	reported := make(chan bool, 3)
	for range 3 {
		client := dlock.New(store)
		defer client.Close()
		leader := election.New(client, "scheduler")
		ctx, stop := context.WithCancel(context.Background())
		var run sync.WaitGroup
		run.Go(func() {
			err := leader.Run(ctx, func(ctx context.Context, _ *dlock.Lease) error {
				<-ctx.Done() // the scheduler asks leader
				return nil
			})
			if err != nil {
				slog.Error("this replica stands no more", "err", err)
			}
		})
		defer run.Wait()
		defer stop()
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(leader))
		if err != nil {
			log.Fatal(err)
		}
		defer scheduler.Shutdown() // the jobs have ended before another leads
		_, err = scheduler.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(func() {
			fmt.Println("reporting")
			reported <- true
		}))
		if err != nil {
			log.Fatal(err)
		}
		scheduler.Start()
	}
	<-reported
	// Output: reporting
}

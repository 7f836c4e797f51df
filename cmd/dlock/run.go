//go:build unix && !aix && !solaris

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/once"
)

// margin is how long before the deadline of the lease all is dead.
const margin = 100 * time.Millisecond

// A run is a program that is to run under a lock.
type run struct {
	*store
	key     string
	command []string

	ttl, grace, maxHold, minHold time.Duration
	outage, wait, every, phase   time.Duration
	nonblock, limited            bool // the wait is
	heldCode                     int
	owner, zone                  string
	location                     *time.Location // of zone
	verbose                      bool
}

func newRun(s *store) *cobra.Command {
	r := &run{store: s}
	c := &cobra.Command{
		Use:   "run [flags] KEY [--] COMMAND...",
		Short: "run a program while holding a lock",
		Args:  cobra.MinimumNArgs(2),
		RunE: s.with(5, func(c *cobra.Command, args []string) error {
			if r.key, r.command = args[0], args[1:]; r.command[0] == "--" {
				r.command = r.command[1:]
			}
			if err := r.check(c.Flags().Changed); err != nil {
				return exit{exitUsage, err}
			}
			return r.do(c.Context())
		}),
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&r.nonblock, "nonblock", "n", false, "do not wait for the lock")
	f.DurationVarP(&r.wait, "wait", "w", 0, "wait for the lock at most this long (default: for ever)")
	f.IntVarP(&r.heldCode, "conflict-exit-code", "E", exitHeld, "exit code if another holds the lock")
	f.DurationVar(&r.ttl, "ttl", dlock.DefaultTTL, "how long the lock stays taken after the death of this machine")
	f.DurationVar(&r.grace, "grace", 5*time.Second, "between TERM and KILL; at most a third of the TTL")
	f.DurationVar(&r.maxHold, "max-hold", 0, "end the program if it runs for longer, within one TTL")
	f.DurationVar(&r.minHold, "min-hold", 0,
		"keep the lock for so long after its grant, although the program has ended; up to one TTL longer")
	f.DurationVar(&r.outage, "outage", 0, "wait for Redis at the start, for so long")
	f.StringVar(&r.owner, "owner", "", "what others see of the holder (default: host and process)")
	f.DurationVar(&r.every, "once", 0, "run once in each `period`, on whichever machine is first")
	f.DurationVar(&r.phase, "phase", 0,
		"begin of the periods of --once, such as 3h for periods of a day that begin at 03:00")
	f.StringVar(&r.zone, "zone", "UTC", "time zone of periods of whole days, such as Europe/Berlin")
	f.BoolVarP(&r.verbose, "verbose", "v", false, "say on standard error what happens")
	return c
}

// check refuses flags that contradict each other, and completes them.
func (r *run) check(changed func(flag string) bool) (err error) {
	if len(r.command) == 0 {
		return errors.New("no command after --")
	}
	if !changed("grace") {
		r.grace = min(r.grace, r.ttl/3)
	}
	r.limited = changed("wait")
	switch {
	case r.ttl < 5*margin:
		return fmt.Errorf("--ttl %v: less than %v", r.ttl, 5*margin)
	case r.grace < 0 || r.grace > r.ttl/3:
		return fmt.Errorf("--grace %v: not between 0 and a third of --ttl %v", r.grace, r.ttl)
	case r.nonblock && r.limited:
		return errors.New("--nonblock and --wait exclude each other")
	case r.wait < 0:
		return fmt.Errorf("--wait %v: negative", r.wait)
	case r.heldCode < 0 || r.heldCode > 255:
		return fmt.Errorf("--conflict-exit-code %d: not between 0 and 255", r.heldCode)
	case !changed("once") && (changed("phase") || changed("zone")):
		return errors.New("--phase and --zone need --once")
	case changed("once") && (r.nonblock || r.limited || changed("min-hold")):
		return errors.New("--once excludes --nonblock, --wait and --min-hold")
	case changed("once") && r.every < time.Second:
		return fmt.Errorf("--once %v: less than 1s", r.every)
	case r.phase < 0 || changed("phase") && r.phase >= r.every:
		return fmt.Errorf("--phase %v: not between 0 and --once %v", r.phase, r.every)
	}
	r.location, err = time.LoadLocation(r.zone)
	return err
}

// do acquires the lock, runs the program, and releases the lock. The error has the exit code.
func (r *run) do(ctx context.Context) error {
	c := dlock.New(r.locker, dlock.WithTTL(r.ttl), dlock.WithOutage(r.outage), dlock.WithMaxHold(r.maxHold),
		dlock.WithMinHold(r.minHold), dlock.WithOwner(cmp.Or(r.owner, dlock.HostOwner())), waitsForRedis())
	if r.nonblock || r.limited {
		c = c.With(dlock.WithMaxWait(r.wait))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), r.ttl/3)
		defer cancel()
		_ = c.Shutdown(ctx) // what it could not release ends with its TTL
	}()
	signals := make(chan os.Signal, 16)                  // for the program
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // standard error may be closed, which must not end this process
	catch(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	ctx, stop := waiting(ctx, signals)
	defer stop()
	hold := func(_ context.Context, lease *dlock.Lease) error {
		if stop(); context.Cause(ctx) != nil { // in the instant of the grant
			return context.Cause(ctx)
		}
		return r.hold(lease, signals)
	}
	if r.every > 0 {
		return r.once(ctx, c, hold)
	}
	lease, err := c.Acquire(ctx, r.key)
	if err != nil {
		return r.refused(ctx, err)
	}
	err = hold(ctx, lease)
	if released := lease.Release(); err == nil && errors.Is(released, dlock.ErrLost) {
		return exit{exitLost, released}
	}
	return err
}

// waitsForRedis has warnings written to standard error while the lock is waited for, and Redis is away.
func waitsForRedis() dlock.Option {
	log := dlock.NewLogObserver(slog.New(lines{slog.DiscardHandler}))
	return dlock.WithObserver(&dlock.Observer{StoreWait: log.StoreWait})
}

// once runs the program unless the period is done.
func (r *run) once(ctx context.Context, c *dlock.Client, hold func(context.Context, *dlock.Lease) error) error {
	due := due(time.Now(), r.every, r.phase, r.location)
	ran, err := once.New(c, r.key, r.every).Do(ctx, due, hold)
	switch {
	case err != nil:
		return r.refused(ctx, err)
	case !ran:
		r.say("%s is done for %s", printable(r.key), due.Format(time.RFC3339))
	}
	return nil
}

// due returns the begin of the period of an instant. Days are those of the location, and begin when its clocks show phase.
func due(now time.Time, every, phase time.Duration, location *time.Location) time.Time {
	const day = 24 * time.Hour
	if every%day != 0 {
		return now.Add(-phase).Truncate(every).Add(phase)
	}
	y, m, d := now.In(location).Date()
	period, late := int(every/day), int(phase/day)
	sinceEpoch := int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / int64(day/time.Second))
	d -= (sinceEpoch - late) % period
	begin := first(time.Date(y, m, d, 0, 0, 0, int(phase%day), time.UTC), location)
	if begin.After(now) {
		begin = first(time.Date(y, m, d-period, 0, 0, 0, int(phase%day), time.UTC), location)
	}
	return begin
}

// first returns the first instant at which the clocks of a location show what those of UTC show at an instant. If they
// are set over it, it returns one before that: cron is then early.
func first(utc time.Time, location *time.Location) time.Time {
	_, before := utc.AddDate(0, 0, -1).In(location).Zone()
	_, after := utc.AddDate(0, 0, 1).In(location).Zone()
	early := utc.Add(-time.Duration(max(before, after)) * time.Second).In(location)
	late := utc.Add(-time.Duration(min(before, after)) * time.Second).In(location)
	shown := func(t time.Time) int { return t.Hour()*60 + t.Minute() }
	if shown(early) != shown(utc) && shown(late) == shown(utc) {
		return late
	}
	return early
}

// refused is the exit when the lock was not acquired.
func (r *run) refused(ctx context.Context, err error) error {
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.Is(err, dlock.ErrHeld) && r.verbose:
		return exit{r.heldCode, err}
	case errors.Is(err, dlock.ErrHeld):
		return exit{r.heldCode, nil}
	}
	return err
}

// say writes a line to standard error if it is wanted.
func (r *run) say(format string, args ...any) {
	if r.verbose {
		complain(format, args...)
	}
}

// Inventory sells a stock of 100 with many workers at once, first without a lock and then with one.
// Without a lock, more is sold than there was; with it, exactly the stock. At the end, a holder that
// has lost its lease goes on to write, and is refused by its fence.
//
// Usage:
//
//	go run ./examples/inventory [-workers n] [-stock n] [-hold d] [-backend name] [-redis host:port] [-kill d]
//
// The locks are in memory, or on a Redis server if -backend names a client library: goredis, rueidis
// or redigo. Runs at the same time do not disturb each other, and leave one counter of fences on the
// server, which expires after a day. With redlock, a majority of three servers in this process decides.
// -kill kills one of them in the middle of the sale with a lock, and a table shows which calls each
// server answered before and after it.
//
// The exit status is 0 if the lock and the fence kept the stock right, 1 if they did not or the store
// did not answer, 2 if a flag is wrong, and 130 if the program was interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const exitFailed, exitUsage, exitInterrupted = 1, 2, 130

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stdout)
	status := exitUsage
	if err == nil {
		err, status = play(ctx, cfg, stdout), exitFailed
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case ctx.Err() != nil:
		err, status = context.Cause(ctx), exitInterrupted
	}
	fmt.Fprintln(stderr, "inventory:", err)
	return status
}

// A config is what the flags say.
type config struct {
	workers, stock int
	hold, kill     time.Duration
	backend, redis string
}

var backends = []string{"goredis", "memory", "redigo", "redlock", "rueidis"}

// parse reads the flags. Its error is flag.ErrHelp, or one line that names what is wrong.
func parse(args []string, stdout io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("inventory", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&c.workers, "workers", 8, "how many sell at once")
	flags.IntVar(&c.stock, "stock", 100, "how many there are to sell")
	flags.DurationVar(&c.hold, "hold", 10*time.Millisecond, "how long one sale takes, from reading the stock to writing it")
	flags.StringVar(&c.backend, "backend", "memory", "where the locks are kept: "+strings.Join(backends, ", "))
	const local = "localhost:6379"
	flags.StringVar(&c.redis, "redis", local, "the `host:port` of the server, for goredis, redigo and rueidis")
	flags.DurationVar(&c.kill, "kill", 0, "how long the sale with a lock has gone on when a server of redlock is killed; 0 for never")
	err = flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stdout)
		flags.Usage()
	}
	_, _, noAddress := net.SplitHostPort(c.redis)
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case min(c.workers, c.stock) < 1 || min(c.hold, c.kill) < 0:
		err = fmt.Errorf("-workers %d, -stock %d, -hold %v, -kill %v: must be positive", c.workers, c.stock, c.hold, c.kill)
	case !slices.Contains(backends, c.backend):
		err = fmt.Errorf("-backend %q: must be one of %s", c.backend, strings.Join(backends, ", "))
	case c.kill > 0 && c.backend != "redlock":
		err = fmt.Errorf("-kill %v: only for -backend redlock", c.kill)
	case c.redis != local && (c.backend == "memory" || c.backend == "redlock"):
		err = fmt.Errorf("-redis %q: not for -backend %s", c.redis, c.backend)
	case noAddress != nil:
		err = fmt.Errorf("-redis %q: must be host:port", c.redis)
	}
	return c, err
}

// play sells the stock without and with a lock, lets a holder come late, and reports.
func play(ctx context.Context, cfg config, out io.Writer) (err error) {
	locks, err := open(ctx, cfg, out)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", cfg.backend, err)
	}
	defer func() { err = cmp.Or(err, locks.close()) }()
	without, with := newSale("without a lock", cfg), newSale("with a lock", cfg)
	with.locks = locks
	if err := without.follow(ctx, out); err != nil {
		return err
	}
	if err := locks.killDuring(cfg.kill, func() error { return with.follow(ctx, out) }); err != nil {
		return err
	}
	if err := report(out, without, with); err != nil {
		return err
	}
	if err := comeLate(ctx, locks, out); err != nil {
		return err
	}
	locks.report(out, cfg.kill)
	if with.sold != cfg.stock {
		return fmt.Errorf("with the lock %d were sold of a stock of %d", with.sold, cfg.stock)
	}
	return nil
}

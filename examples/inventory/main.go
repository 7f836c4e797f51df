// Inventory sells a stock of 100 with many workers at once, first without a lock and then with one.
// Without a lock, more is sold than there was; with it, exactly the stock. At the end, a holder that
// has lost its lease goes on to write, and is refused by its fence.
//
// Usage:
//
//	go run ./examples/inventory [-workers n] [-stock n] [-hold d]
//
// The locks are in memory. For locks on a server, give dlock.New another backend.
//
// The exit status is 0 if the lock and the fence kept the stock right, 1 if they did not, 2 if a flag
// is wrong, and 130 if the program was interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// The exit statuses of a program that fails.
const exitFailed, exitUsage, exitInterrupted = 1, 2, 130

// key is that of the lock on the stock.
const key = "stock"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status.
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
	hold           time.Duration
}

// parse reads the flags. Its error is flag.ErrHelp, or one line that names what is wrong.
func parse(args []string, stdout io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("inventory", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&c.workers, "workers", 8, "how many sell at once")
	flags.IntVar(&c.stock, "stock", 100, "how many there are to sell")
	flags.DurationVar(&c.hold, "hold", 10*time.Millisecond, "how long one sale takes, from reading the stock to writing it")
	err = flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stdout)
		flags.Usage()
	}
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case min(c.workers, c.stock) < 1 || c.hold < 0:
		err = fmt.Errorf("-workers %d, -stock %d, -hold %v: must be positive", c.workers, c.stock, c.hold)
	}
	return c, err
}

// play sells the stock without and with a lock, lets a holder come late, and reports.
func play(ctx context.Context, cfg config, out io.Writer) (err error) {
	locks := dlock.New(memory.New(), dlock.WithTTL(2*time.Second), dlock.WithFence(true))
	defer func() { err = cmp.Or(err, locks.Close()) }()
	without, with := newSale("without a lock", cfg, nil), newSale("with a lock", cfg, locks)
	for _, s := range []*sale{without, with} {
		if err := s.run(ctx); err != nil {
			return err
		}
		fmt.Fprintf(out, "%-14s  %4d left  %5d sold\n", s.name, s.left, s.sold)
	}
	if err := report(out, without, with); err != nil {
		return err
	}
	if err := comeLate(ctx, locks, out); err != nil {
		return err
	}
	if with.sold != cfg.stock {
		return fmt.Errorf("with the lock %d were sold of a stock of %d", with.sold, cfg.stock)
	}
	return nil
}

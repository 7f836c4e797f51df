// Package sell is what the inventory programs share: a stock that many workers sell at once, first
// without a lock and then with one.
package sell

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dlock-go/dlock"
)

// The exit statuses of a program that fails.
const ExitFailed, ExitUsage, ExitInterrupted = 1, 2, 130

// A Program has a store of its own for the lock on the stock.
type Program interface {
	// Flags adds flags to those of Config.
	Flags(*flag.FlagSet)
	// Check returns one line that names what is wrong with them.
	Check() error
	// Play opens the store, and calls the function Play.
	Play(context.Context, Config, io.Writer) error
}

// Main runs p as a process, and exits.
func Main(p Program) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(Run(ctx, p, os.Args[1:], os.Stdout, os.Stderr))
}

// Run runs p, and returns the exit status.
func Run(ctx context.Context, p Program, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(p, args, stdout)
	status := ExitUsage
	if err == nil {
		err, status = p.Play(ctx, cfg, stdout), ExitFailed
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case ctx.Err() != nil:
		err, status = context.Cause(ctx), ExitInterrupted
	}
	fmt.Fprintln(stderr, "inventory:", err)
	return status
}

// A Config is what the flags of all programs say.
type Config struct {
	Workers, Stock int
	Hold           time.Duration
}

// parse reads the flags. Its error is flag.ErrHelp, or one line that names what is wrong.
func parse(p Program, args []string, stdout io.Writer) (c Config, err error) {
	flags := flag.NewFlagSet("inventory", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&c.Workers, "workers", 8, "how many sell at once")
	flags.IntVar(&c.Stock, "stock", 100, "how many there are to sell")
	flags.DurationVar(&c.Hold, "hold", 10*time.Millisecond, "how long one sale takes, from reading the stock to writing it")
	p.Flags(flags)
	err = flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stdout)
		flags.Usage()
	}
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case min(c.Workers, c.Stock) < 1 || c.Hold < 0:
		err = fmt.Errorf("-workers %d, -stock %d, -hold %v: must be positive", c.Workers, c.Stock, c.Hold)
	default:
		err = p.Check()
	}
	return c, err
}

// Locks is what the lock on the stock is taken with.
type Locks struct {
	*dlock.Client
	Key string
}

// NewLocks returns the locks of a run on locker. Their Close does not close locker.
func NewLocks(locker dlock.Locker) *Locks {
	return &Locks{
		Client: dlock.New(locker, dlock.WithTTL(2*time.Second), dlock.WithFence(true)),
		// No other run has this key. The tag in braces puts the keys of all runs into one hash slot, so
		// that they share a counter of fences: a run leaves nothing else behind.
		Key: "{stock}:" + rand.Text()[:8],
	}
}

// Play sells the stock without and with a lock, lets a holder come late, and reports.
func Play(ctx context.Context, cfg Config, locks *Locks, out io.Writer) error {
	without, with := newSale("without a lock", cfg), newSale("with a lock", cfg)
	with.locks = locks
	if err := without.follow(ctx, out); err != nil {
		return err
	}
	if err := with.follow(ctx, out); err != nil {
		return err
	}
	if err := report(out, without, with); err != nil {
		return err
	}
	if err := comeLate(ctx, locks, out); err != nil {
		return err
	}
	if with.sold != cfg.Stock {
		return fmt.Errorf("with the lock %d were sold of a stock of %d", with.sold, cfg.Stock)
	}
	return nil
}

// Inventory sells a stock of 100 with many workers at once, first without a lock
// and then with one, and shows what comes of it: without, more is sold than
// there was; with it, exactly the stock. At the end a holder that has lost its
// lease goes on to write, and is refused by its fence.
//
// Usage:
//
//	go run ./examples/inventory [-workers n] [-stock n] [-hold d] [-backend name] [-redis host:port] [-kill d]
//
// The locks are in memory, or on a Redis server if -backend names a client
// library: goredis, rueidis or redigo. With mixed the workers use all three at
// once, in turn. Runs at the same time do not disturb each other, and nothing is
// left on the server but one counter of fences, which expires after a day.
//
// With redlock, a majority of three or five servers decides. They are those that -redis
// names, separated by commas; without it, three run in this process, and -kill kills one
// of them in the middle of the sale with a lock. A table shows which calls each server
// answered before and after it. Servers that have just started do not vote for about 3 s,
// and the program says so and waits. On each server of -redis, a marker is left that does not
// expire, dlock-inventory:dlock1:birth.
//
// The exit status is 0 if the lock and the fence kept the stock right, 1 if they
// did not or the store did not answer, 2 if a flag is wrong, and 130 if the
// program was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/dlock-go/dlock/fence"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

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
		err = play(ctx, cfg, stdout)
		status = exitFailed
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

// play opens the store and shows on it what the program is about.
func play(ctx context.Context, cfg config, stdout io.Writer) (err error) {
	store, err := open(cfg)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", cfg.store(), err)
	}
	defer func() {
		if closed := store.close(); err == nil {
			err = closed
		}
	}()
	return show(ctx, cfg, store, stdout)
}

// show sells the stock without and with a lock, lets a holder come late, and
// reports. The error tells what failed, or what was not as promised.
func show(ctx context.Context, cfg config, store *store, stdout io.Writer) error {
	if err := store.answers(ctx); err != nil {
		return fmt.Errorf("cannot use %s: %w", cfg.store(), err)
	}
	if err := store.awaitVotes(ctx, stdout); err != nil {
		return fmt.Errorf("cannot use %s: %w", cfg.store(), err)
	}
	screen := newScreen(stdout)
	without := newSale("without a lock", cfg, unguarded)
	if err := screen.follow(ctx, without); err != nil {
		return err
	}
	with := newSale("with a lock", cfg, store.guard)
	if err := store.quorum.during(cfg.kill, func() error { return screen.follow(ctx, with) }); err != nil {
		return err
	}
	late, err := comeLate(ctx, store)
	if err != nil {
		return err
	}
	if err := report(stdout, cfg.stock, without, with, late); err != nil {
		return err
	}
	if err := store.quorum.report(stdout); err != nil {
		return err
	}
	return verdict(cfg.stock, with, late)
}

// verdict is nil if the lock and the fence did what they are for.
func verdict(stock int, with *sale, late *lateness) error {
	switch _, sold := with.shop.counts(); {
	case sold != stock:
		return fmt.Errorf("with the lock %d were sold of a stock of %d", sold, stock)
	case !errors.Is(late.refusal, fence.ErrStale):
		return errors.New("the write of a holder that had lost its lease was not refused")
	}
	return nil
}

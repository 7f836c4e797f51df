// Inventory sells a stock of 100 with many workers at once, first without a lock and then with one.
// Without a lock, more is sold than there was; with it, exactly the stock. At the end, a holder that
// has lost its lease goes on to write, and is refused by its fence.
//
// Usage:
//
//	go run ./examples/inventory [-workers n] [-stock n] [-hold d]
//
// The locks are in memory. The program in examples/inventory/redis does the same on Redis.
//
// The exit status is 0 if the lock and the fence kept the stock right, 1 if they did not, 2 if a flag
// is wrong, and 130 if the program was interrupted.
package main

import (
	"cmp"
	"context"
	"flag"
	"io"

	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/examples/inventory/internal/sell"
)

func main() { sell.Main(program{}) }

type program struct{}

func (program) Flags(*flag.FlagSet) {}
func (program) Check() error        { return nil }

func (program) Play(ctx context.Context, cfg sell.Config, out io.Writer) (err error) {
	locks := sell.NewLocks(memory.New())
	defer func() { err = cmp.Or(err, locks.Close()) }()
	return sell.Play(ctx, cfg, locks, out)
}

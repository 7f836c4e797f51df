// Redis is the inventory program with its locks on Redis: see examples/inventory.
//
// Usage:
//
//	go run ./examples/inventory/redis [-workers n] [-stock n] [-hold d] [-backend name] [-redis host:port] [-kill d]
//
// -backend names the client library: goredis, rueidis or redigo. Runs at the same time do not disturb
// each other, and leave one counter of fences on the server, which expires after a day. With redlock, a
// majority of three servers in this process decides. -kill kills one of them in the middle of the sale
// with a lock, and a table shows which calls each server answered before and after it.
//
// The exit status is 0 if the lock and the fence kept the stock right, 1 if they did not or the store
// did not answer, 2 if a flag is wrong, and 130 if the program was interrupted.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/examples/inventory/internal/sell"
)

func main() { sell.Main(&program{}) }

// A program is what its flags say.
type program struct {
	backend, redis string
	kill           time.Duration
}

var backends = []string{"goredis", "redigo", "redlock", "rueidis"}

const local = "localhost:6379"

func (p *program) Flags(flags *flag.FlagSet) {
	flags.StringVar(&p.backend, "backend", "goredis", "where the locks are kept: "+strings.Join(backends, ", "))
	flags.StringVar(&p.redis, "redis", local, "the `host:port` of the server, for goredis, redigo and rueidis")
	flags.DurationVar(&p.kill, "kill", 0, "how long the sale with a lock has gone on when a server of redlock is killed; 0 for never")
}

func (p *program) Check() error {
	_, _, noAddress := net.SplitHostPort(p.redis)
	switch {
	case p.kill < 0:
		return fmt.Errorf("-kill %v: must be positive", p.kill)
	case !slices.Contains(backends, p.backend):
		return fmt.Errorf("-backend %q: must be one of %s", p.backend, strings.Join(backends, ", "))
	case p.kill > 0 && p.backend != "redlock":
		return fmt.Errorf("-kill %v: only for -backend redlock", p.kill)
	case p.redis != local && p.backend == "redlock":
		return fmt.Errorf("-redis %q: not for -backend redlock", p.redis)
	case noAddress != nil:
		return fmt.Errorf("-redis %q: must be host:port", p.redis)
	}
	return nil
}

func (p *program) Play(ctx context.Context, cfg sell.Config, out io.Writer) (err error) {
	locks, err := open(ctx, p, cfg.Workers, out)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", p.backend, err)
	}
	defer func() { err = cmp.Or(err, locks.close()) }()
	err = sell.Play(ctx, cfg, locks.Locks, out)
	if err == nil {
		locks.report(out, p.kill)
	}
	return err
}

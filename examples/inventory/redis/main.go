// Redis is the inventory program with its locks on Redis: see examples/inventory.
//
// Usage:
//
//	go run ./examples/inventory/redis [-workers n] [-stock n] [-hold d] [-backend name] [-redis host:port]
//
// -backend names the client library: goredis, rueidis or redigo. Runs at the same time do not disturb
// each other, and leave one counter of fences on the server, which expires after a day.
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

	"github.com/dlock-go/dlock/examples/inventory/internal/sell"
)

func main() { sell.Main(&program{}) }

// A program is what its flags say.
type program struct{ backend, redis string }

var backends = []string{"goredis", "redigo", "rueidis"}

func (p *program) Flags(flags *flag.FlagSet) {
	flags.StringVar(&p.backend, "backend", "goredis", "where the locks are kept: "+strings.Join(backends, ", "))
	flags.StringVar(&p.redis, "redis", "localhost:6379", "the `host:port` of the server")
}

func (p *program) Check() error {
	_, _, noAddress := net.SplitHostPort(p.redis)
	switch {
	case !slices.Contains(backends, p.backend):
		return fmt.Errorf("-backend %q: must be one of %s", p.backend, strings.Join(backends, ", "))
	case noAddress != nil:
		return fmt.Errorf("-redis %q: must be host:port", p.redis)
	}
	return nil
}

func (p *program) Play(ctx context.Context, cfg sell.Config, out io.Writer) (err error) {
	locks, err := open(ctx, p, cfg.Workers)
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", p.backend, err)
	}
	defer func() { err = cmp.Or(err, locks.close()) }()
	return sell.Play(ctx, cfg, locks.Locks, out)
}

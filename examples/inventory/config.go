package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A config is what the flags say.
type config struct {
	workers int
	stock   int
	hold    time.Duration
	backend string
	redis   string // host:port
}

const (
	maxWorkers = 1000
	maxStock   = 1_000_000
)

// parse reads the flags. If they ask for help it is written to stdout, and the
// error is [flag.ErrHelp]; any other error is one line that names what is wrong.
func parse(args []string, stdout io.Writer) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("inventory", flag.ContinueOnError)
	flags.IntVar(&cfg.workers, "workers", 8, fmt.Sprintf("how many sell at once, from 1 to %d", maxWorkers))
	flags.IntVar(&cfg.stock, "stock", 100, fmt.Sprintf("how many there are to sell, from 1 to %d", maxStock))
	flags.DurationVar(&cfg.hold, "hold", 10*time.Millisecond, "how long one sale takes, from reading the stock to writing it")
	flags.StringVar(&cfg.backend, "backend", "memory", "where the locks are kept: "+strings.Join(backendNames(), ", "))
	flags.StringVar(&cfg.redis, "redis", "localhost:6379", "the `host:port` of the Redis server, for every backend but memory")
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stdout)
		flags.Usage()
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil {
		err = cfg.check()
	}
	flags.Visit(func(f *flag.Flag) {
		if err == nil && f.Name == "redis" && cfg.backend == inMemory {
			err = fmt.Errorf("-redis %s: -backend %s uses no server", cfg.redis, cfg.backend)
		}
	})
	return cfg, err
}

// check returns an error that names the first flag whose value will not do.
func (c config) check() error {
	switch {
	case c.workers < 1 || c.workers > maxWorkers:
		return fmt.Errorf("-workers %d: must be from 1 to %d", c.workers, maxWorkers)
	case c.stock < 1 || c.stock > maxStock:
		return fmt.Errorf("-stock %d: must be from 1 to %d", c.stock, maxStock)
	case c.hold < 0:
		return fmt.Errorf("-hold %v: must not be negative", c.hold)
	case backends[c.backend] == nil:
		return fmt.Errorf("-backend %q: must be one of %s", c.backend, strings.Join(backendNames(), ", "))
	case !isAddress(c.redis):
		return fmt.Errorf("-redis %q: must be host:port", c.redis)
	}
	return nil
}

func isAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	return err == nil && notNumber == nil && host != "" && n > 0
}

// label names a worker, counted from 0, and its driver where workers differ in
// that.
func (c config) label(worker int) string {
	label := strconv.Itoa(worker + 1)
	if drivers := backends[c.backend]; len(drivers) > 1 {
		label += " " + drivers[worker%len(drivers)].name
	}
	return label
}

// store says where the locks are.
func (c config) store() string {
	if c.backend == inMemory {
		return "the store in memory"
	}
	return "the server at " + c.redis
}

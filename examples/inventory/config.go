package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
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
	redis   string        // host:port; of redlock several, separated by commas, or "" for servers of its own
	kill    time.Duration // when to kill a server; 0 for never
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
	flags.StringVar(&cfg.redis, "redis", "localhost:6379", "the `host:port` of the Redis server, for every backend but memory; for redlock those of three or five, separated by commas, in place of three servers in this process")
	flags.DurationVar(&cfg.kill, "kill", 0, "how long the sale with a lock has gone on when one of redlock's own servers is killed; 0 for never")
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stdout)
		flags.Usage()
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	given := false
	flags.Visit(func(f *flag.Flag) { given = given || f.Name == "redis" })
	switch {
	case err != nil:
	case given && cfg.backend == inMemory:
		err = fmt.Errorf("-redis %s: -backend %s uses no server", cfg.redis, cfg.backend)
	case !given && cfg.backend == overServers:
		cfg.redis = ""
	case cfg.backend == overServers:
		err = checkServers(cfg.redis)
	case !isAddress(cfg.redis):
		err = fmt.Errorf("-redis %q: must be host:port", cfg.redis)
	}
	if err == nil {
		err = cfg.check()
	}
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
	case c.kill < 0:
		return fmt.Errorf("-kill %v: must not be negative", c.kill)
	case c.kill > 0 && (c.backend != overServers || c.redis != ""):
		return fmt.Errorf("-kill %v: only for -backend %s without -redis", c.kill, overServers)
	}
	return nil
}

func checkServers(redis string) error {
	servers := strings.Split(redis, ",")
	if n := len(servers); n != 3 && n != 5 {
		return fmt.Errorf("-redis %q: must be three or five of host:port, separated by commas", redis)
	}
	for i, server := range servers {
		if !isAddress(server) {
			return fmt.Errorf("-redis %q: %q must be host:port", redis, server)
		}
		if slices.Contains(servers[:i], server) {
			return fmt.Errorf("-redis %q: %s must not be there twice", redis, server)
		}
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
	switch {
	case c.backend == inMemory:
		return "the store in memory"
	case c.backend == overServers && c.redis == "":
		return "the servers in this process"
	case c.backend == overServers:
		return "the servers at " + c.redis
	}
	return "the server at " + c.redis
}

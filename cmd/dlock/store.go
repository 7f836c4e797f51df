package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	neturl "net/url"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A store is Redis, as the flags name it.
type store struct {
	url, sentinel, prefix string
	cluster               bool
	client                redis.UniversalClient // these are there while a command runs
	locker                *rediscore.Locker
}

const (
	urlVariable    = "DLOCK_REDIS_URL"
	prefixVariable = "DLOCK_PREFIX"
)

func (s *store) flags(f *pflag.FlagSet) {
	f.StringVar(&s.url, "redis", "", "URL of Redis: redis://user:password@host:6379/0, or rediss:// with TLS "+
		"(default $"+urlVariable+", then redis://localhost:6379)")
	f.StringVar(&s.sentinel, "sentinel", "",
		"the URL is of a Sentinel, which knows the master by this `name`; ?addr=host:port adds others")
	f.BoolVar(&s.cluster, "cluster", false, "the URL is of a node of a Redis Cluster; ?addr=host:port adds others")
	f.StringVar(&s.prefix, "prefix", "", "`prefix` of all names in Redis; all programs that share a lock need the same "+
		"(default $"+prefixVariable+", then none)")
}

// command returns a command that asks the store once.
func (s *store) command(use, short string, args cobra.PositionalArgs, f func(c *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args, RunE: s.with(1, f)}
}

// with returns a command's function: f, for whose time the store is there. Its errors have exit codes. A call tries
// to connect so often, which takes up to 5 s each time.
func (s *store) with(dials int, f func(c *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) (err error) {
		if s.cluster && s.sentinel != "" {
			return exit{exitUsage, errors.New("--cluster and --sentinel exclude each other")}
		}
		if !c.Flags().Changed("prefix") {
			s.prefix = os.Getenv(prefixVariable)
		}
		url := cmp.Or(s.url, os.Getenv(urlVariable), "redis://localhost:6379")
		if s.client, err = s.connect(url, dials); err != nil {
			return exit{exitUsage, badURL(url, err)}
		}
		defer s.client.Close()
		logging.Disable() // go-redis returns its errors too, and standard error is the program's
		s.locker = newLocker(s.client, s.prefix)
		defer s.locker.Close()
		return failed(url, f(c, args))
	}
}

func newLocker(client redis.UniversalClient, prefix string, opts ...goredis.Option) *rediscore.Locker {
	return goredis.New(client, append(opts, goredis.WithPrefix(prefix))...)
}

// connect returns a client, which does not connect yet.
func (s *store) connect(url string, dials int) (redis.UniversalClient, error) {
	u, err := neturl.Parse(url)
	if err != nil {
		return nil, err
	}
	if db, _ := strconv.Atoi(strings.Trim(cmp.Or(u.Query().Get("db"), u.Path), "/")); db < 0 {
		return nil, fmt.Errorf("database %d: negative", db)
	}
	for _, host := range append(u.Query()["addr"], u.Host) {
		_, port, _ := net.SplitHostPort(host)
		if _, err := net.LookupPort("tcp", port); err != nil {
			return nil, err
		}
	}
	switch {
	case s.cluster:
		o, err := redis.ParseClusterURL(url)
		if err != nil {
			return nil, err
		}
		o.ContextTimeoutEnabled, o.DialerRetries = true, dials
		return redis.NewClusterClient(o), nil
	case s.sentinel != "":
		o, err := redis.ParseFailoverURL(url)
		if err != nil {
			return nil, err
		}
		o.ContextTimeoutEnabled, o.DialerRetries, o.MasterName = true, dials, s.sentinel
		return redis.NewFailoverClient(o), nil
	}
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled, o.DialerRetries = true, dials
	return redis.NewClient(o), nil
}

// badURL shows no part of a URL that may contain a password.
func badURL(url string, err error) error {
	if _, ok := errors.AsType[*neturl.Error](err); ok || strings.Contains(url, "@") {
		err = errors.New("not a URL of Redis (a password may need % escapes)")
	}
	return fmt.Errorf("--redis: %w", err)
}

// failed returns the exit of a command that has failed with err, or has not.
func failed(url string, err error) exit {
	if e, ok := errors.AsType[exit](err); ok || err == nil {
		return e
	}
	for _, known := range []exit{
		{exitUsage, dlock.ErrInvalid}, {exitLost, dlock.ErrLost}, {exitUnavailable, dlock.ErrUnavailable},
		{exitHeld, dlock.ErrReleased}, // of Break: another holds the lock by now
	} {
		if errors.Is(err, known.err) {
			if known.code == exitUnavailable && strings.HasPrefix(url, "rediss:") {
				err = fmt.Errorf("%w (rediss:// needs a port for TLS)", err)
			}
			return exit{known.code, err}
		}
	}
	return exit{exitOwnFault, err}
}

// unanswered returns an error of a call of go-redis. Without a reply of the server, it is that of a store that is away.
func unanswered(err error) error {
	if _, ok := errors.AsType[redis.Error](err); ok {
		return err
	}
	return fmt.Errorf("%w: %w", dlock.ErrUnavailable, err)
}

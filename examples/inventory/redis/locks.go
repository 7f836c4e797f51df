package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/examples/inventory/internal/sell"
)

// prefix is that of all keys on a server, since others may use it.
var prefix = rediscore.WithPrefix("dlock-inventory:")

// locks is where the lock on the stock is kept.
type locks struct {
	*sell.Locks
	closers []func() // of what the Client uses
	nodes   []*node  // of redlock
	killed  bool     // the second of them
}

// open returns when the store has answered, and a majority votes.
func open(ctx context.Context, p *program, workers int, out io.Writer) (*locks, error) {
	l := &locks{}
	locker, err := l.dial(ctx, p, workers)
	if err == nil {
		var opts []dlock.Option
		if l.nodes != nil {
			opts = append(opts, dlock.WithOutage(30*time.Second)) // an attempt that no majority decides
		}
		l.Locks = sell.NewLocks(locker, opts...)
		if p.kill > 0 {
			l.During = func(sell func() error) error { return l.killDuring(p.kill, sell) }
		}
		err = l.await(ctx, out)
	}
	if err != nil {
		_ = l.close() // err is the reason
	}
	return l, err
}

// close returns an error if a release was not answered.
func (l *locks) close() (err error) {
	if l.Locks != nil {
		err = l.Close()
	}
	for _, closer := range slices.Backward(l.closers) {
		closer()
	}
	return err
}

func (l *locks) dial(ctx context.Context, p *program, workers int) (dlock.Locker, error) {
	switch p.backend {
	case "rueidis":
		client, err := rueidisclient.NewClient(rueidisclient.ClientOption{
			InitAddress:       []string{p.redis},
			ForceSingleClient: true,
			DisableCache:      true, // which Redis 5 could not serve, and locks do not use
			ConnWriteTimeout:  3 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		locker := rueidis.New(client, prefix)
		l.closers = append(l.closers, client.Close, func() { locker.Close() })
		return locker, nil
	case "redigo":
		pool := &redigoclient.Pool{
			MaxIdle: workers, // each may make a call at the same time
			DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
				return redigoclient.DialContext(ctx, "tcp", p.redis)
			},
		}
		locker := redigo.New(pool, prefix)
		l.closers = append(l.closers, func() { pool.Close() }, func() { locker.Close() })
		return locker, nil
	case "redlock":
		return l.dialRedlock(ctx)
	}
	return l.dialGoRedis(&redis.Options{Addr: p.redis}), nil
}

// silent is a logger of go-redis.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func (l *locks) dialGoRedis(opts *redis.Options) dlock.Locker {
	redis.SetLogger(silent{}) // failures to connect are returned too
	opts.ContextTimeoutEnabled = true
	client := redis.NewClient(opts)
	locker := goredis.New(client, prefix)
	l.closers = append(l.closers, func() { client.Close() }, func() { locker.Close() })
	return locker
}

func (l *locks) dialRedlock(ctx context.Context) (dlock.Locker, error) {
	var lockers []dlock.Locker
	for range 3 {
		n, err := startNode(ctx)
		if err != nil {
			return nil, err
		}
		l.nodes = append(l.nodes, n)
		l.closers = append(l.closers, n.Close)
		// One attempt, since the others decide.
		lockers = append(lockers, l.dialGoRedis(&redis.Options{Addr: n.name, MaxRetries: -1}))
	}
	locker := redlock.New(lockers, redlock.WithLongestTTL(sell.TTL))
	l.closers = append(l.closers, func() { locker.Close() })
	return locker, nil
}

// await returns when the store has answered, and a majority votes. Servers that have just started do
// not: they may have forgotten a lease. It says so, and waits.
func (l *locks) await(ctx context.Context, out io.Writer) error {
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := l.Inspect(limited, l.Key)
	for err == nil && l.nodes != nil {
		var lease *dlock.Lease
		if lease, err = l.TryAcquire(ctx, l.Key); err == nil {
			return lease.Release()
		}
		var missing *redlock.MajorityError
		if errors.As(err, &missing) && missing.Wait > 0 {
			fmt.Fprintf(out, "Servers that have just started may have forgotten a lease of up to %v, and do not vote yet.\n"+
				"%d of the %d will vote in %v.\n", sell.TTL, missing.Quorum, len(missing.Nodes), missing.Wait.Round(100*time.Millisecond))
			err = sell.Sleep(ctx, missing.Wait)
		}
	}
	return err
}

// killDuring kills the second server when sell has gone on for d.
func (l *locks) killDuring(d time.Duration, sell func() error) error {
	done := make(chan error, 1)
	go func() { done <- sell() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
	}
	l.nodes[1].Close()
	for _, n := range l.nodes {
		n.before = n.calls.Load()
	}
	l.killed = true
	return <-done
}

// report writes how many calls each server answered.
func (l *locks) report(out io.Writer, kill time.Duration) {
	if l.nodes == nil {
		return
	}
	lost := fmt.Sprintf("Server %s was killed, %v after the sale with a lock had begun.", l.nodes[1].name, kill)
	if !l.killed {
		lost = "No server was lost."
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\n%s\ncalls of server\tanswered before\tanswered after\t\n", lost)
	for _, n := range l.nodes {
		before, after := n.before, n.calls.Load()-n.before
		if !l.killed {
			before, after = after, 0
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t\n", n.name, before, after)
	}
	table.Flush()
}

// A node is a server in this process.
type node struct {
	*miniredis.Miniredis
	name   string
	calls  atomic.Int64
	before int64 // how many calls there were when a server was killed
}

// startNode adds what miniredis lacks: TTLs that pass, and the replication ID, by which a lock knows
// whether the server has been started again.
func startNode(ctx context.Context) (*node, error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, err
	}
	n := &node{Miniredis: m, name: m.Addr()}
	go n.age(ctx)
	id := fmt.Sprintf("%x", rand.Text())[:40]
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if strings.HasPrefix(cmd, "EVAL") {
			n.calls.Add(1)
		}
		replication := cmd == "INFO" && len(args) == 1 && strings.EqualFold(args[0], "replication")
		if replication {
			c.WriteBulk("# Replication\r\nrole:master\r\nmaster_replid:" + id + "\r\n")
		}
		return replication
	})
	return n, nil
}

// age lets TTLs pass until ctx ends.
func (n *node) age(ctx context.Context) {
	last := time.Now()
	for sell.Sleep(ctx, 5*time.Millisecond) == nil {
		now := time.Now()
		n.FastForward(now.Sub(last))
		last = now
	}
}

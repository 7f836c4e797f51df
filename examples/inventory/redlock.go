package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
)

// patience is how long a worker repeats an attempt that no majority decides.
const patience = 30 * time.Second

// A quorum is a Locker made of several servers. It counts what they answer.
type quorum struct {
	*redlock.Locker
	nodes []*node

	mu    sync.Mutex
	began time.Time // of the sale with a lock
	lost  *node     // the server that was killed, or the first whose connections failed
	how   string    // and when
}

// A node is one server of a quorum. It is a hook of its client.
type node struct {
	quorum                *quorum
	name                  string
	server                *miniredis.Miniredis // nil if -redis names it
	client                *redis.Client
	locker                *rediscore.Locker
	before, after, failed int // calls: answered before a server was lost, answered since, not answered
}

// dialRedlock makes a Locker of the servers at cfg.redis, or of three that it starts.
func dialRedlock(cfg config) (dlock.Locker, func() error, error) {
	q := &quorum{}
	if cfg.redis != "" {
		for addr := range strings.SplitSeq(cfg.redis, ",") {
			q.add(addr, nil)
		}
	}
	for len(q.nodes) < 3 {
		server, err := startServer()
		if err != nil {
			_ = q.hangUp() // err is the reason
			return nil, nil, err
		}
		q.add(server.Addr(), server)
	}
	var lockers []dlock.Locker
	for _, n := range q.nodes {
		lockers = append(lockers, n.locker)
	}
	q.Locker = redlock.New(lockers, redlock.WithLongestTTL(ttl), redlock.WithNodeLimit(timeout))
	return q, q.hangUp, nil
}

// startServer starts a server in this process. It has what miniredis lacks: TTLs that pass, and
// the replication ID, by which a lock knows whether the server has been started again.
func startServer() (*miniredis.Miniredis, error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, err
	}
	m.ClockTTL(true)
	id := fmt.Sprintf("%x", rand.Text())[:40]
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		replication := cmd == "INFO" && len(args) == 1 && strings.EqualFold(args[0], "replication")
		if replication {
			c.WriteBulk("# Replication\r\nrole:master\r\nmaster_replid:" + id + "\r\n")
		}
		return replication
	})
	return m, nil
}

func (q *quorum) add(addr string, server *miniredis.Miniredis) {
	opts := goRedisOptions(addr)
	opts.MaxRetries, opts.DialerRetries = -1, 1 // the others decide
	n := &node{quorum: q, name: addr, server: server, client: redis.NewClient(opts)}
	n.client.AddHook(n)
	n.locker = goredis.New(n.client, rediscore.WithPrefix(prefix))
	q.nodes = append(q.nodes, n)
}

func (q *quorum) hangUp() (err error) {
	if q.Locker != nil {
		err = q.Close()
	}
	for _, n := range q.nodes {
		err = cmp.Or(err, n.locker.Close(), n.client.Close())
		if n.server != nil {
			n.server.Close()
		}
	}
	return err
}

func (n *node) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *node) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return n.count(next(ctx, cmd)) }
}

func (n *node) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return n.count(next(ctx, cmds)) }
}

// count returns err, the result of a call.
func (n *node) count(err error) error {
	q := n.quorum
	q.mu.Lock()
	defer q.mu.Unlock()
	var reply redis.Error // also says that the server lives
	var late net.Error
	switch {
	case errors.Is(err, context.Canceled): // the call was not needed any more
	case err != nil && !errors.As(err, &reply):
		n.failed++
		if !errors.As(err, &late) || !late.Timeout() { // some calls have short limits
			q.lose(n, "did not answer")
		}
	case q.lost == nil, q.lost == n:
		n.before++
	default:
		n.after++
	}
	return err
}

// lose notes the first server that is lost.
func (q *quorum) lose(n *node, how string) {
	if q.lost != nil {
		return
	}
	when := "before the sale with a lock"
	if !q.began.IsZero() {
		when = fmt.Sprintf("%v after the sale with a lock had begun", time.Since(q.began).Round(time.Millisecond))
	}
	q.lost, q.how = n, how+", "+when
}

// during calls sell, and kills the second server when d has passed meanwhile, unless d is 0.
func (q *quorum) during(d time.Duration, sell func() error) error {
	if q == nil {
		return sell()
	}
	q.mu.Lock()
	q.began = time.Now()
	q.mu.Unlock()
	ctx, over := context.WithCancel(context.Background())
	var killer sync.WaitGroup
	killer.Go(func() {
		if d > 0 && sleep(ctx, d) == nil {
			q.kill(q.nodes[1])
		}
	})
	defer killer.Wait()
	defer over()
	return sell()
}

func (q *quorum) kill(n *node) {
	q.mu.Lock()
	q.lost = nil
	q.lose(n, "was killed")
	q.mu.Unlock()
	n.server.Close()
}

// awaitVotes returns when a majority votes. Servers that have just started do not: they may have
// forgotten a lease. It says so, and waits.
func (s *store) awaitVotes(ctx context.Context, out io.Writer) error {
	for s.quorum != nil {
		lease, err := s.client(0).TryAcquire(ctx, s.key)
		if err == nil {
			return lease.Release()
		}
		var missing *redlock.MajorityError
		if !errors.As(err, &missing) || missing.Wait == 0 {
			return err
		}
		fmt.Fprintf(out, "Servers that have just started may have forgotten a lease of up to %v, and do not vote yet.\n"+
			"%d of the %d will vote in %v.\n", ttl, missing.Quorum, len(missing.Nodes), missing.Wait.Round(100*time.Millisecond))
		if err := sleep(ctx, missing.Wait); err != nil {
			return err
		}
	}
	return nil
}

// report writes how many calls each server answered.
func (q *quorum) report(out io.Writer) error {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lost == nil {
		fmt.Fprint(out, "\nNo server was lost.\n")
	} else {
		fmt.Fprintf(out, "\nServer %s %s.\n", q.lost.name, q.how)
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "calls of server\tanswered before\tanswered after\tnot answered\t\n")
	for _, n := range q.nodes {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t\n", n.name, n.before, n.after, n.failed)
	}
	return table.Flush()
}

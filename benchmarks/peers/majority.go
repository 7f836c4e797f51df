package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// longest is the longest TTL of redlock, and the TTL of all locks on nodes. Nodes vote when the first
// request was a little longer ago.
const longest = 5 * time.Second

// dialNodes returns a Locker that decides by the majority of nodes.
func dialNodes(addrs []string, opt redlock.Option) (l *redlock.Locker, end func()) {
	var nodes []dlock.Locker
	var closers []io.Closer
	for _, addr := range addrs {
		client := dialGoredis(addr)
		node := goredis.New(client)
		nodes, closers = append(nodes, node), append(closers, node, client)
	}
	l = redlock.New(nodes, opt)
	return l, func() {
		l.Close()
		for _, c := range closers {
			c.Close()
		}
	}
}

func openRedlock(j job) (acquire, error) {
	nodes, _ := dialNodes(j.Addrs, redlock.WithLongestTTL(longest))
	return taking(dlock.New(nodes, dlock.WithTTL(j.TTL), dlock.WithFence(true))), nil
}

// awaitVotes waits until servers vote.
func awaitVotes(servers []*redistest.Server) error {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	l, end := dialNodes(addrs, redlock.WithLongestTTL(longest))
	defer end()
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		_, err := l.TryAcquire(context.Background(), "first", "nobody", longest)
		if err == nil || time.Since(begun) > 2*longest+10*time.Second {
			return err
		}
	}
}

// renewals measures how long one renewal of n leases takes.
func (t *turn) renewals(ctx context.Context) {
	l, end := dialNodes(t.addrs, redlock.WithoutGuard())
	defer end()
	batch := make([]dlock.Renewal, t.n)
	for i := range batch {
		batch[i] = dlock.Renewal{Key: key(i), Token: fmt.Sprint("holder ", i), TTL: time.Minute} // all are taken in less
	}
	job{Keys: t.n, Workers: 64}.share(func(i int) {
		b := batch[i]
		for a, err := l.TryAcquire(ctx, b.Key, b.Token, b.TTL); ctx.Err() == nil && (err != nil || !a.Acquired); {
			a, err = l.TryAcquire(ctx, b.Key, b.Token, b.TTL)
		}
	})
	var took []time.Duration
	lost := 0
	for begun := time.Now(); t.err == nil && time.Since(begun) < t.window; time.Sleep(t.window / 50) {
		sent := time.Now()
		results, err := l.RenewBatch(ctx, batch)
		took, t.err = append(took, time.Since(sent)), errors.Join(t.err, err)
		for _, r := range results {
			if !r.Held {
				lost++
			}
		}
	}
	t.note("batch ms", milliseconds(median(took)))
	t.note("lost", float64(lost))
}

package peers

import (
	"context"
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
func dialNodes(addrs []string) *redlock.Locker {
	var nodes []dlock.Locker
	for _, addr := range addrs {
		nodes = append(nodes, goredis.New(dialGoredis(addr)))
	}
	return redlock.New(nodes, redlock.WithLongestTTL(longest))
}

func openRedlock(j job) (acquire, error) {
	return taking(dlock.New(dialNodes(j.Addrs), dlock.WithTTL(j.TTL), dlock.WithFence(true))), nil
}

// awaitVotes waits until servers vote.
func awaitVotes(servers []*redistest.Server) error {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	l := dialNodes(addrs)
	defer l.Close()
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		_, err := l.TryAcquire(context.Background(), "first", "nobody", longest)
		if err == nil || time.Since(begun) > 2*longest+10*time.Second {
			return err
		}
	}
}

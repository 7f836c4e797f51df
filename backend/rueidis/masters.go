package rueidis

import (
	"context"
	"net"
	"strconv"
	"sync"

	"github.com/redis/rueidis"
)

// masters finds the client of the master of a slot. A subscription must be on the master, whose
// scripts count its subscribers. rueidis itself may send a SSUBSCRIBE to a replica, because it takes
// it for a command that only reads (see ClientOption.SendToReplicas).
type masters struct {
	mu     sync.Mutex
	ranges []slotRange // empty if not known
}

type slotRange struct {
	first, last int64
	addr        string
}

// of returns the client for the master of a slot, or c itself if the master is not known.
func (m *masters) of(ctx context.Context, c rueidis.Client, slot int) rueidis.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ranges) == 0 {
		m.read(ctx, c)
	}
	for _, r := range m.ranges {
		if r.first <= int64(slot) && int64(slot) <= r.last {
			if node := c.Nodes()[r.addr]; node != nil {
				return node
			}
		}
	}
	m.ranges = nil
	return c
}

// forget makes the next of read who serves which slots.
func (m *masters) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges = nil
}

// read reads CLUSTER SLOTS. Nodes that have no address of their own are left out.
func (m *masters) read(ctx context.Context, c rueidis.Client) {
	reply, _ := c.Do(ctx, c.B().ClusterSlots().Build()).ToArray()
	for _, entry := range reply {
		fields, _ := entry.ToArray()
		if len(fields) < 3 {
			continue
		}
		first, err1 := fields[0].AsInt64()
		last, err2 := fields[1].AsInt64()
		node, _ := fields[2].ToArray()
		if err1 != nil || err2 != nil || len(node) < 2 {
			continue
		}
		host, err1 := node[0].ToString()
		port, err2 := node[1].AsInt64()
		if err1 == nil && err2 == nil {
			m.ranges = append(m.ranges, slotRange{first, last, net.JoinHostPort(host, strconv.FormatInt(port, 10))})
		}
	}
}

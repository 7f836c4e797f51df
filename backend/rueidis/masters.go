package rueidis

import (
	"context"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// masters finds the address of the master of a slot. A subscription must be on the master, whose
// scripts count its subscribers. rueidis itself may send a SSUBSCRIBE to a replica, because it takes
// it for a command that only reads (see ClientOption.SendToReplicas). Calls with a WAIT go to the client
// of one master, too, so that both are on one connection.
type masters struct {
	mu      sync.Mutex
	ranges  []slotRange   // empty if not known
	since   time.Time     // when they were read
	reading chan struct{} // closed when they have been read; nil if they are not being read
}

type slotRange struct {
	first, last int64
	addr        string
}

const (
	readLimit = 500 * time.Millisecond // of one try: rueidis may ask a node that is dead
	readTries = 3
	readPause = 250 * time.Millisecond // after which refresh has them read again
)

// Locate implements [rediscore.Locator]. It returns an address.
func (c conn) Locate(ctx context.Context, channel string) any {
	if !c.Cluster() {
		return nil
	}
	c.masters.refresh()
	if address := c.masters.of(ctx, c.client, rediscore.Slot(channel)); address != "" {
		return address
	}
	return nil
}

// of returns the address of the master of a slot, or "" if it is not known.
func (m *masters) of(ctx context.Context, c rueidis.Client, slot int) string {
	m.mu.Lock()
	if addr := m.addrLocked(slot); addr != "" {
		m.mu.Unlock()
		return addr
	}
	read := m.reading
	if read == nil {
		read = make(chan struct{})
		m.reading = read
		go m.read(c, read)
	}
	m.mu.Unlock()
	select {
	case <-read:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.addrLocked(slot)
}

// master returns the client of the node whose role is master, or the client itself if there is only one node, or none says
// so. It is for servers that are no cluster. With Sentinel or replicas, rueidis may send a SUBSCRIBE to a replica.
func (c conn) master(ctx context.Context) rueidis.Client {
	nodes := c.client.Nodes()
	if len(nodes) < 2 {
		return c.client.Client
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	answers := make(chan rueidis.Client, len(nodes)) // nil if the node is no master
	for _, node := range nodes {
		go func() {
			var master rueidis.Client
			_ = rediserr.Try(func() {
				role, _ := c.client.doMulti(ctx, node, rueidis.Commands{node.B().Role().Build()})[0].ToArray()
				if name, err := role[0].ToString(); err == nil && name == "master" {
					master = node
				}
			})
			answers <- master
		}()
	}
	for range nodes {
		if master := <-answers; master != nil {
			return master
		}
	}
	return c.client.Client
}

func (m *masters) addrLocked(slot int) string {
	for _, r := range m.ranges {
		if r.first <= int64(slot) && int64(slot) <= r.last {
			return r.addr
		}
	}
	return ""
}

// forget makes the next of read who serves which slots.
func (m *masters) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges = nil
}

// meet makes rueidis know the master of a key, which may have joined the cluster since rueidis read
// its table of nodes. It does so when it follows a redirection. The clients of single nodes do not
// follow any.
func (c conn) meet(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	c.client.Do(ctx, c.client.B().Arbitrary("EXISTS").Keys(key).Build())
}

// refresh is forget, unless they were read lately.
func (m *masters) refresh() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.since) >= readPause {
		m.ranges = nil
	}
}

func (m *masters) read(c rueidis.Client, done chan<- struct{}) {
	var ranges []slotRange
	for try := 0; try < readTries && len(ranges) == 0; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), readLimit)
		_ = rediserr.Try(func() { ranges = slotRanges(ctx, c) })
		cancel()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranges, m.reading, m.since = ranges, nil, time.Now()
	close(done)
}

// slotRanges reads CLUSTER SLOTS. Nodes that have no address of their own are left out.
func slotRanges(ctx context.Context, c rueidis.Client) (ranges []slotRange) {
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
			ranges = append(ranges, slotRange{first, last, net.JoinHostPort(host, strconv.FormatInt(port, 10))})
		}
	}
	return ranges
}

package backend_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

// A migration moves a slot of a cluster to another master, as redis-cli does.
type migration struct {
	t        *testing.T
	cluster  *redistest.Cluster
	slot     string
	from, to *redistest.Server
}

// startMigration begins to move the slot of key. The new master knows none of
// the scripts.
func startMigration(t *testing.T, c *redistest.Cluster, key string) migration {
	t.Helper()
	from := c.MasterOf(t, key)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	m := migration{t, c, strconv.Itoa(from.Slot(t, key)), from, to}
	do(t, to, "SCRIPT", "FLUSH")
	do(t, to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.id(from))
	do(t, from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.id(to))
	return m
}

func (m migration) id(s *redistest.Server) string {
	m.t.Helper()
	return do(m.t, s, "CLUSTER", "MYID").(string)
}

// moveKeys moves the keys. Until finish the old master answers with ASK.
func (m migration) moveKeys() {
	m.t.Helper()
	host, port, err := net.SplitHostPort(m.to.Addr())
	require.NoError(m.t, err)
	for _, key := range do(m.t, m.from, "CLUSTER", "GETKEYSINSLOT", m.slot, "100").([]any) {
		do(m.t, m.from, "MIGRATE", host, port, key.(string), "0", "5000")
	}
}

// finish makes all nodes answer with MOVED.
func (m migration) finish() {
	m.t.Helper()
	do(m.t, m.to, "CLUSTER", "SETSLOT", m.slot, "NODE", m.id(m.to))
	for _, n := range m.cluster.Nodes {
		do(m.t, n, "CLUSTER", "SETSLOT", m.slot, "NODE", m.id(m.to))
	}
}

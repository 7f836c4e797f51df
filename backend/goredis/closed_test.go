package goredis

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// ErrClosed of the client of one node is not that of a cluster's client.
func TestErrClosedOfANode(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	_, err := server.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	if err != nil {
		t.Skip(err)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	t.Cleanup(func() { client.Close() })
	c := newConn(client)
	node := &dlock.NoEffectError{Err: redis.ErrClosed}
	require.Equal(t, error(node), c.unlessClosed(t.Context(), node))
	require.NoError(t, client.Close())
	err = c.unlessClosed(t.Context(), node)
	require.ErrorIs(t, err, dlock.ErrClosed)
	require.ErrorIs(t, err, redis.ErrClosed)
	var unsent *dlock.NoEffectError
	require.ErrorAs(t, err, &unsent)
}

package rueidis

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestCluster(t *testing.T) {
	adaptertest.RunCluster(t, func(t testing.TB, addrs []string) rediscore.Conn {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		return conn{client}
	})
}

package rueidis

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestTopology(t *testing.T) {
	t.Parallel()
	dial := func(t testing.TB, option rueidis.ClientOption) rediscore.Conn {
		client, err := rueidis.NewClient(option)
		require.NoError(t, err)
		t.Cleanup(client.Close)
		return newConn(client)
	}
	adaptertest.RunTopologies(t, func(t testing.TB, sentinels []string) rediscore.Conn {
		return dial(t, rueidis.ClientOption{
			InitAddress: sentinels, Sentinel: rueidis.SentinelOption{MasterSet: adaptertest.MasterName},
		})
	}, func(t testing.TB, nodes []string) rediscore.Conn {
		return dial(t, rueidis.ClientOption{InitAddress: nodes})
	})
}

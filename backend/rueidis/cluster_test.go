package rueidis

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestCluster(t *testing.T) {
	dials := make(map[string]adaptertest.DialCluster)
	for name, send := range map[string]func(rueidis.Completed) bool{
		"Default":        nil,
		"SendToReplicas": func(cmd rueidis.Completed) bool { return cmd.IsReadOnly() },
	} {
		dials[name] = func(t testing.TB, addrs []string) rediscore.Conn {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, SendToReplicas: send})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			return newConn(client)
		}
	}
	adaptertest.RunCluster(t, dials)
}

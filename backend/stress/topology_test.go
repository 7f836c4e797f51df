package stress

import (
	"sync/atomic"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

const masterName = "mymaster"

// A topology is a bed, and the libraries that have a client for it.
type topology struct {
	name      string
	start     func(t testing.TB) redistest.Bed
	libraries map[string]func(addrs []string, opts ...rediscore.Option) (*rediscore.Locker, func(), error)
	replicas  int // of a master
}

var topologies = []topology{
	{
		name:  "Sentinel",
		start: func(t testing.TB) redistest.Bed { return redistest.StartSentinels(t, masterName) },
		libraries: map[string]func([]string, ...rediscore.Option) (*rediscore.Locker, func(), error){
			"goredis": func(addrs []string, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
				client := goredislib.NewFailoverClient(&goredislib.FailoverOptions{
					MasterName: masterName, SentinelAddrs: addrs, ContextTimeoutEnabled: true,
					DialTimeout: patience, ReadTimeout: patience, PoolSize: 50,
				})
				return goredis.New(client, opts...), func() { client.Close() }, nil
			},
			"rueidis": func(addrs []string, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
				client, err := rueidislib.NewClient(rueidislib.ClientOption{
					InitAddress: addrs, Sentinel: rueidislib.SentinelOption{MasterSet: masterName},
					ConnWriteTimeout: patience,
				})
				if err != nil {
					return nil, nil, err
				}
				return rueidis.New(client, opts...), client.Close, nil
			},
		},
		replicas: 2,
	},
	cluster,
}

var cluster = topology{
	name:  "Cluster",
	start: func(t testing.TB) redistest.Bed { return redistest.StartCluster(t, 3, 1) },
	libraries: map[string]func([]string, ...rediscore.Option) (*rediscore.Locker, func(), error){
		"goredis": func(addrs []string, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
			client := goredislib.NewClusterClient(&goredislib.ClusterOptions{
				Addrs: addrs, ContextTimeoutEnabled: true,
				DialTimeout: patience, ReadTimeout: patience, PoolSize: 50,
			})
			return goredis.New(client, opts...), func() { client.Close() }, nil
		},
		"rueidis": func(addrs []string, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
			client, err := rueidislib.NewClient(rueidislib.ClientOption{
				InitAddress: addrs, ConnWriteTimeout: patience,
				ClusterOption: rueidislib.ClusterOption{ShardsRefreshInterval: time.Second},
			})
			if err != nil {
				return nil, nil, err
			}
			return rueidis.New(client, opts...), client.Close, nil
		},
	},
	replicas: 1,
}

// TestTopology strikes Sentinel and a cluster with faults under load. See the package documentation.
func TestTopology(t *testing.T) {
	text := long.Of("topology")
	if text == "" {
		t.Skip("set DLOCK_LONG=topology=2m")
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	awaitGoroutines := watchGoroutines(t)
	t.Run("Beds", func(t *testing.T) {
		for _, top := range topologies {
			t.Run(top.name, func(t *testing.T) {
				t.Parallel()
				runLoad(t, top, d)
			})
		}
	})
	awaitGoroutines()
}

// runLoad makes one round. Each library works with WithReplicas and without, on different keys. Certain
// holds may overlap only without: Redis acknowledges writes that a failover loses, and a former master
// grants locks until it knows. For the same reason a grant that takes long to arrive may have a lower
// fence than one that another master made later.
func runLoad(t *testing.T, top topology, d time.Duration) {
	l := newLoad(t, top.start(t))
	for library, dial := range top.libraries {
		for range 2 { // as many processes would
			locker, closeClient, err := dial(l.bed.Addrs())
			require.NoError(t, err)
			l.start(library, locker, closeClient)
			locker, closeClient, err = dial(l.bed.Addrs(), rediscore.WithReplicas(top.replicas, patience))
			require.NoError(t, err)
			l.start(library+durable, locker, closeClient)
		}
	}
	l.strike(d)
	l.settle()
	l.report()
}

// durable is added to the name of a library that works with WithReplicas.
const durable = "+replicas"

// ids number the waits and holds of all rounds.
var ids atomic.Int64

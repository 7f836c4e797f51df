package backend_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	readTimeout = 3 * time.Second  // of the clients below
	failoverTTL = 30 * time.Second // more than a failover and two read time-outs
	giveUp      = 20 * time.Second

	// recoveryLimit is more than the adapters take on a busy machine, and less than the minute
	// after which go-redis asks for the cluster's topology by itself.
	recoveryLimit = 10 * time.Second
)

// TestClusterFailover replaces one master by its replica: it is killed. If DLOCK_LONG has adapters,
// another has stepped down before, and a third is suspended then. Soon after each, locks can be
// acquired, and leases are renewed.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	var users []*clusterUser
	for _, a := range clients.Topologies {
		l, _ := a.Dial(t, clients.Settings{Addrs: cluster.Addrs(), Cluster: true, Caches: true, Patience: readTimeout})
		users = append(users, newClusterUser(t, cluster, a.Name, l))
	}
	for i, f := range []struct {
		name string
		fail func(*testing.T, *redistest.Cluster, *redistest.Server)
	}{
		{"stepped down", stepDown},
		{"killed", failing((*redistest.Server).Kill)},
		{"suspended", failing((*redistest.Server).Suspend)},
	} {
		if f.name != "killed" && !adaptertest.All() {
			continue
		}
		master, promotion := cluster.Nodes[i], new(promotion)
		var all sync.WaitGroup
		for _, u := range users {
			all.Go(func() {
				took := u.recovery(i, promotion)
				t.Logf("%s, master %s: a lock was taken %v after the promotion", u.name, f.name, took.Round(time.Millisecond))
				if took > recoveryLimit {
					t.Errorf("%s, master %s: no lock for %v after the promotion, want at most %v", u.name, f.name, took, recoveryLimit)
				}
			})
		}
		f.fail(t, cluster, master)
		now := time.Now()
		promotion.at.Store(&now)
		all.Wait()
		for _, u := range users {
			u.requireRenewed()
		}
	}
}

// A promotion is when a replica became a master.
type promotion struct{ at atomic.Pointer[time.Time] }

func stepDown(t *testing.T, c *redistest.Cluster, master *redistest.Server) { c.StepDown(t, master) }

func failing(fail func(*redistest.Server)) func(*testing.T, *redistest.Cluster, *redistest.Server) {
	return func(t *testing.T, c *redistest.Cluster, master *redistest.Server) {
		fail(master)
		c.AwaitFailover(t, master)
	}
}

// A clusterUser has leases on all masters.
type clusterUser struct {
	t      *testing.T
	name   string
	locker *rediscore.Locker
	client *dlock.Client
	keys   []string // the nth is one of the nth master
	leases []*dlock.Lease
}

func newClusterUser(t *testing.T, cluster *redistest.Cluster, name string, l *rediscore.Locker) *clusterUser {
	u := &clusterUser{t: t, name: name, locker: l, client: dlock.New(l, dlock.WithTTL(failoverTTL))}
	t.Cleanup(func() { u.client.Close(); l.Close() })
	for i := range 3 {
		u.keys = append(u.keys, keyOf(t, cluster, cluster.Nodes[i], name))
		lease, err := u.client.Acquire(t.Context(), u.keys[i])
		require.NoError(t, err, "%s: %q", name, u.keys[i])
		u.leases = append(u.leases, lease)
	}
	return u
}

// keyOf returns a key of master that begins with prefix.
func keyOf(t *testing.T, cluster *redistest.Cluster, master *redistest.Server, prefix string) string {
	t.Helper()
	for i := 0; ; i++ {
		if key := fmt.Sprintf("{%s%d}", prefix, i); cluster.MasterOf(t, key) == master {
			return key
		}
	}
}

// recovery acquires locks of the nth master, one after the other, beginning before it fails.
// It returns the time from the promotion to the first success of an attempt that began after
// the promotion.
func (u *clusterUser) recovery(n int, p *promotion) time.Duration {
	for i := 0; ; i++ {
		at := p.at.Load()
		err := u.lock(fmt.Sprint(u.keys[n], i))
		if at != nil && (err == nil || time.Since(*at) > giveUp) {
			return time.Since(*at)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (u *clusterUser) lock(key string) error {
	ctx, cancel := context.WithTimeout(u.t.Context(), ttl) // the client's own limit is shorter
	defer cancel()
	attempt, err := u.locker.TryAcquire(ctx, key, "t", ttl)
	if err == nil && !attempt.Acquired {
		err = dlock.ErrHeld
	}
	return err
}

// requireRenewed waits until all leases have been renewed since the failure.
func (u *clusterUser) requireRenewed() {
	for i, lease := range u.leases {
		require.Eventually(u.t, func() bool {
			return lease.Err() != nil || time.Until(lease.Deadline()) > failoverTTL*3/5
		}, failoverTTL, pause, "%s: the lease on master %d is not renewed", u.name, i)
		require.NoError(u.t, lease.Err(), "%s: the lease on master %d", u.name, i)
	}
}

package goredis

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
	"github.com/dlock-go/dlock/backend/rediscore"
)

const (
	refreshLimit = 500 * time.Millisecond // of one refresh: the node that it asks may be the dead one
	refreshPause = 200 * time.Millisecond // between two refreshes
	slowCall     = 500 * time.Millisecond // after which a call counts as hanging
)

// A slotTable makes the client of a cluster refresh its table of slots while a master does not
// answer. By itself the client does so only once a minute, or when a server replies that a slot
// has moved, which a dead server does not. A nil slotTable does nothing.
type slotTable struct {
	cluster cluster

	oneMaster atomic.Pointer[bool] // see hasOneMaster; nil if not known

	mu         sync.Mutex
	refreshing bool
	failing    bool // a call has failed since the last refresh began
	hanging    int  // calls
}

// watch is called when a call begins. The function that it returns is called when the call
// has ended.
func (t *slotTable) watch() (ended func()) {
	if t == nil {
		return noop
	}
	timer := time.AfterFunc(slowCall, func() { t.hangs(1) })
	return func() {
		if !timer.Stop() {
			t.hangs(-1)
		}
	}
}

func noop() {}

func (t *slotTable) hangs(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hanging += n
	t.startLocked()
}

// failed takes the error of a call, which may be nil. The reply of a server is no reason to
// refresh: go-redis acts on it.
func (t *slotTable) failed(err error) {
	if t == nil || err == nil {
		return
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failing = true
	t.startLocked()
}

func (t *slotTable) startLocked() {
	if !t.refreshing && (t.failing || t.hanging > 0) {
		t.refreshing = true
		go t.run()
	}
}

// run refreshes the table until no call hangs or fails. It ends soon after the last call has.
func (t *slotTable) run() {
	for t.more() {
		t.refresh()
		time.Sleep(refreshPause)
	}
}

func (t *slotTable) more() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refreshing = t.failing || t.hanging > 0
	t.failing = false
	return t.refreshing
}

// node returns the client of the master at an address, which a redirection names. It fetches the
// table: the redirection shows that the present one is old.
func (t *slotTable) node(ctx context.Context, address string) (*redis.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	var found atomic.Pointer[redis.Client]
	err := eachMaster(ctx, t.cluster, func(_ context.Context, master *redis.Client) error {
		if master.Options().Addr == address {
			found.Store(master)
		}
		return nil
	})
	if node := found.Load(); node != nil {
		return node, nil
	}
	return nil, cmp.Or(err, rediscore.ErrNoMaster)
}

// refresh uses ForEachMaster, which fetches the table within ctx. ReloadState has no limit (as of 9.23), and
// does not start again while it waits for a dead node. With a limit there, refresh may use it.
func (t *slotTable) refresh() {
	ctx, cancel := context.WithTimeout(context.Background(), refreshLimit)
	defer cancel()
	_ = rediserr.Call(func() error {
		return eachMaster(ctx, t.cluster, func(context.Context, *redis.Client) error { return nil })
	})
}

// hasOneMaster reports whether the client is for a single master with all slots, which need not be a
// Redis Cluster: that of [redis.NewFailoverClusterClient] is not. There, PUBLISH and SUBSCRIBE serve all
// locks, and they are older than their shard variants.
func (t *slotTable) hasOneMaster() bool {
	shows, ok := t.cluster.(clusterOptions)
	if !ok {
		return false
	}
	slots := shows.Options().ClusterSlots
	if slots == nil { // the servers say themselves who has which slots
		return false
	}
	if known := t.oneMaster.Load(); known != nil {
		return *known
	}
	ctx, cancel := context.WithTimeout(context.Background(), refreshLimit)
	defer cancel()
	all, err := slots(ctx)
	if err != nil {
		return false
	}
	one := len(all) == 1 && all[0].Start == 0 && all[0].End == 16383
	t.oneMaster.Store(&one)
	return one
}

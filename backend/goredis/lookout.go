package goredis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	lookLimit = 500 * time.Millisecond // for one look: the node that is asked may be the one that does not answer
	lookPause = 200 * time.Millisecond // between two looks
	slowCall  = 500 * time.Millisecond // after which a call is taken for one that hangs
)

// A lookout makes the client of a cluster look where the slots are while a master does
// not answer. By itself the client looks when a server tells it that a slot has moved,
// which a dead one does not, or once a minute. A nil lookout does nothing.
type lookout struct {
	cluster *redis.ClusterClient

	mu      sync.Mutex
	looking bool
	again   bool // a call has failed since the last look began
	slow    int  // calls that hang
}

// newLookout returns nil if client is none of a cluster.
func newLookout(client redis.UniversalClient) *lookout {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return &lookout{cluster: cluster}
	}
	return nil
}

// watch is called when a call begins, and what it returns when that has ended.
func (l *lookout) watch() (ended func()) {
	if l == nil {
		return func() {}
	}
	timer := time.AfterFunc(slowCall, func() { l.hangs(1) })
	return func() {
		if !timer.Stop() {
			l.hangs(-1)
		}
	}
}

func (l *lookout) hangs(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow += n
	l.startLocked()
}

// failed is told the error of a call, which may be nil. What a server has replied is no
// reason to look: go-redis reads from it what it needs to know.
func (l *lookout) failed(err error) {
	var reply redis.Error
	if l == nil || err == nil || errors.As(err, &reply) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again = true
	l.startLocked()
}

func (l *lookout) startLocked() {
	if !l.looking && (l.again || l.slow > 0) {
		l.looking = true
		go l.run()
	}
}

// run looks until no call hangs or fails any more. It ends soon after the last has.
func (l *lookout) run() {
	for l.more() {
		l.look()
		time.Sleep(lookPause)
	}
}

func (l *lookout) more() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking = l.again || l.slow > 0
	l.again = false
	return l.looking
}

// look asks a node. ReloadState would do so without a limit, and not start again while
// it waits for a node that is dead; ForEachMaster asks within the context.
func (l *lookout) look() {
	ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
	defer cancel()
	_ = l.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

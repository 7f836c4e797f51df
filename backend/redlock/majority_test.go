package redlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// As many nodes go away as may stay away, and one more for a while. Clients that have waited all the time
// are served when that is back.
func TestAMajorityReturns(t *testing.T) {
	const ttl, clients = 10 * time.Second, 3
	for fault, strike := range map[string]func(*memory.Locker, bool){
		"fails":         func(s *memory.Locker, on bool) { s.Fail(map[bool]error{true: errDial}[on]) },
		"hangs":         func(s *memory.Locker, on bool) { s.Delay(map[bool]time.Duration{true: time.Hour}[on]) },
		"loses answers": func(s *memory.Locker, on bool) { s.FailReplies(map[bool]error{true: errReset}[on]) },
	} {
		for _, nodes := range []int{3, 5} {
			t.Run(fmt.Sprint(fault, "/", nodes, " nodes"), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s, back := newStores(nodes), (nodes-1)/2
					ctx, stop := context.WithCancel(t.Context())
					var all sync.WaitGroup
					var holders atomic.Int64
					for range clients {
						l := redlock.New(s.nodes())
						defer l.Close()
						c := dlock.New(l, dlock.WithTTL(ttl), dlock.WithOutage(dlock.NoLimit))
						defer c.Close()
						all.Go(func() {
							for ctx.Err() == nil {
								if lease, err := c.Acquire(ctx, "key"); err == nil {
									holders.Add(1)
									<-lease.Context(ctx).Done()
									holders.Add(-1)
									_ = lease.Release()
								}
							}
						})
					}
					for i := range back + 1 {
						time.Sleep(ttl)
						strike(s[i], true)
					}
					time.Sleep(3 * ttl)
					strike(s[back], false)
					time.Sleep(ttl)
					assert.EqualValues(t, 1, holders.Load())
					stop()
					for i := range back {
						strike(s[i], false)
					}
					all.Wait()
				})
			})
		}
	}
}

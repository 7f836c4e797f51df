package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	sellers = 12  // goroutines
	stock   = 300 // items
)

// TestRollingChange sells a stock while a fleet changes from another library to
// dlock, or back: seller by seller, in the middle of the sale. Every item is sold
// once.
func TestRollingChange(t *testing.T) {
	server := redistest.Start(t)
	all := libraries(dial(t, server))
	for _, other := range all[1:] {
		changeInMidSale(t, server, other, all[0])
		changeInMidSale(t, server, all[0], other)
	}
}

func changeInMidSale(t *testing.T, server *redistest.Server, from, to library) {
	t.Run(fmt.Sprintf("%s to %s", from.name, to.name), func(t *testing.T) {
		sell(t, newShop(t, server), func(seller, left int) library {
			if left < stock*(seller+1)/sellers { // one seller after the other
				return to
			}
			return from
		})
	})
}

// TestAllAtOnce sells a stock with all libraries at the same time.
func TestAllAtOnce(t *testing.T) {
	server := redistest.Start(t)
	all := libraries(dial(t, server))
	sell(t, newShop(t, server), func(seller, _ int) library { return all[seller%len(all)] })
}

// sell sells out, where each seller asks before each sale which library to use.
func sell(t *testing.T, s *shop, library func(seller, left int) library) {
	t.Helper()
	var all sync.WaitGroup
	for seller := range sellers {
		all.Go(func() {
			for left := stock; left > 0; {
				var err error
				if left, err = s.sellOne(t.Context(), library(seller, left)); err != nil {
					t.Errorf("seller %d: %v", seller, err)
					return
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, stock, s.sold.Load(), "items sold")
	left, err := s.rdb.Get(t.Context(), s.stock).Int()
	require.NoError(t, err)
	require.Zero(t, left, "items left")
	t.Logf("sold by: %v", s.by)
}

// A shop has a stock in Redis, which nothing protects but the lock.
type shop struct {
	rdb         *redis.Client
	lock, stock string
	sold        atomic.Int64
	inside      atomic.Int64
	by          map[string]int // library; guarded by the lock too
}

func newShop(t *testing.T, server *redistest.Server) *shop {
	s := &shop{rdb: dial(t, server), lock: "lock " + t.Name(), stock: "stock " + t.Name(), by: make(map[string]int)}
	require.NoError(t, s.rdb.Set(t.Context(), s.stock, stock, 0).Err())
	return s
}

// sellOne sells an item, if there is one, and returns how many are left.
func (s *shop) sellOne(ctx context.Context, lib library) (left int, err error) {
	held, err := lib.wait(ctx, s.lock)
	if err != nil {
		return 0, err
	}
	defer func() {
		s.inside.Add(-1)
		ok, releaseErr := held.release(ctx)
		if !ok {
			err = errors.Join(err, fmt.Errorf("%s: release: held is %v: %w", lib.name, ok, releaseErr))
		}
	}()
	if n := s.inside.Add(1); n != 1 {
		return 0, fmt.Errorf("%s: %d inside", lib.name, n)
	}
	if left, err = s.rdb.Get(ctx, s.stock).Int(); err != nil || left == 0 {
		return left, err
	}
	s.sold.Add(1)
	s.by[lib.name]++
	return left - 1, s.rdb.Set(ctx, s.stock, left-1, 0).Err()
}

package dlock

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A Locker that ends its goroutine (with require in a fake, for example) costs no worker.
func TestGoexitInLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(goexit{})
		for i := range 40 {
			take(t, c, fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Zero(t, c.keeper.renewals.workers.calls, "calls that have ended")
	})
}

type goexit struct{ fake }

func (goexit) Renew(context.Context, string, string, time.Duration) (bool, error) {
	runtime.Goexit()
	return true, nil
}

// Calls for single leases that hang leave room for batches.
func TestBatchesPassSinglesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(batching{})
		alone, other := take(t, c, "alone"), take(t, c, "other")
		k := c.keeper
		k.queueRenewal(alone, time.Now(), queueCount-1)
		k.queueRenewal(other, time.Now().Add(time.Second), queueWhole)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.renewals.workers.calls = maxSingle
		require.NotNil(t, k.nextRenewalLocked())
		require.True(t, alone.queued)
		require.False(t, other.queued)
		require.Nil(t, k.nextRenewalLocked())
	})
}

type batching struct{ fake }

func (batching) RenewBatch(_ context.Context, batch []Renewal) ([]RenewResult, error) {
	return make([]RenewResult, len(batch)), nil
}

package sell

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/memory"
)

// Leases are stolen in the middle of sales, and what is sold is exactly the stock all the same.
func TestSaleSurvivesLostLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		locks := NewLocks(store)
		defer locks.Close()
		s := newSale("", Config{Workers: 3, Stock: 20, Hold: 10 * time.Second})
		s.locks = locks
		done := make(chan error, 1)
		go func() { done <- s.run(t.Context()) }()
		for range 5 {
			time.Sleep(14 * time.Second)
			store.Expire(locks.Key)
			time.Sleep(14 * time.Second)
			store.Steal(locks.Key, time.Second)
		}
		require.NoError(t, <-done)
		require.Equal(t, [2]int{0, 20}, [2]int{s.left, s.sold})
	})
}

package main

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/fence"
)

func TestShopRefusesWhoeverIsBehind(t *testing.T) {
	first, second := stamp(8, 1), stamp(16, 2)
	s := newShop(2)
	_, err := s.read(first)
	require.NoError(t, err)
	_, err = s.read(second)
	require.NoError(t, err)
	require.ErrorIs(t, s.write(first, 1), fence.ErrStale, "of a holder from before the last read")
	_, err = s.read(first)
	require.ErrorIs(t, err, fence.ErrStale)
	require.NoError(t, s.write(second, 1))
	left, sold := s.counts()
	require.Equal(t, [2]int{1, 1}, [2]int{left, sold})
}

// stamp makes up the Stamp of a lease.
func stamp(n int64, holder int) fence.Stamp {
	return fence.Stamp{Key: "stock", Fence: n, Holder: fmt.Sprintf("%024x", holder)}
}

func TestSaleReturnsTheErrorOfAWorker(t *testing.T) {
	locks := memory.New()
	refused := errors.New("connection refused")
	store := newStore([]dlock.Locker{locks}, func() error { return nil })
	defer store.close()
	s := newSale("", config{workers: 3, stock: 5}, store.guard)
	locks.Fail(refused)
	require.ErrorIs(t, s.run(t.Context()), refused)
	locks.Fail(nil) // lest close wait for an answer
}

// Leases are stolen in the middle of sales, and what is sold is exactly the
// stock all the same.
func TestSaleSurvivesLostLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := memory.New()
		store := newStore([]dlock.Locker{locks, locks, locks}, func() error { return nil })
		defer store.close()
		s := newSale("", config{workers: 3, stock: 20, hold: 10 * time.Second}, store.guard)
		done := make(chan error, 1)
		go func() { done <- s.run(t.Context()) }()
		for range 5 {
			time.Sleep(14 * time.Second)
			locks.Expire(store.key)
			time.Sleep(14 * time.Second)
			locks.Steal(store.key, time.Second)
		}
		require.NoError(t, <-done)
		left, sold := s.shop.counts()
		require.Equal(t, [2]int{0, 20}, [2]int{left, sold})
	})
}

func TestComingLateIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := open(config{workers: 1, backend: inMemory})
		require.NoError(t, err)
		defer store.close()
		late, err := comeLate(t.Context(), store)
		require.NoError(t, err)
		require.ErrorIs(t, late.lost, dlock.ErrLost)
		require.ErrorIs(t, late.refusal, fence.ErrStale)
		require.Greater(t, late.fresh, late.stale)
	})
}

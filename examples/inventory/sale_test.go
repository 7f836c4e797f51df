package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestShopRefusesWhoeverIsBehind(t *testing.T) {
	s := newShop(2)
	_, err := s.read(8)
	require.NoError(t, err)
	_, err = s.read(16)
	require.NoError(t, err)
	require.ErrorIs(t, s.write(8, 1), errStale, "of a holder from before the last read")
	_, err = s.read(8)
	require.ErrorIs(t, err, errStale)
	require.NoError(t, s.write(16, 1))
	left, sold := s.counts()
	require.Equal(t, [2]int{1, 1}, [2]int{left, sold})
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
		require.ErrorIs(t, late.refusal, errStale)
		require.Greater(t, late.fresh, late.stale)
	})
}

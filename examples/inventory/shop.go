package main

import (
	"errors"
	"fmt"
	"sync"
)

var (
	errSoldOut = errors.New("sold out")
	errStale   = errors.New("stale holder")
)

// A shop keeps the stock, as a database would: each read and each write is
// atomic, but nothing keeps others from writing between the two. That is for
// those who sell to see to.
//
// It does refuse those whose lease is over: it remembers the largest fence that
// it has seen, of reads as well as writes, and lets nobody with a smaller one
// do either. (If reads did not count, a stale holder could still write after
// the next one has read.)
type shop struct {
	mu    sync.Mutex
	fence int64
	left  int // what the books say
	sold  int // what has been given away
}

func newShop(stock int) *shop { return &shop{left: stock} }

// read returns what is left. Those who have no lock have the fence 0.
func (s *shop) read(fence int64) (left int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left, s.admit(fence)
}

// write sells one item, after which so many are left.
func (s *shop) write(fence int64, left int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admit(fence); err != nil {
		return err
	}
	s.left = left
	s.sold++
	return nil
}

// admit returns an error that matches errStale if a larger fence has been seen.
func (s *shop) admit(fence int64) error {
	if fence < s.fence {
		return fmt.Errorf("%w: fence %d is behind %d", errStale, fence, s.fence)
	}
	s.fence = fence
	return nil
}

func (s *shop) counts() (left, sold int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left, s.sold
}

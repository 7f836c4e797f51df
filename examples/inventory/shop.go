package main

import (
	"errors"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock/fence"
)

var errSoldOut = errors.New("sold out")

// A shop keeps the stock, as a database would: each read and each write is
// atomic, but nothing keeps others from writing between the two. That is for
// those who sell to see to.
//
// It does refuse those whose lease is over: it remembers the Stamp that it has seen
// last, of reads as well as writes. (If reads did not count, a stale holder could still
// write after the next one has read.) In a database, fence.Table does that.
type shop struct {
	mu   sync.Mutex
	last fence.Stamp
	left int // what the books say
	sold int // what has been given away
}

func newShop(stock int) *shop { return &shop{left: stock} }

// read returns what is left. Those who have no lock have the zero Stamp.
func (s *shop) read(p fence.Stamp) (left int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left, s.admit(p)
}

// write sells one item, after which so many are left.
func (s *shop) write(p fence.Stamp, left int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admit(p); err != nil {
		return err
	}
	s.left = left
	s.sold++
	return nil
}

// admit returns an error that matches fence.ErrStale if a later holder has been here.
func (s *shop) admit(p fence.Stamp) error {
	if p != s.last && !s.last.Admits(p) {
		return fmt.Errorf("%w: %d, and this is %d", fence.ErrStale, s.last.Fence, p.Fence)
	}
	s.last = p
	return nil
}

func (s *shop) counts() (left, sold int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left, s.sold
}

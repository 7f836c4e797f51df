package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock"
)

var (
	errSoldOut = errors.New("sold out")
	errStale   = errors.New("stale holder")
)

// A shop keeps the stock, as a database would: each read and each write is
// atomic, but nothing keeps others from writing between the two. That is for
// those who sell to see to.
//
// It does refuse those whose lease is over: it remembers the pass that it has seen
// last, of reads as well as writes, and lets only that one and those with a larger
// fence do either. (If reads did not count, a stale holder could still write after
// the next one has read.)
type shop struct {
	mu   sync.Mutex
	last pass
	left int // what the books say
	sold int // what has been given away
}

// A pass goes along with each read and write of a lease. While a store fails over,
// two leases can have the same fence, so each has a random name as well. (The token
// of a lease would not do: it is a secret.)
type pass struct {
	fence int64
	lease string
}

func newPass(lease *dlock.Lease) pass { return pass{lease.Fence(), rand.Text()} }

func newShop(stock int) *shop { return &shop{left: stock} }

// read returns what is left. Those who have no lock have the zero pass.
func (s *shop) read(p pass) (left int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left, s.admit(p)
}

// write sells one item, after which so many are left.
func (s *shop) write(p pass, left int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admit(p); err != nil {
		return err
	}
	s.left = left
	s.sold++
	return nil
}

// admit returns an error that matches errStale if a larger fence has been seen, or
// the same fence with another lease.
func (s *shop) admit(p pass) error {
	switch {
	case p.fence < s.last.fence:
		return fmt.Errorf("%w: fence %d is behind %d", errStale, p.fence, s.last.fence)
	case p.fence == s.last.fence && p.lease != s.last.lease:
		return fmt.Errorf("%w: another lease has fence %d, too", errStale, p.fence)
	}
	s.last = p
	return nil
}

func (s *shop) counts() (left, sold int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left, s.sold
}

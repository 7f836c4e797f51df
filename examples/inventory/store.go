package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

const (
	ttl           = 2 * time.Second // how long the stock stays locked if this program is killed; the longest of all TTLs
	answerTimeout = 3 * time.Second // how long the store may take to show that it is there
)

// A store is where the locks are kept. Every worker has a Client of its own, as
// if it were a process of its own.
type store struct {
	key     string // names the lock on the stock
	clients []*dlock.Client
	hangUp  func() error
	quorum  *quorum // nil if it is one server, or memory
}

// open dials. Whether anybody answers may show only in the answers of the store.
func open(cfg config) (*store, error) {
	lockers, hangUp, err := dial(cfg)
	if err != nil {
		return nil, err
	}
	s := newStore(lockers, hangUp)
	if q, ok := lockers[0].(*quorum); ok {
		s.quorum = q
		for i, client := range s.clients {
			s.clients[i] = client.With(dlock.WithOutage(patience))
		}
	}
	return s, nil
}

// newStore returns a store with one Client for each Locker. hangUp is called
// when it is closed.
func newStore(lockers []dlock.Locker, hangUp func() error) *store {
	s := &store{key: newKey(), hangUp: hangUp}
	for i, locker := range lockers {
		owner := fmt.Sprintf("worker %d", i+1)
		s.clients = append(s.clients, dlock.New(locker, dlock.WithTTL(ttl), dlock.WithFence(true), dlock.WithOwner(owner)))
	}
	return s
}

// newKey returns a key that no other run of this program has. The tag in braces
// puts the keys of all runs into one hash slot, so that they share one counter of
// fences: it is all that a run leaves behind.
func newKey() string { return "{stock}:" + rand.Text()[:8] }

// client returns the Client of a worker, counted from 0.
func (s *store) client(worker int) *dlock.Client { return s.clients[worker%len(s.clients)] }

// guard lets a worker sell only while it holds the lock.
func (s *store) guard(worker int) guard {
	client := s.client(worker)
	return func(ctx context.Context, sell func(ctx context.Context, p fence.Stamp) error) error {
		return client.Do(ctx, s.key, func(ctx context.Context, lease *dlock.Lease) error {
			stamp, err := fence.Of(lease)
			if err != nil {
				return err
			}
			return sell(ctx, stamp)
		})
	}
}

// answers returns an error if the store does not answer the Client of every
// worker.
func (s *store) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for _, client := range s.clients {
		if _, err := client.Inspect(ctx, s.key); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return nil
}

// close returns the first error of a Client, or of hangUp. Each Client waits for
// the releases that it owes, so all are closed at once.
func (s *store) close() error {
	failed := make([]error, len(s.clients), len(s.clients)+1)
	var wg sync.WaitGroup
	for i, client := range s.clients {
		wg.Go(func() { failed[i] = client.Close() })
	}
	wg.Wait()
	return cmp.Or(append(failed, s.hangUp())...)
}
